"""Real processes and a bad network, judged by the checker: some seconds in every run, 50 fresh seeds in the long one.

The rounds run in a process of their own: the server that forks their actors ends with it. `CHAOS_SEEDS="4 128"` fixes
the seeds of both tests; a round that fails prints its seed, and where its history is.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

import pytest
from tests.chaos.round import stored

ROOT = Path(__file__).parents[2]


def chosen(count: int) -> list[str]:
    """The seeds asked for, or fresh ones: every other one for a stream with its log on disk."""
    fixed = os.environ.get("CHAOS_SEEDS", "").split()
    return fixed or [fresh(on_disk=bool(number % 2)) for number in range(count)]


def fresh(*, on_disk: bool) -> str:
    """A seed of that kind."""
    while (stored(seed := str(random.SystemRandom().randrange(2**32))) is not None) != on_disk:
        pass
    return seed


async def rounds(seeds: list[str], seconds: float, parallel: int, patience: float) -> str:
    """Run them, some at a time; returns what they said, and fails with it when a rule was broken."""
    print("seeds", *seeds)
    options = ["--seconds", str(seconds), "--parallel", str(parallel)]
    command = [sys.executable, "-m", "tests.chaos.round", *seeds, *options]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(patience):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode == 0, f"{out.decode()}\n{err.decode()[-4000:]}"
    return out.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is there on Linux only")
async def test_a_round_in_memory_and_one_on_disk() -> None:
    seeds = chosen(2)
    said = await rounds(seeds, 1.5, 2, 250)
    assert said.count("ok seed=") == len(seeds), said
    assert "given=0 " not in said, "nothing arrived, so nothing was shown"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is there on Linux only")
async def test_fifty_fresh_rounds() -> None:
    seeds = chosen(50)
    said = await rounds(seeds, 2.0, 3, 1500)
    assert said.count("ok seed=") == len(seeds), said

"""Real processes and a bad network, judged by the checker: one fresh round in every run, ten or more in the long one.

The rounds run in a process of their own: the server that forks their actors ends with it. `CHAOS_SEEDS="4 128"` fixes
the seeds of both tests; a round that fails prints its seed, and where its history is.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.scale import LONG
from tests.seeds import fresh_seed

ROOT = Path(__file__).parents[2]


def chosen(count: int) -> list[str]:
    """The seeds asked for, or fresh ones."""
    fixed = os.environ.get("CHAOS_SEEDS", "").split()
    return fixed or [str(fresh_seed()) for _ in range(count)]


async def rounds(seeds: list[str], patience: float, *options: str) -> str:
    """Run them; returns what they said, and fails with it when a rule was broken."""
    print("seeds", *seeds)
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
async def test_a_round() -> None:
    seeds = chosen(1)
    said = await rounds(seeds, PATIENCE * 3, "--seconds", "1.5")
    assert said.count("ok seed=") == len(seeds), said
    assert "given=0 " not in said, "nothing arrived, so nothing was shown"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
async def test_fresh_rounds_keep_every_promise() -> None:
    seeds = chosen(10 * LONG)
    every_kind = ["--every-kind"] if LONG >= 4 else []  # ten rounds seldom have them all
    said = await rounds(seeds, 1700 * LONG, "--seconds", "2", "--parallel", "3", *every_kind)
    print(said.splitlines()[-1])
    assert said.count("ok seed=") == len(seeds), said

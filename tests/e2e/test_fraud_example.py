"""examples/fraud: killed with -9 after hours that chance picks, and each alert is there once."""

import asyncio
import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.seeds import fresh_seed

import epochal

PROGRAM = Path(__file__).parents[2] / "examples" / "fraud" / "detect.py"
HOURS = 40


def payments(chance: random.Random) -> list[list[dict[str, Any]]]:
    """For each hour, what its accounts spend."""
    return [
        [{"account": chance.choice("ABCDE"), "amount": chance.randrange(500)} for _ in range(12)] for _ in range(HOURS)
    ]


@pytest.mark.rule("E16")
async def test_each_alert_is_there_once_whenever_the_program_is_killed(services, tmp_path: Path) -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    hours, database = payments(chance), tmp_path / "alerts.db"
    stream = await services.stream(encoding="json", segments=2, history={"storage": {"size": "1Gi"}})
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        for hour, records in enumerate(hours):
            for record in records:
                writer.append_nowait(hour, [record], key=record["account"].encode())
            writer.advance_nowait(hour + 1)
        await writer.finish()
    kills, printed, status = sorted(chance.sample(range(HOURS - 1), 4)), list[int](), -signal.SIGKILL
    while status == -signal.SIGKILL:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), stream, str(database),
            env={**os.environ, "EPOCHAL_CATALOG": services.url}, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE * 2):
            while line := await process.stdout.readline():
                printed.append(int(line))
                if kills and len(printed) > kills[0]:
                    kills.pop(0)
                    with suppress(ProcessLookupError):  # it ended in this moment
                        os.kill(process.pid, signal.SIGKILL)  # its own `kill` would take its status away from `wait`
                    break
            await process.communicate()
            status = await process.wait()
    assert status == 0
    assert len(kills) < 4, "else nothing was tried"
    assert printed == sorted(set(printed)), "no hour is read twice"
    with closing(sqlite3.connect(database)) as db:
        found = db.execute("select hour, account, spent from alerts order by hour, account").fetchall()
    spent = Counter[tuple[int, str]]()
    for hour, records in enumerate(hours):
        for record in records:
            spent[hour, record["account"]] += record["amount"]
    assert found == sorted((*key, amount) for key, amount in spent.items() if amount > 1000)

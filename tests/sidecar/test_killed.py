"""A sidecar killed at any moment of a task: the task fails, and run again it publishes each record once (fault 58)."""

import asyncio
import os
import random
import signal

import pytest
from tests.conftest import Services
from tests.patience import PATIENCE
from tests.seeds import fresh_seed
from tests.sidecar.conftest import Process, Start

import epochal
from epochal.errors import SidecarUnavailable

KILLS = int(os.environ.get("EPOCHAL_TEST_KILLS", "20"))
RECORDS, APPENDS = 5, 12


@pytest.mark.long
@pytest.mark.rule("E6", "E10")
async def test_killed_at_any_moment_each_epoch_is_exact(
    services: Services, start: Start, client: epochal.Client
) -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    stream = await services.stream(segments=2)
    failed = 0
    sidecar = await start()

    async def task(epoch: int) -> None:
        async with client.task_writer(stream, writer_id="task", under="query", group=epoch) as writer:
            for append in range(APPENDS):
                records = [[append, number] for number in range(RECORDS)]
                writer.append_nowait(epoch, records, key=b"%d" % append)
                await asyncio.sleep(0)
            await writer.flush()

    async def kill(process: Process) -> None:
        await asyncio.sleep(chance.uniform(0.0, 0.03))
        process.signal(signal.SIGKILL)

    async with client.capability_writer(stream, writer_id="query", direct=True) as query:
        for epoch in range(KILLS):
            killing = asyncio.create_task(kill(sidecar))
            try:
                await task(epoch)
            except SidecarUnavailable:
                failed += 1
            await killing
            await sidecar.ended()
            sidecar = await start()
            await task(epoch)
            await query.advance(epoch + 1)
        await query.finish()
    expected = sorted([append, number] for append in range(APPENDS) for number in range(RECORDS))
    seen = 0
    async with asyncio.timeout(PATIENCE), client.subscribe(stream, since="start") as sub:
        async for found in sub.epochs():
            assert isinstance(found, epochal.Epoch)
            assert (found.time, sorted(found.records())) == (seen, expected)
            seen += 1
    assert seen == KILLS
    print(f"{failed} of {KILLS} tries failed")
    assert failed > KILLS // 20, "the moments were those of a task"

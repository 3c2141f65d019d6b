"""The process that holds a batch job's capability: it outlives who started it, and ends with the driver."""

import asyncio
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import StreamNotFound, Unavailable
from epochal_spark.commit_channel import Committed, call_off, hand_over
from epochal_spark.holder import start_holder
from epochal_spark.options import SinkOptions


@pytest.fixture
def options(catalog: str, declare: Callable[..., str]) -> SinkOptions:
    return SinkOptions(declare(), catalog, "t", f"job/{uuid.uuid4().hex[:8]}", finish=True)


async def sleeper() -> asyncio.subprocess.Process:
    """Stands for Spark's driver."""
    return await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)


async def publish(client: epochal.Client, options: SinkOptions, at: int) -> None:
    """As a task does."""
    async with client.task_writer(options.stream, writer_id=f"{options.query}/0", under=options.query) as task:
        await task.append(at, [{"n": at}])


def until_gone(address: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        call_off(address)


async def test_a_commit_completes_and_finishes_and_then_the_process_is_gone(options: SinkOptions) -> None:
    driver = await sleeper()
    async with epochal.connect(options.catalog) as client, client.subscribe(options.stream) as sub:
        await sub.ready.wait()
        address = (await asyncio.to_thread(start_holder, options, driver.pid)).address
        await publish(client, options, 5)
        await asyncio.to_thread(hand_over, address, Committed(0, 5, 1))
        async with asyncio.timeout(PATIENCE):
            told = [epoch async for epoch in sub.epochs()]
            assert [(e.time, e.count) for e in told if isinstance(e, epochal.Epoch)] == [(5, 1)]
    with pytest.raises(Unavailable, match="left before"):
        await asyncio.to_thread(until_gone, address)
    driver.kill()
    await driver.wait()


@pytest.mark.rule("E3")
@pytest.mark.parametrize("end", ["call off", "driver"])
async def test_what_a_failed_job_published_is_aborted_at_once(options: SinkOptions, end: str) -> None:
    driver = await sleeper()
    async with epochal.connect(options.catalog) as client, client.subscribe(options.stream) as sub:
        await sub.ready.wait()
        address = (await asyncio.to_thread(start_holder, options, driver.pid)).address
        await publish(client, options, 5)
        if end == "call off":
            await asyncio.to_thread(call_off, address)
        else:
            driver.kill()  # the time-out of lost writers is longer than the test waits
        async with asyncio.timeout(PATIENCE):
            async for event in sub.events():
                if isinstance(event, epochal.EpochAborted):
                    assert event.time == 5
                    break
        assert sub.frontier() == (0,)
    if driver.returncode is None:
        driver.kill()
    await driver.wait()


async def test_what_keeps_it_from_opening_is_raised_where_it_was_started(options: SinkOptions) -> None:
    nowhere = replace(options, stream="test/nobody", wait=0.0)
    with pytest.raises(StreamNotFound, match="nobody"):
        await asyncio.to_thread(start_holder, nowhere, 1)

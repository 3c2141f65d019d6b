"""Bits that flip in flight (fault 20): counted, never believed, and healed from history where it still has the event.

TCP's own checksum has 16 bits; ours is the writer's CRC-32C of the payload, checked wherever it arrives.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from tests.chaos.proxy import loopback
from tests.patience import PATIENCE

import epochal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address")

WRITTEN, FLIPPED = b"the payload", b"the pcyload"


class Flipper:
    """A relay on another loopback address and the server's own port, which changes `times` payloads in one direction.

    `upwards`: what the client sends, else what it is sent.
    """

    def __init__(self, far: str, address: str, *, upwards: bool = False) -> None:
        self.far, self.port = far, int(address.rpartition(":")[2])
        self.times, self.flipped, self._upwards = 0, 0, upwards
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Flipper"]:
        async with await asyncio.start_server(self._accept, self.far, self.port) as server:
            yield self
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(
                self._pump(reader, far_writer, self._upwards), self._pump(far_reader, writer, not self._upwards)
            )
        for each in (writer, far_writer):
            each.close()
            with suppress(OSError):
                await each.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flips: bool) -> None:
        while chunk := await reader.read(1 << 16):
            if flips and self.flipped < self.times and WRITTEN in chunk:
                chunk = chunk.replace(WRITTEN, FLIPPED, 1)
                self.flipped += 1
            writer.write(chunk)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def through_flippers(start: Callable[..., Any], **spec: Any) -> AsyncIterator[tuple[Any, dict[str, Flipper]]]:
    far = loopback()
    stream, publisher = start({"advertise": far}, **spec)
    async with AsyncExitStack() as stack:
        flippers = {}
        for name in ("events", "requests", "ingest"):
            flipper = Flipper(far, publisher.addresses[name], upwards=name == "ingest")
            flippers[name] = await stack.enter_async_context(flipper.running())
        yield stream, flippers


def whole(epoch: epochal.Epoch | epochal.EpochAborted) -> tuple[Any, list[Any]]:
    assert isinstance(epoch, epochal.Epoch)
    return epoch.time, list(epoch.records())


@pytest.mark.parametrize("from_history", [False, True])
async def test_a_payload_that_was_damaged_on_its_way_is_fetched_again_and_never_given(start, from_history):
    async with through_flippers(start) as (stream, flippers), epochal.connect(stream.catalog) as client:  # noqa: SIM117
        async with (
            client.writer(stream.name) as writer,
            client.subscribe(stream.name) as reader,
            asyncio.timeout(PATIENCE),
        ):
            await reader.ready.wait()
            flippers["events"].times = 1
            flippers["requests"].times = int(from_history)
            for time in range(5):
                await writer.append(time, [WRITTEN])
                await writer.advance(time + 1)
            await writer.finish()
            given = [whole(epoch) async for epoch in reader.epochs()]
            _, counted = reader._report()
    assert flippers["events"].flipped == 1
    assert flippers["requests"].flipped == int(from_history)
    assert given == [(time, [WRITTEN]) for time in range(5)]
    assert counted["gaps"] == 0
    assert counted["healed"] >= 1
    assert counted["damaged"] == 1, "nobody would learn of it"


async def test_what_always_arrives_damaged_is_never_given(start):
    async with through_flippers(start) as (stream, flippers), epochal.connect(stream.catalog) as client:  # noqa: SIM117
        async with client.writer(stream.name) as writer, client.subscribe(stream.name) as reader:
            await reader.ready.wait()
            flippers["events"].times = flippers["requests"].times = 10**9
            await writer.append(0, [WRITTEN])
            await writer.advance(1)
            given = []
            async with asyncio.timeout(PATIENCE):
                async for event in reader.events():
                    given.append(event)
                    if isinstance(event, epochal.SegmentDown):
                        break
            assert not [event for event in given if isinstance(event, epochal.Data)]
            down = given[-1]
            assert isinstance(down, epochal.SegmentDown)
            assert "damaged" in down.reason
            assert reader.frontier() == (0,)


async def test_an_append_that_was_damaged_is_sent_again_and_logged_once(start):
    async with through_flippers(start) as (stream, flippers), epochal.connect(stream.catalog) as client:  # noqa: SIM117
        async with (
            client.writer(stream.name) as writer,
            client.subscribe(stream.name) as reader,
            asyncio.timeout(PATIENCE),
        ):
            await reader.ready.wait()
            flippers["ingest"].times = 1
            for record in (b"before", WRITTEN, b"behind"):
                await writer.append(0, [record])
            await writer.finish()
            given = [whole(epoch) async for epoch in reader.epochs()]
    assert given == [(0, [b"before", WRITTEN, b"behind"])]
    assert flippers["ingest"].flipped == 1

"""Many streams over one client: what they cost, that all is given back, and that none disturbs another."""

import asyncio
import os

import pytest
from tests.patience import PATIENCE
from tests.scale import LONG

import epochal
from epochal.errors import StreamGone

STREAMS = min(40 * LONG, 100)


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


async def write_and_read(client: epochal.Client, stream: str, epochs: int, opened: asyncio.Barrier) -> list[object]:
    async with client.subscribe(stream) as sub, client.writer(stream) as writer:
        await sub.ready.wait()
        await opened.wait()
        for time in range(epochs):
            await writer.append(time, [f"{stream} {time}"])
            await writer.advance(time + 1)
        await writer.finish()
        return [
            record async for epoch in sub.epochs() if isinstance(epoch, epochal.Epoch) for record in epoch.records()
        ]


async def many_at_once(services, count: int, *, deleted: int) -> None:
    starting = asyncio.Semaphore(8)  # a publisher is a process: on two cores a hundred at once would time out

    async def started() -> str:
        async with starting:
            return await services.stream()

    streams = await asyncio.gather(*(started() for _ in range(count)))
    doomed, streams = streams[:deleted], streams[deleted:]
    before = held()
    async with epochal.connect(services.url) as client:
        opened = asyncio.Barrier(len(streams) + 1)
        reading = [asyncio.create_task(write_and_read(client, stream, 5, opened)) for stream in streams]
        gone = [client.subscribe(stream) for stream in doomed]
        for sub in gone:
            await sub.__aenter__()
            await sub.ready.wait()
        async with asyncio.timeout(PATIENCE):
            await opened.wait()
            descriptors, threads = held()
            # load: what a client holds follows from what it has opened, however slowly
            assert descriptors < before[0] + 20 * count + 64
            # load: as above
            assert threads <= before[1] + 8, "threads do not follow the streams"
            for stream in doomed:
                await services.delete(stream)
            found = await asyncio.gather(*reading)
            for sub in gone:
                with pytest.raises(StreamGone):
                    await anext(sub.epochs())
                await sub.__aexit__(None, None, None)
        assert found == [[f"{stream} {time}" for time in range(5)] for stream in streams]
        assert not [socket for socket in list(client._context._sockets) if not socket.closed]
    async with asyncio.timeout(PATIENCE):
        while held()[0] > before[0] or held()[1] > before[1]:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.05)


async def test_several_streams_over_one_client(services) -> None:
    await many_at_once(services, 5, deleted=1)


@pytest.mark.long
async def test_many_streams_over_one_client(services) -> None:
    await many_at_once(services, STREAMS, deleted=3)

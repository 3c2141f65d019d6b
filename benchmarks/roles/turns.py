"""The parts of one version of Epochal that stay, and work when it is their turn: services, writer, reader.

Separate from `ours`, whose roles run once: these take turns of a part of a second with those of another version, so
that both are measured under the same load. Each waits for a line on its standard input: how many messages.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from harness.bench import Bench
from measures.durable import HISTORY

import epochal
from epochal.local import LocalMode
from roles.common import RECORD, age, at_once, paced, say, stamped, traced, turns


async def serve(streams: int, stored: int) -> None:
    """Local mode with so many streams in memory, and then so many with their history on disk.

    Tells where they are, and which code runs, and stays.
    """
    async with AsyncExitStack() as held:
        data = held.enter_context(tempfile.TemporaryDirectory())
        local = await held.enter_async_context(LocalMode(data=Path(data), port=0))
        bench = Bench(local, rounds=1, scale=1.0)
        names = []
        for each in [{}] * streams + [HISTORY] * stored:
            stream = await held.enter_async_context(bench.stream("turns", history=each, dedicated=False))
            names.append(stream.name)
        say(catalog=bench.catalog, streams=names, code=epochal.__file__)
        async for _ in _orders():
            pass


async def send(catalog: str, stream: str, batch: int, trace: int = 0) -> None:
    """Batches of so many records; 0 gives single records that the client gathers for a millisecond at most."""
    with traced(trace):
        await _send(catalog, stream, batch)


async def _send(catalog: str, stream: str, batch: int) -> None:
    records, every, number = [RECORD] * max(batch, 1), turns(max(batch, 1)), 0
    linger = 0.0 if batch else 0.001
    async with epochal.connect(catalog) as client, client.writer(stream, linger=linger) as writer:
        say(ready=True)
        async for messages in _orders():
            start = time.monotonic()
            for _ in range(messages):
                writer.append_nowait(number // every, records)
                number += 1
                if number % every == 0:
                    writer.advance_nowait(number // every)
                    await writer.drain()
            await writer.flush()
            say(start=start)


async def receive(catalog: str, stream: str) -> None:
    """Counts records, each unpacked where a batch has some; tells when the last of a turn came."""
    async with _data(catalog, stream) as batches:
        async for records in _orders():
            while records > 0:
                records -= len((await anext(batches)).records())
            say(end=time.monotonic())


async def send_paced(catalog: str, stream: str, rate: int) -> None:
    """Single records at a steady rate, each stamped with its moment; an epoch a turn."""
    time_now = 0
    async with epochal.connect(catalog) as client, client.writer(stream) as writer:

        async def one(_: int) -> None:
            writer.append_nowait(time_now, [stamped()])

        say(ready=True)
        async for messages in _orders():
            await paced(rate, messages, one)
            await writer.flush()
            time_now += 1
            await writer.advance(time_now)
            say(done=True)


async def receive_aged(catalog: str, stream: str) -> None:
    """The ages of the records of each turn at their arrival, in seconds."""
    async with _data(catalog, stream) as batches:
        async for messages in _orders():
            say(ages=[age((await anext(batches)).records()[0]) for _ in range(messages)])


async def append(catalog: str, stream: str, batch: int, together: int) -> None:
    """So many durable appends are under way at any time; an epoch a turn."""
    records, time_now = [RECORD] * batch, 0
    async with epochal.connect(catalog) as client, client.writer(stream) as writer:

        async def one(_: int) -> None:
            await writer.append(time_now, records)

        say(ready=True)
        async for messages in _orders():
            start = time.monotonic()
            await at_once(together, messages, one)
            say(start=start, end=time.monotonic())
            time_now += 1
            await writer.advance(time_now)


async def pull(catalog: str, stream: str, batch: int, filled: int) -> None:
    """Fills the history; each turn reads it from its start, from the first batch on."""
    async with epochal.connect(catalog) as client, client.writer(stream) as writer:
        for _ in range(filled):
            writer.append_nowait(0, [RECORD] * batch)
            await writer.drain()
        await writer.flush()
        say(ready=True)
        async for messages in _orders():
            async with client.subscribe(stream, since="start", partial=True) as subscription:
                start, received = 0.0, 0
                async for event in subscription.events():
                    if type(event) is epochal.Data:
                        start = start or time.monotonic()
                        received += 1
                        if received == messages:
                            break
                end = time.monotonic()
            say(start=start, end=end)


@asynccontextmanager
async def _data(catalog: str, stream: str) -> AsyncIterator[AsyncIterator[epochal.Data]]:
    """The batches of a stream, once it is joined."""
    async with epochal.connect(catalog) as client, client.subscribe(stream) as subscription:
        await subscription.ready.wait()
        say(ready=True)
        yield (event async for event in subscription.events() if type(event) is epochal.Data)


async def _orders() -> AsyncIterator[int]:
    """The numbers on standard input, until it ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield int(line)

"""Writers and subscribers of Epochal, through the public API alone."""

import asyncio
import sys
import time
from contextlib import AsyncExitStack

import epochal
from roles.common import APART, RECORD, age, at_once, paced, say, stamped, traced, turns, used


async def send_batches(catalog: str, stream: str, batch: int, messages: int, before: int = 0) -> None:
    """Explicit batches, pipelined; a completed epoch now and then, and a wait where credit runs out.

    It sends `before` messages first, and then waits for a line on its standard input.
    """
    records = [RECORD] * batch
    every = turns(batch)
    async with epochal.connect(catalog) as client, client.writer(stream) as writer:

        async def send(numbers: range) -> None:
            for number in numbers:
                writer.append_nowait(number // every, records)
                if number % every == every - 1:
                    writer.advance_nowait(number // every + 1)
                    await writer.drain()

        if before:
            await send(range(before))
            await writer.flush()
            say(ready=True)
            await asyncio.to_thread(sys.stdin.readline)
        start, idle = time.monotonic(), used()
        await send(range(before, before + messages))
        await writer.finish()
        say(start=start, cpu=used() - idle)


async def send_singly(catalog: str, stream: str, records: int) -> None:
    """One record an append, gathered for a millisecond at most."""
    every = turns(1)
    async with epochal.connect(catalog) as client, client.writer(stream, linger=0.001) as writer:
        start, before = time.monotonic(), used()
        for number in range(records):
            writer.append_nowait(number // every, [RECORD])
            if number % every == every - 1:
                writer.advance_nowait(number // every + 1)
                await writer.drain()
        await writer.finish()
        say(start=start, cpu=used() - before)


async def send_paced(catalog: str, stream: str, rate: int, messages: int, batch: int = 1, trace: int = 0) -> None:
    """Batches at a steady rate, each record stamped with its moment; says when it begins and when it has ended."""
    each, all_of_them = (trace, 0) if trace == APART else (0, trace)
    with traced(all_of_them):
        await _send_paced(catalog, stream, rate, messages, batch, each)


async def _send_paced(catalog: str, stream: str, rate: int, messages: int, batch: int, trace: int) -> None:
    async with epochal.connect(catalog) as client, client.writer(stream) as writer:

        async def send(number: int) -> None:
            with traced(trace):
                writer.append_nowait(0, [stamped()] * batch)

        before = used()
        say(begin=True)
        await paced(rate, messages, send)
        await writer.flush()
        say(done=True, cpu=used() - before)
        await writer.finish()


async def append(catalog: str, stream: str, batch: int, messages: int, together: int) -> None:
    """`together` appends are under way at any time; tells how many a second were acknowledged."""
    records = [RECORD] * batch
    async with epochal.connect(catalog) as client, client.writer(stream) as writer:
        start = time.monotonic()

        async def send(number: int) -> None:
            await writer.append(0, records)

        await at_once(together, messages, send)
        say(rate=messages / (time.monotonic() - start))


async def append_to_all(catalog: str, streams: str, batch: int, messages: int, together: int) -> None:
    """`append` to each of the streams, named by comma, all at the same time; tells the appends a second of all."""
    records = [RECORD] * batch
    async with epochal.connect(catalog) as client, AsyncExitStack() as opened:
        writers = [await opened.enter_async_context(client.writer(stream)) for stream in streams.split(",")]
        start = time.monotonic()

        async def send(writer: epochal.Writer) -> None:
            async def one(number: int) -> None:
                await writer.append(0, records)

            await at_once(together, messages, one)

        await asyncio.gather(*map(send, writers))
        say(rate=len(writers) * messages / (time.monotonic() - start))


async def pull(catalog: str, stream: str, messages: int) -> None:
    """Reads the history from its start; tells how many bytes of payload a second."""
    async with epochal.connect(catalog) as client:
        subscribing = client.subscribe(stream, since="start", partial=True, wait=60)
        start, received, size = time.monotonic(), 0, 0
        async with subscribing as subscription:
            async for event in subscription.events():
                if type(event) is epochal.Data:
                    start = start if received else time.monotonic()
                    received += 1
                    size += len(event.payload)
                    if received == messages:
                        break
        say(rate=size / (time.monotonic() - start))


async def receive(catalog: str, stream: str, messages: int, before: int = 0) -> None:
    """Counts batches as they arrive; it says when the first `before` are there, and counts from then on."""
    async with epochal.connect(catalog) as client, client.subscribe(stream) as subscription:
        await subscription.ready.wait()
        say(ready=True)
        idle, received = used(), 0
        async for event in subscription.events():
            if type(event) is epochal.Data:
                received += 1
                if received == before:
                    say(ready=True)
                    idle = used()
                if received == before + messages:
                    break
        say(messages=messages, end=time.monotonic(), cpu=used() - idle)


async def receive_records(catalog: str, stream: str, records: int) -> None:
    """Counts records, each unpacked."""
    async with epochal.connect(catalog) as client, client.subscribe(stream) as subscription:
        await subscription.ready.wait()
        say(ready=True)
        before = used()
        received = 0
        async for event in subscription.events():
            if type(event) is epochal.Data:
                received += len(event.records())
                if received >= records:
                    break
        say(messages=received, end=time.monotonic(), cpu=used() - before)


async def receive_aged(catalog: str, stream: str, messages: int, **way: str) -> None:
    """The age of every record at its arrival, in seconds. `way`: `via`, where there are relays."""
    ages: list[float] = []
    async with epochal.connect(catalog) as client, client.subscribe(stream, **way) as subscription:  # type: ignore[arg-type]
        await subscription.ready.wait()
        say(ready=True)
        async for event in subscription.events():
            if type(event) is epochal.Data:
                ages.append(age(event.records()[0]))
                if len(ages) == messages:
                    break
        say(ages=ages)

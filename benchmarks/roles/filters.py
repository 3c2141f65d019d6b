"""Writers and subscribers of some topics.

Apart from `ours` because what is pushed is counted here as it arrives, before the client looks at it.
"""

import asyncio
import sys
import time

import epochal
from epochal.client.subscriber.segment_reader import _Connection
from epochal.protocol import messages as m
from epochal.protocol import wire
from roles.common import RECORD, paced, say, used
from roles.crowd import Subscriber, context, read


def topic(number: int) -> bytes:
    """Of a hundred."""
    return b"t%02d/" % (number % 100)


async def send(catalog: str, stream: str, rate: int, messages: int, batch: int, times: int = 1) -> None:
    """Batches at a steady rate, each of the next topic; `times` times, each after a line on the standard input."""
    async with epochal.connect(catalog) as client, client.writer(stream) as writer:

        async def one(number: int) -> None:
            writer.append_nowait(0, [RECORD] * batch, topic=topic(number))

        say(ready=True)
        for _ in range(times):
            await asyncio.to_thread(sys.stdin.readline)
            before = used()
            await paced(rate, messages, one)
            await writer.flush()
            say(done=True, cpu=used() - before)
        await writer.finish()


def listen(requests: str, events: str, stream: str, segment: str, filters: int, every: int, expected: int) -> None:
    """Join `filters` subscribers, each with a filter of its own, and read what comes until all have `expected` bytes.

    Each wants one topic of a hundred; with `every`, all of them.
    """
    sockets = context(filters)
    crowd = [Subscriber(sockets, requests, events) for _ in range(filters)]
    for number, one in enumerate(crowd):
        wanted = ((b"t",), (b"z%02d" % number,)) if every else ((topic(number),), ())
        one.join(stream, segment, wanted)
    say(ready=True)
    read([one.events for one in crowd], expected)


async def receive(catalog: str, stream: str, messages: int, times: int) -> None:
    """A subscriber of one topic: the bytes that were pushed to it until it had `messages` batches, `times` times.

    Tells after how many pushed batches the publisher knew its filter, too.
    """
    pushed, batches = 0, 0
    take = _Connection._pushed

    def counted(connection: _Connection, frames: list[bytes]) -> None:
        nonlocal pushed, batches
        pushed += sum(map(len, frames))
        if connection.follower._upstream.stepping and frames[0][:1] == b"C":
            batches += sum(type(each) is m.Data for each in wire.decode(frames, prefix=wire.CHANNEL_PREFIX))
        take(connection, frames)

    _Connection._pushed = counted  # type: ignore[method-assign]
    async with epochal.connect(catalog) as client, client.subscribe(stream, topics=[topic(0)]) as subscription:
        await subscription.ready.wait()
        say(ready=True)
        received = 0
        async for event in subscription.events():
            if type(event) is not epochal.Data:
                continue
            received += 1
            if received % messages == 0:
                await asyncio.sleep(0.5)  # what is pushed beside it has come
                say(pushed=pushed, steps=batches, at=time.monotonic())
                pushed = 0
                if received == times * messages:
                    break

"""The processes that a benchmark starts: one role each, one JSON line of results on standard output.

Apart from `run.py` because every role must be a process of its own, as it would be in use: `python benchmarks/peers.py
ROLE key=value...`. Roles that receive print `{"ready": true}` once they are subscribed, and then `{"messages",
"seconds"}`: from the first message to the last.
"""

import asyncio
import json
import resource
import sys
import time
from typing import Any

import msgpack
import nats
import zmq

import epochal

RECORD = bytes(range(128))
IDLE = 5.0
"""Seconds without a message after which a receiver gives up and reports what it has."""


def say(**values: Any) -> None:
    """One line of results."""
    print(json.dumps(values), flush=True)


def used() -> float:
    """CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def epochal_send(catalog: str, stream: str, batch: int, messages: int) -> None:
    """Explicit batches, pipelined; a completed epoch now and then, and a wait where credit runs out."""
    records = [RECORD] * batch
    every = max(1, min(1000, 2**22 // (128 * batch)))
    async with epochal.connect(catalog) as client, client.writer(stream) as writer:
        start = time.monotonic()
        for number in range(messages):
            writer.append_nowait(number // every, records)
            if number % every == every - 1:
                writer.advance_nowait(number // every + 1)
                await writer.drain()
        await writer.finish()
        say(start=start, cpu=used())


async def epochal_receive(catalog: str, stream: str, messages: int) -> None:
    """Counts batches as they arrive."""
    async with epochal.connect(catalog) as client, client.subscribe(stream) as subscription:
        await subscription.ready.wait()
        say(ready=True)
        received = 0
        async for event in subscription.events():
            if type(event) is epochal.Data:
                received += 1
                if received == messages:
                    break
        say(messages=received, end=time.monotonic(), cpu=used())


async def nats_send(url: str, subject: str, batch: int, messages: int) -> None:
    """The same with nats-py: records packed alike, a flush now and then."""
    records = [RECORD] * batch
    every = max(1, min(1000, 2**22 // (128 * batch)))
    connection = await nats.connect(url)
    start = time.monotonic()
    for number in range(messages):
        await connection.publish(subject, msgpack.packb(records))
        if number % every == every - 1:
            await connection.flush()
    await connection.flush()
    say(start=start, cpu=used())
    await connection.close()


async def nats_receive(url: str, subject: str, messages: int) -> None:
    """Counts messages as they arrive; limits are raised so that none is dropped here."""
    connection = await nats.connect(url)
    subscription = await connection.subscribe(subject, pending_msgs_limit=10**7, pending_bytes_limit=2**33)
    await connection.flush()
    say(ready=True)
    received, end = 0, 0.0
    try:
        while received < messages:
            await subscription.next_msg(timeout=IDLE)
            received += 1
            end = time.monotonic()
    except nats.errors.TimeoutError:
        pass
    say(messages=received, end=end, cpu=used())
    await connection.close()


def raw_send(address: str, batch: int, messages: int) -> None:
    """PUSH of packed records without anything else: the limit of the library."""
    records = [RECORD] * batch
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)
        start = time.monotonic()
        for _ in range(messages):
            socket.send(msgpack.packb(records))
        say(start=start, cpu=used())


def raw_receive(address: str, messages: int) -> None:
    """PULL and count."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(address)
        say(ready=True)
        for _ in range(messages):
            socket.recv()
        say(messages=messages, end=time.monotonic(), cpu=used())


def main() -> None:
    """Run the role named by the first argument with the rest as keyword arguments; numbers become ints."""
    role = globals()[sys.argv[1]]
    pairs = (argument.split("=", 1) for argument in sys.argv[2:])
    arguments = {key: int(value) if value.isdigit() else value for key, value in pairs}
    outcome = role(**arguments)
    if asyncio.iscoroutine(outcome):
        asyncio.run(outcome)


if __name__ == "__main__":
    main()

"""What roles share: the record, the pace, and how results are told.

Apart from the roles so that every system is given the same work.
"""

import asyncio
import contextlib
import json
import random
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

RECORD = bytes(range(128))
IDLE = 5.0
"""Seconds without a message after which a receiver gives up and tells what it has."""
PACE = 0.001
"""Seconds between the bursts of a paced sender: the finest that an event loop keeps."""


def say(**values: Any) -> None:
    """One line of results."""
    print(json.dumps(values), flush=True)


def used() -> float:
    """CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def turns(batch: int) -> int:
    """After how many messages of `batch` records a sender looks up: some 4 MiB, at most 1,000 messages."""
    return max(1, min(1000, 2**22 // (len(RECORD) * batch)))


async def paced(rate: int, messages: int, send: Callable[[int], Awaitable[None]]) -> None:
    """Call `send` `rate` times a second, a burst every `PACE` seconds, whatever it takes."""
    start, sent = time.monotonic(), 0
    while sent < messages:
        due = min(messages, int((time.monotonic() - start) * rate) + 1)
        while sent < due:
            await send(sent)
            sent += 1
        await asyncio.sleep(PACE)


async def at_once(together: int, messages: int, send: Callable[[int], Awaitable[None]]) -> None:
    """Call `send` for every message, `together` of them under way at any time."""
    numbers = iter(range(messages))

    async def some() -> None:
        for number in numbers:
            await send(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(together):
            tasks.create_task(some())


def stamped() -> bytes:
    """A record that carries the moment of its making."""
    return time.monotonic_ns().to_bytes(8, "big") + RECORD[8:]


def age(record: bytes) -> float:
    """Seconds since a record was made; the clock is the machine's, so processes agree on it."""
    return (time.monotonic_ns() - int.from_bytes(record[:8], "big")) / 1e9


LOADED, UNSAMPLED, SAMPLED, APART = 1, 2, 3, 4
"""What a writer traces: nothing, with the API loaded; or all within one span; or `APART`, each batch in its own."""


@contextlib.contextmanager
def traced(how: int) -> Iterator[None]:
    """Have a span current as a program that traces would; 0: the API is not even loaded."""
    if not how:
        yield
        return
    from opentelemetry import trace

    if how == LOADED:
        yield
        return
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if how != UNSAMPLED else trace.TraceFlags.DEFAULT)
    context = trace.SpanContext(random.getrandbits(128) or 1, random.getrandbits(64) or 1, False, flags)
    with trace.use_span(trace.NonRecordingSpan(context)):
        yield

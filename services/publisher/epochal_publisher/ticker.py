"""One timer for all streams of a process: with a timer for each, idle streams would wake it all the time."""

import asyncio
from contextvars import Context, copy_context
from typing import NamedTuple, Protocol

BETWEEN_TURNS = 32
"""Streams that tick before other tasks get a turn."""


class Ticking(Protocol):
    """A stream whose time passes in ticks."""

    def tick(self) -> None:
        """Let time pass."""
        ...


class _Kept(NamedTuple):
    failed: "asyncio.Future[None]"
    context: Context
    """The context of the stream's own task, so that log lines of a tick name the stream."""


class Ticker:
    """Lets every stream tick each `interval` seconds, while `run` runs.

    A stream whose tick fails ends with that error, and no other does.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._streams: dict[Ticking, _Kept] = {}

    async def keep_time(self, stream: Ticking) -> None:
        """Tick for ever. Raises what a tick of this stream raises."""
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._streams[stream] = _Kept(failed, copy_context())
        try:
            await failed
        finally:
            del self._streams[stream]

    async def run(self) -> None:
        """Tick for ever, also when single streams fail."""
        while True:
            await asyncio.sleep(self._interval)
            for number, (stream, (failed, context)) in enumerate(list(self._streams.items()), 1):
                if not failed.done():
                    try:
                        context.run(stream.tick)
                    except Exception as error:  # raised in `keep_time` of this stream
                        failed.set_exception(error)
                if number % BETWEEN_TURNS == 0:
                    await asyncio.sleep(0)

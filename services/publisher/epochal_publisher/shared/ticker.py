"""One clock for all streams of a process: a timer for each would wake the process as often as there are streams."""

import asyncio
from typing import Protocol

BETWEEN_TURNS = 32
"""Streams that tick before other tasks get a turn."""


class Ticking(Protocol):
    """A stream, to which time passes in ticks."""

    def tick(self) -> None:
        """Let time pass."""
        ...


class Ticker:
    """Lets every stream tick each `interval` seconds, while `run` runs.

    A stream whose tick fails ends with that error, and no other does.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._streams: dict[Ticking, asyncio.Future[None]] = {}

    async def keep_time(self, stream: Ticking) -> None:
        """Tick for ever. Raises what a tick of this stream raises."""
        failed = self._streams[stream] = asyncio.get_running_loop().create_future()
        try:
            await failed
        finally:
            del self._streams[stream]

    async def run(self) -> None:
        """Tick for ever, whatever becomes of single streams."""
        while True:
            await asyncio.sleep(self._interval)
            for number, (stream, failed) in enumerate(list(self._streams.items()), 1):
                if not failed.done():
                    try:
                        stream.tick()
                    except Exception as error:  # it is raised where the stream is kept
                        failed.set_exception(error)
                if number % BETWEEN_TURNS == 0:
                    await asyncio.sleep(0)

"""A line on a terminal that says each second how far a benchmark is."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from epochal.cli.io.terminal import is_live, lost_when_closed
from epochal.transport.shutdown import ended

INTERVAL = 1.0
"""Seconds between two lines."""
_CLEAR = "\r\x1b[K"


@asynccontextmanager
async def progress(words: Callable[[float], str]) -> AsyncIterator[None]:
    """Write `words(seconds since the last)` in one line of standard error again and again; nothing without a terminal.

    The line is gone at the end.
    """
    if not is_live(sys.stderr):
        yield
        return
    writing = asyncio.create_task(_write(words), name="progress")
    try:
        yield
    finally:
        await ended([writing])
        _put(_CLEAR)


async def _write(words: Callable[[float], str]) -> None:
    loop = asyncio.get_running_loop()
    last = loop.time()
    while True:
        await asyncio.sleep(INTERVAL)
        now = loop.time()
        text = words(now - last)
        last = now
        _put(f"{_CLEAR}{text[: shutil.get_terminal_size().columns - 1]}")


def _put(text: str) -> None:
    with lost_when_closed():
        sys.stderr.write(text)
        sys.stderr.flush()

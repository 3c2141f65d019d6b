"""Turns for heavy starts: a few run at once, the others wait, and one that takes long does not delay the rest.

Used where many things are started: a machine on which all of them begin together gets none of them ready in time.
"""

import asyncio
from types import TracebackType
from typing import Self


class Turns:
    """At most `most` turns at once; after `seconds` a turn no longer counts, though its holder may go on."""

    def __init__(self, most: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(most)
        self._seconds = seconds

    async def take(self) -> "Turn":
        """Wait for a turn, in the order of the calls. Give it back, or enter it as a context."""
        await self._free.acquire()
        return Turn(self._free, self._seconds)


class Turn:
    """One turn, until `give_back`, the end of the context or the end of its time."""

    def __init__(self, free: asyncio.Semaphore, seconds: float) -> None:
        self._free = free
        self._over = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self.give_back)

    def give_back(self) -> None:
        """Let the next one begin. Doing so again does nothing."""
        if not self._over:
            self._over = True
            self._timer.cancel()
            self._free.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

"""Lookups that wait: each is woken when its stream changes, and then looks again.

Separate from the service because three rules hold for every lookup: all that wait for a stream are woken together, a
cancelled one is forgotten, and their number is bounded (S27).
"""

import asyncio

from epochal.service.errors import Overloaded, ShuttingDown


class WaitingRoom:
    """The waiting lookups, by stream name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        """How many wait now."""
        return self._count

    async def wait(self, name: str) -> None:
        """Return at the next change of the stream. Raises `Overloaded` when the room is full, `ShuttingDown`."""
        if self._closed:
            raise ShuttingDown("the catalog is stopping; ask again in a moment")
        if self._count >= self._limit:
            raise Overloaded(f"{self._limit} lookups are waiting already; ask again later, or without wait")
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(name, set()).add(waiter)
        self._count += 1
        try:
            await waiter
        finally:
            self._leave(name, waiter)

    def wake(self, name: str) -> None:
        """Wake all that wait for the stream."""
        for waiter in self._waiters.get(name, ()):
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Refuse all that wait, and every later one, with `ShuttingDown`."""
        self._closed = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(ShuttingDown("the catalog is stopping; ask again in a moment"))

    def _leave(self, name: str, waiter: asyncio.Future[None]) -> None:
        self._count -= 1
        waiters = self._waiters[name]
        waiters.discard(waiter)
        if not waiters:
            del self._waiters[name]

"""Lookups in large numbers: answers kept as bytes, and the lookups that wait for a change.

Most requests to a catalog are the same lookup again and again, from clients that all start at once; making its JSON
takes a third of the time of a lookup (docs/performance.md). So an answer is kept while nothing in it has changed. When
a stream changes, all lookups that wait for it are woken and look again. A cancelled one is forgotten, and their number
is bounded (S27).
"""

import asyncio
import json
from collections.abc import Callable

from epochal.service.errors import Overloaded, ShuttingDown

AGE = 0.1
"""Seconds after which an answer is made again in any case, because it contains durations up to now."""


class LookupCache:
    """Answers by key, all of the same version of the state."""

    def __init__(self) -> None:
        self._version = -1
        self._answers: dict[str, tuple[float, bytes]] = {}

    def answer(self, key: str, version: int, now: float, make: Callable[[], object]) -> bytes:
        """The JSON of `make()`, or its earlier result for this key and `version` if less than `AGE` seconds old."""
        if version != self._version:
            self._version = version
            self._answers.clear()
        made, body = self._answers.get(key, (-AGE, b""))
        if not body or not 0 <= now - made < AGE:
            body = json.dumps(make()).encode()
            self._answers[key] = now, body
        return body


class LookupWaiters:
    """The waiting lookups, by stream name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        """How many wait now."""
        return self._count

    @property
    def half_full(self) -> bool:
        """Whether half of the places for waiting lookups are taken."""
        return 2 * self._count >= self._limit

    async def wait(self, name: str) -> None:
        """Return at the next change of the stream. Raises `Overloaded` if all places are taken, `ShuttingDown`."""
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
        """Refuse all waiting lookups, and every later one, with `ShuttingDown`."""
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

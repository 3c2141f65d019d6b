"""Which streams are to be looked at, and when: each at most once in the queue, and never by two workers at once.

Apart from the reconciling because it knows no streams, only names.
"""

import asyncio
from collections import deque
from time import monotonic

from epochal_operator.cache import Place


class WorkQueue:
    """Names in order of arrival. `first` and `last`: seconds between tries of one that fails, doubling."""

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = first, last
        self._ready: deque[Place] = deque()
        self._queued: set[Place] = set()
        self._again: set[Place] = set()
        self._later: dict[Place, asyncio.TimerHandle] = {}
        self._failures: dict[Place, int] = {}
        self._news = asyncio.Event()
        self.running: dict[Place, float] = {}
        """Under way, since when."""

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, place: Place, after: float = 0.0) -> None:
        """Look at it, now or `after` seconds; sooner wins."""
        later = self._later.get(place)
        if after > 0:
            loop = asyncio.get_running_loop()
            if later is None or later.when() > loop.time() + after:
                if later is not None:
                    later.cancel()
                self._later[place] = loop.call_later(after, self._due, place)
        elif place in self.running:
            self._again.add(place)
        elif place not in self._queued:
            self._queued.add(place)
            self._ready.append(place)
            self._news.set()

    async def get(self) -> Place:
        """The next one; call `done` with it."""
        while not self._ready:
            self._news.clear()
            await self._news.wait()
        place = self._ready.popleft()
        self._queued.remove(place)
        self.running[place] = monotonic()
        return place

    def done(self, place: Place, *, failed: bool = False, after: float | None = None) -> None:
        """It was looked at. One that failed is tried again; `after`: when to look again anyway."""
        del self.running[place]
        if failed:
            tries = self._failures[place] = self._failures.get(place, 0) + 1
            after = min(self._first * 2.0 ** (tries - 1), self._last)
        else:
            self._failures.pop(place, None)
        if place in self._again:
            self._again.remove(place)
            after = min(after, self._first) if failed and after is not None else 0.0
        if after is not None:
            self.add(place, after)

    def _due(self, place: Place) -> None:
        self._later.pop(place, None)
        self.add(place)

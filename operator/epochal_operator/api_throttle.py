"""When the API server is in trouble: one request at a time, and none before it wants one.

Apart from the requests because it is about time only. An API server that answers 429 or 5xx, or nothing, is asked at
most once a second, and not before the `Retry-After` that it sent (fault 39); the first good answer ends that.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

FIRST, LAST = 1.0, 20.0
"""Seconds between requests, from the first failure on."""


class Trouble:
    """Whether there is trouble, and whose turn it is meanwhile."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._pause = 0.0
        self._not_before = 0.0
        self._one = asyncio.Lock()

    @property
    def there_is(self) -> bool:
        """Whether the last answer was no answer to the question."""
        return self._pause > 0

    def began(self, retry_after: float) -> None:
        """The API server failed; `retry_after`: the seconds that it asked for."""
        now = self._clock()
        if now >= self._not_before:  # requests that fail together count once
            self._pause = min(max(self._pause * 2, FIRST), LAST)
        self._not_before = max(self._not_before, now + max(self._pause, retry_after))

    def over(self) -> None:
        """The API server answers again."""
        self._pause = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until a request may be made; without trouble at once, and beside others."""
        if not self.there_is:
            yield
            return
        async with self._one:
            await asyncio.sleep(max(0.0, self._not_before - self._clock()))
            yield

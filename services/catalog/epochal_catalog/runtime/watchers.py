"""Watchers: each gets every change in order, at the pace at which it reads, and never slows down another (S26).

These are the rules about connections: their number is bounded, a watcher that does not read is cut, and all end when
the catalog stops. The history of changes is in `domain.change_history`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from epochal.service.errors import Overloaded, ShuttingDown
from epochal_catalog.domain.change_history import ChangeHistory

_PIECE = 1 << 16
"""About how many bytes are written to a connection at a time."""
_HEARTBEAT = b": still here\n\n"


class Watcher:
    """One connection that follows the changes after `revision`; `cut` closes it at once."""

    def __init__(
        self, history: ChangeHistory, revision: int, opening: bytes, queue: int, cut: Callable[[], None]
    ) -> None:
        self.news = asyncio.Event()
        self.ended = False
        self._history = history
        self._revision = revision
        self._opening = opening
        self._cut = cut
        self._queue = queue
        self._allowed = max(queue, history.behind(revision))  # one that resumes must first catch up

    def notify(self) -> bool:
        """Notify the watcher of new changes; returns whether it lagged too far behind and is cut."""
        self.news.set()
        too_far = self._history.behind(self._revision) > self._allowed or self._revision < self._history.floor
        if too_far and not self.ended:
            self.end()
            self._cut()
        return too_far

    def end(self) -> None:
        """Write nothing more after the write that is under way."""
        self.ended = True
        self.news.set()

    async def run(self, write: Callable[[bytes], Awaitable[None]], heartbeat: float) -> None:
        """Write every change as it comes, and a comment after `heartbeat` seconds without a change."""
        await write(self._opening)
        while not self.ended:
            data, self._revision = self._history.read(self._revision, _PIECE)
            if data:  # its allowed lag shrinks as it catches up, and never grows again
                self._allowed = max(self._queue, min(self._allowed, self._history.behind(self._revision)))
                await write(data)
                continue
            self.news.clear()
            try:
                async with asyncio.timeout(heartbeat):
                    await self.news.wait()
            except TimeoutError:
                await write(_HEARTBEAT)


class Watchers:
    """All watchers. `queue`: changes that one may lag behind; `on_cut` is called for each that is cut."""

    def __init__(self, history: ChangeHistory, limit: int, queue: int, on_cut: Callable[[], None]) -> None:
        self._history = history
        self._limit = limit
        self._queue = queue
        self._on_cut = on_cut
        self._watchers: set[Watcher] = set()
        self._closed = False

    def __len__(self) -> int:
        """The number of watchers."""
        return len(self._watchers)

    @contextmanager
    def enter(self, since: int | None, cut: Callable[[], None]) -> Iterator[Watcher]:
        """Add a watcher of the changes after `since`, or from now on, while the context is entered.

        Raises `HistoryTruncated`, `RevisionAhead`, `Overloaded`, `ShuttingDown`.
        """
        if self._closed:
            raise ShuttingDown("the catalog is stopping; watch again in a moment")
        if len(self._watchers) >= self._limit:
            raise Overloaded(f"{self._limit} watch already (EPOCHAL_CATALOG_MAX_WATCHERS); try again later")
        opening = b"retry: 1000\n\n"
        if since is None:
            since = self._history.newest
            opening += f"id: {since}\nevent: snapshot\ndata: {json.dumps({'revision': since})}\n\n".encode()
        self._history.check(since)
        watcher = Watcher(self._history, since, opening, self._queue, cut)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def notify(self) -> None:
        """Notify all watchers of new changes, and cut those that lag too far behind."""
        for watcher in list(self._watchers):
            if watcher.notify():
                self._watchers.discard(watcher)
                self._on_cut()

    def close(self) -> None:
        """End all watches, and refuse every later one; the watchers reconnect to the next process."""
        self._closed = True
        for watcher in self._watchers:
            watcher.end()

"""Session numbers of writers, from the catalog; for a writer id that comes often, the next number is fetched ahead.

A number is for one writer, and fences the sessions before it (E6 sessions). The catalog syncs each number to its disk,
and a Spark task would wait for that when it opens. So when a session has left every segment, and the session before it
came through this sidecar too, the next number is requested at once, while no writer waits for it. The catalog gives it
only if the session that left is still the newest, so that it never fences an open session.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import quote

from epochal.client.catalog.answers import get
from epochal.client.catalog.http import HttpCaller
from epochal.errors import EpochalError

AHEAD = 30.0
"""Seconds for which a number that was fetched ahead may be used. A number is fetched ahead only for a writer id that
came again within this time. Later, a session has likely been opened elsewhere."""
PATIENCE = 2.0
"""Seconds to wait for a number that is being fetched ahead, before a new one is requested."""
MOST_WRITERS = 4096
"""Writer ids that are remembered; the one that opened a session longest ago is forgotten first."""

SessionKey = tuple[str, str]
"""The path of the stream at the catalog, and the writer id."""


@dataclass(slots=True)
class KnownWriter:
    """A writer id that has opened a session through this sidecar."""

    newest: int
    """The newest session number that this sidecar has for it."""
    given: float
    """When a number was last given to a writer."""
    ours: bool = False
    """Whether this sidecar had the number before too, not long ago: then the writer id is likely to come again."""
    ahead: "asyncio.Task[dict[str, Any] | None] | None" = None
    requested: float = 0.0
    """When the number ahead was requested."""


class Sessions:
    """Gives session numbers to writers; `ahead` counts those that had been fetched ahead."""

    def __init__(self, http: HttpCaller) -> None:
        self._http = http
        self._writers: dict[SessionKey, KnownWriter] = {}
        self._tasks = set[asyncio.Task[dict[str, Any] | None]]()
        self.ahead = 0

    async def close(self) -> None:
        """Cancel all requests for numbers ahead."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def give(self, path: str, writer: str) -> dict[str, Any]:
        """The catalog's answer for a new session, with `ahead` true if it was fetched ahead. Raises as `fresh` does."""
        known = self._writers.get((path, writer))
        if known is not None and known.ahead is not None:
            task, known.ahead = known.ahead, None
            await asyncio.wait((task,), timeout=PATIENCE)
            session = task.result() if task.done() and not task.cancelled() else None
            if session is not None and monotonic() - known.requested < AHEAD:
                self.ahead, known.given = self.ahead + 1, monotonic()
                self._writers[path, writer] = self._writers.pop((path, writer), known)  # to the end: it opened last
                return {**session, "ahead": True}
            task.cancel()
        return await self.fresh(path, writer)

    async def fresh(self, path: str, writer: str) -> dict[str, Any]:
        """The catalog's answer for a new session, requested now. Raises `EpochalError`."""
        session = await self._ask(path, writer)
        known = self._forget((path, writer))
        now = monotonic()
        ours = known is not None and session.get("before") == known.newest and now - known.given < AHEAD
        self._writers[path, writer] = KnownWriter(session["session"], now, ours)
        while len(self._writers) > MOST_WRITERS:
            self._forget(next(iter(self._writers)))
        return session

    def left(self, path: str, writer: str, number: int) -> None:
        """Session `number` of a writer has left every segment."""
        known = self._writers.get((path, writer))
        if known is not None and known.ours and known.newest == number and known.ahead is None:
            known.requested = monotonic()
            known.ahead = asyncio.create_task(self._ask_ahead(known, path, writer, number))
            self._tasks.add(known.ahead)
            known.ahead.add_done_callback(self._tasks.discard)

    async def _ask_ahead(self, known: KnownWriter, path: str, writer: str, number: int) -> dict[str, Any] | None:
        try:
            session = await self._ask(path, writer, {"after": str(number)})
        except EpochalError:  # most often because another session was opened meanwhile
            known.ours = False
            return None
        known.newest = session["session"]
        return session

    async def _ask(self, path: str, writer: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        address = f"{path}/writers/{quote(writer, safe='')}/sessions"
        _, session = await self._http.call("POST", address, params=params)
        get(session, "session", int)
        return dict(session)

    def _forget(self, key: SessionKey) -> KnownWriter | None:
        known = self._writers.pop(key, None)
        if known is not None and known.ahead is not None:
            known.ahead.cancel()
        return known

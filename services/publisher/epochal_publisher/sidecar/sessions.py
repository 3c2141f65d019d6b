"""Numbers of writers' sessions, from the catalog; the next one ahead for a writer id that keeps coming here.

Separate from look-ups, which may be remembered: a number is given to one writer and fences those before (E6). The
catalog syncs each to its disk, for which the opening of a Spark task would wait. So when a session has left every
segment, the number of the next one is asked for while nobody waits, if the sessions before it were this sidecar's too.
It is given out only if the session that left is still the newest, so that it never fences one that is open.
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
"""Seconds for which a number that was asked for ahead is given out, and within which a writer must come again to have
one: later somebody else has likely opened."""
PATIENCE = 2.0
"""Seconds to wait for one that is being asked for, before another is."""
MOST_WRITERS = 4096
"""Writer ids that are remembered; the one that opened longest ago is forgotten first."""

Key = tuple[str, str]
"""The path of the stream at the catalog, and the writer id."""


@dataclass(slots=True)
class KnownWriter:
    """A writer id that has opened here."""

    newest: int
    """The newest number that this sidecar has of it."""
    given: float
    """When one was given out last."""
    ours: bool = False
    """Whether the number before that one was this sidecar's too, and not long ago: it is likely to come again."""
    ahead: "asyncio.Task[dict[str, Any] | None] | None" = None
    asked: float = 0.0
    """When the number ahead was asked for."""


class Sessions:
    """Gives numbers out; `ahead` counts those that had been asked for before."""

    def __init__(self, http: HttpCaller) -> None:
        self._http = http
        self._writers: dict[Key, KnownWriter] = {}
        self._tasks = set[asyncio.Task[dict[str, Any] | None]]()
        self.ahead = 0

    async def close(self) -> None:
        """Ask for nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def give(self, path: str, writer: str) -> dict[str, Any]:
        """The catalog's answer for a new session, with `ahead` true if it was asked for before; raises as it does."""
        known = self._writers.get((path, writer))
        if known is not None and known.ahead is not None:
            task, known.ahead = known.ahead, None
            await asyncio.wait((task,), timeout=PATIENCE)
            session = task.result() if task.done() and not task.cancelled() else None
            if session is not None and monotonic() - known.asked < AHEAD:
                self.ahead, known.given = self.ahead + 1, monotonic()
                self._writers[path, writer] = self._writers.pop((path, writer), known)  # the one that opened last
                return {**session, "ahead": True}
            task.cancel()
        return await self.fresh(path, writer)

    async def fresh(self, path: str, writer: str) -> dict[str, Any]:
        """The same, asked for now."""
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
            known.asked = monotonic()
            known.ahead = asyncio.create_task(self._ask_ahead(known, path, writer, number))
            self._tasks.add(known.ahead)
            known.ahead.add_done_callback(self._tasks.discard)

    async def _ask_ahead(self, known: KnownWriter, path: str, writer: str, number: int) -> dict[str, Any] | None:
        try:
            session = await self._ask(path, writer, {"after": str(number)})
        except EpochalError:  # most often: another has opened meanwhile
            known.ours = False
            return None
        known.newest = session["session"]
        return session

    async def _ask(self, path: str, writer: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        address = f"{path}/writers/{quote(writer, safe='')}/sessions"
        _, session = await self._http.call("POST", address, params=params)
        get(session, "session", int)
        return dict(session)

    def _forget(self, key: Key) -> KnownWriter | None:
        known = self._writers.pop(key, None)
        if known is not None and known.ahead is not None:
            known.ahead.cancel()
        return known

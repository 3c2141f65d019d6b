"""Look-ups at the catalog for writers: one answer serves all writers that ask at about the same time.

An answer is remembered for `remember` seconds. It can become wrong in two ways. If a publisher has moved, the writer
notices that itself (E48). If the stream was deleted and created again, the uid in the answer for its session differs.
Sessions are never remembered (see `sessions`), because each one fences the one before (E6 sessions).
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from epochal.client.catalog.http import HttpCaller
from epochal.errors import EpochalError, NoPublisher, RemoteProtocolError, StreamNotFound
from epochal.protocol import messages as m
from epochal.resources.names import parse_stream_name
from epochal_publisher.sidecar.sessions import Sessions

PATIENCE = 10.0
"""Seconds for which an unreachable catalog is tried again; after that, the writer must ask again."""
TRY = 10.0
MAX_WAIT = 20.0
"""Seconds of one look-up at the catalog; a longer wait takes several look-ups."""
MOST_REMEMBERED = 1024

LookupKey = tuple[str, tuple[str, ...]]
LookedUp = tuple[str, bytes]
"""A stream's uid, and the look-up as JSON."""


def _json(found: dict[str, Any]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _path(stream: str) -> str:
    namespace, name = parse_stream_name(stream, "default")
    return f"/v1/streams/{quote(namespace, safe='')}/{quote(name, safe='')}"


class CatalogLookups:
    """Answers `Ask`; calls `found(addresses)` for the publishers that the catalog names."""

    def __init__(self, catalog: str, found: Callable[[Iterable[str]], None], *, remember: float) -> None:
        self._http = HttpCaller(catalog, patience=PATIENCE, timeout=TRY)
        self.sessions = Sessions(self._http)
        self._found = found
        self._remember = remember
        self._known: dict[LookupKey, tuple[float, LookedUp]] = {}
        self._asking: dict[LookupKey, asyncio.Task[LookedUp]] = {}

    async def close(self) -> None:
        """End all connections."""
        for task in self._asking.values():
            task.cancel()
        await self.sessions.close()
        await self._http.close()

    async def answers(self) -> bool:
        """Whether the catalog answers now."""
        try:
            async with asyncio.timeout(2.0):
                await self._http.call("GET", "/v1/streams", params={"limit": "1"})
        except (TimeoutError, EpochalError):
            return False
        return True

    async def answer(self, ask: m.Ask) -> m.Answer:
        """The catalog's answer to a question; raises the error that the catalog answers."""
        path = _path(ask.stream)
        session: dict[str, Any] | None = None
        looked_up = b""
        match ask.question:
            case m.AskKind.GET:
                _, found = await self._http.call("GET", path)
                self._told(found.get("segments", ()))
                looked_up = _json({"stream": found})
            case m.AskKind.SESSION:
                session = await self.sessions.fresh(path, ask.writer)
            case m.AskKind.OPEN:
                key = (ask.stream, ask.expected)
                uid, looked_up = await self._look_up(key, path, ask)
                session = await self.sessions.give(path, ask.writer)
                if session.get("uid") != uid:  # the stream was created again between the two answers
                    session = await self.sessions.fresh(path, ask.writer)
                    self._known.pop(key, None)
                    _, looked_up = await self._look_up(key, path, ask)
        return m.Answer(ask.request, "" if session is None else _json(session).decode(), looked_up)

    def left(self, left: m.Left) -> None:
        """A writer's session has left every segment. Raises `EpochalError` if the stream's name is not valid."""
        self.sessions.left(_path(left.stream), left.writer, left.session)

    async def _look_up(self, key: LookupKey, path: str, ask: m.Ask) -> LookedUp:
        known = self._known.get(key)
        if known is not None and time.monotonic() - known[0] < self._remember:
            return known[1]
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._ask(key, path, ask))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def _ask(self, key: LookupKey, path: str, ask: m.Ask) -> LookedUp:
        named = zip(("time", "encoding", "schema"), ask.expected, strict=False)
        expected = {name: value for name, value in named if value}
        deadline = time.monotonic() + ask.wait
        while True:
            wait = min(max(deadline - time.monotonic(), 0.0), MAX_WAIT)
            params = {"wait": f"{wait:.3f}", **expected}
            try:
                _, found = await self._http.call("GET", f"{path}/segments", params=params, waits=wait)
                break
            except (StreamNotFound, NoPublisher):
                if deadline - time.monotonic() <= 0.001:
                    raise
        if not isinstance(found, dict) or not isinstance(found.get("stream"), dict):
            raise RemoteProtocolError("the catalog's look-up has no stream")
        self._told(found.get("segments", ()))
        stream = found["stream"]
        answer = str(stream.get("uid")), _json({"stream": stream, "segments": found.get("segments", [])})
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = (time.monotonic(), answer)
        return answer

    def _told(self, segments: Iterable[dict[str, Any]]) -> None:
        addresses = [((segment.get("publisher") or {}).get("addresses") or {}).get("ingest") for segment in segments]
        self._found(address for address in addresses if isinstance(address, str))

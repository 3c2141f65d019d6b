"""Follows the catalog: server-sent events, read over one connection after another, with no event missed between them.

Unlike the catalog's other calls, this one does not end: it connects again by itself, and goes on after the last event.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing

import aiohttp

from epochal.backoff import Backoff
from epochal.catalog_api.answers import CatalogEvent
from epochal.client.catalog.answers import read
from epochal.client.catalog.http import AGAIN, GATEWAY
from epochal.errors import CatalogUnavailable, LimitExceeded, RemoteProtocolError, from_code

SILENCE = 30.0
"""Seconds without a byte after which a connection is given up: the catalog sends something every 10."""
MAX_LINE = 1 << 24
"""Bytes of one line; a manifest has at most 1 MiB."""
MAX_ID = 20
"""Digits of a revision."""
MAX_REFUSAL = 64 * 1024
"""Bytes that are read of an answer that is not a watch."""
FIRST_DELAY, MAX_DELAY = 0.1, 3.0


class _Refused(Exception):
    """The catalog, or a proxy before it, cannot take a watcher at present."""


class Parser:
    r"""Reads server-sent events from bytes in pieces of any size; skips what is not an event of the catalog.

    >>> parser = Parser()
    >>> list(parser.feed(b": hello\n\nid: 7\nevent: x\nda"))
    []
    >>> list(parser.feed(b"ta: {}\n\n"))
    [('x', '{}')]
    >>> parser.last_id
    '7'
    """

    def __init__(self) -> None:
        self.last_id: str | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._event = "message"
        self._data = ""
        self._id = ""

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """(event, data) of every event that `chunk` ends; raises `RemoteProtocolError` on a line without end."""
        self._parts.append(chunk)  # joined only when a line ends: a slow line is not copied with every byte
        self._size += len(chunk)
        lines: list[bytes] = []
        if b"\n" in chunk:
            *lines, rest = b"".join(self._parts).split(b"\n")
            self._parts = [rest]
            self._size = len(rest)
        if self._size > MAX_LINE:
            raise RemoteProtocolError(f"a line of the catalog's events is longer than {MAX_LINE} bytes")
        for line in lines:
            if line.strip():
                self._take(line.decode("utf-8", "replace").rstrip("\r"))
                continue
            if self._id:
                self.last_id = self._id
            if self._data:
                yield self._event, self._data
            self._event = "message"
            self._data = ""
            self._id = ""

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._event = value
            case "data":
                self._data += value
                if len(self._data) > MAX_LINE:
                    raise LimitExceeded(f"one of the catalog's events is longer than {MAX_LINE} characters")
            case "id" if value.isascii() and value.isdigit() and len(value) <= MAX_ID:
                self._id = value  # it is sent back in a header, which cannot hold every character


async def follow(url: str, since: int | None, patience: float) -> AsyncIterator[CatalogEvent]:
    """The changes of the catalog at `url` after `since`; `CatalogClient.watch` says what is raised."""
    loop = asyncio.get_running_loop()
    backoff, deadline = Backoff(FIRST_DELAY, MAX_DELAY), loop.time() + patience
    last = None if since is None else str(since)
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(sock_connect=10.0, sock_read=SILENCE),
        auto_decompress=False,  # no compressed answer is requested: it could unpack to any size
        headers={"Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        while True:
            parser = Parser()
            parser.last_id = last
            try:
                async with aclosing(_connection(session, url, parser)) as events:
                    async for event in events:
                        deadline = loop.time() + patience
                        last = parser.last_id
                        if event is not None:
                            backoff.reset()  # not when it merely opens: it could end at once, again and again
                            yield event
                reason = "it ended the watch"
            except (aiohttp.ClientError, OSError, TimeoutError, _Refused) as error:
                reason = str(error) or type(error).__name__
            delay = backoff.delay()
            if loop.time() + delay > deadline:
                raise CatalogUnavailable(f"the catalog at {url} cannot be watched ({reason}; tried for {patience:g} s)")
            await asyncio.sleep(delay)


async def _connection(session: aiohttp.ClientSession, url: str, parser: Parser) -> AsyncGenerator[CatalogEvent | None]:
    """The events of one connection; None when it opens, and for a snapshot, which only gives the revision."""
    headers = {"Accept": "text/event-stream"}
    if parser.last_id is not None:
        headers["Last-Event-ID"] = parser.last_id
    async with session.get(f"{url}/v1/watch", headers=headers, allow_redirects=False) as response:
        if response.status != 200:
            raise _refusal(url, response.status, await response.content.read(MAX_REFUSAL))
        yield None
        async for chunk in response.content.iter_any():
            for event, data in parser.feed(chunk):
                yield None if event == "snapshot" else _event(url, data)


def _event(url: str, data: str) -> CatalogEvent:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise RemoteProtocolError(f"{url} sends events that are not JSON; is the address right?") from None
    return read(CatalogEvent.from_json, value)


def _refusal(url: str, status: int, text: bytes) -> Exception:
    try:
        body = json.loads(text)
        code, detail = str(body["code"]), str(body["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        if status in GATEWAY:
            return _Refused(f"a proxy answered {status}")
        return RemoteProtocolError(f"{url} answered {status} but not as a catalog does; is the address right?")
    return _Refused(detail) if code in AGAIN else from_code(code, detail)

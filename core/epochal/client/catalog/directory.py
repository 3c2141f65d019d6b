"""The addresses of a stream's publishers, looked up again after a connection fails.

Writers and subscribers both need the same answer, checked in the same way: the same stream (by uid), and fresh.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from random import SystemRandom
from typing import Any, Protocol

from epochal.catalog_api.answers import StreamInfo, WriterSession
from epochal.client.catalog.answers import address
from epochal.client.options import NOTHING, Expected
from epochal.errors import CatalogUnavailable, EpochalError, NoPublisher, StreamGone, StreamNotFound
from epochal.protocol.segments import KeyRange, Placement
from epochal.protocol.times import TimeShape
from epochal.resources.names import parse_stream_name
from epochal.resources.schemas import Schema
from epochal.resources.spec import StreamSpec
from epochal.transport.shutdown import ended

RECONNECT_FIRST, RECONNECT_LAST = 0.05, 5.0
"""Seconds between attempts to connect: doubled each time, with jitter."""

WORTH_ASKING = 0.3
"""Seconds; in a pause that is at least so long, the catalog is asked to say when there is another publisher."""
MAX_WAIT = 20.0
"""Seconds of one such question; a longer pause takes several."""
AT_ONCE = 0.2
"""Seconds over which those who wait for the same publisher spread, so that they do not all come in one moment."""
_chance = SystemRandom()

SAY_AFTER = 3.0
"""Seconds that a look-up waits before the log says for what."""
_log = logging.getLogger("epochal.client")

PATIENCE = 2.0
"""Seconds to wait for a publisher's present address from the catalog, before the old one is tried again."""


Reach = Callable[[str], Awaitable[str]]
"""Turns an address (`tcp://HOST:PORT`) into one that works from here, such as the local end of a port-forward.

Called before every connection. It may raise an `EpochalError`; if that is retryable, it is called again later.
"""


class Lookups(Protocol):
    """The calls to the catalog about one stream; `CatalogClient` says what each does and raises."""

    async def lookup(
        self,
        namespace: str,
        name: str,
        *,
        wait: float = 0.0,
        time: str | None = None,
        encoding: str | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> StreamInfo:
        """The stream with all publishers."""
        ...

    async def get(self, namespace: str, name: str) -> StreamInfo:
        """The stream as it is."""
        ...

    async def another(self, namespace: str, name: str, segment: str, token: int, wait: float) -> StreamInfo | None:
        """The stream once a segment has another publisher, or after `wait` seconds; None if no more calls can wait."""
        ...

    async def session(self, namespace: str, name: str, writer: str) -> WriterSession:
        """A new session of a writer."""
        ...

    async def forget_writer(self, namespace: str, name: str, writer: str, session: int) -> None:
        """Forget a writer that has left and never comes again."""
        ...


class Directory:
    """One stream in one catalog. `look_up` asks; `address` asks again after a failure.

    `reach`: how publishers are reached where the addresses from the catalog do not work.
    """

    def __init__(self, catalog: Lookups, stream: str, *, wait: float, reach: Reach | None = None) -> None:
        self.catalog = catalog
        self.namespace, self.name = parse_stream_name(stream, "default")
        self.wait = wait
        self._reach = reach
        self._info: StreamInfo | None = None
        self._fresh = False

    @property
    def reached_by_itself(self) -> bool:
        """Whether publishers are reached at the addresses that the catalog gives."""
        return self._reach is None

    @property
    def qualified(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def info(self) -> StreamInfo:
        """The last answer."""
        if self._info is None:
            raise StreamNotFound(f"stream {self.qualified} has not been looked up")
        return self._info

    async def look_up(self, expected: Expected = NOTHING) -> StreamInfo:
        """The stream with all publishers, declared as expected (S28).

        Waits up to `wait` seconds for them (S27), and logs a warning when that lasts. Raises `StreamNotFound`,
        `NoPublisher`, `SchemaMismatch`.
        """
        saying = asyncio.create_task(self._say_what_is_missing(), name=f"look up {self.qualified}")
        try:
            info = await self.catalog.lookup(
                self.namespace, self.name,
                wait=self.wait, time=expected.time_shape, encoding=expected.encoding,
                schema=expected.document(),
            )  # fmt: skip
        finally:
            await ended([saying])
        self._take(info)
        return info

    async def _say_what_is_missing(self) -> None:
        await asyncio.sleep(SAY_AFTER)
        reason = "there is no such stream"
        try:
            async with asyncio.timeout(PATIENCE):
                info = await self.catalog.get(self.namespace, self.name)
        except StreamNotFound:
            pass
        except (TimeoutError, EpochalError):
            return  # the catalog is away, which is said elsewhere
        else:
            missing = [segment.id for segment in info.segments if segment.publisher is None]
            if not missing:
                return
            reason = f"no publisher serves segment {', '.join(missing[:10])}{' ...' if missing[10:] else ''}"
        _log.warning("waiting up to %g s for %s: %s", self.wait, self.qualified, reason)

    def _take(self, info: StreamInfo) -> None:
        self._info = info
        self._fresh = True

    def stale(self) -> None:
        """A connection failed: what is known of addresses may be old."""
        self._fresh = False

    async def pause(self, segment: str, seconds: float) -> None:
        """Wait before the next attempt to connect: until the segment has another publisher, or for `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        if seconds >= WORTH_ASKING and await self._another(segment, deadline):
            deadline = min(deadline, loop.time() + AT_ONCE * _chance.random())
        await asyncio.sleep(deadline - loop.time())

    async def _another(self, segment: str, deadline: float) -> bool:
        """Whether another publisher has come by `deadline`; its address is then the known one."""
        loop, known = asyncio.get_running_loop(), self._token(self.info, segment)
        while (wait := min(deadline - loop.time(), MAX_WAIT)) > 0:
            asked = loop.time()
            try:
                async with asyncio.timeout_at(deadline):
                    info = await self.catalog.another(self.namespace, self.name, segment, known, wait)
            except (TimeoutError, EpochalError):
                return False  # a stream that is gone is found by the next attempt
            if info is None or info.uid != self.info.uid:
                return False
            if self._token(info, segment) not in (0, known):
                self._take(info)
                return True
            if loop.time() - asked < wait / 2:
                return False  # the catalog has no room for another that waits
        return False

    @staticmethod
    def _token(info: StreamInfo, segment: str) -> int:
        owners = (known.publisher for known in info.segments if known.id == segment)
        return next((owner.token for owner in owners if owner is not None), 0)

    async def addresses(self, segment: str, *sockets: str) -> list[str]:
        """The addresses of a segment's `events`, `requests` or `ingest`, all of the same publisher.

        Raises `NoPublisher`, or `StreamGone` when the stream was deleted.
        """
        for known in (await self.current()).segments:
            if known.id == segment and known.publisher is not None:
                found = known.publisher.addresses
                return [await self.reached(address(found, socket)) for socket in sockets]
        raise NoPublisher(f"segment {segment} of {self.qualified} has no publisher at present")

    async def address(self, segment: str, socket: str) -> str:
        """One of `addresses`."""
        (found,) = await self.addresses(segment, socket)
        return found

    async def reached(self, address: str) -> str:
        """The address that works from here."""
        return address if self._reach is None else await self._reach(address)

    async def current(self) -> StreamInfo:
        """The stream, asked for again after a failure; the last answer while the catalog is away.

        Raises `StreamGone` when it was deleted.
        """
        if not self._fresh:
            await self._refresh()
        return self.info

    async def _refresh(self) -> None:
        uid = self.info.uid
        try:
            async with asyncio.timeout(PATIENCE):
                info = await self.catalog.get(self.namespace, self.name)
        except StreamNotFound:
            raise StreamGone(f"stream {self.qualified} was deleted") from None
        except (TimeoutError, CatalogUnavailable):
            return  # the known addresses may still be right: streams go on without a catalog
        if info.uid != uid:
            raise StreamGone(f"stream {self.qualified} was deleted and created again; open it again to use the new one")
        self._take(info)

    @property
    def declared(self) -> StreamSpec:
        """The stream's declaration."""
        return self.info.declared().spec

    @property
    def shape(self) -> TimeShape:
        """The declared shape of times."""
        return self.declared.time.shape

    @property
    def encoding(self) -> str:
        """The declared encoding of payloads."""
        return str(self.declared.payload.encoding)

    @property
    def schema(self) -> Schema | None:
        """The declared schema of records, where there is one."""
        return self.declared.payload.fields

    @property
    def segments(self) -> list[str]:
        """Ids of the open segments, in key order."""
        return [segment.id for segment in sorted(self.info.segments, key=lambda known: known.lo)]

    def placement(self) -> Placement:
        """Which segment takes a key."""
        return Placement([(known.id, KeyRange(known.lo, known.hi)) for known in self.info.segments])


def worth_retrying(error: BaseException) -> bool:
    """Whether the same attempt can work later."""
    return isinstance(error, EpochalError) and error.retryable

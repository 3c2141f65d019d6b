"""The way to each segment of a subscription: straight to its publisher, or through a relay.

It asks the catalog for relays, and `relay_choice` picks one. Writers always go to publishers. A route is chosen for one
connection; a change of route is a reconnect after the last event.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from epochal.backoff import Backoff
from epochal.catalog_api.answers import RelayInfo, StreamInfo
from epochal.client.catalog.answers import address
from epochal.client.catalog.directory import PATIENCE, SAY_AFTER, Directory
from epochal.client.catalog.relay_choice import RelayChoice, Via
from epochal.client.options import NOTHING, Expected
from epochal.errors import EpochalError, NoPublisher, RelayEnded, TimedOut

LOOK_FIRST, LOOK_LAST = 0.1, 1.0
"""Seconds between looks for a relay, while a subscription that needs one opens."""

ListRelays = Callable[[str, str], Awaitable[tuple[RelayInfo, ...]]]
"""The relays of the stream `namespace`, `name`; `CatalogClient.relays` is one."""

DIRECT = Via("direct")

_log = logging.getLogger("epochal.client")


@dataclass(frozen=True, slots=True)
class Route:
    """Where one connection leads: both of its sockets are of the same process. `relay` is None for a publisher."""

    events: str
    requests: str
    relay: RelayInfo | None = None

    @property
    def via(self) -> str:
        """`direct`, or `relay:NAME`."""
        return "direct" if self.relay is None else f"relay:{self.relay.name}"


class Routes:
    """The routes of one subscription: `take` one for a connection, say when it is `live`, and how it `ended`.

    `list_relays` is what asks the catalog for relays; without it there are none.
    """

    def __init__(self, directory: Directory, list_relays: ListRelays | None = None, via: Via = DIRECT) -> None:
        self._directory = directory
        self._list_relays = list_relays
        self._via = via
        self._choice = RelayChoice(via, secrets.token_bytes(16))
        self._relays: tuple[RelayInfo, ...] = ()
        self._listed_for: StreamInfo | None = None
        self._listing = asyncio.Lock()
        self._taken: dict[str, Route] = {}
        self._live: dict[str, float] = {}
        """Segment -> since when its connection has worked, by the loop's clock."""
        self._direct: set[str] = set()
        """Segments whose last attempt was made straight to their publisher."""

    async def look_up(self, expected: Expected = NOTHING) -> StreamInfo:
        """The stream, as `Directory.look_up`, once there is a relay to use where one is needed.

        Waits for both up to `Directory.wait` seconds. Raises what `Directory.look_up` raises, and `NoPublisher`, which
        says what there is instead of such a relay.
        """
        began = asyncio.get_running_loop().time()
        await self._directory.look_up(expected)
        if self._via.kind == "relay":
            await self._await_relay(began)
        return self._directory.info

    async def _await_relay(self, began: float) -> None:
        loop, backoff, said = asyncio.get_running_loop(), Backoff(LOOK_FIRST, LOOK_LAST), False
        deadline = began + self._directory.wait
        while not await self._ranked():
            now = loop.time()
            if now >= deadline:
                raise self._none()
            if now - began > SAY_AFTER and not said:
                said = True
                _log.warning("waiting up to %g s: %s", self._directory.wait, self._none())
            await asyncio.sleep(min(backoff.delay(), deadline - now))
            self._directory.stale()

    async def take(self, segment: str) -> Route:
        """A route for the next connection to a segment. Raises `NoPublisher`, or `StreamGone`."""
        self._taken[segment] = route = await self._found(segment)
        return route

    async def _found(self, segment: str) -> Route:
        self._direct.discard(segment)
        for relay in await self._ranked():
            try:
                return await self._through(relay, segment)
            except EpochalError:  # no address of it works from here
                self._choice.ended(relay.id, asyncio.get_running_loop().time())
        if self._via.kind == "relay":
            raise self._none()
        self._direct.add(segment)
        events, requests = await self._directory.addresses(segment, "events", "requests")
        return Route(events, requests)

    async def _through(self, relay: RelayInfo, segment: str) -> Route:
        known = relay.segments.get(segment, relay.addresses)
        events, requests = [await self._directory.reached(address(known, name)) for name in ("events", "requests")]
        return Route(events, requests, relay)

    def live(self, segment: str) -> None:
        """The segment's connection has joined."""
        self._live[segment] = asyncio.get_running_loop().time()

    def ended(self, segment: str, error: EpochalError) -> None:
        """The segment's connection has ended; whether the same relay is tried next depends on how."""
        now = asyncio.get_running_loop().time()
        route, since = self._taken.pop(segment), self._live.pop(segment, now)
        if route.relay is not None:
            silent, notified = isinstance(error, TimedOut), isinstance(error, RelayEnded)
            self._choice.ended(route.relay.id, now, lived=now - since, silent=silent, notified=notified)

    async def pause(self, segment: str, seconds: float) -> None:
        """Wait before the next attempt: for `seconds`, or until there is another publisher where one was tried."""
        if segment in self._direct:
            await self._directory.pause(segment, seconds)
        else:
            await asyncio.sleep(seconds)

    @property
    def via(self) -> dict[str, str]:
        """Segment -> `direct` or `relay:NAME`, of the segments that have a connection now."""
        return {segment: route.via for segment, route in sorted(self._taken.items())}

    async def _ranked(self) -> list[RelayInfo]:
        # A relay has the address of its pod, to which nothing leads from outside of its cluster.
        outside = not self._directory.reached_by_itself
        if self._via.kind == "direct" or (self._via.kind == "auto" and outside):
            return []
        await self._list(await self._directory.current())
        return self._choice.ranked(self._relays, asyncio.get_running_loop().time())

    async def _list(self, info: StreamInfo) -> None:
        """List the relays for a new answer of the directory; the known ones are used while the catalog is away."""
        async with self._listing:
            if info is self._listed_for:
                return
            self._listed_for = info
            if not info.relays or self._list_relays is None:
                self._relays = ()
                return
            with suppress(TimeoutError, EpochalError):
                async with asyncio.timeout(PATIENCE):
                    found = await self._list_relays(info.namespace, info.name)
                    self._relays = tuple(relay for relay in found if relay.uid == info.uid)

    def _none(self) -> NoPublisher:
        why = self._choice.why_none(self._relays, asyncio.get_running_loop().time())
        return NoPublisher(
            f"{self._directory.qualified} is to be read through relays only, and {why};"
            " `epochal get relays` lists them, and via=auto reads from the publishers meanwhile"
        )

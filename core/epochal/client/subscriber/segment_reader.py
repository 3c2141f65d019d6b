"""A subscription's connection to one segment: joined, followed, and joined again after the last event.

A connection comes and goes; what was read, and its position, stay with the subscription (E16).
"""

import asyncio
import secrets
import time as clock
from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import Any, Protocol

import zmq

from epochal.backoff import Backoff
from epochal.client.catalog.directory import RECONNECT_FIRST, RECONNECT_LAST, Directory, worth_retrying
from epochal.client.catalog.routes import Route, Routes
from epochal.errors import EpochalError, NoPublisher, RelayEnded, RemoteProtocolError, StreamGone, Unavailable
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.subscriber.effects import FollowerReport, Request, SubscribePrefix, UnsubscribePrefix
from epochal.protocol.subscriber.follower import Follower, FollowerSettings
from epochal.protocol.subscriber.received import Received
from epochal.protocol.subscriber.since import Begin
from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.wire import Frames
from epochal.transport.sockets import Socket

TICK = 0.1
"""Seconds between looks at the clock."""

AFTER_RELAY = 1.0
"""Seconds within which the readers of a relay that ends come back, each at a moment of its own (F13)."""
_chance = SystemRandom()

STALL = 1.0
"""Seconds of a busy event loop after which a publisher's silence is counted from the start again."""


class Reader(Protocol):
    """What a connection needs from the subscription that it feeds."""

    context: zmq.Context[Any]
    directory: Directory
    routes: Routes
    follower_settings: FollowerSettings
    pushes: bool
    """Whether to follow pushes; else events are pulled."""
    relay: str | None
    """The id of the relay that is fed, if it is one (F16)."""

    @property
    def topics(self) -> TopicFilter | None:
        """The wanted topics; None for all."""

    @property
    def whole_filter(self) -> bool:
        """Whether publishers get the filter when a connection joins; else they push everything."""
        ...

    def take_reports(self, segment: str, reports: Sequence[FollowerReport]) -> None:
        """Take what the follower of a segment has reported since the last call, in order."""

    def down(self, segment: str, reason: str) -> None:
        """A connection is lost, or could not be made; each attempt says so, until the next `up`."""

    def up(self, segment: str) -> None:
        """A connection is live: everything that its publisher had said was reported."""

    def position(self, segment: str) -> m.Position:
        """The last event that was taken in."""
        ...

    def fail(self, error: EpochalError) -> None:
        """No retry can help: the subscription is over."""


class SegmentReader:
    """Keeps one segment followed: connects, and connects again after the last event."""

    def __init__(self, reader: Reader, segment: str, begin: Begin) -> None:
        self.segment = segment
        self._reader = reader
        self._begin: Begin = begin
        self._continuing = False
        # The highest incarnation seen, also by the reader that saved the cursor (E12 fencing).
        self._incarnation = begin.incarnation if isinstance(begin, m.Position) else 0
        self._damaged = 0
        self._received = Received()
        self.wrong_addresses = 0
        """How often the publisher at the address served another stream, or another life of this one (E48)."""
        self._connection: _Connection | None = None
        self._paused = False

    async def run(self) -> None:
        """Follow until cancelled, or until an error that no retry can help with."""
        reader, backoff = self._reader, Backoff(RECONNECT_FIRST, RECONNECT_LAST)
        while True:
            try:
                route = await reader.routes.take(self.segment)
                error = self._judged(await self._follow_once(route, backoff))
            except EpochalError as failed:
                error = failed
            if not worth_retrying(error):
                reader.fail(error)
                return
            reader.down(self.segment, str(error))
            reader.directory.stale()
            if isinstance(error, RelayEnded):  # it has notified all its readers at once
                await asyncio.sleep(AFTER_RELAY * _chance.random())
            else:
                await reader.routes.pause(self.segment, backoff.delay())

    def _judged(self, error: EpochalError) -> EpochalError:
        """Make an answer for another stream an error to retry: only the catalog can end a subscription (E48)."""
        if not isinstance(error, StreamGone | NoPublisher):
            return error
        self.wrong_addresses += 1
        return NoPublisher(f"segment {self.segment}: its address is that of another publisher at present: {error}")

    def _live(self, backoff: Backoff) -> None:
        backoff.reset()
        self._reader.routes.live(self.segment)
        self._reader.up(self.segment)

    async def _follow_once(self, route: Route, backoff: Backoff) -> EpochalError:
        """One connection, from hello to its end; returns why it ended."""
        try:
            error = await self._followed(route, backoff)
        except zmq.ZMQError as failed:
            error = Unavailable(f"segment {self.segment} cannot be connected to: {failed}")
        if route.relay is not None and isinstance(error, RemoteProtocolError):
            # what another relay, or the publisher, says may be right
            error = Unavailable(f"segment {self.segment}: relay {route.relay.id} breaks the protocol: {error}")
        self._reader.routes.ended(self.segment, error)
        return error

    async def _followed(self, route: Route, backoff: Backoff) -> EpochalError:
        connection = _Connection(self._reader, self.segment, route, self._follower())
        self._connection = connection
        try:
            if self._paused:
                connection.pause()
            return await connection.broken(on_live=lambda: self._live(backoff))
        except EpochalError as error:
            return error
        finally:
            self._connection = None
            self._incarnation = max(self._incarnation, connection.incarnation)
            self._remember(connection.follower)
            connection.close()

    def _follower(self) -> Follower:
        reader = self._reader
        return Follower(
            reader.directory.info.uid,
            self.segment,
            self._begin,
            shape=reader.directory.shape,
            fresh_nonce=lambda: secrets.token_bytes(16),
            now=clock.monotonic(),
            settings=reader.follower_settings,
            continuing=self._continuing,
            least_incarnation=self._incarnation,
            pushes=reader.pushes,
            topics=reader.topics,
            whole_filter=reader.whole_filter,
            relay=reader.relay,
        )

    @property
    def requests_address(self) -> str | None:
        """Where this connection sends its requests; None while there is none."""
        return None if self._connection is None else self._connection.requests_address

    @property
    def live(self) -> bool:
        """Whether everything that the publisher has said by now was reported."""
        return self._connection is not None and self._connection.follower.live

    @property
    def welcome(self) -> m.Welcome | None:
        """What the publisher says of itself on this connection; None before it has answered."""
        return None if self._connection is None else self._connection.follower.welcome

    @property
    def damaged(self) -> int:
        """Live events so far whose payload was not what its writer had sent."""
        return self._damaged + (self._connection.follower.damaged if self._connection is not None else 0)

    def add_received(self, total: Received) -> None:
        """Add up how much has come so far, on all connections."""
        total.add(self._received)
        if self._connection is not None:
            total.add(self._connection.follower.received)

    def _remember(self, follower: Follower) -> None:
        self._damaged += follower.damaged
        self._received.add(follower.received)
        # Before a follower began nothing was taken in, so the next one begins at the same place.
        if follower.began:
            self._begin = self._reader.position(self.segment)
            self._continuing = True

    def follow_pushes(self, follow: bool) -> None:
        """Follow pushes from now on, or pull only."""
        if self._connection is not None:
            self._connection.follow_pushes(follow)

    def want(self, topics: TopicFilter | None, *, widens: bool) -> None:
        """Other topics are wanted from now on; a next connection asks the reader for them."""
        if self._connection is not None:
            self._connection.want(topics, widens=widens)

    def pause(self) -> None:
        """The application is slow: stop reading."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume()


class _Connection:
    """The sockets of one follower; there is none for events where pushes are not followed."""

    def __init__(self, reader: Reader, segment: str, route: Route, follower: Follower) -> None:
        self.follower = follower
        self.incarnation = 0
        """The highest that a publisher has named here, even if the join failed (E12 fencing)."""
        self._reader = reader
        self._segment = segment
        self._lost: asyncio.Future[EpochalError] = asyncio.get_running_loop().create_future()
        self._was_live = False
        self._paused = False
        self._closed = False
        self._address, self.requests_address = route.events, route.requests
        self._events = self._connected(zmq.SUB, self._pushed, self._address) if follower.pushes else None
        try:
            self._requests = self._connected(zmq.DEALER, self._answered, self.requests_address)
        except zmq.ZMQError:
            if self._events is not None:
                self._events.close()
            raise

    def _connected(self, kind: int, on_message: Callable[[Frames], None], address: str) -> Socket:
        socket = Socket(self._reader.context, kind, on_message, self._act)
        socket.connect(address, self._disconnected)
        if self._paused:
            socket.pause()
        socket.start()
        return socket

    def follow_pushes(self, follow: bool) -> None:
        self.follower.follow_pushes(follow, clock.monotonic())
        self._act()

    def want(self, topics: TopicFilter | None, *, widens: bool) -> None:
        self.follower.want(topics, clock.monotonic(), widens=widens)
        self._act()

    async def broken(self, *, on_live: Callable[[], None]) -> EpochalError:
        """Run until the connection must be given up; returns why."""
        self._act()
        ticked = clock.monotonic()
        while not self._lost.done():
            await asyncio.wait([self._lost], timeout=TICK)
            now = clock.monotonic()
            if now - ticked > STALL and not self._paused:
                self.follower.resume(now)  # this loop was busy and did not read: the publisher may not have been silent
            self.follower.tick(now)
            ticked = now
            self._act()
            if self.follower.live and not self._was_live:
                self._was_live = True
                on_live()
        return self._lost.result()

    def _pushed(self, frames: Frames) -> None:
        first = frames[0]
        size = wire.NONCE_PREFIX if first[:1] == b"P" else wire.CHANNEL_PREFIX
        prefix = first[:size]
        now, follower = clock.monotonic(), self.follower
        try:
            for message in wire.decode(frames, prefix=size):
                follower.pushed(prefix, message, now)
        except EpochalError as error:
            self._lose(error)

    def _answered(self, frames: Frames) -> None:
        now = clock.monotonic()
        try:
            for message in wire.decode(frames):
                if type(message) is m.Welcome:
                    self.incarnation = max(self.incarnation, message.incarnation)
                self.follower.answered(message, now)
        except EpochalError as error:
            self._lose(error)

    def _act(self) -> None:
        """Carry out what the follower asks for and pass on what it reports."""
        follower = self.follower
        if self._closed:
            return
        for effect in follower.take():
            match effect:
                case Request():
                    for frames in wire.encode(effect.message):
                        self._requests.send(frames)
                case SubscribePrefix():
                    if self._events is None:
                        self._events = self._connected(zmq.SUB, self._pushed, self._address)
                    self._events.zmq.setsockopt(zmq.SUBSCRIBE, effect.prefix)
                case UnsubscribePrefix() if self._events is not None:
                    self._events.zmq.setsockopt(zmq.UNSUBSCRIBE, effect.prefix)
        if self._events is not None and not follower.pushes:
            self._events.close()
            self._events = None
        try:
            self._reader.take_reports(self._segment, follower.reports())
        except EpochalError as error:
            self._reader.fail(error)
        if follower.error is not None:
            self._lose(follower.error)

    def _disconnected(self) -> None:
        self._lose(Unavailable(f"the connection to the publisher of segment {self._segment} was lost"))

    def _lose(self, error: EpochalError) -> None:
        if not self._lost.done():
            self._lost.set_result(error)

    def pause(self) -> None:
        self._paused = True
        self.follower.pause()
        for socket in self._sockets():
            socket.pause()

    def resume(self) -> None:
        self._paused = False
        self.follower.resume(clock.monotonic())
        for socket in self._sockets():
            socket.resume()

    def close(self) -> None:
        self._closed = True
        for socket in self._sockets():
            socket.close()

    def _sockets(self) -> list[Socket]:
        return [socket for socket in (self._events, self._requests) if socket is not None]

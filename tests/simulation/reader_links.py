"""A reader's connections to one segment: to its publisher or a relay, broken, paused, and made again.

What drives a `Follower` is here: what it reports goes to the subscription, which merges the segments.
"""

from typing import TYPE_CHECKING

from tests.simulation.links import Connection, Socket
from tests.simulation.oracle import TOPICS
from tests.simulation.relays import Server
from tests.simulation.stories import ALL, Topics

from epochal.errors import EpochalError, NoPublisher, StreamGone
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.subscriber.effects import Began, Broke, Moved, Reached, Rejoined, Request, SubscribePrefix
from epochal.protocol.subscriber.follower import Follower, FollowerSettings
from epochal.protocol.subscriber.since import Begin
from epochal.protocol.subscriber.upstream_filter import FilterTimes
from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.wire import Frames

if TYPE_CHECKING:
    from tests.simulation.subscriptions import Life

SETTINGS = FollowerSettings(poll=0.7, filter=FilterTimes(settled=0.3, between_changes=1.5))


def filter_of(topics: Topics) -> TopicFilter | None:
    """The filter of these topics, in a form that has something to reject."""
    if topics == ALL:
        return None
    return TopicFilter(topics, set(TOPICS) - topics)


class Link:
    """One segment followed: connects, and connects again after the last event."""

    def __init__(self, life: "Life", segment: str, begin: Begin) -> None:
        self.life, self.segment, self.world = life, segment, life.world
        self._begin: Begin = begin
        self._continuing = False
        self._incarnation = 0
        self._connections: tuple[Connection, Connection] | None = None
        self._follower: Follower | None = None
        self.paused = False
        self.world.after(self.world.between(0.001, 0.2), self._connect)

    def _connect(self) -> None:
        if self.life.ended or self._connections is not None:
            return
        node = self._way()
        events = node.connect(Socket.EVENTS, ("", 0))
        requests = node.connect(Socket.REQUESTS, ("", 0))
        if events is None or requests is None:
            self.world.after(self.world.between(0.1, 0.5), self._connect)
            return
        self._connections = (events, requests)
        follower = self._follower = Follower(
            "uid", self.segment, self._begin, shape=self.life.machine.shape,
            fresh_nonce=lambda: self.world.random.randbytes(16), now=self.world.now, continuing=self._continuing,
            least_incarnation=self._incarnation, pushes=self.life.pushes, settings=SETTINGS,
            topics=filter_of(self.life.memory.topics), whole_filter=self.life.memory.whole_filter,
        )  # fmt: skip
        events.on_client = lambda frames: self._pushed(follower, frames)
        requests.on_client = lambda frames: self._answered(follower, frames)
        events.on_lost = requests.on_lost = lambda: self._lost(follower)
        if self.paused:
            self.pause()
        self._act(follower)

    def _way(self) -> Server:
        """Whom it connects to: its publisher, or a relay."""
        life = self.life
        relays = life.relays[self.segment]
        if relays and self.world.chance(life.scenario.relaying):
            self.world.count("relayed")
            return self.world.random.choice(relays)
        return life.nodes[self.segment]

    @property
    def relayed(self) -> bool:
        """Whether a relay has answered on this connection."""
        welcome = None if self._follower is None else self._follower.welcome
        return welcome is not None and bool(welcome.path)

    def _pushed(self, follower: Follower, frames: Frames) -> None:
        private = frames[0][:1] == b"P"
        size = wire.NONCE_PREFIX if private else wire.CHANNEL_PREFIX
        if self.world.tracing and private:
            self.world.note(f"{self.life.memory.name}: {self.segment} private message")
        for message in wire.decode(frames, prefix=size):
            follower.pushed(frames[0][:size], message, self.world.now)
        self._act(follower)

    def _answered(self, follower: Follower, frames: Frames) -> None:
        for message in wire.decode(frames):
            if self.world.tracing:
                self.world.note(f"{self.life.memory.name}: {self.segment} answer {message}")
            if type(message) is m.Welcome and not self.life.scenario.skipping:
                message = message._replace(features=("since",))
            follower.answered(message, self.world.now)
        self._act(follower)

    def tick(self) -> None:
        """Let time pass for the follower."""
        if self._follower is not None:
            self._follower.tick(self.world.now)
            self._act(self._follower)

    def _act(self, follower: Follower) -> None:
        if self._connections is None or follower is not self._follower:
            return
        events, requests = self._connections
        for effect in follower.take():
            match effect:
                case Request():
                    self.world.counts["told"] += isinstance(effect.message, m.Filter)
                    for frames in wire.encode(effect.message):
                        requests.to_server(frames)
                case SubscribePrefix():
                    events.to_server([b"\x01" + effect.prefix])
                case _:
                    events.to_server([b"\x00" + effect.prefix])
        for told in follower.reports():
            if self.life.ended:
                return
            match told:
                case Began():
                    at = self.life.machine.position(self.segment)
                    self.life.began(self.segment, told, at, relayed=self.relayed)
                case Broke():
                    self._broke(follower, told.error)
                case Reached():
                    self.life.machine.reached(self.segment, told.seq)
                case Moved():
                    self.life.moved(self.segment, told)
                case Rejoined():
                    self.life.rejoined(self.segment, told, relayed=self.relayed)
                case _:
                    self.life.event(self.segment, told)

    def _broke(self, follower: Follower, error: EpochalError) -> None:
        if error.retryable or isinstance(error, StreamGone | NoPublisher):  # a wrong address: it looks again (E48)
            self.world.note(f"{self.life.memory.name}: {self.segment} broke: {error}")
            self._lost(follower)
        else:
            at = self.life.machine.position(self.segment) if follower.began else self._begin
            self.life.failed(error, self.segment, at)

    def _lost(self, follower: Follower) -> None:
        if self._follower is not follower or self.life.ended:
            return
        if follower.began:
            self._begin = at = self.life.machine.position(self.segment)
            self._continuing, self._incarnation = True, max(self._incarnation, at.incarnation)
        self.close()
        self.world.after(self.world.between(0.01, 0.4), self._connect)

    def close(self) -> None:
        """Drop the connections."""
        connections, self._connections, self._follower = self._connections, None, None
        for connection in connections or ():
            connection.close()

    def sever(self, notice: float) -> None:
        """Break one of the two connections."""
        if self._connections is not None:
            self.world.count("breaks")
            self.world.note(f"{self.life.memory.name}: a connection to {self.segment} breaks")
            self.world.random.choice(self._connections).sever(notice)

    def follow_pushes(self, follow: bool) -> None:
        """Follow pushes, or pull only."""
        if self._follower is not None:
            self._follower.follow_pushes(follow, self.world.now)
            self._act(self._follower)

    def want(self, *, widens: bool) -> None:
        """Want what the application wants now."""
        if self._follower is not None:
            self._follower.want(filter_of(self.life.memory.topics), self.world.now, widens=widens)
            self._act(self._follower)

    def pause(self) -> None:
        """Stop reading pushes."""
        self.paused = True
        if self._follower is not None and self._connections is not None:
            self._follower.pause()
            self._connections[0].pause()

    def resume(self) -> None:
        """Read again."""
        self.paused = False
        if self._follower is not None and self._connections is not None:
            self._follower.resume(self.world.now)
            self._connections[0].resume()

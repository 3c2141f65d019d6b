"""What stands between a log and a reader who follows it through relays: its publisher, the relays, his own end.

The machines are the real ones. Each of these takes one thing that happens, and answers with what it sends: a tuple of
`Sent`, which the search puts into queues. So what it does depends on nothing but itself, and on which names are free.

There is no clock: it is always zero. A timer fires when the search says so; then what the machines remember of time is
set back. Who has left is forgotten at once, as it is later where time passes.

Sources: rules F6, F7, F13-F17; docs/relays.md.
"""

import pickle
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tests.exploration.canonical import Names, plain
from tests.exploration.connections import (
    LATE,
    SETTINGS,
    SHAPE,
    SOON,
    STREAM,
    FixedLog,
    Reports,
    follower_key,
    set_back,
)

from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.effects import Private, PublisherEffect, Push, SendAnswers
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SegmentServer, ServingSettings
from epochal.protocol.relay.effects import ForReaders, Forward, HangUp, Want
from epochal.protocol.relay.segment import RelayedSegment, RelayLimits
from epochal.protocol.relay.union import UnionTimes
from epochal.protocol.subscriber.effects import Broke, Request, SubscribePrefix
from epochal.protocol.subscriber.follower import Follower
from epochal.protocol.subscriber.since import Begin, From
from epochal.protocol.topics.filter import TopicFilter

SEGMENT = "0"
SERVING = ServingSettings(heartbeat=0.0)


class Pushed(NamedTuple):
    """To the client `peer`, who subscribes to `prefix`."""

    peer: bytes
    prefix: bytes
    message: m.Message


class Answered(NamedTuple):
    """To the client `peer`, as one ZeroMQ message."""

    peer: bytes
    messages: tuple[m.Message, ...]


class Asked(NamedTuple):
    """To whom it follows; on the connection `number`, where that is not 0."""

    message: m.Message
    number: int = 0


class Subscribes(NamedTuple):
    """To whom it follows: a subscription comes, or goes."""

    notice: bytes


class Leaves(NamedTuple):
    """It closes its connection to whom it follows, or the connection `number`."""

    number: int = 0


class Told(NamedTuple):
    """To the reader; `relayed`: who answered is a relay."""

    reports: Reports
    relayed: bool


Sent = Pushed | Answered | Asked | Subscribes | Leaves | Told


# ---- names ----


@dataclass(slots=True)
class Draws:
    """Subscription ids and tokens of one owner; `free` are numbers that nobody uses."""

    owner: str
    free: tuple[int, ...] = ()
    drawn: int = 0

    def fresh(self, size: int) -> bytes:
        """So many bytes that nobody has."""
        number, self.drawn = self.free[self.drawn], self.drawn + 1
        return f"{'tok' if size == 8 else 'nonce'}{self.owner}".encode() + b"%0*d" % (4 if size == 8 else 10, number)

    def nonce(self) -> bytes:
        """A subscription id."""
        return self.fresh(16)

    def token(self) -> bytes:
        """The token of a channel."""
        return self.fresh(8)


class _Literal(Names):
    """Names and numbers that others know as well stay what they are."""

    def of(self, raw: bytes) -> str:
        return repr(raw)

    def of_request(self, number: int) -> Hashable:
        return number


_NOT_OF_A_SERVER = frozenset(
    # What does not change, is of time, is counted, is another way to what is there, or is empty between two steps.
    ("publisher", "settings", "views", "_features", "_used", "_beaten", "_beat_seq", "_joining", "at", "heard",
     "packer", "began", "sent", "_pushed", "_known", "_merged", "_fresh_token", "_most", "_by_filter", "_by_token",
     "_listening", "_ttl", "_memory",
     # Of a relay.
     "stream", "segment", "id", "limits", "gathering", "_shape", "_fresh", "_effects", "_emit", "_fresh_nonce",
     "_stream", "_most_each", "_of_peer", "_by_request", "bytes", "_max_bytes", "_since_checkpoint", "_times", "_of",
     "_share", "_small_since",
     # Of an event: the log says all of it by its number.
     "time", "topic", "records", "crc", "payload", "meta", "changes", "times")
)  # fmt: skip


def _key(*parts: Any) -> Hashable:
    return plain(parts, _Literal(), _NOT_OF_A_SERVER)


# ---- who serves ----


def _drop_answers(peer: bytes, server: SegmentServer) -> None:
    for key in [key for key in server._answers if key[0] == peer]:
        del server._answers[key]


@dataclass(slots=True)
class Serving:
    """The clients' side of a publisher or a relay."""

    draws: Draws
    prefixes: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    """What each client subscribed to."""
    sent: list[Sent] = field(default_factory=list)

    def hears(self, peer: bytes, notice: bytes, server: SegmentServer | None) -> None:
        """A subscription comes or goes."""
        comes, prefix = notice[0] == 1, notice[1:]
        if not comes:
            self._unsubscribed(peer, prefix, server)
            return
        self.prefixes[peer] = (*self.prefixes.get(peer, ()), prefix)
        if server is None:
            return
        if prefix[:1] == b"C":
            server.channels.hears(prefix[1:], True)
        else:
            server.subscribed(prefix[1:], 0.0)

    def _unsubscribed(self, peer: bytes, prefix: bytes, server: SegmentServer | None) -> None:
        left = tuple(each for each in self.prefixes.pop(peer, ()) if each != prefix)
        if left:
            self.prefixes[peer] = left
        if server is None or any(prefix in each for each in self.prefixes.values()):
            return
        if prefix[:1] == b"P":
            server.unsubscribed(prefix[1:])
        else:
            server.channels.hears(prefix[1:], False)

    @staticmethod
    def asks_again(peer: bytes, message: m.Message, server: SegmentServer) -> None:
        """What a client asks for no longer waits, as it does for a while: of an earlier answer it takes no more."""
        if isinstance(message, m.Since):
            _drop_answers(peer, server)

    def leaves(self, peer: bytes, server: SegmentServer | None) -> None:
        """A client is gone, and all that was kept for it."""
        for prefix in self.prefixes.get(peer, ()):
            self._unsubscribed(peer, prefix, server)
        if server is not None:
            for nonce in [nonce for nonce, joined in server._pending.items() if joined.peer == peer]:
                server.unsubscribed(nonce)
            server._used.clear()
            server.views._views.pop(peer, None)
            _drop_answers(peer, server)

    def carries_out(self, effects: Iterable[PublisherEffect], channels: Channels) -> None:
        """Push and answer."""
        for effect in effects:
            match effect:
                case Push(message):
                    channels.push(message)
                case SendAnswers(peer, messages):
                    self.sent.append(Answered(peer, tuple(messages)))
                case Private(nonce, message, replaced):
                    self.flush(channels)
                    self._publish(b"P" + nonce, channels.left(message, replaced))
                case _:
                    raise AssertionError(f"who has all in memory does not ask for {effect}")
        self.flush(channels)

    def flush(self, channels: Channels) -> None:
        """Push what has been gathered."""
        for frames in channels.flush():
            for message in wire.decode(frames, prefix=wire.CHANNEL_PREFIX):
                self._publish(frames[0][: wire.CHANNEL_PREFIX], message)

    def _publish(self, prefix: bytes, message: m.Message) -> None:
        self.sent += [Pushed(peer, prefix, message) for peer, prefixes in self.prefixes.items() if prefix in prefixes]

    def key(self, server: SegmentServer) -> Hashable:
        """Of what clients depend on."""
        channels = server.channels
        at = tuple(each.at for each in server._answers.values())  # where answers are; elsewhere it is a time
        return at, _key(sorted(self.prefixes.items()), vars(server), vars(channels), tuple(channels), server.views)


@dataclass(slots=True)
class Origin:
    """The publisher, with a log that is fixed; `lives` are replicas of it."""

    lives: "Lives"
    position: int
    """How many events it has pushed."""
    begun: tuple[int, ...]
    """After how many events each incarnation but the first one began."""
    server: SegmentServer
    serving: Serving

    @property
    def draws(self) -> Draws:
        """Its tokens."""
        return self.serving.draws

    def publish(self) -> None:
        """Push the next event."""
        event = self.lives.log.events[self.position]
        self.position += 1
        self.server.publisher = self.lives.publisher(self.begun, self.position)
        self.serving.carries_out([Push(event)], self.server.channels)

    def beat(self) -> None:
        """The heartbeat is due."""
        self.server.tick(0.0)

    def heard(self, peer: bytes, notice: bytes) -> None:
        """A subscription comes or goes."""
        self.serving.hears(peer, notice, self.server)

    def asked(self, peer: bytes, message: m.Message) -> None:
        """A request comes."""
        self.serving.asks_again(peer, message, self.server)
        self.server.receive(peer, message, 0.0)

    def left(self, peer: bytes) -> None:
        """A client is gone."""
        self.serving.leaves(peer, self.server)

    def restart(self) -> None:
        """It ends, and another incarnation begins with the same log; all clients have lost their connections."""
        again = start_origin(self.lives, self.position, (*self.begun, self.position), self.serving.draws)
        self.begun, self.server, self.serving = again.begun, again.server, again.serving

    def take(self) -> tuple[Sent, ...]:
        """What it sends."""
        effects = self.lives.publisher(self.begun, self.position).take()
        self.serving.carries_out(effects, self.server.channels)
        sent, self.serving.sent = tuple(self.serving.sent), []
        self.server._used.clear()
        return sent

    def key(self) -> Hashable:
        """Equal for publishers to which the same can happen, and that then do the same."""
        return self.begun, self.position, self.serving.key(self.server)

    def dump(self) -> bytes:
        """All that can change."""
        lives, publisher = self.lives, self.server.publisher
        self.lives = self.server.publisher = None  # type: ignore[assignment]  # put back at once
        dumped = pickle.dumps(self)
        self.lives, self.server.publisher = lives, publisher
        return dumped


class Lives:
    """The publishers of one log, after each number of events, in each incarnation."""

    def __init__(self, log: FixedLog) -> None:
        self.log = log
        self._made: dict[tuple[tuple[int, ...], int], SegmentPublisher] = {}

    def publisher(self, begun: tuple[int, ...], position: int) -> SegmentPublisher:
        """The one after `position` events, whose incarnations began as `begun` says."""
        made = self._made.get((begun, position))
        if made is None:
            made = self._made[begun, position] = self.log.publisher(position, begun)
        return made


def start_origin(lives: Lives, position: int, begun: tuple[int, ...], draws: Draws) -> Origin:
    """A publisher that nobody follows yet."""
    server = SegmentServer(lives.publisher(begun, position), Channels(draws.token), SERVING, 0.0)
    return Origin(lives, position, begun, server, Serving(draws))


def load_origin(dumped: bytes, lives: Lives) -> Origin:
    """The publisher that was dumped."""
    origin = pickle.loads(dumped)
    assert isinstance(origin, Origin)
    origin.lives = lives
    origin.server.publisher = lives.publisher(origin.begun, origin.position)
    return origin


# ---- who follows ----


@dataclass(slots=True)
class Following:
    """One that follows a server: a relay, or the reader."""

    draws: Draws
    follower: Follower | None = None
    incarnation: int = 0
    """The newest that it has heard of."""
    pushes: bool = True
    """Whether it follows pushes; else it asks, again and again."""
    credit: int = SETTINGS.credit
    """How many parts of an answer it asks for ahead."""
    sent: list[Sent] = field(default_factory=list)

    def connect(self, begin: Begin, continuing: bool, topics: TopicFilter | None, relay: str | None) -> None:
        """Connect, and follow from `begin` on."""
        self.follower = Follower(
            STREAM, SEGMENT, begin, shape=SHAPE, fresh_nonce=self.draws.nonce, now=0.0,
            settings=replace(SETTINGS, credit=self.credit),
            continuing=continuing, least_incarnation=self.incarnation, topics=topics, whole_filter=True, relay=relay,
            pushes=self.pushes,
        )  # fmt: skip

    def pushed(self, prefix: bytes, message: m.Message) -> None:
        """What was pushed arrives."""
        if self.follower is not None:
            self.follower.pushed(prefix, message, 0.0)

    def answered(self, messages: tuple[m.Message, ...]) -> None:
        """An answer arrives."""
        for message in messages if self.follower is not None else ():
            if isinstance(message, m.Welcome):
                self.incarnation = max(self.incarnation, message.incarnation)
            self.follower.answered(message, 0.0)  # type: ignore[union-attr]  # it is there

    def fires(self, silent: bool) -> None:
        """A timer of the follower fires: while it hears its server, or where that is silent."""
        assert self.follower is not None
        if not silent and (self.pushes or not self.follower.live):  # who waits to ask again does so
            self.follower.resume(SOON)
        self.follower.tick(LATE if silent else SOON)

    def reports(self) -> Reports:
        """Send what is to be sent; returns what is reported."""
        follower = self.follower
        if follower is None:
            return ()
        for effect in follower.take():
            match effect:
                case Request(message):
                    self.sent.append(Asked(message))
                case SubscribePrefix(prefix):
                    self.sent.append(Subscribes(b"\x01" + prefix))
                case _:
                    self.sent.append(Subscribes(b"\x00" + effect.prefix))
        set_back(follower)
        if follower.live and not self.pushes:
            follower._connection.request = (
                1  # all that it had asked for is answered, in order, so it may ask by the same numbers
            )
        return tuple(follower.reports())

    def leave(self) -> None:
        """Close the connection."""
        if self.follower is not None:
            self.follower = None
            self.sent.append(Leaves())

    @property
    def relayed(self) -> bool:
        """Whether a relay has answered."""
        follower = self.follower
        return follower is not None and follower.welcome is not None and bool(follower.welcome.path)

    def key(self) -> Hashable:
        """Equal where the same can happen, and the same is then done."""
        follower = self.follower
        if follower is None:
            return self.incarnation
        return (
            self.incarnation,
            follower._connection.request,
            _key(follower.welcome),
            follower_key(follower, _Literal()),
        )


class Client:
    """Has a server, whose messages go to what follows it."""

    __slots__ = ()
    following: Following

    def pushed(self, prefix: bytes, message: m.Message) -> None:
        """What was pushed arrives."""
        self.following.pushed(prefix, message)

    def answered(self, messages: tuple[m.Message, ...]) -> None:
        """An answer arrives."""
        self.following.answered(messages)

    def fires(self, silent: bool) -> None:
        """A timer fires."""
        self.following.fires(silent)


@dataclass(slots=True)
class End(Client):
    """The reader's end of his connection."""

    following: Following
    begin: Begin | None = From.LIVE
    """Where the next follower begins; None for the reader's position."""

    @property
    def draws(self) -> Draws:
        """Its subscription ids."""
        return self.following.draws

    def connect(self, begin: Begin, topics: TopicFilter | None) -> None:
        """Connect to a server."""
        self.following.connect(begin, self.begin is None, topics, None)
        self.begin = begin

    def want(self, topics: TopicFilter | None, widens: bool) -> None:
        """The user wants other topics."""
        if self.following.follower is not None:
            self.following.follower.want(topics, 0.0, widens=widens)

    def lost(self) -> None:
        """The connection is lost, or is left for another one."""
        follower = self.following.follower
        if follower is not None:
            self.begin = None if follower.began else self.begin
            self.following.leave()

    def take(self) -> tuple[Sent, ...]:
        """What it sends, and tells the reader."""
        following = self.following
        reports = following.reports()
        if reports:
            following.sent.append(Told(reports, following.relayed))
            if isinstance(reports[-1], Broke):
                self.lost()
        sent, following.sent = tuple(following.sent), []
        return sent

    def key(self) -> Hashable:
        """Equal where the same can happen, and the same is then done."""
        follower = self.following.follower
        return None if follower is not None and follower.began else self.begin, self.following.key()

    def dump(self) -> bytes:
        """All that can change."""
        return pickle.dumps(self)


@dataclass(slots=True)
class Relay(Client):
    """A relay: `machine` between whom it follows, and whom it serves."""

    name: str
    lingers: bool
    memory: int
    machine: RelayedSegment
    following: Following
    serving: Serving
    begin: Begin = From.LIVE

    @property
    def draws(self) -> Draws:
        """Its subscription ids and tokens."""
        return self.serving.draws

    # ---- upstream ----

    def connect(self) -> None:
        """Connect to a server."""
        self.following.connect(self.begin, self.machine.run is not None, self.machine.wanted, self.name)

    def lost(self) -> None:
        """The connection upstream is lost, or is left for another one."""
        if self.following.follower is not None:
            if self.machine.run is not None:
                self.begin = self.machine.position
            self.machine.lost()
            self.following.leave()

    def passed_back(self, number: int, messages: tuple[m.Message, ...]) -> None:
        """What was passed on is answered."""
        self.machine.answered(number, messages, 0.0)

    def cut(self, number: int) -> None:
        """A connection on which something was passed on is lost."""
        self.machine.cut(number)

    def lapses(self) -> None:
        """Topics that nobody has any more were asked for too long ago, and so were subscriptions that do not come."""
        union, run = self.machine._union, self.machine.run
        if run is not None:
            for nonce in list(run.server._pending):
                run.server.unsubscribed(nonce)
        union._had = dict.fromkeys(union._had, -2.0)
        self.machine.tick(0.0)

    def dies(self) -> None:
        """It ends, and another one begins; all its connections are lost."""
        credit = self.following.credit
        again = start_relay(self.serving.draws, lingers=self.lingers, memory=self.memory, credit=credit)
        self.machine, self.following, self.serving, self.begin = (
            again.machine, again.following, again.serving, again.begin
        )  # fmt: skip

    # ---- its clients ----

    def beat(self) -> None:
        """Its timers fire; a heartbeat is due."""
        self.machine.tick(0.0)

    def heard(self, peer: bytes, notice: bytes) -> None:
        """A subscription comes or goes."""
        run = self.machine.run
        prefix = notice[1:]
        nonce = prefix[1:] if notice[0] == 1 and prefix[:1] == b"P" else None
        known = nonce is None or (run is not None and (run.server.expects(nonce) or nonce in run.server.subscriptions))
        self.serving.hears(peer, notice, run.server if run is not None and known else None)
        if run is not None and not known:
            refused = m.Refused(0, "relay_ended", "the subscription id is of no hello to this run")
            self.serving.sent.append(Pushed(peer, prefix, refused))

    def asked(self, peer: bytes, message: m.Message) -> None:
        """A request comes."""
        machine = self.machine
        if machine.run is not None:
            self.serving.asks_again(peer, message, machine.run.server)
        if isinstance(message, m.Since):
            self._ends_forwarded(peer)
        machine.receive(peer, message, 0.0)

    def left(self, peer: bytes) -> None:
        """A client is gone."""
        machine, run = self.machine, self.machine.run
        self.serving.leaves(peer, None if run is None else run.server)
        machine._waiting = [each for each in machine._waiting if each.peer != peer]
        if run is not None:
            run._greeted.pop(peer, None)
        self._ends_forwarded(peer)

    def _ends_forwarded(self, peer: bytes) -> None:
        forwarded_requests = self.machine._forwarded_requests
        for forwarded in [each for each in forwarded_requests._by_number.values() if each.peer == peer]:
            forwarded_requests._end(forwarded)

    # ---- what comes of it ----

    def take(self) -> tuple[Sent, ...]:
        """What it sends, to all."""
        following, machine = self.following, self.machine
        while True:
            reports = following.reports()
            follower = following.follower
            if follower is not None and reports:
                machine.reported(reports, follower.welcome, 0.0)
                if follower.broken:
                    self.lost()
            effects = machine.take()
            if not effects and not reports:
                break
            for effect in effects:
                match effect:
                    case ForReaders(run, of_run):
                        beats = any(isinstance(each, Push) and isinstance(each.message, m.Heartbeat) for each in of_run)
                        assert machine.alive or not beats, "F16: a heartbeat without an origin"
                        self.serving.carries_out(of_run, run.channels)
                        if run.over is not None:
                            run.channels.end(run.over)
                            self.serving.flush(run.channels)
                    case SendAnswers(peer, messages):
                        self.serving.sent.append(Answered(peer, tuple(messages)))
                    case Want(topics, widens):
                        if following.follower is not None:
                            following.follower.want(topics, 0.0, widens=widens)
                    case Forward(number, message):
                        following.sent.append(Asked(message, number))
                    case HangUp(number):
                        following.sent.append(Leaves(number))
        sent = (*self.serving.sent, *following.sent)
        self.serving.sent, following.sent = [], []
        self._sets_back()
        return sent

    def _sets_back(self) -> None:
        """Nothing that happens later can tell how much time has passed."""
        machine = self.machine
        if not machine.passed_on:
            machine._forwarded_requests._numbers = 0
        if not self.lingers:
            machine._union._had = dict.fromkeys(machine._union._had, -1.0)
        if machine.run is not None:
            machine.run.server._used.clear()

    def key(self) -> Hashable:
        """Equal for relays to which the same can happen, and that then do the same."""
        machine, run = self.machine, self.machine.run
        return (
            self.following.key(),
            self.begin if run is None else None,
            _key(machine.alive, machine.wanted, machine._widening, machine._waiting, machine._forwarded_requests),
            _key(sorted(each.entries for each in machine._union._had), machine._union._everything),
            None if run is None else _key(run.path, run.history, run._greeted),
            _key(sorted(self.serving.prefixes.items()), machine._views)
            if run is None
            else self.serving.key(run.server),
        )

    def dump(self) -> bytes:
        """All that can change."""
        return pickle.dumps(self)


def start_relay(draws: Draws, *, lingers: bool, memory: int, credit: int) -> Relay:
    """A relay that follows nobody yet. `lingers`: whether it goes on asking for topics that nobody wants any more."""
    name = draws.owner
    limits = RelayLimits(memory=memory, union=UnionTimes(linger=1.5 if lingers else 0.5), serving=SERVING)
    machine = RelayedSegment(STREAM, SEGMENT, SHAPE, name, limits, draws.fresh)
    return Relay(name, lingers, memory, machine, Following(draws, credit=credit), Serving(draws))


def start_end(draws: Draws, *, pushes: bool, credit: int) -> End:
    """A reader's end that follows nobody yet."""
    return End(Following(draws, pushes=pushes, credit=credit))


def load(dumped: bytes) -> Any:
    """The relay, or the reader's end, that was dumped."""
    return pickle.loads(dumped)

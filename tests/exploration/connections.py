"""One segment's publisher, its log fixed, and one subscriber's connection to it: all that can happen between them.

The machines are the real ones; between them are four queues, one each way on the sockets `events` and `requests`. A
queue keeps its order, as ZeroMQ does, and the queues know nothing of each other.

There is no clock: it is always zero. A timer fires when the search says so; then what the machines remember of time is
set back.

Sources: rules F6-F8, F10, F11, E14; docs/protocol.md.
"""

import pickle
from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Any

import google_crc32c
from tests.exploration.canonical import Names, plain
from tests.simulation.oracle import Log, Standing

from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.effects import Private, PublisherEffect, Push, SendAnswers
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SegmentServer, ServingSettings
from epochal.protocol.subscriber.effects import Broke, FollowerReport, Request, SubscribePrefix
from epochal.protocol.subscriber.follower import Follower, FollowerSettings
from epochal.protocol.subscriber.since import Begin
from epochal.protocol.subscriber.upstream_filter import FilterTimes
from epochal.protocol.times import Time, TimeShape
from epochal.protocol.topics.filter import TopicFilter

STREAM, SHAPE = "uid", TimeShape.parse("int")
SETTINGS = FollowerSettings(filter=FilterTimes(between_changes=0.0))
SOON, QUIET, LATE = SETTINGS.join_timeout + 0.5, SETTINGS.silence * 0.8, SETTINGS.silence + 0.5
"""Seconds after which a timer of a follower that hears its publisher fires; one that hears nothing looks, and gives up.
"""

Reports = tuple[FollowerReport, ...]


# ---- the log ----


class FixedLog:
    """The log of one segment, as its publisher writes it: an event at each step of `script`.

    A step is `a0` (a batch of topic `a` at time 0), `1` (nothing below time 1 comes any more), `!1` (time 1 is
    aborted), or `.` (nothing comes any more). Without `keeps` there is no history.
    """

    def __init__(self, segment: str, script: str, keeps: bool) -> None:
        self.segment = segment
        self.steps = script.split()
        self.is_kept = keeps
        self.publishers = [self.publisher(position) for position in range(len(self.steps) + 1)]
        """One after each number of events. They share nothing, and do not change any more."""
        self.events = [self._writes(self.publisher(position), position) for position in range(len(self.steps))]
        self.data: dict[Time, list[m.Data]] = {}
        for event in self.events:
            if isinstance(event, m.Data):
                self.data.setdefault(event.time, []).append(event)
        log = Log(segment, 1, frozenset((0,)), events=self.events)
        self.log = log
        self.standings: list[Standing] = [log.standing(seq) for seq in range(-1, len(self.steps))]
        """By the number of events."""

    def publisher(self, position: int, begun: tuple[int, ...] = ()) -> SegmentPublisher:
        """The publisher after so many events. `begun`: after how many each incarnation but the first one began.

        Each knows what those before it had logged, or, where nothing is kept, not even that.
        """
        settings = PublisherSettings(SHAPE, retention_bytes=2**20 if self.is_kept else 0, durable=True)
        publisher = SegmentPublisher(STREAM, self.segment, settings, incarnation=1 + len(begun), now=0.0)
        publisher.receive(b"w", m.Open(1, STREAM, self.segment, "w", 1, None, None), 0.0)
        publisher.take()
        for step in range(position):
            self._writes(publisher, step)
        lives = list(enumerate((0, *begun), 1))
        publisher.history.incarnations = lives if self.is_kept else lives[-1:]
        return publisher

    def _writes(self, publisher: SegmentPublisher, at: int) -> m.Event:
        step = self.steps[at]
        if step == ".":
            publisher.receive(b"w", m.Leave(at, self.segment, m.Leaving.FINISH), 0.0)
            publisher.completed()
        elif step.isdecimal():
            publisher.receive(b"w", m.Hold(at, self.segment, (int(step),)), 0.0)
        elif step[0] == "!":
            publisher.receive(b"w", m.Abort(at, self.segment, (int(step[1:]),)), 0.0)
        else:
            payload, number = b"%s.%d" % (self.segment.encode(), at), sum(map(_is_data, self.steps[:at]))
            topic, time = step[:1].encode(), int(step[1:])
            crc = google_crc32c.value(payload)
            publisher.receive(b"w", m.Append(self.segment, number, time, topic, 1, crc, payload), 0.0)
        (event,) = (effect.message for effect in publisher.take() if isinstance(effect, Push))
        assert not isinstance(event, m.Heartbeat)
        return event


def _is_data(step: str) -> bool:
    return step[0].isalpha()


# ---- the connection ----


class Numbers:
    """Draws what is random elsewhere: subscription ids and channel tokens, each once."""

    def __init__(self) -> None:
        self.drawn = 0

    def nonce(self) -> bytes:
        """A subscription id."""
        self.drawn += 1
        return b"nonce%011d" % self.drawn

    def token(self) -> bytes:
        """The token of a channel."""
        self.drawn += 1
        return b"tok%05d" % self.drawn


@dataclass(slots=True)
class Connection:
    """One segment as it is now: publisher, subscriber's end, and the messages on their way, oldest first."""

    log: FixedLog
    position: int
    """How many events the publisher has pushed."""
    numbers: Numbers
    server: SegmentServer
    whole_filter: bool
    begin: Begin | None
    """Where the next follower begins; None for the subscriber's position."""
    follower: Follower | None = None
    peer: bytes = b""
    prefixes: tuple[bytes, ...] = ()
    """What the client subscribed to, as the publisher knows it."""
    subscriptions: tuple[bytes, ...] = ()
    requests: tuple[m.Message, ...] = ()
    pushes: tuple[tuple[bytes, m.Message], ...] = ()
    """With the prefix of each."""
    answers: tuple[tuple[m.Message, ...], ...] = ()
    """Each with all that is sent as one ZeroMQ message."""
    dropped: bool = False
    """Whether a pushed message was dropped."""

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way."""
        return not (self.subscriptions or self.requests or self.pushes or self.answers)

    # ---- what can happen; each returns what the subscriber is to be told ----

    def publish(self) -> Reports:
        """The publisher pushes the next event of its log."""
        event = self.log.events[self.position]
        self.position += 1
        self.server.publisher = self.log.publishers[self.position]
        return self._acted([Push(event)])

    def beat(self) -> Reports:
        """The publisher's heartbeat is due."""
        self.server.tick(0.0)
        return self._acted()

    def subscribe(self) -> Reports:
        """The publisher hears that the client subscribes, or does not any more."""
        notice, self.subscriptions = self.subscriptions[0], self.subscriptions[1:]
        comes, prefix = notice[0] == 1, notice[1:]
        if not comes:
            self._unsubscribed(prefix)
            return self._acted()
        self.prefixes = (*self.prefixes, prefix)
        if prefix[:1] == b"P":
            self.server.subscribed(prefix[1:], 0.0)
        else:
            self.server.channels.hears(prefix[1:], True)
        return self._acted()

    def request(self) -> Reports:
        """A request arrives."""
        message, self.requests = self.requests[0], self.requests[1:]
        self.server.receive(self.peer, message, 0.0)
        return self._acted()

    def lose_request(self) -> Reports:
        """A request is lost."""
        self.requests = self.requests[1:]
        return self._acted()

    def push(self) -> Reports:
        """What was pushed arrives."""
        assert self.follower is not None
        (prefix, message), self.pushes = self.pushes[0], self.pushes[1:]
        self.follower.pushed(prefix, message, 0.0)
        asked = len(self.requests)
        reports = self._acted()
        if isinstance(message, m.Heartbeat) and not self.dropped:
            assert len(self.requests) == asked, "F7: by a heartbeat it asks for what it has not missed"
        return reports

    def drop_push(self) -> Reports:
        """What was pushed is dropped, because too much waits."""
        self.pushes, self.dropped = self.pushes[1:], True
        return self._acted()

    def answer(self) -> Reports:
        """An answer arrives."""
        assert self.follower is not None
        messages, self.answers = self.answers[0], self.answers[1:]
        for message in messages:
            self.follower.answered(message, 0.0)
        return self._acted()

    def lose_answer(self) -> Reports:
        """An answer is lost."""
        self.answers = self.answers[1:]
        return self._acted()

    def soon(self) -> Reports:
        """A timer fires at the follower, which hears its publisher all the time."""
        assert self.follower is not None
        self.follower.resume(SOON)
        return self._fires(SOON)

    def look(self) -> Reports:
        """The follower has heard nothing for a while."""
        return self._fires(QUIET)

    def give_up(self) -> Reports:
        """The follower has heard nothing for too long."""
        return self._fires(LATE)

    def want(self, topics: TopicFilter | None, widens: bool) -> Reports:
        """The user wants other topics."""
        if self.follower is not None:
            self.follower.want(topics, 0.0, widens=widens)
        return self._acted()

    def connect(self, begin: Begin, topics: TopicFilter | None) -> Reports:
        """The client connects, and follows from `begin` on."""
        continuing, self.begin = self.begin is None, begin
        self.peer = b"peer%d" % self.numbers.drawn
        self.follower = Follower(
            STREAM, self.log.segment, begin, shape=SHAPE, fresh_nonce=self.numbers.nonce, now=0.0, settings=SETTINGS,
            continuing=continuing, topics=topics, whole_filter=self.whole_filter,
        )  # fmt: skip
        return self._acted()

    def restart(self, begin: Begin) -> Reports:
        """The client's process ends, and another one will begin there."""
        self._leave()
        self.begin = begin
        return ()

    # ---- what comes of it ----

    def _fires(self, after: float) -> Reports:
        assert self.follower is not None
        self.follower.tick(after)
        reports = self._acted()
        if self.follower is not None:
            set_back(self.follower)
        return reports

    def _acted(self, first: list[PublisherEffect] | None = None) -> Reports:
        """Carry out what the machines want, and return what the follower reports."""
        self._carry_out([*(first or ()), *self.log.publishers[self.position].take()])
        follower = self.follower
        if follower is None:
            return ()
        for effect in follower.take():
            match effect:
                case Request(message):
                    self.requests = (*self.requests, message)
                case SubscribePrefix(prefix):
                    self.subscriptions = (*self.subscriptions, b"\x01" + prefix)
                case _:
                    self.subscriptions = (*self.subscriptions, b"\x00" + effect.prefix)
        reports = tuple(follower.reports())
        if reports and isinstance(reports[-1], Broke):
            self.begin = None if follower.began else self.begin
            self._leave()
        self._expire()
        return reports

    def _carry_out(self, effects: list[PublisherEffect]) -> None:
        channels = self.server.channels
        for effect in effects:
            match effect:
                case Push(message):
                    channels.push(message)
                case SendAnswers(peer, messages):
                    assert peer == self.peer
                    self.answers = (*self.answers, messages)
                case Private(nonce, message, replaced):
                    self._flush()
                    self._to_client(b"P" + nonce, channels.left(message, replaced))
                case _:
                    raise AssertionError(f"a publisher with its history in memory does not ask for {effect}")
        self._flush()

    def _flush(self) -> None:
        for frames in self.server.channels.flush():
            for message in wire.decode(frames, prefix=wire.CHANNEL_PREFIX):
                self._to_client(frames[0][: wire.CHANNEL_PREFIX], message)

    def _to_client(self, prefix: bytes, message: m.Message) -> None:
        if prefix in self.prefixes:
            self.pushes = (*self.pushes, (prefix, message))

    def _unsubscribed(self, prefix: bytes) -> None:
        self.prefixes = tuple(each for each in self.prefixes if each != prefix)
        if prefix[:1] == b"P":
            self.server.unsubscribed(prefix[1:])
        else:
            self.server.channels.hears(prefix[1:], False)

    def _leave(self) -> None:
        """The client's end is closed; the publisher hears of that at once."""
        self.follower = None
        self.subscriptions, self.requests, self.pushes, self.answers = (), (), (), ()
        for prefix in self.prefixes:
            self._unsubscribed(prefix)
        self._expire()

    def _expire(self) -> None:
        """A hello that was given up is forgotten, as it is when its time is over."""
        alive = {b"P" + message.nonce for message in self.requests if isinstance(message, m.Hello)}
        alive.update(notice[1:] for notice in self.subscriptions)
        if (follower := self.follower) is not None:
            alive.add(b"P" + follower._subscription.nonce)
            if (change := follower._subscription.change) is not None:
                alive.add(b"P" + change.nonce)
        for nonce in [nonce for nonce in self.server._pending if b"P" + nonce not in alive]:
            self.server.unsubscribed(nonce)

    @property
    def live(self) -> tuple[int, TopicFilter] | None:
        """The last event that was pushed, and what the channel carries; None while something else is being done."""
        follower = self.follower
        if follower is None or not follower.live or follower._subscription.change is not None:
            return None
        return self.position - 1, self.server.subscriptions[follower._subscription.nonce].channel.filter

    # ---- as a value ----

    def key(self) -> Hashable:
        """Equal for connections to which the same can happen, and that then report the same."""
        names = Names(0 if self.follower is None else self.follower._connection.request)
        begin = self.begin if self.follower is None or not self.follower.began else None
        return (
            self.position,
            self.dropped,
            begin,
            None if self.follower is None else follower_key(self.follower, names),
            plain((self.subscriptions, self.requests, self.pushes, self.answers), names),
            _server(self.server, self.peer, names),
            tuple(sorted(map(names.of, self.prefixes))),
        )

    def dump(self) -> bytes:
        """All that can change, to be read back with `load`."""
        log, publisher = self.log, self.server.publisher
        self.log = self.server.publisher = None  # type: ignore[assignment]  # put back at once
        dumped = pickle.dumps(self)
        self.log, self.server.publisher = log, publisher
        return dumped


def open_connection(log: FixedLog, begin: Begin, *, whole_filter: bool) -> Connection:
    """A publisher that has pushed nothing yet, and a client that has not connected."""
    numbers = Numbers()
    server = SegmentServer(log.publishers[0], Channels(numbers.token), ServingSettings(heartbeat=0.0), 0.0)
    return Connection(log, 0, numbers, server, whole_filter, begin)


def load(dumped: bytes, log: FixedLog) -> Connection:
    """The connection that was dumped."""
    connection = pickle.loads(dumped)
    assert isinstance(connection, Connection)
    connection.log = log
    connection.server.publisher = log.publishers[connection.position]
    return connection


def set_back(follower: Follower) -> None:
    """Nothing that happens later can tell how much time has passed."""
    follower._liveness.heard = follower._liveness.since = 0.0
    change = follower._subscription.change
    if change is not None:
        change.since = 0.0
    upstream = follower._upstream
    upstream._joined_at = upstream._may_change_at = upstream._changed_at = 0.0
    upstream._asked_at = inf if upstream._asked_at == inf else 0.0


_NOT_OF_A_FOLLOWER = frozenset(
    ("stream", "segment", "pushes", "welcome", "damaged", "error", "_relay", "_segment", "checks", "_max_backlog",
     "_credit", "_fresh_nonce", "_least_incarnation", "_effects", "_reports", "request", "_backlog_bytes", "snapshot",
     "answer", "begin", "newest", "liveness", "progress", "subscription", "terms", "upstream", "change", "_connection")
)  # fmt: skip
"""What does not change, is a cache, is empty between two steps, is of time, or counted; what matters in some states."""
_NOT_OF_A_FILTER = frozenset(("_times", "_whole", "_joined_at", "_may_change_at", "_changed_at", "_asked_at", "_trie"))


def follower_key(follower: Follower, names: Names) -> Hashable:
    """Equal for followers that do the same from now on."""
    connection, progress, terms = follower._connection, follower._progress, follower._terms
    pulls, snapshot = follower.state == "pulling", follower._subscription.snapshot
    parts = (connection, progress, terms, follower._subscription, follower._pull_answers)
    values = [getattr(part, name) for part in parts for name in part.__slots__ if name not in _NOT_OF_A_FOLLOWER]
    return (
        plain(values, names),
        _change(follower, names),
        _upstream(follower, names),
        None if follower.live else progress.begin,
        None if follower.began else terms.newest,
        plain((connection.answer, snapshot.seq, snapshot.lower, snapshot.upper, snapshot.aborted), names)
        if pulls else None,
    )  # fmt: skip


def _change(follower: Follower, names: Names) -> Hashable:
    change = follower._subscription.change
    if change is None:
        return None
    request = change.request - follower._connection.request
    return request, plain((change.nonce, change.topics, change.channel, change.last, change.backlog), names)


def _upstream(follower: Follower, names: Names) -> Hashable:
    upstream = follower._upstream
    trie = upstream._trie
    values = {name: value for name, value in vars(upstream).items() if name not in _NOT_OF_A_FILTER}
    return plain(values, names), None if trie is None else plain(vars(trie), names)


def _server(server: SegmentServer, peer: bytes, names: Names) -> Hashable:
    """Of views that of this peer only: no other one comes again. Bytes sent matter at the cap of channels only."""
    assert not server._answers
    view = server.views._views.get(peer)
    trie = None if view is None else view.trie
    return (
        tuple(sorted((names.of(nonce), *_joined(joined, names)) for nonce, joined in server._pending.items())),
        tuple(sorted((names.of(nonce), *_joined(joined, names)[:2]) for nonce, joined in server.subscriptions.items())),
        None if view is None or trie is None else (
            view.number, tuple(sorted(trie.bits.items())), trie._oldest, tuple(sorted(trie._applied))
        ),
        tuple(
            (names.of(b"C" + each.token), each.filter.entries, each.number, each.last, each.subscribed,
             tuple(sorted(map(names.of, each.joining))))
            for each in server.channels
        ),
    )  # fmt: skip


def _joined(joined: Any, names: Names) -> tuple[Any, ...]:
    replaced = None if joined.replaced is None else names.of(b"C" + joined.replaced)
    return names.of(b"C" + joined.channel.token), joined.coarse, str(replaced)

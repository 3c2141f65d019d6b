"""What a segment's publisher does for subscribers: joins, snapshots, history, heartbeats.

A machine without I/O beside `machine`: it reads that machine's log and puts its effects into the same queue. The shared
queue alone makes joins atomic (S9): a snapshot is queued after the events that it reflects and before all later ones.

Sources: rules S8, S9, S21-S24; E13, E14; Push-Pull Publish-Subscribe (`since`); docs/protocol.md.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from epochal.errors import (
    EpochalError,
    HistoryTruncated,
    LimitExceeded,
    RemoteProtocolError,
    StreamGone,
    Unavailable,
    VersionMismatch,
)
from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import MOST_WANTED, EpochQuery
from epochal.protocol.log.history import Lull, SegmentState, retained_size
from epochal.protocol.publisher.channels import Channel, Channels
from epochal.protocol.publisher.effects import FindBeginning, FindState, Private, Push, ReadLog, SendAnswers
from epochal.protocol.publisher.served import Served
from epochal.protocol.publisher.views import ViewMemory, Views
from epochal.protocol.topics.filter import TopicFilter

CHUNK_EVENTS = 256
CHUNK_BYTES = 512 * 1024
SOME_BYTES = CHUNK_BYTES // 4
"""A filtered chunk is sent once it has this many bytes of wanted events; it may exceed that by one whole chunk."""
SCAN_EVENTS = 4096
"""About how many events in memory are filtered for one chunk, even if few of them are wanted."""
MAX_CREDIT = 32
"""Most chunks that one message can request: 16 MiB, so that no client delays the others or fills its queue at once."""
FEATURES = ("since", "filter:receiver", m.SINCE_TIMES, m.SINCE_FILTER, m.FILTER_CHANNELS)
"""What this publisher can do; a client must not request what is not listed."""


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Limits on what subscribers can make a publisher do; times in seconds."""

    heartbeat: float = 1.0
    nonce_ttl: float = 10.0
    """How long a hello waits for its subscription."""
    max_pending: int = 20_000
    """Hellos that wait for their subscription at once."""
    max_pending_each: int = 64
    """The same for one peer, so that it cannot keep the others out; a peer joins one segment at a time."""
    max_answers: int = 1_000
    """Answers to `since` under way at once."""
    max_answers_each: int = 4
    """The same for one peer, which requests one at a time."""
    view_ttl: float = 60.0
    """How long a view of topics is kept after its last request; the channel that was joined with it stays."""
    answer_ttl: float = 60.0
    """How long an answer waits for credit."""


@dataclass(slots=True)
class _Answering:
    at: int
    credit: int
    heard: float
    opening: m.Position
    """Where the answer begins: the requested position, or the last one before it that survived a crash."""
    known: bool = True
    """Whether the log knows that position; if not, every event after it is gone."""
    from_start: bool = False
    """Whether the client named no position: the answer begins with the history, or with the wanted part of it."""
    topics: TopicFilter | None = None
    """The topics that are wanted, for the whole answer (F10); None for all."""
    wanted: EpochQuery | None = None
    """The epochs that are wanted; earlier events that do not matter to them are left out."""
    opened: bool = False
    """Whether the answer has begun."""
    truncated: bool = False
    """Whether the answer will only be `Truncated`, which names the first position of the history."""
    reading: bool = False
    """Whether the shell is reading the disk for this answer."""


class Joined(NamedTuple):
    """A subscriber that joins, or has joined: since when, from which peer, and the channel it was given.

    Its own filter is not kept: once no more channels can be made, every subscriber could have another large one.
    `coarse`: the channel carries more than the subscriber wants (F12). `replaced` is the channel of the subscription
    that ends when this one gets its snapshot (F8).
    """

    at: float
    peer: bytes
    channel: Channel
    coarse: bool
    replaced: bytes | None


class SegmentServer:
    """The subscribers' side of one segment publisher. Its shell pushes on `channels`.

    For a publisher with a disk, pass it the `CommittedView`, which never shows what is not durable yet.
    """

    def __init__(
        self,
        publisher: Served,
        channels: Channels,
        settings: ServingSettings,
        now: float,
        features: tuple[str, ...] = FEATURES,
        *,
        views: Views | None = None,
    ) -> None:
        self.publisher = publisher
        self.channels = channels
        self.settings = settings
        self.subscriptions: dict[bytes, Joined] = {}
        """By nonce."""
        self._pending: dict[bytes, Joined] = {}
        """The hellos that wait for their subscriptions, by nonce."""
        self._joining = Counter[bytes]()
        """Peer -> how many of its hellos are pending."""
        self._features = features
        self.views = Views(settings.view_ttl, ViewMemory()) if views is None else views
        self._used: dict[bytes, float] = {}
        self._answers: dict[tuple[bytes, int], _Answering] = {}
        self._beaten = now
        self._beat_seq = m.NOTHING_YET

    # ---- requests ----

    @property
    def coarse(self) -> int:
        """How many subscribers are sent more than they asked for, because there is no room for their channel (F12)."""
        return sum(each.coarse for each in self.subscriptions.values())

    @property
    def answering(self) -> int:
        """How many history queries are being answered."""
        return len(self._answers)

    def receive(self, peer: bytes, message: m.Message, now: float) -> None:
        """Handle one message on `requests`. Raises `RemoteProtocolError` for one that no client may send."""
        match message:
            case m.Hello():
                self._guard(peer, message.request, lambda: self._hello(peer, message, now))
            case m.Since():
                self._guard(peer, message.request, lambda: self._since(peer, message, now))
            case m.Filter():
                self._guard(peer, 0, lambda: self._filter(peer, message, now))
            case m.Credit():
                answering = self._answers.get((peer, message.request))
                if answering is not None:
                    answering.credit += min(message.chunks, MAX_CREDIT)
                    answering.heard = now
                    self._continue(peer, message.request, answering)
            case _:
                raise RemoteProtocolError(f"a subscriber does not send {type(message).__name__}")

    def _guard(self, peer: bytes, request: int, handle: Callable[[], None]) -> None:
        try:
            handle()
        except EpochalError as error:
            self.publisher.emit(SendAnswers(peer, (m.Refused(request, error.code, str(error)),)))

    def wanted(self, peer: bytes, hello: m.Hello) -> TopicFilter:
        """The topics that a join of this peer must get."""
        return self.views.filter(peer, hello.view) if hello.filter is None else TopicFilter(*hello.filter)

    def _hello(self, peer: bytes, hello: m.Hello, now: float) -> None:
        publisher = self.publisher
        if m.VERSION not in hello.versions:
            raise VersionMismatch(f"this publisher speaks protocol version {m.VERSION}, not {list(hello.versions)}")
        if hello.stream != publisher.stream:
            raise StreamGone("the stream was deleted and created again; look it up again")
        if publisher.gathering:
            raise Unavailable("this publisher waits to hear from the writers of the one before; try again")
        if hello.nonce in self._used or hello.nonce in self._pending or hello.nonce in self.subscriptions:
            raise RemoteProtocolError("a subscription id is used once; draw a fresh one")
        if len(self._pending) >= self.settings.max_pending or self._joining[peer] >= self.settings.max_pending_each:
            raise Unavailable("too many joins are under way; try again")
        wanted = self.wanted(peer, hello)
        channel = self.channels.join(hello.nonce, wanted)
        coarse = channel.filter != wanted
        # Any client can see the nonces of others, so the one in `replaces` counts only if this peer drew it (F11).
        before = None if hello.replaces is None else self.subscriptions.get(hello.replaces)
        replaced = before.channel.token if before is not None and before.peer == peer else None
        self._pending[hello.nonce] = Joined(now, peer, channel, coarse, replaced)
        self._joining[peer] += 1
        welcome = m.Welcome(
            hello.request, m.VERSION, channel.token, publisher.incarnation, publisher.seq,
            publisher.settings.max_payload, self.settings.heartbeat, self._features, coarse, publisher.path,
        )  # fmt: skip
        publisher.emit(SendAnswers(peer, (welcome,)))

    def _filter(self, peer: bytes, step: m.Filter, now: float) -> None:
        confirm = self.views.receive(peer, step, now)
        if confirm is not None:
            self.publisher.emit(SendAnswers(peer, (confirm,)))

    # ---- subscriptions: what XPUB reports ----

    def expects(self, nonce: bytes) -> bool:
        """Whether a hello with `nonce` waits for its subscription here."""
        return nonce in self._pending

    def subscribed(self, nonce: bytes, now: float) -> None:
        """A client subscribed to `P<nonce>`.

        Send the snapshot at once, the state after the last event queued for push (E14). A second subscription
        to an id in use is not answered: another client has seen the id on `P`, and an answer would reach the subscriber
        that owns it.
        """
        if nonce in self.subscriptions:
            return
        joined = self._no_longer_pending(nonce)
        if joined is None:
            detail = "this subscription id is unknown, expired or used; say hello again with a fresh one"
            self.publisher.emit(Private(nonce, m.Refused(0, RemoteProtocolError.code, detail)))
            return
        self._used[nonce] = now
        self.subscriptions[nonce] = joined
        state = self.publisher.state()
        snapshot = m.Snapshot(
            state.seq, self.publisher.incarnation, nonce, state.lower, state.upper, state.aborted, state.below
        )
        self.publisher.emit(Private(nonce, snapshot, joined.replaced))

    def unsubscribed(self, nonce: bytes) -> None:
        """The subscriber has left, or its connection broke (S23)."""
        self.subscriptions.pop(nonce, None)
        self._no_longer_pending(nonce)

    def _no_longer_pending(self, nonce: bytes) -> Joined | None:
        pending = self._pending.pop(nonce, None)
        if pending is not None:
            self.channels.joined(nonce, pending.channel)
            self._joining[pending.peer] -= 1
            if not self._joining[pending.peer]:
                del self._joining[pending.peer]
        return pending

    # ---- history ----

    def _since(self, peer: bytes, ask: m.Since, now: float) -> None:
        history, incarnation = self.publisher.history, self.publisher.incarnation
        of_peer = sum(1 for of, _ in self._answers if of == peer)
        if self.publisher.gathering:
            raise Unavailable("this publisher waits to hear from the writers of the one before; try again")
        if (peer, ask.request) in self._answers:
            raise RemoteProtocolError(f"request {ask.request} is under way; each has a number of its own")
        if len(self._answers) >= self.settings.max_answers or of_peer >= self.settings.max_answers_each:
            raise Unavailable("too many history queries are under way; try again")
        wanted = self._checked(ask)
        position = m.Position(incarnation, history.first) if ask.position is None else ask.position
        if position.incarnation > incarnation or (position.incarnation == incarnation and position.seq > history.last):
            raise RemoteProtocolError(f"position {tuple(position)} is ahead of this log")
        survived = history.survived(position)
        if survived is not None and position.seq > survived:
            position = m.Position(incarnation, survived)  # what came later did not survive (E10 durability)
        answering = _Answering(position.seq, min(ask.credit, MAX_CREDIT), now, position, survived is not None)
        answering.from_start, answering.wanted = ask.position is None, wanted
        answering.topics = None if ask.filter is None else TopicFilter(*ask.filter)
        self._answers[peer, ask.request] = answering
        self._begin(peer, ask.request, answering)

    def _checked(self, ask: m.Since) -> EpochQuery | None:
        """The requested times. Raises for a wrong shape, for too many, and for times together with a position."""
        if ask.wanted is None:
            return None
        if ask.position is not None:
            raise RemoteProtocolError("a query for times covers the whole history; leave out the position")
        if len(ask.wanted) > MOST_WANTED:
            raise LimitExceeded(f"{len(ask.wanted)} times are wanted; at most {MOST_WANTED} can be asked for at once")
        return EpochQuery(tuple(map(self.publisher.settings.shape.check, ask.wanted)))

    def _begin(self, peer: bytes, request: int, answering: _Answering) -> None:
        """Open the answer, or have the shell find the state with which it opens.

        After a lull, the state where it began serves as well as the one where it ended (`Lull`). So a reader at a
        position within a lull that is gone has missed no data, and gets an answer, not `Truncated` (E13 retention).
        """
        history = self.publisher.history
        if answering.wanted is not None:
            self._find_beginning(peer, request, answering, answering.wanted)
            return
        first, asked = history.first, answering.opening.seq
        if answering.from_start or not answering.known:
            asked = first
        lull = self._lull()
        if lull is not None and answering.known and lull.since.seq <= asked and (asked < first or answering.from_start):
            self._open(peer, request, answering, lull.since, lull)
            return
        answering.truncated = asked < first or not answering.known
        answering.at = max(asked, first)
        if answering.at == history.last:  # the usual case of a client that polls: nothing to replay
            self._open(peer, request, answering, self.publisher.state())
        elif answering.at >= history.truncated_at:
            self._open(peer, request, answering, SegmentState.of(answering.at, history.state_at(answering.at)))
        else:
            answering.reading = True
            self.publisher.emit(FindState(peer, request, answering.at))

    def _lull(self) -> Lull | None:
        """The lull that ends at the first position of the history (E13 retention); None if it is empty or unknown."""
        lull = self.publisher.history.lull
        return lull if lull is not None and lull.since.seq < lull.seq else None

    def _find_beginning(self, peer: bytes, request: int, answering: _Answering, wanted: EpochQuery) -> None:
        """Find where the answer must begin so that it leaves out nothing that is wanted (E20).

        Events that are gone may have been wanted too. The client can tell by the state in the opening.
        """
        history = self.publisher.history
        state = wanted.beginning(history)
        if state is None and history.first < history.truncated_at:
            answering.reading = True
            self.publisher.emit(FindBeginning(peer, request, wanted))
        else:
            self._begin_wanted(peer, request, answering, history.states()[0] if state is None else state)

    def _begin_wanted(self, peer: bytes, request: int, answering: _Answering, state: SegmentState) -> None:
        """Open the answer to a query for epochs at `state`; if a lull that is gone ends there, at the lull's start."""
        lull = self._lull()
        if lull is not None and lull.seq == state.seq:
            self._open(peer, request, answering, lull.since, lull)
        else:
            self._open(peer, request, answering, state)

    def _open(
        self, peer: bytes, request: int, answering: _Answering, state: SegmentState, lull: Lull | None = None
    ) -> None:
        if answering.truncated:
            del self._answers[peer, request]
            first = m.Position(self.publisher.incarnation, state.seq)
            self.publisher.emit(SendAnswers(peer, (m.Truncated(request, first, state.lower),)))
            return
        answering.opened = True
        if answering.from_start:
            answering.at, answering.opening = state.seq, m.Position(self.publisher.incarnation, state.seq)
        opening = m.Opening(request, answering.opening, state.lower, state.upper, state.aborted, state.below)
        if lull is not None:
            answering.at = lull.seq
            opening = opening._replace(lull=lull.seq, moved_to=lull.lower)
        self.publisher.emit(SendAnswers(peer, (opening,)))
        self._continue(peer, request, answering)

    def state_found(self, peer: bytes, request: int, state: SegmentState) -> None:
        """The answer to `FindState` or `FindBeginning`."""
        answering = self._answers.get((peer, request))
        if answering is not None:
            answering.reading = False
            found = self._open if answering.wanted is None else self._begin_wanted
            found(peer, request, answering, state)

    def was_read(self, peer: bytes, request: int, upto: int) -> None:
        """The answer to `ReadLog`: the client was sent a chunk with the events up to `upto`."""
        answering = self._answers.get((peer, request))
        if answering is not None:
            answering.reading = False
            answering.at = upto
            answering.credit -= 1
            self._continue(peer, request, answering)

    def not_read(self, peer: bytes, request: int, error: EpochalError) -> None:
        """The log on disk could not be read as requested: the events are gone by now, or damaged."""
        answering = self._answers.get((peer, request))
        if answering is None:
            return
        first, answering.reading = self.publisher.history.first, False
        if isinstance(error, HistoryTruncated) and answering.at < first and not answering.opened:
            self._begin(peer, request, answering)  # retention was faster than the request, which now begins later
            return
        del self._answers[peer, request]
        self.publisher.emit(SendAnswers(peer, (m.Refused(request, error.code, str(error)),)))

    def end_answers(self, error: EpochalError) -> None:
        """End all answers under way with `error`."""
        for peer, request in self._answers:
            self.publisher.emit(SendAnswers(peer, (m.Refused(request, error.code, str(error)),)))
        self._answers.clear()

    def _continue(self, peer: bytes, request: int, answering: _Answering) -> None:
        history = self.publisher.history
        while answering.credit > 0 and not answering.reading:
            if answering.at < history.first:  # retention overtook a slow reader
                self.not_read(peer, request, history.overtaken(answering.at))
                return
            if answering.at < history.truncated_at:
                answering.reading = True
                self.publisher.emit(ReadLog(peer, request, answering.at, CHUNK_EVENTS, CHUNK_BYTES, answering.topics))
                return
            end = history.whole_until(answering.at, answering.topics)
            if end == answering.at and end < history.last:  # a relay that has only some topics after this event
                self.not_read(peer, request, history.overtaken(end))
                return
            if answering.topics is None:
                events, answering.at = self._next(answering.at, end)
                upto = m.NOTHING_YET
            else:
                events, upto = self._wanted_events(answering.at, end, answering.topics)
                answering.at = upto
            answering.credit -= 1
            last = answering.at == history.last
            self.publisher.emit(SendAnswers(peer, (m.Chunk(request, len(events), last, upto), *events)))
            if last:
                del self._answers[peer, request]
                return

    def _next(self, at: int, end: int) -> tuple[list[m.Event], int]:
        """At most a chunk of the events after `at` and up to `end`, and the last event up to which none is missing."""
        events = self.publisher.history.batch(at, CHUNK_EVENTS, CHUNK_BYTES)
        if events and events[-1].seq > end:
            events = [event for event in events if event.seq <= end]
        return events, events[-1].seq if events else end  # none: a relay has no events of its topics before `end`

    def _wanted_events(self, at: int, end: int, topics: TopicFilter) -> tuple[list[m.Event], int]:
        """About a chunk of the wanted events after `at`, and the last event that was filtered for it (F10)."""
        chosen, size, upto = list[m.Event](), 0, at
        enough = min(end, at + SCAN_EVENTS)
        while upto < enough and size < SOME_BYTES:
            events, upto = self._next(upto, end)
            wanted = [event for event in events if type(event) is not m.Data or topics.wants(event.topic)]
            chosen += wanted
            size += sum(map(retained_size, wanted))
        return chosen, upto

    # ---- time ----

    def tick(self, now: float, *, beats: bool = True) -> None:
        """Send the heartbeat when it is due, if the publisher `beats`, and forget what has waited too long."""
        if now - self._beaten >= self.settings.heartbeat:
            self._beaten = now
            if beats:
                self.publisher.emit(Push(m.Heartbeat(self.publisher.seq)))
            self._forget(now)

    def _forget(self, now: float) -> None:
        ttl = self.settings.nonce_ttl
        for nonce in [nonce for nonce, pending in self._pending.items() if now - pending.at > ttl]:
            self._no_longer_pending(nonce)
        self.views.forget(now)
        for nonce in [nonce for nonce, since in self._used.items() if now - since > 2 * ttl]:
            del self._used[nonce]
        late = [key for key, a in self._answers.items() if not a.reading and now - a.heard > self.settings.answer_ttl]
        for key in late:
            del self._answers[key]

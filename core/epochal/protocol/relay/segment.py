"""A relay at one segment: what it asks for upstream, which run it serves, and when it answers whom.

A machine between a `Follower` upstream, whose reports it takes, and the `SegmentServer` of the present run.

What comes from upstream:

    report                                                         run
    `Began` exactly where the run is, of the same incarnation      goes on, with the topics that were joined; by another
                                                                   way, as another run with the same memory (F16)
    `Began` anywhere else                                          ends; another one begins there (F13)
    `Rejoined`, an event, `Reached`, `Moved`                       goes on
    the connection is lost                                         stays, but welcomes no one and is silent (F16)

What comes from subscribers:

    `Hello` for topics that come from upstream, and go on to       the run answers
    `Hello` for others                                             waits until they come (F15)
    `Since` a position after which the run has all that is asked   the run answers
    `Since` anything else                                          is passed on upstream
    `Since` of a peer that has not said hello to this run          is refused: join again

Sources: rules N18, E24, F13-F17.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from epochal.errors import EpochalError, RelayEnded, Unavailable
from epochal.protocol import messages as m
from epochal.protocol.publisher.channels import MAX_CHANNELS, Channels
from epochal.protocol.publisher.effects import Push, SendAnswers
from epochal.protocol.publisher.server import ServingSettings
from epochal.protocol.publisher.views import ViewMemory, Views
from epochal.protocol.relay.effects import ForReaders, Forward, HangUp, RelayEffect, Want
from epochal.protocol.relay.forwarded_requests import ForwardedRequests
from epochal.protocol.relay.history import RunHistory
from epochal.protocol.relay.run import Run
from epochal.protocol.relay.union import NOTHING, FilterUnion, UnionTimes
from epochal.protocol.subscriber.effects import Began, Broke, FollowerReport, Moved, Reached, Rejoined
from epochal.protocol.times import TimeShape
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter

MAX_WAITING = 1000
"""How many hellos can wait for their topics at once; each holds a filter."""
LONGEST_HEARTBEAT = 60.0
"""Seconds; as in `epochal.protocol.subscriber.follower`."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Limits of a relay at one segment; times in seconds, sizes in bytes."""

    capacity: int = 1000
    """Subscribers; further ones are refused and must join elsewhere."""
    memory: int = 16 * 2**20
    """Bytes of events for subscribers that come back."""
    max_channels: int = MAX_CHANNELS
    max_passed_on: int = 64
    """Requests for history that are forwarded at once."""
    union: UnionTimes = field(default_factory=UnionTimes)
    serving: ServingSettings = field(default_factory=ServingSettings)


class _Waiting(NamedTuple):
    """A hello that is answered once its topics come."""

    at: float
    peer: bytes
    hello: m.Hello
    wanted: TopicFilter


class RelayedSegment:
    """One segment of the stream with uid `stream`, in the relay with id `relay`. `fresh` draws so many random bytes.

    `view_memory` is shared by all segments of the relay; None makes one for this segment.
    """

    def __init__(
        self,
        stream: str,
        segment: str,
        shape: TimeShape,
        relay: str,
        limits: RelayLimits,
        fresh: Callable[[int], bytes],
        view_memory: ViewMemory | None = None,
    ) -> None:
        self.stream = stream
        self.segment = segment
        self.id = relay
        """The relay's id, which is in the path of its followers."""
        self.limits = limits
        self.run: Run | None = None
        """The run that is served; None before the first report from upstream."""
        self.alive = False
        """Whether the relay is connected upstream, live or catching up."""
        self._shape = shape
        self._fresh = fresh
        self._union = FilterUnion(limits.union)
        self.wanted = self._union.wanted
        """The topics that are asked for upstream."""
        self._widening = False
        """Whether new topics were asked for that do not come yet. No others are asked for until they come."""
        self._views = Views(limits.serving.view_ttl, view_memory or ViewMemory())
        """What peers on each connection want; connections outlive runs."""
        self._waiting: list[_Waiting] = []
        self._effects: list[RelayEffect] = []
        serving = limits.serving
        self._forwarded_requests = ForwardedRequests(
            stream, partial(fresh, 16), self._effects_of_forwarded,
            most=limits.max_passed_on, most_each=serving.max_answers_each, ttl=serving.answer_ttl,
        )  # fmt: skip

    def _effects_of_forwarded(self, effect: SendAnswers | Forward | HangUp) -> None:
        self._effects.append(effect)

    def take(self) -> list[RelayEffect]:
        """The effects since the last call, in order."""
        if self.run is not None and (effects := self.run.take()):
            self._effects.append(ForReaders(self.run, effects))
        effects_of_all, self._effects = self._effects, []
        return effects_of_all

    @property
    def position(self) -> m.Position:
        """The position up to which all events have come. There must be a run."""
        assert self.run is not None
        return m.Position(self.run.incarnation, self.run.seq)

    @property
    def passed_on(self) -> int:
        """How many requests for history are forwarded now."""
        return len(self._forwarded_requests)

    # ---- upstream ----

    def reported(self, reports: Sequence[FollowerReport], upstream: m.Welcome | None, now: float) -> None:
        """Handle what the follower reports; `upstream` is the last welcome from its publisher."""
        for report in reports:
            match report:
                case m.Data() | m.Frontier() | m.Aborted() if self.run is not None:
                    self._take_event(self.run, report)
                case Began() if upstream is not None:
                    self._began(report, upstream, now)
                case Rejoined() if self.run is not None:
                    self.run.history.joined(report.state, _topics(report.topics))
                    self._topics_come(now)
                case Reached() if self.run is not None:
                    self.run.history.reached(report.seq)
                case Moved() if self.run is not None:
                    moved = self.run.history.moved(report.seq, report.lower)
                    if moved is not None:
                        self.run.emit(Push(moved))
                case Broke():
                    pass  # `lost` says so as well
                case _:
                    raise AssertionError(f"{report} comes before `Began`")

    @staticmethod
    def _take_event(run: Run, event: m.Event) -> None:
        if type(event) is m.Data and not run.history.topics.wants(event.topic):
            run.history.reached(event.seq)  # its channel carries more than was asked for (F12)
        else:
            run.emit(Push(run.history.append(event)))

    def _began(self, began: Began, upstream: m.Welcome, now: float) -> None:
        self.alive = True
        run, topics = self.run, _topics(began.topics)
        goes_on = began.resumed and not began.gap
        path = self.id, *upstream.path
        if run is not None and goes_on and (began.incarnation, began.state.seq) == self.position:
            run.history.joined(began.state, topics)
            if path != run.path:
                self._end_run(f"the way to the publisher is another one now: {' -> '.join(path)}")
                self._begin_run(run.history, upstream, path, now)
        else:
            self._end_run("events are missing between what this relay has sent and what comes next")
            history = RunHistory(began.incarnation, began.state, topics, max_bytes=self.limits.memory)
            self._begin_run(history, upstream, path, now)
        self._topics_come(now)

    def _begin_run(self, history: RunHistory, upstream: m.Welcome, path: tuple[str, ...], now: float) -> None:
        channels = Channels(partial(self._fresh, 8), most=self.limits.max_channels, last=history.last)
        own = self.limits.serving
        serving = ServingSettings(
            min(upstream.heartbeat, LONGEST_HEARTBEAT), own.nonce_ttl, own.max_pending, own.max_pending_each,
            own.max_answers, own.max_answers_each, own.view_ttl, own.answer_ttl,
        )  # fmt: skip
        self.run = Run(self.stream, self._shape, upstream, path, history, channels, serving, self._views, now)

    def _end_run(self, why: str) -> None:
        run, self.run = self.run, None
        if run is None:
            return
        run.over = why
        run.server.end_answers(RelayEnded(why))  # a peer that only asks for history is sent no `Ended`
        self._effects.append(ForReaders(run, run.take()))
        self._forwarded_requests.end_all(RelayEnded.code, why)

    def lost(self) -> None:
        """The connection upstream is lost. The run continues after a new connection if no event is missing."""
        self.alive = False
        self._refuse_waiting(self._waiting, Unavailable("the relay has lost its connection; try another"))
        self._waiting = []
        self._forwarded_requests.end_all(Unavailable.code, "the relay has lost its connection; ask again")

    def end(self, why: str) -> None:
        """The relay stops, or the stream is gone: notify subscribers, which join elsewhere."""
        self.lost()
        self._end_run(why)

    # ---- what is asked for upstream ----

    def _living(self) -> Iterable[TopicFilter]:
        """The filters of all subscribers, and of those that wait to join."""
        for waiting in self._waiting:
            yield waiting.wanted
        if self.run is not None:
            for channel in self.run.channels:
                if channel.subscribed or channel.joining:
                    yield channel.filter

    def _ask(self, now: float) -> None:
        """Ask upstream for what is wanted now. One widening follows another, so that each is completed."""
        self._union.update(self._living(), now)
        wanted = self._union.wanted
        if wanted == self.wanted or (self._widening and self.alive):
            return
        widens = not self.wanted.covers(wanted)
        self.wanted = wanted
        self._widening = self._widening or widens
        self._effects.append(Want(wanted, widens))

    def _topics_come(self, now: float) -> None:
        """Answer the hellos whose topics come from upstream by now (F15)."""
        run = self.run
        assert run is not None
        topics = run.history.topics
        if topics.covers(self.wanted):
            self._widening = False
        still, self._waiting = self._waiting, []
        for waiting in still:
            wanted = run.server.wanted(waiting.peer, waiting.hello)  # its view may have changed meanwhile
            if self._comes(run, wanted):
                self._welcome(run, waiting.peer, waiting.hello, now)
            else:
                self._waiting.append(waiting._replace(wanted=wanted))
        self._ask(now)

    def _comes(self, run: Run, wanted: TopicFilter) -> bool:
        """Whether these topics come from upstream and will continue to: the newest request may ask for fewer."""
        return run.history.topics.covers(wanted) and self.wanted.covers(wanted)

    # ---- subscribers ----

    def receive(self, peer: bytes, message: m.Message, now: float) -> None:
        """Handle one message on `requests`. Raises `RemoteProtocolError` for one that no client may send."""
        request = message.request if isinstance(message, m.Hello | m.Since) else 0
        try:
            self._receive(peer, message, now)
        except Unavailable as error:
            self._refuse(peer, request, error)

    def _receive(self, peer: bytes, message: m.Message, now: float) -> None:
        run = self.run
        match message:
            case m.Credit():
                if run is not None:  # also while upstream is away: answers from memory continue
                    run.server.receive(peer, message, now)
                    self._forwarded_requests.credit(peer, message, now)
            case _ if run is None or not self.alive:
                raise Unavailable("this relay is not connected to the stream at present; try another")
            case m.Hello():
                self._hello(run, peer, message, now)
            case m.Since():
                self._since(run, peer, message, now)
            case _:
                run.server.receive(peer, message, now)

    def _hello(self, run: Run, peer: bytes, hello: m.Hello, now: float) -> None:
        joined = run.server.subscriptions
        own = None if hello.replaces is None else joined.get(hello.replaces)
        is_own = (
            own is not None
            and own.peer == peer  # ids can be seen by all (F11)
            and (own.channel.filter != NOTHING or len(joined) <= self.limits.capacity)  # else it has taken no place
        )
        wanted = run.server.wanted(peer, hello)
        taken, most = len(joined), self.limits.capacity
        if wanted == NOTHING:  # the peer is about to ask for history, or to send its filter
            most *= 2
        else:
            taken += self._joining(run)
        if taken >= most and not is_own:
            raise Unavailable(f"{taken} subscribers are at this relay, or join it: it takes no more; try another")
        refused = hello.stream != self.stream or m.VERSION not in hello.versions  # the run says why
        if refused or self._comes(run, wanted):
            self._welcome(run, peer, hello, now)
            return
        limits = self.limits.serving
        of_peer = Counter(waiting.peer for waiting in self._waiting)[peer]
        if len(self._waiting) >= MAX_WAITING or of_peer >= limits.max_pending_each:
            raise Unavailable("too many joins are under way; try again")
        self._waiting.append(_Waiting(now, peer, hello, wanted))
        self._ask(now)

    def _joining(self, run: Run) -> int:
        """How many peers that want topics are about to join, and will take a place."""
        return len(self._waiting) + sum(len(each.joining) for each in run.channels if each.filter != NOTHING)

    @staticmethod
    def _welcome(run: Run, peer: bytes, hello: m.Hello, now: float) -> None:
        run.greeted(peer)
        run.server.receive(peer, hello, now)

    def _since(self, run: Run, peer: bytes, since: m.Since, now: float) -> None:
        if not run.knows(peer):
            raise RelayEnded("this relay goes on elsewhere since you said hello; join again")
        topics = EVERYTHING if since.filter is None else TopicFilter(*since.filter)
        is_here = since.position is not None and since.wanted is None and run.history.has(since.position, topics)
        if is_here or since.filter is not None:  # without a filter it may want less than all
            self._union.asked(topics, now)
        if is_here:
            run.server.receive(peer, since, now)
        else:
            self._forwarded_requests.begin(peer, since, now)

    def _refuse(self, peer: bytes, request: int, error: EpochalError) -> None:
        self._effects.append(SendAnswers(peer, (m.Refused(request, error.code, str(error)),)))

    def _refuse_waiting(self, waiting: Iterable[_Waiting], error: EpochalError) -> None:
        for each in waiting:
            self._refuse(each.peer, each.hello.request, error)

    # ---- forwarded requests ----

    def answered(self, number: int, messages: Sequence[m.Message], now: float) -> None:
        """Handle messages that came together on a connection that `Forward` opened."""
        if self.run is not None:
            self._forwarded_requests.answered(number, messages, self.run.incarnation, now)

    def cut(self, number: int) -> None:
        """A connection that `Forward` opened is lost, or brought something that is no message."""
        self._forwarded_requests.cut(number)

    # ---- time ----

    def tick(self, now: float) -> None:
        """Send the heartbeat while upstream is there, ask for what is wanted, and drop hellos that wait too long."""
        if self.run is not None:
            self.run.server.tick(now, beats=self.alive)
        ttl = self.limits.serving.nonce_ttl
        late = [waiting for waiting in self._waiting if now - waiting.at > ttl]
        if late:
            self._waiting = [waiting for waiting in self._waiting if now - waiting.at <= ttl]
            self._refuse_waiting(late, Unavailable("the topics could not be had from upstream in time; try again"))
        self._forwarded_requests.forget(now)
        self._ask(now)


def _topics(reported: TopicFilter | None) -> TopicFilter:
    return EVERYTHING if reported is None else reported

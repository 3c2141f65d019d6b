"""A subscriber's view of one segment: one contiguous queue of its events, whatever the network does.

A machine without I/O: it joins, checks that each event directly follows the last (Q10), pulls what is missing by
`since`, and says when the connection must be given up. The subscriber's machine, which merges segments, knows nothing
of connections.

The states of a follower, which `_Phase` names:

    FROM        EVENT                                             TO        SENT
    (start)                                                       GREETING  `Hello` with a fresh subscription id (E26)
    GREETING    `Welcome`, pushes are followed                    JOINING   subscriptions to channel and id
    GREETING    `Welcome`, and the filter is to be told first     NAMING    the first `Filter`s
    NAMING      `Confirm`, and more is to be told                 NAMING    the next `Filter`s
    NAMING      all is told, or the publisher does not take it    GREETING  `Hello` for its channel
    NAMING      pushes are not followed any more                  GREETING  `Hello`
    GREETING    `Welcome`, pushes are not followed                PULLING   `Since` the place to begin at
    JOINING     `Snapshot`, and nothing before it is missing      LIVE      nothing
    JOINING     `Snapshot`, and there is more before it           PULLING   `Since` the place to begin at
    PULLING     a chunk that is not the last                      PULLING   `Credit`
    PULLING     retention overtook the answer                     PULLING   `Since` the last event
    PULLING     the answer is over, pushes are followed           LIVE      nothing; the backlog is followed
    PULLING     the answer is over, pushes are not followed       WAITING   nothing
    PULLING     what is missing is no longer retained             LIVE      nothing; a gap is reported (E17)
    LIVE        an event, damaged or not directly after the last  GREETING  `Hello`: what is missing is pulled (Q12)
    LIVE        a heartbeat names a later event                   GREETING  `Hello`
    LIVE        nothing heard for two thirds of the silence       PULLING   `Since` the last event, to look (Q11)
    WAITING     `settings.poll` seconds have passed               PULLING   `Since` the last event (Q7)
    LIVE        other topics are wanted                           LIVE      a `Hello` that replaces; both go on (F8)
    LIVE        `Snapshot` of the new channel, the old one whole  LIVE      the old subscriptions are left
    LIVE        `Snapshot` of the new channel, the old one not    PULLING   `Since` the last event
    LIVE        pushes are not followed any more                  WAITING   both subscriptions are left
    WAITING     pushes are followed again                         GREETING  `Hello`
    JOINING     `Refused` for the id                              BROKEN    nothing; `Broke` is reported
    any         `Ended`: the relay has lost its place             BROKEN    nothing; `Broke` is reported
    any         silence, a refusal, or a broken rule              BROKEN    nothing; `Broke` is reported

Sources: rules S8, S9, S33; E14, E16, E17, E26; F6-F8, F10, F13, F16; Push-Pull Publish-Subscribe; docs/protocol.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from epochal.errors import (
    ChecksumMismatch,
    EpochalError,
    HistoryTruncated,
    LimitExceeded,
    RelayEnded,
    RemoteProtocolError,
    TimedOut,
    Unavailable,
    UsageError,
    from_code,
)
from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import MOST_WANTED, EpochQuery
from epochal.protocol.log.history import SegmentState
from epochal.protocol.subscriber.catch_up import Pull, PullReason
from epochal.protocol.subscriber.channel_change import ChannelChange, as_prefixes, channel_prefix, private_prefix
from epochal.protocol.subscriber.effects import (
    Began,
    Broke,
    FollowerEffect,
    FollowerReport,
    Moved,
    Reached,
    Rejoined,
    Request,
    SubscribePrefix,
    UnsubscribePrefix,
)
from epochal.protocol.subscriber.event_checks import EventChecks, PassedOver, in_order, is_damaged, size_of
from epochal.protocol.subscriber.received import Received
from epochal.protocol.subscriber.since import AfterEvent, Begin, From
from epochal.protocol.subscriber.upstream_filter import FilterTimes, UpstreamFilter
from epochal.protocol.times import Time, TimeShape
from epochal.protocol.topics.filter import TopicFilter

LONGEST_HEARTBEAT = 60.0
"""Seconds; no stream can be declared with a longer one, and who claims one is not waited for longer."""


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Times in seconds; sizes in bytes."""

    join_timeout: float = 3.0
    silence: float = 3.0
    """Nothing heard for so long: the publisher is taken for gone, and looked up again.

    Two of the stream's heartbeats where those are rarer. At two thirds of it the follower looks by `since` (Q11). It is
    not adapted to how often events come (Q13): heartbeats bound every silence, on a busy stream or a quiet one, and to
    look sooner because of a pause between bursts would only cost requests.
    """
    poll: float = 1.0
    """Between two pulls where pushes are not followed (Q7)."""
    max_backlog: int = 64 * 2**20
    """Live events kept while history is pulled; above it they are dropped and pulled as well."""
    credit: int = 8
    filter: FilterTimes = field(default_factory=FilterTimes)


class _Phase(StrEnum):
    """The states of the table above."""

    GREETING = "greeting"
    NAMING = "naming"
    JOINING = "joining"
    PULLING = "pulling"
    LIVE = "live"
    WAITING = "waiting"
    BROKEN = "broken"


_ANSWERS = (m.Refused, m.Welcome, m.Opening, m.Chunk, m.Truncated, m.Data, m.Frontier, m.Aborted)


class Follower:
    """One connection to one segment's publisher.

    `begin` says where: a position is one that a subscriber had reached. `continuing` says that it already holds the
    state there (a reconnect); otherwise it requests the state (a cursor). `least_incarnation` is the highest
    incarnation seen before (E12). Without `pushes` it pulls only, every `settings.poll` seconds (Q7). `topics` are
    wanted, None for all; other batches may come too. With `whole_filter` they are named before a channel is joined;
    else all are pushed.
    `relay`: the id of the relay that this connection feeds, which must not be on the way to the publisher (F16).
    """

    def __init__(
        self,
        stream: str,
        segment: str,
        begin: Begin,
        *,
        shape: TimeShape,
        fresh_nonce: Callable[[], bytes],
        now: float,
        settings: FollowerSettings | None = None,
        continuing: bool = False,
        least_incarnation: int = 0,
        pushes: bool = True,
        topics: TopicFilter | None = None,
        whole_filter: bool = False,
        relay: str | None = None,
    ) -> None:
        self.stream = stream
        self.segment = segment
        self.pushes = pushes
        self.settings = settings or FollowerSettings()
        self.damaged = 0
        """Live events whose payload did not have the writer's CRC-32C."""
        self.received = Received()
        """How much has come on this connection."""
        self.error: EpochalError | None = None
        """Why the follower is over."""
        self.welcome: m.Welcome | None = None
        """The last one."""
        self._relay = relay
        self._checks = EventChecks(segment, shape)
        self._fresh_nonce = fresh_nonce
        self._begin = begin
        self._continuing = continuing
        self._least_incarnation = least_incarnation
        self._phase = _Phase.GREETING
        self._effects: list[FollowerEffect] = []
        self._reports: list[FollowerReport] = []
        self._has_begun = False
        self._incarnation = 0
        self._last = m.NOTHING_YET
        """The last event that was reported, or the one after which they begin."""
        self._newest = m.NOTHING_YET
        """The last event that the publisher has named."""
        self._upstream = UpstreamFilter(topics, self.settings.filter, now, whole=whole_filter)
        self._change: ChannelChange | None = None
        self._passed = PassedOver()
        """What the position has passed though it has not come."""
        self._filters_history = False
        """Whether the publisher leaves out what is not wanted of a history."""
        self._skips = False
        """Whether the publisher leaves out what is not wanted at the start of a history; else all is requested."""
        self._given_up = 0
        """Events of an answer to an earlier request that are still to come."""
        self._request = 0
        self._answer = Pull(None, PullReason.BEGIN)
        """What is pulled, or was last."""
        self._nonce = b""
        self._subscribed = False
        """Whether to the nonce."""
        self._channel: bytes | None = None
        """The prefix of what is pushed on it."""
        self._channel_last: int | None = None
        self._snapshot = m.Snapshot(m.NOTHING_YET, 0, b"", (), (), ())
        self._backlog: list[m.Event] = []
        self._backlog_bytes = 0
        self._paused = False
        self._silence = self.settings.silence
        self._heard = now
        """When anything came from the publisher, in seconds."""
        self._since = now
        """When this phase began, or its answer last came on, in seconds."""
        self._greet(now)

    # ---- the shell's side ----

    def take(self) -> list[FollowerEffect]:
        """What to send since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def reports(self) -> list[FollowerReport]:
        """What to report to the subscriber since the last call, in order."""
        reports, self._reports = self._reports, []
        return reports

    @property
    def live(self) -> bool:
        """Whether all up to now has been delivered, and pushes are followed, or the next pull is waited for."""
        return self._phase in (_Phase.LIVE, _Phase.WAITING)

    @property
    def began(self) -> bool:
        """Whether `Began` was reported, so that a next follower continues after the last event."""
        return self._has_begun

    @property
    def broken(self) -> bool:
        """Whether this follower is over."""
        return self._phase is _Phase.BROKEN

    def pause(self) -> None:
        """The shell stops reading: silence is not the publisher's fault until `resume`."""
        self._paused = True

    def resume(self, now: float) -> None:
        """The shell reads again."""
        self._paused = False
        self._heard = self._since = now

    def follow_pushes(self, follow: bool, now: float) -> None:
        """From now on follow pushes, or pull only; nothing is lost or reported again (Q15)."""
        if follow == self.pushes or self.broken:
            return
        self.pushes = follow
        if not follow:
            self._leave_pushes()
            if self._phase is _Phase.LIVE:
                self._wait(now)
            elif self._phase is _Phase.JOINING:
                self._pull_from_begin(now)
            elif self._phase is _Phase.NAMING:
                self._greet(now)  # other topics may be wanted since the last hello
        elif self._phase is _Phase.WAITING:
            self._greet(now)

    def want(self, topics: TopicFilter | None, now: float, *, widens: bool) -> None:
        """Other topics are wanted from now on.

        If it `widens` what was wanted before, `Rejoined` or `Began` says from where on they come (F8). If not, what
        comes beside them is left out at the receiver, and `tick` joins their channel.
        """
        if self.broken:
            return
        self._upstream.want(topics, now, widens=widens)
        was_naming = self._phase is _Phase.NAMING
        self._tell_filter(now)
        if was_naming or not widens:
            return
        self._abandon_change()
        if self._phase is _Phase.LIVE:
            self._join_if_due(now)
        else:
            self._greet(now)

    def _tell_filter(self, now: float) -> None:
        """Send the steps that are due; if these come before the join, and there are no more, join."""
        if self.pushes:
            self._effects += map(Request, self._upstream.take(self.segment, now))
        if self._phase is _Phase.NAMING and self._upstream.ready_for_hello:
            self._greet(now)

    def _join_if_due(self, now: float) -> None:
        """Join another channel, if it is time for that and the publisher knows what must be on it."""
        if self._phase is _Phase.LIVE and self._change is None and self._upstream.may_join(now):
            self._begin_change(now)

    def tick(self, now: float) -> None:
        """Look for what silence may hide, and give up on a join or a publisher that is silent for too long."""
        if self._paused or self.broken:
            return
        if self._phase in (_Phase.GREETING, _Phase.JOINING) and now - self._since > self.settings.join_timeout:
            self._break(
                TimedOut(f"segment {self.segment}: no answer to the join within {self.settings.join_timeout:g} s")
            )
        elif self._phase in (_Phase.LIVE, _Phase.PULLING) and now - self._heard > self._silence:
            self._break(TimedOut(f"segment {self.segment}: the publisher was silent for {self._silence:g} s"))
        elif self._phase is _Phase.PULLING and now - self._since > self._silence:
            # It lives, but has given up the answer, as it may while this side was not reading.
            self._break(TimedOut(f"segment {self.segment}: the history did not come on"))
        elif self._change is not None and now - self._change.since > self.settings.join_timeout:
            self._greet(now)
        elif self._change is None and self._phase is _Phase.LIVE and now - self._heard > self._silence * 2 / 3:
            self._pull(self._here, PullReason.CHECK, now)  # Q11: perhaps only the pushes are lost
        elif self._phase is _Phase.WAITING and (self._upstream.widens or self._upstream.may_join(now)):
            self._greet(now)
        elif self._phase is _Phase.WAITING and now - self._since >= self.settings.poll:
            self._heard = now
            self._pull(self._here, PullReason.CHECK, now)
        elif self.pushes:
            self._tell_filter(now)
            self._join_if_due(now)

    # ---- what arrives ----

    def answered(self, message: m.Message, now: float) -> None:
        """A message on `requests`."""
        if self.broken:
            return
        self._heard = now
        if self._phase is _Phase.PULLING:
            self._since = now
        if type(message) is m.Data:
            self.received.count(message, self._upstream.topics, firehose=False)
        try:
            self._take_answer(message, now)
            if self._phase is _Phase.PULLING and self._answer.over:
                self._pulled(now)
        except RemoteProtocolError as error:
            self._break(error)

    def _take_answer(self, message: m.Message, now: float) -> None:
        change = self._change
        match message:
            case m.Welcome() if change is not None and message.request == change.request and change.channel is None:
                self._change_welcomed(change, message)
            case m.Refused() if change is not None and message.op == change.request:
                self._greet(now)  # whatever it is, the join says it again
            case m.Welcome() if message.request == self._request and self._phase is _Phase.GREETING:
                self._welcomed(message, now)
            case m.Opening() if message.request == self._request and self._phase is _Phase.PULLING:
                self._opened(message)
            case m.Chunk() if message.request == self._request and self._phase is _Phase.PULLING:
                if self._answer.announce(message):
                    self._effects.append(Request(m.Credit(self._request, 1)))
                self._passed_over()
            case m.Chunk():
                self._given_up = message.events
            case m.Data() | m.Frontier() | m.Aborted() if self._given_up:
                self._given_up -= 1
            case m.Data() | m.Frontier() | m.Aborted() if self._phase is _Phase.PULLING:
                self._accept_pulled(message)
            case m.Truncated() if message.request == self._request and self._phase is _Phase.PULLING:
                self._checks.times(message.frontier)
                self._history_gone(f"the first retained position is {tuple(message.first_available)}")
            case m.Confirm():
                self._upstream.confirmed(message, now)
                self._tell_filter(now)
                self._join_if_due(now)
            case m.Refused() if self._is_of_filter(message) and self._upstream.refused():
                if self._phase in (_Phase.GREETING, _Phase.NAMING):
                    self._greet(now)
            case m.Refused() if message.op == self._request:
                self._refused(message)
            case _ if isinstance(message, _ANSWERS):
                pass  # an answer to a question that was given up
            case _:
                raise RemoteProtocolError(f"a publisher does not answer with {type(message).__name__}")

    def _is_of_filter(self, refused: m.Refused) -> bool:
        """Whether it may be the filter that is refused: a step of it, or the hello that names it."""
        greets = self._phase is _Phase.GREETING and refused.op == self._request
        return refused.code == LimitExceeded.code and (refused.op == 0 or greets)

    def pushed(self, prefix: bytes, message: m.Message, now: float) -> None:
        """A message on `events`; the `prefix` says on which channel, or for which subscription alone."""
        if self.broken or not self.pushes:
            return
        self._heard = now
        if type(message) is m.Data:
            self.received.count(message, self._upstream.topics, firehose=self._upstream.firehose)
        try:
            if prefix == self._channel:
                if type(message) is m.Data:  # nearly all messages are
                    self._accept_live(message, now)
                else:
                    self._take_pushed(message, now)
            elif prefix == private_prefix(self._nonce):
                self._take_private(message, now)
            elif self._change is not None:
                self._take_of_change(self._change, prefix, message, now)
            # Else it is of an earlier subscription, or a channel that was left (Q9, E26).
        except RemoteProtocolError as error:
            self._break(error)

    def _take_pushed(self, message: m.Message, now: float) -> None:
        match message:
            case m.Heartbeat():
                if self._phase is _Phase.LIVE and message.seq > self._last:
                    self._greet(now)  # loss at the tail
                elif self._phase is _Phase.LIVE and message.upto > self._last:
                    self._reached(message.upto, None)  # F7
            case m.Frontier() | m.Aborted():
                self._accept_live(message, now)
            case m.Ended(detail):
                self._break(RelayEnded(f"segment {self.segment}: {detail}"))
            case _:
                raise _not_here(message)

    def _take_private(self, message: m.Message, now: float) -> None:
        match message:
            case m.Snapshot() if self._phase is _Phase.JOINING:
                self._joined(message, now)
            case m.Refused():
                if self._phase is _Phase.JOINING:  # later it answers somebody else who has seen our id on `P`
                    self._break(from_code(message.code, message.detail))
            case _:
                raise _not_here(message)

    # ---- joining ----

    def _greet(self, now: float) -> None:
        """Join under a fresh subscription id.

        Also how a gap is healed: what is missing is pulled after the last event (Q12).
        """
        self._abandon_change()
        if self._subscribed:
            self._effects.append(UnsubscribePrefix(private_prefix(self._nonce)))
            self._subscribed = False
        if self._has_begun:
            self._begin = self._here
            self._continuing = True
        self._nonce = self._fresh_nonce()
        self._request += 1
        self._phase = _Phase.GREETING
        self._since = now
        self._drop_backlog()
        self._say_hello(self._request, self._nonce, None, now)

    def _say_hello(self, request: int, nonce: bytes, replaces: bytes | None, now: float) -> None:
        named, view = self._upstream.hello(now, changes=replaces is not None)
        hello = m.Hello(request, (m.VERSION,), self.stream, self.segment, nonce, named, replaces, view)
        self._effects.append(Request(hello))

    def _welcomed(self, welcome: m.Welcome, now: float) -> None:
        if welcome.version != m.VERSION:
            raise RemoteProtocolError(f"the publisher chose protocol version {welcome.version}, which was not offered")
        if welcome.incarnation < self._least_incarnation:
            self._break(
                TimedOut(f"segment {self.segment}: a stale publisher answered (incarnation {welcome.incarnation})")
            )
            return
        if self._has_begun and self._is_of_another_run(welcome):
            return
        if self._relay is not None and (self._relay in welcome.path or len(welcome.path) >= m.MAX_RELAYS):
            self._break(Unavailable(f"segment {self.segment}: {_way_too_long(welcome.path, self._relay)}"))
            return
        self.welcome = welcome
        self._incarnation = self._least_incarnation = welcome.incarnation
        self._passed = PassedOver()
        self._silence = max(self.settings.silence, 2 * min(welcome.heartbeat, LONGEST_HEARTBEAT))
        self._newest = welcome.seq
        self._upstream.welcomed(welcome)
        self._skips = m.SINCE_TIMES in welcome.features
        self._filters_history = m.SINCE_FILTER in welcome.features
        if not self.pushes:
            self._pull_from_begin(now)
            return
        if self._upstream.asks_nothing:
            self._phase = _Phase.NAMING
            self._tell_filter(now)
            return
        if channel_prefix(welcome) != self._channel:
            if self._channel is not None:
                self._effects.append(UnsubscribePrefix(self._channel))
            self._channel = channel_prefix(welcome)
            self._channel_last = None
            self._effects.append(SubscribePrefix(self._channel))
        self._effects.append(SubscribePrefix(private_prefix(self._nonce)))
        self._subscribed = True
        self._phase = _Phase.JOINING
        self._since = now

    def _is_of_another_run(self, welcome: m.Welcome) -> bool:
        """A relay may come to follow another incarnation. What this connection has is of the last one: it is over."""
        ended = welcome.incarnation != self._incarnation and bool(welcome.path)
        if ended:
            self._break(RelayEnded(f"segment {self.segment}: the relay follows another incarnation now"))
        return ended

    def _joined(self, snapshot: m.Snapshot, now: float) -> None:
        if snapshot.incarnation != self._incarnation or snapshot.subscription != self._nonce:
            raise RemoteProtocolError("the snapshot is not of the incarnation and subscription that were welcomed")
        self._checks.times(snapshot.lower, snapshot.upper, snapshot.aborted, snapshot.below)
        self._snapshot = snapshot
        self._newest = snapshot.seq
        begin = self._begin
        if begin is From.LIVE:
            self._start_from_snapshot(gap=False, now=now)
        elif isinstance(begin, m.Position) and self._continuing and begin == (snapshot.incarnation, snapshot.seq):
            self._last = begin.seq
            self._report_began(snapshot_state(snapshot), filters=False, resumed=True)
            self._go_live(now)
        else:
            self._pull_from_begin(now)

    def _start_from_snapshot(self, *, gap: bool, now: float) -> None:
        self._last = self._snapshot.seq
        self._report_began(snapshot_state(self._snapshot), filters=True, gap=gap)
        self._go_live(now)

    def _report_began(self, state: SegmentState, *, filters: bool, gap: bool = False, resumed: bool = False) -> None:
        self._has_begun = True
        self._upstream.begins()
        self._reports.append(Began(self._incarnation, state, filters, gap, resumed, self._upstream.joined))

    def _reached(self, seq: int, topics: TopicFilter | None) -> None:
        """All that there is of `topics` up to event `seq` has come; for None, all that is on the channel (F7, F10)."""
        self._passed.extend(self._last, seq, topics)
        self._last = seq
        self._reports.append(Reached(seq))

    # ---- another channel, while this one is followed ----

    def _begin_change(self, now: float) -> None:
        self._abandon_change()
        self._request += 1
        self._change = ChannelChange(self._request, self._fresh_nonce(), now, self._upstream.topics)
        self._say_hello(self._request, self._change.nonce, self._nonce, now)

    def _abandon_change(self) -> None:
        change, self._change = self._change, None
        if change is not None and change.channel is not None:
            self._effects.append(UnsubscribePrefix(private_prefix(change.nonce)))
            if change.channel != self._channel:
                self._effects.append(UnsubscribePrefix(change.channel))

    def _change_welcomed(self, change: ChannelChange, welcome: m.Welcome) -> None:
        if self._is_of_another_run(welcome):
            return
        if welcome.version != m.VERSION or welcome.incarnation != self._incarnation:
            raise RemoteProtocolError("a publisher's version and incarnation stay the same on a connection")
        self.welcome = welcome
        self._upstream.welcomed(welcome)
        change.channel = channel_prefix(welcome)
        if change.channel != self._channel:
            self._effects.append(SubscribePrefix(change.channel))
        self._effects.append(SubscribePrefix(private_prefix(change.nonce)))

    def _take_of_change(self, change: ChannelChange, prefix: bytes, message: m.Message, now: float) -> None:
        """A message on the channel that is being joined, for the new subscription, or of the past."""
        match message:
            case m.Data() | m.Frontier() | m.Aborted() if prefix == change.channel:
                self._checks.event(message)
                change.keep(message)
                if change.backlog_bytes > self.settings.max_backlog:
                    self._greet(now)
            case m.Snapshot() if prefix == private_prefix(change.nonce):
                self._change_joined(change, message, now)
            case m.Refused() if prefix == private_prefix(change.nonce):
                self._greet(now)
            case m.Ended(detail) if prefix == change.channel:
                self._break(RelayEnded(f"segment {self.segment}: {detail}"))

    def _change_joined(self, change: ChannelChange, snapshot: m.Snapshot, now: float) -> None:
        """Leave the old channel, if all that was on it has come; what has not is pulled first (F8)."""
        if snapshot.incarnation != self._incarnation or snapshot.subscription != change.nonce:
            raise RemoteProtocolError("the snapshot is not of the incarnation and subscription that were welcomed")
        self._checks.times(snapshot.lower, snapshot.upper, snapshot.aborted, snapshot.below)
        if snapshot.seq < self._last:  # of a relay that is behind: a join of its own asks for the state here
            self._greet(now)
            return
        self._effects.append(UnsubscribePrefix(private_prefix(self._nonce)))
        if change.channel != self._channel:
            if self._channel is not None:
                self._effects.append(UnsubscribePrefix(self._channel))
            self._channel, self._channel_last = change.channel, change.last
        self._nonce, self._change, self._snapshot = change.nonce, None, snapshot
        self._backlog, self._backlog_bytes = change.backlog, change.backlog_bytes
        self._newest = max(self._newest, snapshot.seq)
        self._passed = PassedOver()  # the new channel may have what the old one had not
        if snapshot.left is None or snapshot.left > self._last:
            self._begin, self._continuing = self._here, True
            self._pull(self._here, PullReason.RESUME, now)
            return
        if snapshot.seq > self._last:
            self._last = snapshot.seq
            self._reports.append(Reached(snapshot.seq))
        self._upstream.begins()
        self._reports.append(Rejoined(snapshot_state(snapshot), change.topics))
        self._go_live(now)

    # ---- pulling ----

    @property
    def _here(self) -> m.Position:
        return m.Position(self._incarnation, self._last)

    def _pull_from_begin(self, now: float) -> None:
        """Ask for what follows the place to begin at; of live ones, the last event that the publisher named."""
        match self._begin:
            case m.Position() as position:
                self._pull(position, PullReason.RESUME, now)
            case AfterEvent(seq, incarnation):
                position = m.Position(self._incarnation if incarnation is None else incarnation, seq)
                relayed = self.welcome is not None and self.welcome.path
                if position > (self._incarnation, self._newest) and not relayed:  # a relay may not know of it yet (F15)
                    self._break(
                        UsageError(f"segment {self.segment} ends at {self._newest} as yet; there is no event {seq}")
                    )
                else:
                    self._pull(position, PullReason.BEGIN, now)
            case From.LIVE:
                self._pull(m.Position(self._incarnation, self._newest), PullReason.BEGIN, now)
            case EpochQuery(times) if self._skips and len(times) <= MOST_WANTED:
                self._pull(None, PullReason.BEGIN, now, times)
            case _:
                self._pull(None, PullReason.BEGIN, now)

    def _pull(
        self, position: m.Position | None, reason: PullReason, now: float, wanted: tuple[Time, ...] | None = None
    ) -> None:
        self._request += 1
        self._phase = _Phase.PULLING
        self._since = now
        topics = as_prefixes(self._upstream.joined) if self._filters_history else None
        self._answer = Pull(position, reason, filtered=topics is not None)
        self._last = self._answer.last
        since = m.Since(self._request, self.segment, position, self.settings.credit, wanted, topics)
        self._effects.append(Request(since))

    def _opened(self, opening: m.Opening) -> None:
        self._checks.times(opening.lower, opening.upper, opening.aborted, opening.below, opening.moved_to)
        self._answer.open(opening, self._incarnation)
        self._last = opening.position.seq
        self._report_opening(
            SegmentState(opening.position.seq, opening.lower, opening.upper, opening.aborted, opening.below)
        )
        if self._answer.last > self._last and not self.broken:
            self._last = self._answer.last
            self._reports.append(Moved(self._last, opening.moved_to))

    def _report_opening(self, state: SegmentState) -> None:
        """Report where the events of an answer begin, unless the last ones of this connection ended there."""
        if self._answer.reason is PullReason.CHECK:
            return
        if (
            self._answer.reason is PullReason.BEGIN
            and isinstance(self._begin, EpochQuery)
            and not self._begin.whole_behind(state)
        ):
            self._break(
                HistoryTruncated(
                    f"segment {self.segment}: epochs that were asked for may have begun before event {state.seq + 1}, "
                    f"where the retained history starts with the frontier {list(state.lower)}"
                )
            )
            return
        gap = self._answer.reason is PullReason.GAP and self._continuing
        self._report_began(
            state,
            filters=self._answer.reason not in (PullReason.RESUME, PullReason.OVERTAKEN),
            gap=gap,
            resumed=self._continuing and not gap,
        )
        self._continuing = True

    def _accept_pulled(self, event: m.Event) -> None:
        self._checks.event(event)
        if not self._answer.accept(event):
            return
        if is_damaged(event):
            self._break(ChecksumMismatch(f"segment {self.segment}: event {event.seq} of the history arrived damaged"))
            return
        self._last = event.seq
        self._reports.append(event)
        self._passed_over()

    def _passed_over(self) -> None:
        """Where a filtered chunk has come whole, all up to its end has (F10)."""
        if self._answer.last > self._last:
            self._reached(self._answer.last, self._upstream.joined)

    def _pulled(self, now: float) -> None:
        """An answer has come to its end."""
        if not self.pushes:
            self._wait(now)
        elif not self._subscribed:  # pushes are wanted again since
            self._greet(now)
        elif self._answer.reason is PullReason.CHECK and self._answer.news:
            self._greet(now)  # Q12: the subscription has failed; the next begins after what has come
        elif self._last >= self._snapshot.seq:
            self._go_live(now)

    def _wait(self, now: float) -> None:
        """Until the next pull."""
        self._phase = _Phase.WAITING
        self._since = now

    def _history_gone(self, detail: str) -> None:
        now = self._heard
        if self._answer.reason is PullReason.CHECK and self._subscribed:
            self._greet(now)  # lost for good: the next snapshot says where to go on
        elif (
            self._answer.reason in (PullReason.BEGIN, PullReason.OVERTAKEN)
            and (self._answer.opened or self._answer.reason is PullReason.OVERTAKEN)
            and isinstance(self._begin, AfterEvent | EpochQuery)
        ):
            self._break(HistoryTruncated(f"segment {self.segment}: retention overtook the answer; {detail}"))
        elif self._continuing and self._subscribed:
            # E17: the gap cannot be healed; the new snapshot becomes a further filter.
            self._start_from_snapshot(gap=True, now=now)
        elif self._continuing or self._begin is From.LIVE:
            self._pull(None, PullReason.GAP, now)
        else:
            self._break(
                HistoryTruncated(
                    f"segment {self.segment}: what was asked for is no longer retained: {detail}; begin again, with "
                    "since='start' for what is left"
                )
            )

    def _refused(self, refused: m.Refused) -> None:
        begin, pulling = self._begin, self._phase is _Phase.PULLING
        if pulling and refused.code == HistoryTruncated.code:
            if self._answer.opened and not (self._answer.reason is PullReason.CHECK and self._subscribed):
                self._pull(self._here, PullReason.OVERTAKEN, self._heard)
            else:
                self._history_gone(refused.detail)
        elif (
            pulling
            and refused.code == RemoteProtocolError.code
            and isinstance(begin, AfterEvent)
            and not self._has_begun
        ):
            self._break(UsageError(f"segment {self.segment} cannot be read after event {begin.seq}: {refused.detail}"))
        else:
            self._break(from_code(refused.code, refused.detail))

    # ---- live ----

    def _leave_pushes(self) -> None:
        if self._subscribed:
            self._effects.append(UnsubscribePrefix(private_prefix(self._nonce)))
            self._nonce = b""  # its snapshot may be on its way, and must not be taken for a second one
        self._abandon_change()
        if self._channel is not None:
            self._effects.append(UnsubscribePrefix(self._channel))
        self._subscribed = False
        self._channel = None
        self._channel_last = None
        self._drop_backlog()

    def _go_live(self, now: float) -> None:
        self._phase = _Phase.LIVE
        self._continuing = True
        backlog, self._backlog, self._backlog_bytes = self._backlog, [], 0
        for event in backlog:
            if self._phase is not _Phase.LIVE:
                return
            self._follow(event, now)
        self._join_if_due(now)

    def _accept_live(self, event: m.Event, now: float) -> None:
        self._checks.event(event)
        self._channel_last = in_order(event, self._channel_last)
        if self._upstream.stepping and type(event) is m.Data:
            self._upstream.batch(event.topic)
            self._tell_filter(now)
        if self._phase is _Phase.LIVE:
            self._follow(event, now)
        elif self._phase in (_Phase.JOINING, _Phase.PULLING):
            self._backlog.append(event)
            self._backlog_bytes += size_of(event)
            if self._backlog_bytes > self.settings.max_backlog:
                self._drop_backlog()  # the hole that this leaves is seen and pulled like any other

    def _follow(self, event: m.Event, now: float) -> None:
        """Q10, E14: accept only what directly follows; what is known already is dropped, a hole is pulled at once."""
        if event.prev > self._last:
            self._greet(now)
            return
        if event.prev < self._last:
            self._passed.check(event)
            if event.seq <= self._last:
                return
        if is_damaged(event):
            self.damaged += 1
            self._greet(now)  # as if it had been lost: it is pulled again (fault 20)
            return
        self._last = event.seq
        self._reports.append(event)

    def _drop_backlog(self) -> None:
        self._backlog = []
        self._backlog_bytes = 0

    def _break(self, error: EpochalError) -> None:
        self._phase = _Phase.BROKEN
        self._drop_backlog()
        self.error = error
        self._reports.append(Broke(error))


def _not_here(message: m.Message) -> RemoteProtocolError:
    if isinstance(message, m.Snapshot):
        return RemoteProtocolError("a snapshot comes once, first, and for one subscription (S8)")
    return RemoteProtocolError(f"a publisher does not push {type(message).__name__} here")


def _way_too_long(path: tuple[str, ...], relay: str) -> str:
    """Why a relay cannot follow one to which this is the way."""
    way = " -> ".join(path)
    if relay in path:
        return f"the relay would follow itself: {way}; change the upstream of one of them"
    return f"at most {m.MAX_RELAYS} relays may follow each other, and there are {len(path)} already: {way}"


def snapshot_state(snapshot: m.Snapshot) -> SegmentState:
    """What a snapshot says, as a state.

    `active` then holds only the maximal active times, which is all that a filter needs.
    """
    return SegmentState(snapshot.seq, snapshot.lower, snapshot.upper, snapshot.aborted, snapshot.below)

"""A subscriber's view of one segment: one contiguous queue of its events, whatever the network does.

A machine without I/O: it joins, checks that each event directly follows the last (Q10), pulls what is missing by
`since`, and reports when the connection must be given up. The subscriber's machine, which merges segments, does not
know about connections.

Its states, and what leads from one to another, are the table in `follower_states`.

Sources: rules S8, S9, S33; E14, E16, E17, E26; F6-F8, F10, F13, F16; Push-Pull Publish-Subscribe; docs/protocol.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from epochal.errors import EpochalError, LimitExceeded, RelayEnded, RemoteProtocolError, TimedOut
from epochal.protocol import messages as m
from epochal.protocol.subscriber.catch_up import PullReason
from epochal.protocol.subscriber.change_answers import ChangeAnswers
from epochal.protocol.subscriber.channel_change import private_prefix
from epochal.protocol.subscriber.effects import FollowerEffect, FollowerReport
from epochal.protocol.subscriber.event_checks import EventChecks
from epochal.protocol.subscriber.follower_states import FollowerEvent, FollowerState
from epochal.protocol.subscriber.join_answers import JoinAnswers, not_pushed_here
from epochal.protocol.subscriber.liveness import Liveness
from epochal.protocol.subscriber.publisher_terms import PublisherTerms
from epochal.protocol.subscriber.pull_answers import PullAnswers
from epochal.protocol.subscriber.push_subscription import PushSubscription
from epochal.protocol.subscriber.received import Received
from epochal.protocol.subscriber.segment_connection import SegmentConnection
from epochal.protocol.subscriber.segment_progress import SegmentProgress
from epochal.protocol.subscriber.since import Begin
from epochal.protocol.subscriber.upstream_filter import FilterTimes, UpstreamFilter
from epochal.protocol.times import TimeShape
from epochal.protocol.topics.filter import TopicFilter


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Times in seconds; sizes in bytes."""

    join_timeout: float = 3.0
    silence: float = 3.0
    """After this silence the publisher is taken for gone, and looked up again.

    At least two of the stream's heartbeats. At two thirds of it the follower looks by `since` (Q11). It does not depend
    on how often events come: heartbeats bound every silence, on a busy stream or a quiet one. To look sooner because of
    a pause between bursts would only cost requests.
    """
    poll: float = 1.0
    """The time between two pulls while pushes are not followed (Q7)."""
    max_backlog: int = 64 * 2**20
    """The most live events that are kept while history is pulled. Beyond it they are dropped, and pulled as well."""
    credit: int = 8
    filter: FilterTimes = field(default_factory=FilterTimes)


class Follower:
    """One connection to one segment's publisher.

    It begins at `begin`; a position there is one that the subscriber had reached. With `continuing` the subscriber
    already holds the state at this position (a reconnect); otherwise the state is requested (a cursor).
    `least_incarnation` is the highest incarnation seen before (E12 fencing). Without `pushes` it pulls only, every
    `settings.poll` seconds (Q7). `topics` are wanted, None for all; other batches may come too. With `whole_filter` the
    publisher must know them before a channel is joined; otherwise all topics are pushed at first. `relay` is the id of
    the relay that this connection feeds, which must not be on the way to the publisher (F16).
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
        self.settings = settings or FollowerSettings()
        self.received = Received()
        """How much has come on this connection."""
        self._liveness = Liveness(self.settings.join_timeout, self.settings.silence, now)
        self._terms = PublisherTerms(segment, least_incarnation, relay)
        self._subscription = PushSubscription(self.settings.max_backlog)
        self._progress = SegmentProgress(begin, continuing=continuing)
        self._upstream = UpstreamFilter(topics, self.settings.filter, now, whole=whole_filter)
        self._checks = EventChecks(segment, shape)
        self._connection = SegmentConnection(
            stream,
            segment,
            checks=self._checks,
            terms=self._terms,
            liveness=self._liveness,
            upstream=self._upstream,
            subscription=self._subscription,
            progress=self._progress,
            fresh_nonce=fresh_nonce,
            credit=self.settings.credit,
            pushes=pushes,
        )
        self._join_answers = JoinAnswers(self._connection)
        self._change_answers = ChangeAnswers(self._connection, self.settings.max_backlog)
        self._pull_answers = PullAnswers(self._connection)
        self._connection.join_afresh(now)

    # ---- the shell's side ----

    def take(self) -> list[FollowerEffect]:
        """What to send since the last call."""
        return self._connection.take_effects()

    def reports(self) -> list[FollowerReport]:
        """What to report to the subscriber since the last call, in order."""
        return self._progress.take_reports()

    @property
    def state(self) -> FollowerState:
        """Where it is in its life, as `follower_states` has it."""
        return self._connection.state

    @property
    def pushes(self) -> bool:
        """Whether pushes are followed; otherwise it only pulls (Q7)."""
        return self._connection.pushes

    @property
    def welcome(self) -> m.Welcome | None:
        """The publisher's last one."""
        return self._terms.welcome

    @property
    def error(self) -> EpochalError | None:
        """Why the follower is over; None while it is not."""
        return self._connection.error

    @property
    def damaged(self) -> int:
        """Live events whose payload did not have the writer's CRC-32C."""
        return self._progress.damaged

    @property
    def live(self) -> bool:
        """Whether all up to now has been delivered, and pushes are followed, or the next pull is waited for."""
        return self._connection.state in (FollowerState.LIVE, FollowerState.WAITING)

    @property
    def began(self) -> bool:
        """Whether `Began` was reported, so that a next follower continues after the last event."""
        return self._progress.has_begun

    @property
    def broken(self) -> bool:
        """Whether this follower is over."""
        return self._connection.state is FollowerState.BROKEN

    def pause(self) -> None:
        """The shell stops reading: silence is not the publisher's fault until `resume`."""
        self._liveness.paused = True

    def resume(self, now: float) -> None:
        """The shell reads again."""
        self._liveness.resume(now)

    def follow_pushes(self, follow: bool, now: float) -> None:
        """From now on follow pushes, or pull only; nothing is lost or reported again (Q15)."""
        connection = self._connection
        if follow == connection.pushes or self.broken:
            return
        connection.pushes = follow
        if not follow:
            connection.send(self._subscription.leave())
            match connection.state:
                case FollowerState.LIVE:
                    connection.enter(FollowerEvent.PUSHES_LEFT, now)
                case FollowerState.JOINING:
                    connection.pull_from_begin(FollowerEvent.PUSHES_LEFT, now)
                case FollowerState.NAMING:  # other topics may be wanted since the last hello
                    connection.greet(FollowerEvent.PUSHES_LEFT, now)
        elif connection.state is FollowerState.WAITING:
            connection.greet(FollowerEvent.PUSHES_WANTED, now)

    def want(self, topics: TopicFilter | None, now: float, *, widens: bool) -> None:
        """Other topics are wanted from now on.

        If it `widens` what was wanted before, `Rejoined` or `Began` says from where on they come (F8). If not, what
        comes beside them is left out at the receiver, and `tick` joins their channel.
        """
        if self.broken:
            return
        connection = self._connection
        self._upstream.want(topics, now, widens=widens)
        was_naming = connection.state is FollowerState.NAMING
        connection.name_filter(now)
        if was_naming or not widens:
            return
        connection.send(self._subscription.abandon_change())
        if connection.state is FollowerState.LIVE:
            connection.change_channel_if_due(now)
        else:
            connection.greet(FollowerEvent.TOPICS_ADDED, now)

    def tick(self, now: float) -> None:
        """Look for what silence may hide, and give up on a join or a publisher that is silent for too long."""
        if self._liveness.paused or self.broken:
            return
        connection, change = self._connection, self._subscription.change
        missing = self._liveness.missing(connection.state, now)
        if missing is not None:
            connection.stop(FollowerEvent.SILENCE, TimedOut(f"segment {self.segment}: {missing}"))
        elif change is not None and now - change.since > self.settings.join_timeout:
            connection.greet(FollowerEvent.CHANGE_FAILED, now)
        elif change is None and connection.state is FollowerState.LIVE and self._liveness.is_quiet(now):
            # Q11: perhaps only the pushes are lost.
            connection.pull(FollowerEvent.QUIET, connection.here, PullReason.CHECK, now)
        elif connection.state is FollowerState.WAITING and (self._upstream.widens or self._upstream.may_join(now)):
            connection.greet(FollowerEvent.TOPICS_DUE, now)
        elif connection.state is FollowerState.WAITING and now - self._liveness.since >= self.settings.poll:
            self._liveness.heard = now
            connection.pull(FollowerEvent.POLL_DUE, connection.here, PullReason.CHECK, now)
        elif connection.pushes:
            connection.name_filter(now)
            connection.change_channel_if_due(now)

    # ---- what arrives ----

    def answered(self, message: m.Message, now: float) -> None:
        """A message on `requests`."""
        if self.broken:
            return
        self._liveness.heard = now
        if self._connection.state is FollowerState.PULLING:
            self._liveness.since = now
        if type(message) is m.Data:
            self.received.count(message, self._upstream.topics, firehose=False)
        try:
            self._take_answer(message, now)
            self._pull_answers.end_if_over(now)
        except RemoteProtocolError as error:
            self._connection.stop(FollowerEvent.RULE_BROKEN, error)

    def _take_answer(self, message: m.Message, now: float) -> None:
        connection, change = self._connection, self._subscription.change
        match message:
            case m.Welcome() if change is not None and message.request == change.request and change.channel is None:
                self._change_answers.welcomed(change, message)
            case m.Refused() if change is not None and message.op == change.request:
                connection.greet(FollowerEvent.CHANGE_FAILED, now)  # whatever it is, the join says it again
            case m.Welcome() if message.request == connection.request and connection.state is FollowerState.GREETING:
                self._join_answers.welcomed(message, now)
            case m.Opening():
                self._pull_answers.opened(message)
            case m.Chunk():
                self._pull_answers.announced(message)
            case m.Data() | m.Frontier() | m.Aborted():
                self._pull_answers.take_event(message)
            case m.Truncated():
                self._pull_answers.truncated(message)
            case m.Confirm():
                self._upstream.confirmed(message, now)
                connection.name_filter(now)
                connection.change_channel_if_due(now)
            case m.Refused() if self._may_refuse_filter(message) and self._upstream.refused():
                if connection.state in (FollowerState.GREETING, FollowerState.NAMING):
                    connection.greet(FollowerEvent.FILTER_REFUSED, now)
            case m.Refused() if message.op == connection.request:
                self._pull_answers.refused(message)
            case m.Refused() | m.Welcome():
                pass  # an answer to a request that was given up
            case _:
                raise RemoteProtocolError(f"a publisher does not answer with {type(message).__name__}")

    def _may_refuse_filter(self, refused: m.Refused) -> bool:
        """Whether it may be the filter that is refused: a step of it, or the hello that names it."""
        greets = self._connection.state is FollowerState.GREETING and refused.op == self._connection.request
        return refused.code == LimitExceeded.code and (refused.op == 0 or greets)

    def pushed(self, prefix: bytes, message: m.Message, now: float) -> None:
        """A message on `events`; the `prefix` says on which channel, or for which subscription alone."""
        connection = self._connection
        if connection.state is FollowerState.BROKEN or not connection.pushes:
            return
        self._liveness.heard = now
        subscription = self._subscription
        if type(message) is m.Data:
            self.received.count(message, self._upstream.topics, firehose=self._upstream.firehose)
        try:
            if prefix == subscription.channel:
                if type(message) is m.Data:  # nearly all messages are
                    self._accept_live(message, now)
                else:
                    self._take_pushed(message, now)
            elif prefix == private_prefix(subscription.nonce):
                self._join_answers.take_private(message, now)
            elif subscription.change is not None:
                self._change_answers.take_pushed(subscription.change, prefix, message, now)
            # Else it is of an earlier subscription, or a channel that was left (E26).
        except RemoteProtocolError as error:
            connection.stop(FollowerEvent.RULE_BROKEN, error)

    def _take_pushed(self, message: m.Message, now: float) -> None:
        connection, last = self._connection, self._progress.last
        match message:
            case m.Heartbeat():
                if connection.state is FollowerState.LIVE and message.seq > last:
                    connection.greet(FollowerEvent.TAIL_LOST, now)
                elif connection.state is FollowerState.LIVE and message.upto > last:
                    self._progress.reached(message.upto, None)  # F7
            case m.Frontier() | m.Aborted():
                self._accept_live(message, now)
            case m.Ended(detail):
                connection.stop(FollowerEvent.RUN_ENDED, RelayEnded(f"segment {self.segment}: {detail}"))
            case _:
                raise not_pushed_here(message)

    def _accept_live(self, event: m.Event, now: float) -> None:
        connection = self._connection
        self._checks.event(event)
        self._subscription.came(event)
        if self._upstream.stepping and type(event) is m.Data:
            self._upstream.batch(event.topic)
            connection.name_filter(now)
        if connection.state is FollowerState.LIVE:
            connection.follow(event, now)
        elif connection.state in (FollowerState.JOINING, FollowerState.PULLING):
            self._subscription.keep(event)

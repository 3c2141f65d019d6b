"""The state of a follower, and all that it sends: hellos, steps of the filter, pulls, and subscriptions.

The modules that judge answers (`join_answers`, `change_answers`, `pull_answers`) call it: each of them can make a
follower join again, pull or go live.

Sources: rules E26, F8, Q12; docs/protocol.md (Joining a segment, History).
"""

from collections.abc import Callable, Iterable

from epochal.errors import EpochalError, UsageError
from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import MOST_WANTED, EpochQuery
from epochal.protocol.log.history import SegmentState
from epochal.protocol.subscriber.catch_up import Pull, PullReason
from epochal.protocol.subscriber.channel_change import ChannelChange, as_prefixes
from epochal.protocol.subscriber.effects import Broke, FollowerEffect, Request
from epochal.protocol.subscriber.event_checks import EventChecks
from epochal.protocol.subscriber.follower_states import FOLLOWER_TRANSITIONS, FollowerEvent, FollowerState
from epochal.protocol.subscriber.liveness import Liveness
from epochal.protocol.subscriber.publisher_terms import PublisherTerms
from epochal.protocol.subscriber.push_subscription import PushSubscription
from epochal.protocol.subscriber.segment_progress import SegmentProgress
from epochal.protocol.subscriber.since import AfterEvent, From
from epochal.protocol.subscriber.upstream_filter import UpstreamFilter
from epochal.protocol.times import Time


class SegmentConnection:
    """One connection to the publisher of `segment`; its parts hold what is known, and this one sends."""

    __slots__ = (
        "_credit",
        "_effects",
        "_fresh_nonce",
        "answer",
        "checks",
        "error",
        "liveness",
        "progress",
        "pushes",
        "request",
        "segment",
        "state",
        "stream",
        "subscription",
        "terms",
        "upstream",
    )

    def __init__(
        self,
        stream: str,
        segment: str,
        *,
        checks: EventChecks,
        terms: PublisherTerms,
        liveness: Liveness,
        upstream: UpstreamFilter,
        subscription: PushSubscription,
        progress: SegmentProgress,
        fresh_nonce: Callable[[], bytes],
        credit: int,
        pushes: bool,
    ) -> None:
        self.stream = stream
        self.segment = segment
        self.checks = checks
        self.terms = terms
        self.liveness = liveness
        self.upstream = upstream
        self.subscription = subscription
        self.progress = progress
        self.pushes = pushes
        """Whether pushes are to be followed."""
        self.state = FOLLOWER_TRANSITIONS.start
        self.error: EpochalError | None = None
        """Why the connection is over."""
        self.request = 0
        """The number of the last request."""
        self.answer = Pull(None, PullReason.BEGIN)
        """What is pulled, or was last."""
        self._fresh_nonce = fresh_nonce
        self._credit = credit
        self._effects: list[FollowerEffect] = []

    def take_effects(self) -> list[FollowerEffect]:
        """What to send since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def send(self, effects: Iterable[FollowerEffect]) -> None:
        """Send these after what is to be sent already."""
        self._effects += effects

    def enter(self, event: FollowerEvent, now: float) -> None:
        """Change the state. Raises `LocalProtocolError` where the table has no such change."""
        self.state = FOLLOWER_TRANSITIONS.after(self.state, event)
        self.liveness.since = now

    def stop(self, event: FollowerEvent, error: EpochalError) -> None:
        """The connection is over."""
        self.enter(event, self.liveness.heard)
        self.subscription.drop_backlog()
        self.error = error
        self.progress.report(Broke(error))

    @property
    def here(self) -> m.Position:
        """The last event that was reported, as a position."""
        return m.Position(self.terms.incarnation, self.progress.last)

    # ---- hellos ----

    def greet(self, event: FollowerEvent, now: float) -> None:
        """Join again.

        Also how a gap is healed: what is missing is pulled after the last event (Q12).
        """
        self.enter(event, now)
        self.join_afresh(now)

    def join_afresh(self, now: float) -> None:
        """Say hello under a fresh subscription id; nothing that was sent to an earlier one counts any more (E26)."""
        if self.progress.has_begun:
            self.progress.go_on_after(self.here)
        self._effects += self.subscription.renew(self._fresh_nonce())
        self.request += 1
        self._say_hello(self.request, self.subscription.nonce, None, now)

    def _say_hello(self, request: int, nonce: bytes, replaces: bytes | None, now: float) -> None:
        named, view = self.upstream.hello(now, changes=replaces is not None)
        hello = m.Hello(request, (m.VERSION,), self.stream, self.segment, nonce, named, replaces, view)
        self._effects.append(Request(hello))

    def name_filter(self, now: float) -> None:
        """Send the steps that are due; if these come before the join, and there are no more, join."""
        if self.pushes:
            self._effects += map(Request, self.upstream.take(self.segment, now))
        if self.state is FollowerState.NAMING and self.upstream.ready_for_hello:
            self.greet(FollowerEvent.NAMED, now)

    def change_channel_if_due(self, now: float) -> None:
        """Join another channel, if it is time for that and the publisher knows what must be on it."""
        subscription = self.subscription
        if self.state is FollowerState.LIVE and subscription.change is None and self.upstream.may_join(now):
            self.enter(FollowerEvent.CHANGE_BEGUN, now)
            self.request += 1
            change = ChannelChange(self.request, self._fresh_nonce(), now, self.upstream.topics)
            subscription.change = change
            self._say_hello(self.request, change.nonce, subscription.nonce, now)

    # ---- pulls ----

    def pull_from_begin(self, event: FollowerEvent, now: float) -> None:
        """Request what follows the place to begin at; a live begin is after the last event that the publisher named."""
        match self.progress.begin:
            case m.Position() as position:
                self.pull(event, position, PullReason.RESUME, now)
            case AfterEvent(seq, incarnation):
                position = m.Position(self.terms.incarnation if incarnation is None else incarnation, seq)
                newest = self.terms.newest
                if position > (self.terms.incarnation, newest) and not self.terms.relayed:
                    # A relay may not know of the event yet; its publisher is asked then (F15).
                    self.stop(
                        FollowerEvent.NOT_THERE,
                        UsageError(f"segment {self.segment} ends at {newest} as yet; there is no event {seq}"),
                    )
                else:
                    self.pull(event, position, PullReason.BEGIN, now)
            case From.LIVE:
                self.pull(event, m.Position(self.terms.incarnation, self.terms.newest), PullReason.BEGIN, now)
            case EpochQuery(times) if self.terms.skips_history and len(times) <= MOST_WANTED:
                self.pull(event, None, PullReason.BEGIN, now, times)
            case _:
                self.pull(event, None, PullReason.BEGIN, now)

    def pull(
        self,
        event: FollowerEvent,
        position: m.Position | None,
        reason: PullReason,
        now: float,
        wanted: tuple[Time, ...] | None = None,
    ) -> None:
        """Request what comes after `position`; for None all that is retained, or what `wanted` needs of it."""
        self.enter(event, now)
        self.request += 1
        topics = as_prefixes(self.upstream.joined) if self.terms.filters_history else None
        self.answer = Pull(position, reason, filtered=topics is not None)
        if position is not None:
            self.progress.last = position.seq
        # Else the answer says where it begins. Until then a join that comes between goes on after the last event.
        since = m.Since(self.request, self.segment, position, self._credit, wanted, topics)
        self._effects.append(Request(since))

    # ---- going live ----

    def report_began(self, state: SegmentState, *, filters: bool, gap: bool = False, resumed: bool = False) -> None:
        """Report that the events of the topics that were joined come from `state` on."""
        self.upstream.begins()
        self.progress.report_began(
            self.terms.incarnation, state, self.upstream.joined, filters=filters, gap=gap, resumed=resumed
        )

    def start_from_snapshot(self, event: FollowerEvent, *, gap: bool, now: float) -> None:
        """What the snapshot says is where events begin; with `gap` those before it are lost."""
        snapshot = self.subscription.snapshot
        self.progress.last = snapshot.seq
        self.report_began(snapshot_state(snapshot), filters=True, gap=gap)
        self.go_live(event, now)

    def go_live(self, event: FollowerEvent, now: float) -> None:
        """All before the pushes has come: follow those that have waited, and the next ones."""
        self.enter(event, now)
        self.progress.continuing = True
        for kept in self.subscription.take_backlog():
            if self.state is not FollowerState.LIVE:
                return
            self.follow(kept, now)
        self.change_channel_if_due(now)

    def follow(self, event: m.Event, now: float) -> None:
        """Accept only what directly follows; a hole is pulled at once (Q10)."""
        unfit = self.progress.follow(event)
        if unfit is not None:
            self.greet(unfit, now)


def snapshot_state(snapshot: m.Snapshot) -> SegmentState:
    """What a snapshot says, as a state.

    `active` then holds only the maximal active times, which is all that a filter needs.
    """
    return SegmentState(snapshot.seq, snapshot.lower, snapshot.upper, snapshot.aborted, snapshot.below)

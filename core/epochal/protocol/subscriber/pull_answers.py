"""What a publisher answers to `since`: the state where events begin, chunks of them, or that they are gone.

`catch_up` judges one answer by itself; here is what it means for the follower.

Sources: rules E13, E17; Q12, F10; docs/protocol.md (History).
"""

from epochal.errors import ChecksumMismatch, HistoryTruncated, RemoteProtocolError, UsageError, from_code
from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.log.history import SegmentState
from epochal.protocol.subscriber.catch_up import PullReason
from epochal.protocol.subscriber.effects import Request
from epochal.protocol.subscriber.event_checks import is_damaged
from epochal.protocol.subscriber.follower_states import FollowerEvent, FollowerState
from epochal.protocol.subscriber.segment_connection import SegmentConnection
from epochal.protocol.subscriber.since import AfterEvent, From


class PullAnswers:
    """Takes the answer to a pull. Raises `RemoteProtocolError` for what does not belong into it."""

    __slots__ = ("_connection", "_given_up")

    def __init__(self, connection: SegmentConnection) -> None:
        self._connection = connection
        self._given_up = 0
        """Events of an answer to an earlier request that are still to come."""

    def _awaits(self, request: int) -> bool:
        """Whether what answers `request` answers the present pull."""
        return request == self._connection.request and self._connection.state is FollowerState.PULLING

    def opened(self, opening: m.Opening) -> None:
        """An answer begins."""
        if not self._awaits(opening.request):
            return
        connection, progress = self._connection, self._connection.progress
        connection.checks.times(opening.lower, opening.upper, opening.aborted, opening.below, opening.moved_to)
        connection.answer.open(opening, connection.terms.incarnation)
        progress.last = opening.position.seq
        self._report_opening(
            SegmentState(opening.position.seq, opening.lower, opening.upper, opening.aborted, opening.below)
        )
        if connection.answer.last > progress.last and connection.state is not FollowerState.BROKEN:
            progress.moved(connection.answer.last, opening.moved_to)

    def _report_opening(self, state: SegmentState) -> None:
        """Report where the events of an answer begin, unless the last ones of this connection ended there."""
        connection, progress, reason = self._connection, self._connection.progress, self._connection.answer.reason
        if reason is PullReason.CHECK:
            return
        begin = progress.begin
        if reason is PullReason.BEGIN and isinstance(begin, EpochQuery) and not begin.whole_after(state):
            connection.stop(
                FollowerEvent.TRUNCATED,
                HistoryTruncated(
                    f"segment {connection.segment}: epochs that were asked for may have begun before event "
                    f"{state.seq + 1}, where the retained history starts with the frontier {list(state.lower)}"
                ),
            )
            return
        gap = reason is PullReason.GAP and progress.continuing
        connection.report_began(
            state,
            filters=reason not in (PullReason.RESUME, PullReason.OVERTAKEN),
            gap=gap,
            resumed=progress.continuing and not gap,
        )
        progress.continuing = True

    def announced(self, chunk: m.Chunk) -> None:
        """A chunk of events begins."""
        if not self._awaits(chunk.request):
            self._given_up = chunk.events
            return
        connection = self._connection
        if connection.answer.announce(chunk):
            connection.send([Request(m.Credit(connection.request, 1))])
        self._pass_over()

    def take_event(self, event: m.Event) -> None:
        """An event of the last chunk that was announced, which may belong to an answer that was given up."""
        connection = self._connection
        if self._given_up:
            self._given_up -= 1
            return
        if connection.state is not FollowerState.PULLING:
            return
        connection.checks.event(event)
        if not connection.answer.accept(event):
            return
        if is_damaged(event):
            damage = f"segment {connection.segment}: event {event.seq} of the history arrived damaged"
            connection.stop(FollowerEvent.RULE_BROKEN, ChecksumMismatch(damage))
            return
        connection.progress.add(event)
        self._pass_over()

    def _pass_over(self) -> None:
        """Where a filtered chunk has come whole, all up to its end has (F10)."""
        connection = self._connection
        if connection.answer.last > connection.progress.last:
            connection.progress.reached(connection.answer.last, connection.upstream.joined)

    def end_if_over(self, now: float) -> None:
        """Where the answer has come to its end, go live, wait, or join again."""
        connection = self._connection
        if connection.state is not FollowerState.PULLING or not connection.answer.over:
            return
        if not connection.pushes:
            connection.enter(FollowerEvent.PULLED_TO_WAIT, now)
        elif not connection.subscription.subscribed:  # pushes are wanted again since
            connection.greet(FollowerEvent.PULLED_TO_JOIN, now)
        elif connection.answer.reason is PullReason.CHECK and connection.answer.news:
            # Q12: the subscription has failed; the next one begins after what has come.
            connection.greet(FollowerEvent.PUSHES_FAILED, now)
        elif connection.progress.last >= connection.subscription.snapshot.seq:
            connection.go_live(FollowerEvent.PULLED, now)

    def truncated(self, truncated: m.Truncated) -> None:
        """What was requested is older than what is retained."""
        if not self._awaits(truncated.request):
            return
        self._connection.checks.times(truncated.frontier)
        self._history_gone(f"the first retained position is {tuple(truncated.first_available)}")

    def refused(self, refused: m.Refused) -> None:
        """The publisher refuses the last request, which may be a pull or a hello."""
        connection, answer = self._connection, self._connection.answer
        begin, pulling = connection.progress.begin, connection.state is FollowerState.PULLING
        if pulling and refused.code == HistoryTruncated.code:
            looks = answer.reason is PullReason.CHECK and connection.subscription.subscribed
            if answer.opened and not looks:
                now = connection.liveness.heard
                connection.pull(FollowerEvent.OVERTAKEN, connection.here, PullReason.OVERTAKEN, now)
            else:
                self._history_gone(refused.detail)
        elif (
            pulling
            and refused.code == RemoteProtocolError.code
            and isinstance(begin, AfterEvent)
            and not connection.progress.has_begun
        ):
            why = f"segment {connection.segment} cannot be read after event {begin.seq}: {refused.detail}"
            connection.stop(FollowerEvent.REFUSED, UsageError(why))
        else:
            connection.stop(FollowerEvent.REFUSED, from_code(refused.code, refused.detail))

    def _history_gone(self, detail: str) -> None:
        connection, progress, reason = self._connection, self._connection.progress, self._connection.answer.reason
        now, subscribed = connection.liveness.heard, connection.subscription.subscribed
        if reason is PullReason.CHECK and subscribed:
            connection.greet(FollowerEvent.LOOKED_TOO_LATE, now)  # lost for good: the next snapshot says where to go on
        elif (
            reason in (PullReason.BEGIN, PullReason.OVERTAKEN)
            and (connection.answer.opened or reason is PullReason.OVERTAKEN)
            and isinstance(progress.begin, AfterEvent | EpochQuery)
        ):
            gone = f"segment {connection.segment}: retention overtook the answer; {detail}"
            connection.stop(FollowerEvent.TRUNCATED, HistoryTruncated(gone))
        elif progress.continuing and subscribed:
            # E17: the gap cannot be healed; the new snapshot becomes a further filter.
            connection.start_from_snapshot(FollowerEvent.GAP_SKIPPED, gap=True, now=now)
        elif progress.continuing or progress.begin is From.LIVE:
            connection.pull(FollowerEvent.GAP_PULLED, None, PullReason.GAP, now)
        else:
            gone = (
                f"segment {connection.segment}: what was asked for is no longer retained: {detail}; begin again, with "
                "since='start' for what is left"
            )
            connection.stop(FollowerEvent.TRUNCATED, HistoryTruncated(gone))

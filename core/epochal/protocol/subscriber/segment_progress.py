"""How far a follower has come in its segment, and what it reports to the subscriber: one queue without holes.

The connection can fail, and be joined again, at any place of this queue.

Sources: rules Q10, E14, E17; F7, F10.
"""

from epochal.protocol import messages as m
from epochal.protocol.log.history import SegmentState
from epochal.protocol.subscriber.effects import Began, FollowerReport, Moved, Reached
from epochal.protocol.subscriber.event_checks import PassedOver, is_damaged
from epochal.protocol.subscriber.follower_states import FollowerEvent
from epochal.protocol.subscriber.since import Begin
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter


class SegmentProgress:
    """Begins at `begin`; `continuing` says that the subscriber holds the state there already."""

    __slots__ = ("_passed", "_reports", "begin", "continuing", "damaged", "has_begun", "last")

    def __init__(self, begin: Begin, *, continuing: bool) -> None:
        self.begin = begin
        self.continuing = continuing
        self.has_begun = False
        """Whether `Began` was reported."""
        self.last = m.NOTHING_YET
        """The last event that was reported, or the one after which they begin."""
        self.damaged = 0
        """Live events whose payload did not have the writer's CRC-32C."""
        self._passed = PassedOver()
        """Events that the position has passed though they have not come."""
        self._reports: list[FollowerReport] = []

    def take_reports(self) -> list[FollowerReport]:
        """What to report since the last call, in order."""
        reports, self._reports = self._reports, []
        return reports

    def report(self, report: FollowerReport) -> None:
        """Report something that moves no position."""
        self._reports.append(report)

    def go_on_after(self, position: m.Position) -> None:
        """The next join begins after an event that was reported."""
        self.begin = position
        self.continuing = True

    def report_began(
        self,
        incarnation: int,
        state: SegmentState,
        topics: TopicFilter | None,
        *,
        filters: bool,
        gap: bool = False,
        resumed: bool = False,
    ) -> None:
        """Events of `topics` come from `state` on."""
        self.has_begun = True
        self._reports.append(Began(incarnation, state, filters, gap, resumed, topics))

    def reached(self, seq: int, topics: TopicFilter | None) -> None:
        """All that there is of `topics` up to event `seq` has come; for None, all that is on the channel (F7)."""
        self._passed.extend(self.last, seq, topics)
        self.last = seq
        self._reports.append(Reached(seq))

    def skip_to(self, seq: int) -> None:
        """A snapshot says that nothing of the old topics is missing up to event `seq` (F8)."""
        if seq > self.last:
            self.last = seq
            self._reports.append(Reached(seq))

    def moved(self, seq: int, lower: tuple[Time, ...]) -> None:
        """Up to event `seq` only the frontier moved, in events that are gone (E13 retention)."""
        self.last = seq
        self._reports.append(Moved(seq, lower))

    def forget_passed(self) -> None:
        """A channel or a publisher begins that may have what the last one had not."""
        self._passed = PassedOver()

    def add(self, event: m.Event) -> None:
        """The next event of a history."""
        self.last = event.seq
        self._reports.append(event)

    def follow(self, event: m.Event) -> FollowerEvent | None:
        """Accept a pushed event if it directly follows; returns why not, if the segment must be joined again (Q10).

        An event that is known already is dropped. Raises `RemoteProtocolError` for one that was denied before.
        """
        if event.prev > self.last:
            return FollowerEvent.GAP_SEEN
        if event.prev < self.last:
            self._passed.check(event)
            if event.seq <= self.last:
                return None
        if is_damaged(event):
            self.damaged += 1
            return FollowerEvent.DAMAGE_SEEN  # as if it had been lost: it is pulled again
        self.last = event.seq
        self._reports.append(event)
        return None

"""How a session takes its capability: what all segments can give, at all of them, before it is used (E5).

Separate from the machine because this is the one place where what an earlier session left decides what comes next.

Sources: rules E3, E5, E6.
"""

from collections.abc import Iterable, Mapping

from epochal.protocol import messages as m
from epochal.protocol.frontier import joint
from epochal.protocol.times import Time
from epochal.protocol.writer.capabilities import Moves
from epochal.protocol.writer.operations import Operations, Outcomes
from epochal.protocol.writer.segment_session import SegmentSession


class Joining:
    """The joining of one session; `first` says that no earlier session of this writer has left anything."""

    def __init__(
        self,
        lanes: Mapping[str, SegmentSession],
        moves: Moves,
        operations: Operations,
        outcomes: Outcomes,
        *,
        first: bool,
    ) -> None:
        self._lanes = lanes
        self._moves = moves
        self._operations = operations
        self._outcomes = outcomes
        self._first = first
        self._aborting = 0
        """The ticket by which epochs that were given up are aborted; 0 if there are none."""
        self.ticket = 0
        """The ticket of the last operation that joining needed; 0 before."""

    def goes_on(self) -> bool | None:
        """Whether an earlier session left something that this one goes on with; None while that is not known."""
        lanes = self._lanes.values()
        if self._first:
            return False
        if any(lane.opened is None for lane in lanes):
            return None
        return not all(lane.granted and not lane.touched for lane in lanes)

    def start(self) -> bool:
        """All segments have answered: join; returns whether nothing is to be confirmed."""
        self._moves.begin(joint(lane.held for lane in self._lanes.values()))
        given_up = self._given_up()
        if not given_up:
            return self._hold()
        # Nothing is released before every segment has aborted them, or a next session would not know (E3).
        self.ticket = self._aborting = self._outcomes.ticket()
        self._operations.start(self.ticket, lambda op, segment: m.Abort(op, segment, self._held_at(segment, given_up)))
        return False

    def confirmed(self, ticket: int) -> bool:
        """All segments have confirmed `ticket`; returns whether the session has joined now."""
        return self._hold() if ticket == self._aborting else ticket == self.ticket

    def _given_up(self) -> list[Time]:
        """Epochs appended at and not left, whose capability some segment took away, and gave a new one since (E3)."""
        touched = set[Time]().union(*(lane.touched for lane in self._lanes.values()))
        granted = [lane for lane in self._lanes.values() if lane.granted]
        return sorted(time for time in touched if any(not lane.held.less_equal(time) for lane in granted))

    def _held_at(self, segment: str, times: Iterable[Time]) -> tuple[Time, ...]:
        """Those of `times` that the writer holds at `segment`; the others are decided there."""
        held = self._lanes[segment].held
        return tuple(sorted(time for time in times if held.less_equal(time)))

    def _hold(self) -> bool:
        held = tuple(self._moves.held)
        if any(lane.held != self._moves.held for lane in self._lanes.values()):
            self.ticket = self._outcomes.ticket()
            self._operations.start(self.ticket, lambda op, segment: m.Hold(op, segment, held))
            return False
        return True

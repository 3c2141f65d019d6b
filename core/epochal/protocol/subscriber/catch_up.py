"""One answer to `since` as it comes in: it opens once, at the requested position, and only a filter leaves holes.

What is judged here needs the answer alone. `pull_answers` has what the follower does with it, and what is pushed
meanwhile.

Sources: rules E10, E14, E16; F10; docs/protocol.md (History).
"""

from enum import StrEnum

from epochal.errors import RemoteProtocolError
from epochal.protocol.messages import NOTHING_YET, Chunk, Event, Opening, Position


class PullReason(StrEnum):
    """Why a follower pulls."""

    BEGIN = "begin"
    RESUME = "resume"
    """After events, and in a state, that the subscriber has."""
    OVERTAKEN = "overtaken"
    """The same, after retention overtook the last answer: perhaps only frontier changes are gone (E13 retention)."""
    GAP = "gap"
    """What was requested is gone: all that is retained."""
    CHECK = "check"
    """Whether there is anything new, on a connection that has begun."""


class Pull:
    """The answer to a request for the events after the position `after`; for None, for all that are retained.

    Methods that take a message raise `RemoteProtocolError` for one that does not belong there.
    """

    __slots__ = ("_ends", "_filtered", "_left", "_upto", "after", "last", "news", "opened", "reason")

    def __init__(self, after: Position | None, reason: PullReason, *, filtered: bool = False) -> None:
        self.after = after
        self.reason = reason
        self.opened = False
        self.news = False
        """Whether an event has come that was not known before."""
        self._filtered = filtered
        self._upto = NOTHING_YET
        """The end of the part of the log that the last chunk covers."""
        self.last = NOTHING_YET if after is None else after.seq
        """All that the answer has up to this event has come."""
        self._left = 0
        """Events that the last chunk announced and that have not come."""
        self._ends = False
        """Whether the last chunk was announced."""

    @property
    def over(self) -> bool:
        """Whether the whole answer has come."""
        return self._ends and not self._left

    def open(self, opening: Opening, incarnation: int) -> None:
        """The answer begins; `incarnation` is that of the publisher."""
        got = opening.position
        if self.opened:
            raise RemoteProtocolError("an answer to `since` opens once")
        if self.after is None and got.incarnation != incarnation:
            raise RemoteProtocolError(f"the history starts in incarnation {got.incarnation}, not in {incarnation}")
        if self.after is not None and got != self.after and not self._leads_back(self.after, got, incarnation):
            raise RemoteProtocolError(f"asked for events after {tuple(self.after)}, got {tuple(got)}")
        self.opened = True
        self.last = got.seq
        if opening.lull > got.seq:
            self.last, self.news = opening.lull, True

    @staticmethod
    def _leads_back(after: Position, got: Position, incarnation: int) -> bool:
        """Whether the answer begins where an earlier incarnation's events end (E10 durability)."""
        return after.incarnation < got.incarnation == incarnation and got.seq < after.seq

    def announce(self, chunk: Chunk) -> bool:
        """A chunk of events follows; returns whether another one comes after it, which needs credit."""
        if not self.opened or self._ends or self._left:
            raise RemoteProtocolError("a chunk comes after the opening, and after the events of the one before")
        if self._filtered and chunk.upto < self.last:
            raise RemoteProtocolError(f"a filtered chunk goes up to {chunk.upto}, and the one before to {self.last}")
        self._left = chunk.events
        self._ends = chunk.last
        self._upto = chunk.upto
        self._pass_over()
        return not chunk.last

    def _pass_over(self) -> None:
        """The rest of what a filtered chunk covers was left out (F10)."""
        if self._filtered and not self._left:
            self.last = max(self.last, self._upto)

    def accept(self, event: Event) -> bool:
        """An event has come; returns whether it is a new one."""
        if not self._left:
            raise RemoteProtocolError(f"no chunk announced event {event.seq}")
        self._left -= 1
        known = event.seq <= self.last
        if self._filtered and event.seq > self._upto:
            raise RemoteProtocolError(f"event {event.seq} is in a chunk that goes up to {self._upto}")
        if self._filtered and known:
            raise RemoteProtocolError(f"event {event.seq} comes in a filtered answer that had all up to {self.last}")
        if not known and not self._filtered and event.prev > self.last:
            raise RemoteProtocolError(f"history skips from {self.last} to {event.seq}")
        if not known:
            self.last, self.news = event.seq, True
        self._pass_over()
        return not known

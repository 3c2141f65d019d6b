"""One answer to `since` as it comes in: it opens once, where it was asked to, and has no holes.

Separate from the follower because this can be judged without knowing what a subscriber makes of the answer, or what is
pushed meanwhile.

Sources: rules E10, E14, E16; docs/protocol.md (History).
"""

from enum import StrEnum

from epochal.errors import RemoteProtocolError
from epochal.protocol.messages import NOTHING_YET, Chunk, Event, Opening, Position


class Why(StrEnum):
    """Of a pull."""

    BEGIN = "begin"
    GO_ON = "go on"
    """After events, and in a state, that the subscriber has."""
    GAP = "gap"
    """What was asked for is gone: from the start of what there is."""
    LOOK = "look"
    """Whether there is anything new, on a connection that has begun."""


class Pull:
    """The answer to a request for what comes after position `after`, or, for None, for what there is.

    What takes a message raises `RemoteProtocolError` for one that does not belong there.
    """

    __slots__ = ("_ends", "_left", "after", "last", "opened", "why")

    def __init__(self, after: Position | None, why: Why) -> None:
        self.after = after
        self.why = why
        self.opened = False
        self.last = NOTHING_YET if after is None else after.seq
        """The last event that has come, or the one after which they begin."""
        self._left = 0
        """Events that the last chunk announced and that have not come."""
        self._ends = False

    @property
    def over(self) -> bool:
        """Whether all of it has come."""
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

    @staticmethod
    def _leads_back(after: Position, got: Position, incarnation: int) -> bool:
        """Whether the answer begins where an earlier incarnation's events end (E10)."""
        return after.incarnation < got.incarnation == incarnation and got.seq < after.seq

    def announce(self, chunk: Chunk) -> bool:
        """So many events follow; returns whether a further chunk does, for which credit is to be given."""
        if not self.opened or self._ends or self._left:
            raise RemoteProtocolError("a chunk comes after the opening, and after the events of the one before")
        self._left = chunk.events
        self._ends = chunk.last
        return not chunk.last

    def accept(self, event: Event) -> bool:
        """An event has come; returns whether it is a new one."""
        if not self._left:
            raise RemoteProtocolError(f"no chunk announced event {event.seq}")
        self._left -= 1
        if event.seq <= self.last:
            return False
        if event.prev > self.last:
            raise RemoteProtocolError(f"history skips from {self.last} to {event.seq}")
        self.last = event.seq
        return True

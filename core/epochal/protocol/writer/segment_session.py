"""One segment as a writer knows it: the connection's state, what was appended there, what is held there.

Apart from `writing`, which moves all lanes together: this is what differs between them.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.times import Time


class Sent(NamedTuple):
    """An append, and the ticket by which the caller knows it."""

    ticket: int
    append: m.Append


@dataclass(slots=True)
class Lane:
    """One segment as the writer knows it."""

    connected: bool = False
    opened: m.Opened | None = None
    """The answer to this connection's `Open`; None while there is none."""
    ever_opened: bool = False
    granted: bool = False
    """Whether any answer to this session's `Open` was a new grant; an answer to a resume no longer says so."""
    incarnation: int = 0
    least_incarnation: int = 0
    """The highest that an earlier session has seen; the publisher of a lower one is stale (E12)."""
    window: int = 0
    next: int = 0
    acked: int = -1
    held: Antichain = field(default_factory=Antichain)
    """What the publisher confirmed that the writer holds there."""
    touched: set[Time] = field(default_factory=set)
    unacked: deque[Sent] = field(default_factory=deque)
    unsent: deque[Sent] = field(default_factory=deque)
    in_flight: int = 0
    operations: dict[int, tuple[int, m.Hold | m.Abort | m.Leave]] = field(default_factory=dict)
    """op -> (ticket, message), in the order sent; sent again after a reconnect."""

    @property
    def oldest(self) -> int:
        """The ticket of the oldest append that is not acknowledged; 0 if there is none."""
        waiting = self.unacked or self.unsent
        return waiting[0].ticket if waiting else 0

    def resume(self, aborted: set[Time]) -> m.Resume:
        """What to tell a publisher that may have lost its memory.

        What was aborted stays so in its next life (E11).
        """
        still = {time for time in aborted if self.held.less_equal(time)}
        return m.Resume(self.acked, tuple(self.held), tuple(sorted(self.touched | still)))

    def acknowledged(self, number: int) -> Iterator[Sent]:
        """Take off the appends up to `number`, in order."""
        while self.unacked and self.unacked[0].append.number <= number:
            sent = self.unacked.popleft()
            self.in_flight -= len(sent.append.payload)
            self.acked = sent.append.number
            yield sent

    def refused(self, number: int) -> Sent | None:
        """Take off append `number`; None if it was not under way."""
        sent = next((sent for sent in self.unacked if sent.append.number == number), None)
        if sent is not None:
            if sent is self.unacked[0]:
                self.acked = max(self.acked, number)
            self.unacked.remove(sent)
            self.in_flight -= len(sent.append.payload)
        return sent

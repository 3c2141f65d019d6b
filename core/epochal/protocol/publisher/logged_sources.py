"""One writer's source numbers at a segment: the highest one that is logged, and how far all of them are published.

A program may number its records by its own source. A number that is not above the highest logged one is a repeat (E50
sources).
"""

from dataclasses import dataclass, field

from epochal.protocol.times import Time


@dataclass(slots=True)
class LoggedSources:
    """The source numbers of one writer at one segment."""

    highest: int = -1
    """The highest source number that is logged, -1 for none; an append that is not above it is a repeat."""
    seq: int = -1
    """The event with that number, or a later one."""
    whole: int = -1
    """Everything up to this source number is published at every segment, in epochs that the writer has left."""
    torn: bool = False
    """Whether an epoch with some of these numbers was aborted before the writer had left it."""
    refusing: bool = False
    """Whether a source number of this session was refused: no higher one is logged, or the first would be skipped."""
    times: set[Time] = field(default_factory=set)
    """Times at which the writer has appended with source numbers, and which it still holds."""

    def aborted(self, time: Time) -> None:
        """The epoch `time` is aborted."""
        if time in self.times:
            self.times.discard(time)
            self.torn = True

    def published_up_to(self, whole: int, seq: int) -> None:
        """A move reports that everything up to source number `whole` is published; the last event is `seq`."""
        self.whole = max(self.whole, whole)
        if whole > self.highest:
            self.highest, self.seq = whole, seq

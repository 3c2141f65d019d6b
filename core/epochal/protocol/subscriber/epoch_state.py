"""The state of each segment and of each epoch that has data and is not yielded, as the subscriber's machine knows it.

Sources: rules S17; E15-E17.
"""

from dataclasses import dataclass, field

from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain, MutableAntichain
from epochal.protocol.subscriber.effects import Moved
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter

BATCH_OVERHEAD = 200
"""Bytes that one held batch costs in addition to its payload."""


@dataclass(slots=True)
class FollowedSegment:
    """One segment as the subscriber's machine knows it."""

    began: bool = False
    down: bool = False
    """Whether its connection was lost, and is not live again."""
    began_at: int = m.NOTHING_YET
    """The event after which it began, before the first event was handed out."""
    began_complete: bool = False
    """Whether the segment was complete there, or after a `Moved` that came next."""
    incarnation: int = 0
    seq: int = m.NOTHING_YET
    """The last event that arrived."""
    lower: MutableAntichain = field(default_factory=MutableAntichain)
    floor: Antichain | None = None
    """Its frontier before it began again, or that of a cursor; data that it does not reach is a repetition (E17)."""
    reach: tuple[Time, ...] = ()
    """Its part of the merged frontier: its lower frontier joined with `floor` (E17)."""
    waiting: list[m.Event | Moved] = field(default_factory=list)
    """Events that wait for the other segments to begin (S17)."""

    def joined(self) -> Antichain:
        """Its lower frontier joined with `floor`, which is dropped once it adds nothing."""
        lower = self.lower.frontier
        if self.floor is not None:
            joined = lower.join(self.floor)
            if joined == lower:
                self.floor = None
            return joined
        return lower


@dataclass(slots=True)
class OpenEpoch:
    """An epoch with data that has not been yielded."""

    batches: list[tuple[str, m.Data]] = field(default_factory=list)
    before: dict[str, m.Position] = field(default_factory=dict)
    """Segment -> the position just before its first event of this epoch."""
    last: dict[str, int] = field(default_factory=dict)
    """Segment -> its last event of this epoch."""
    bytes: int = 0
    """The size of `batches`, with `BATCH_OVERHEAD` for each."""

    def keep(self, topics: TopicFilter) -> int:
        """Drop the batches of all other topics; returns how many bytes that were."""
        before, self.batches = self.batches, [batch for batch in self.batches if topics.wants(batch[1].topic)]
        if len(before) == len(self.batches):
            return 0
        size = self.bytes
        self.bytes = sum(BATCH_OVERHEAD + len(data.payload) for _, data in self.batches)
        return size - self.bytes

    aborted: list[Time] = field(default_factory=list)
    """Aborted times that became past while this epoch was the last that waited. A resume before it reads them again."""

"""What applications receive: epochs, batches, and what happened to the stream.

Apart from the subscriber that makes them because applications hold and pass these on long after it is gone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Decode = Callable[[bytes], list[Any]]


@dataclass(frozen=True, slots=True)
class Data:
    """A batch of records at `time`. In `events()` its epoch may still grow or be aborted."""

    time: Any
    topic: bytes
    segment: str
    seq: int
    count: int
    """Records in the batch."""
    payload: bytes = field(repr=False)
    _decode: Decode = field(repr=False, compare=False)

    def records(self) -> list[Any]:
        """The records, decoded by the stream's encoding; raises `RemoteProtocolError` if the payload is not of it."""
        return self._decode(self.payload)


@dataclass(frozen=True, slots=True)
class Epoch:
    """A complete epoch: everything that was published at `time`, in the order of each segment's log."""

    time: Any
    batches: tuple[Data, ...] = field(repr=False)

    def records(self) -> Iterator[Any]:
        """The records of all batches, decoded one batch at a time."""
        for batch in self.batches:
            yield from batch.records()

    @property
    def count(self) -> int:
        """Records in the epoch."""
        return sum(batch.count for batch in self.batches)


@dataclass(frozen=True, slots=True)
class EpochAborted:
    """The epoch can never complete; what had arrived of it is not delivered as an epoch (I1)."""

    time: Any


@dataclass(frozen=True, slots=True)
class FrontierChanged:
    """The lower frontier moved at some segment.

    `frontier` is the merged one: minimal times that can still arrive, none when complete.
    """

    frontier: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Events of `segment` are lost for good.

    Every epoch that had data is aborted, and the next events are those after `seq` of `incarnation` (E17).
    """

    segment: str
    incarnation: int
    seq: int


@dataclass(frozen=True, slots=True)
class Rewound:
    """`segment`'s publisher started anew, as `incarnation`; its events begin after `seq`."""

    segment: str
    incarnation: int
    seq: int


@dataclass(frozen=True, slots=True)
class SegmentDown:
    """`segment` cannot be reached; its part of the frontier stays where it is until it is back (S19)."""

    segment: str
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentUp:
    """`segment` is followed again."""

    segment: str


Event = Data | FrontierChanged | EpochAborted | Gap | Rewound | SegmentDown | SegmentUp

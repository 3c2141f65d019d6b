"""Gathers records that are appended one at a time into batches.

Apart from the writer because it is pure: it says what is full and what is due, and sends nothing. Records of one segment, time and topic share a batch;
a batch ends at `max_records`, or when the writer's linger is over, or before any move.
"""

from typing import Any, NamedTuple

from epochal.protocol.segments import Placement
from epochal.protocol.times import Time


class Slot(NamedTuple):
    """What records of one batch have in common."""

    segment: str
    time: Time
    topic: bytes


class Batcher:
    """Open batches in the order in which they were begun."""

    __slots__ = ("_max_records", "_open", "_placement", "_without_key")

    def __init__(self, placement: Placement, max_records: int) -> None:
        self._placement, self._max_records = placement, max_records
        self._open: dict[Slot, list[Any]] = {}
        self._without_key: dict[tuple[Time, bytes], str] = {}

    def add(self, time: Time, records: list[Any], key: bytes | None, topic: bytes) -> tuple[Slot, bool]:
        """Put `records` into their batch; returns its slot and whether the batch is full. Without a key, a batch goes to the next segment in turn."""
        if key is None:
            segment = self._without_key.get((time, topic))
            if segment is None:
                segment = self._without_key[time, topic] = self._placement.segment(None)
        else:
            segment = self._placement.segment(key)
        slot = Slot(segment, time, topic)
        batch = self._open.setdefault(slot, [])
        batch += records
        return slot, len(batch) >= self._max_records

    def take(self, slot: Slot) -> list[Any]:
        """End one batch."""
        self._without_key.pop((slot.time, slot.topic), None)
        return self._open.pop(slot)

    @property
    def slots(self) -> list[Slot]:
        """The open batches, oldest first."""
        return list(self._open)

    def __len__(self) -> int:
        """How many batches are open."""
        return len(self._open)

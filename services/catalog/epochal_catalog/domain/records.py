"""The records that are of no noun: counters, and the history of changes; and every change that a decision can hold.

Rules and store both use these. A decision is a list of changes; the store writes them, and then the state in memory
takes over exactly what was written.
"""

from dataclasses import dataclass
from typing import TypeAlias

from epochal_catalog.domain.kind import Fence, Json, Noticed, Record, Removed, Renewed, Rows
from epochal_catalog.domain.registrations import SegmentsReported
from epochal_catalog.domain.stream_entries import HorizonRecorded


@dataclass(frozen=True, slots=True)
class CounterRecord(Record):
    """A number that only rises: the last fencing token, the revision of the catalog."""

    name: str
    value: int


COUNTER_ROWS = Rows(CounterRecord, "counters", key=("name",), fence=Fence("value", strict=True))


@dataclass(frozen=True, slots=True)
class ChangeRecord(Record):
    """One change as watchers receive it (S26); `object` is None after a deletion."""

    revision: int
    kind: str
    op: str
    name: str
    object: dict[str, Json] | None


CHANGE_ROWS = Rows(ChangeRecord, "changes", key=("revision",), fence=Fence("revision", strict=True))


@dataclass(frozen=True, slots=True)
class ChangesForgotten:
    """Changes below the revision `before` are no longer kept for watchers."""

    before: int


InMemory: TypeAlias = Renewed | SegmentsReported
"""Changes that are committed even when the disk takes no writes."""
StateChange: TypeAlias = Record | HorizonRecorded | Removed | ChangesForgotten | Noticed | InMemory

"""What applications receive: epochs, batches, and what happened to the stream.

Applications can keep these, and pass them on, after the subscription has ended.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from epochal.client.encoding.columns import needs
from epochal.client.encoding.tables import to_pandas, to_table
from epochal.client.tracing import processing
from epochal.protocol.messages import Meta
from epochal.protocol.times import Time
from epochal.resources.schemas import Schema

NO_META = Meta()
Decode = Callable[[bytes], list[Any]]


@dataclass(slots=True, unsafe_hash=True)  # not frozen: making a batch would take four times as long
class Data:
    """A batch of records at `time`, not to be changed. In `events()` its epoch may still grow or be aborted."""

    time: Any
    """The time, in the stream's shape or as the `time_codec` decodes it."""
    topic: bytes
    """As given to `append`; empty for none."""
    segment: str
    """The id of the segment that it was published in."""
    seq: int
    """Its place in the segment's log, counted from 0 in each incarnation."""
    count: int
    """Records in the batch."""
    payload: bytes = field(repr=False)
    """The records as they were encoded."""
    _decode: Decode = field(repr=False, compare=False)
    _meta: Meta = field(default=NO_META, repr=False)

    @property
    def key(self) -> bytes | None:
        """The key that all its records were appended with; None for several, or for none."""
        return self._meta.key

    @property
    def published(self) -> int | None:
        """The writer's wall clock in milliseconds since 1970 (UTC), where it was opened with `clock=True`."""
        return self._meta.published

    @property
    def source(self) -> int | None:
        """The number that it has in its program's own source, where that numbers what it publishes (E50 sources)."""
        return self._meta.source

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers that it was appended with."""
        return dict(self._meta.headers)

    @property
    def trace(self) -> bytes | None:
        """The span it was made in: 16 bytes of trace id, 8 of span id, 1 of flags (W3C Trace Context), or None."""
        return self._meta.trace

    @property
    def tracestate(self) -> bytes:
        """What the writer's tracing system sent with `trace`; empty for none."""
        return self._meta.tracestate

    def records(self) -> list[Any]:
        """The records, decoded by the stream's encoding; raises `RemoteProtocolError` if the payload is not in it."""
        return self._decode(self.payload)


@dataclass(frozen=True, slots=True)
class Epoch:
    """A complete epoch: everything that was published at `time`, in the order of each segment's log."""

    time: Any
    """The time, in the stream's shape or as the `time_codec` decodes it."""
    batches: tuple[Data, ...] = field(repr=False)
    """All of them, of all segments; those of one segment in the order of its log."""
    _stream: str = field(default="", repr=False, compare=False)
    _time: Time = field(default=0, repr=False, compare=False)
    """The time as it was sent, before any `time_codec`."""
    _schema: Schema | None = field(default=None, repr=False, compare=False)
    """The schema that the stream declares."""

    def records(self) -> Iterator[Any]:
        """The records of all batches, decoded one batch at a time; raises as `Data.records`."""
        for batch in self.batches:
            yield from batch.records()

    @property
    def count(self) -> int:
        """Records in the epoch."""
        return sum(batch.count for batch in self.batches)

    def to_arrow(self) -> Any:
        """The records as a `pyarrow.Table`, a row for each; without records, a table without columns.

        Record batches are put together without a copy; a column that some of them do not have is null there. Mappings,
        as of msgpack and json, become rows: their columns have the declared types, dates, times, decimals and binary
        excepted, which are as they were written; where nothing is declared, types follow from the values. The time is
        a column only if the records hold it.

        Raises `UsageError` for records that are neither of these, for columns of several types, and where pyarrow is
        not installed; else as `records`.
        """
        return to_table(self.records(), self._schema)

    def to_pandas(self) -> Any:
        """The records as a `pandas.DataFrame`, by way of `to_arrow`, with each value as it is.

        A column of integers or booleans that holds null is of a nullable type of pandas (`Int64`, `boolean`); null in a
        column of floats is NaN, unless the column holds NaN too: then it is `Float64`. Lists of integers with nulls are
        arrays of objects.

        Raises as `to_arrow`, also where pandas is missing, and `UsageError` that names a column of which pandas has no
        type, such as a date after the year 9999.
        """
        needs("pandas")
        return to_pandas(self.to_arrow())

    def processing(self) -> AbstractContextManager[None]:
        """The OpenTelemetry span `process STREAM` of what is done with this epoch: `with epoch.processing(): ...`.

        It is the current span within the block, in asynchronous programs too, and linked to where the batches were
        made; an exception that leaves the block is recorded. Where no tracing is set up, it does nothing.
        """
        return processing(self._stream, self._time, self.batches)


@dataclass(frozen=True, slots=True)
class EpochAborted:
    """The epoch can never complete; what had arrived of it is not delivered as an epoch (E2)."""

    time: Any
    """The time, in the stream's shape or as the `time_codec` decodes it."""


@dataclass(frozen=True, slots=True)
class FrontierChanged:
    """The lower frontier moved at some segment (S16)."""

    frontier: tuple[Any, ...]
    """The merged one: minimal times that can still arrive, none when complete (S17)."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Events of `segment` are lost for good.

    Every epoch that had data, and was not handed out, is aborted (E17).
    """

    segment: str
    """The segment's id."""
    incarnation: int
    """The incarnation of the segment that the next events are from."""
    seq: int
    """The event that they come after; -1 for none."""
    below: tuple[Any, ...] = ()
    """Every epoch <= one of these that was not complete is aborted: the publisher lost its memory (E11 horizon)."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """The publisher of a segment was restarted (E12 fencing)."""

    segment: str
    """The segment's id."""
    incarnation: int
    """The incarnation that it has now."""
    seq: int
    """The event after which its events begin; -1 for none."""


@dataclass(frozen=True, slots=True)
class SegmentDown:
    """A segment cannot be reached; its part of the frontier stays where it is until it is back (S19)."""

    segment: str
    """The segment's id."""
    reason: str
    """For people."""


@dataclass(frozen=True, slots=True)
class SegmentUp:
    """A segment is followed again (S19)."""

    segment: str
    """The segment's id."""


Event = Data | FrontierChanged | EpochAborted | Gap | Rewound | SegmentDown | SegmentUp

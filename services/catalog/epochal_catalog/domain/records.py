"""What the catalog remembers, as plain values: one record for each row that is stored.

Rules and store both use these. A decision is a list of records; the store writes them, and then the state in memory
takes over exactly what was written.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.requests import ReportedChannel
from epochal.errors import ManifestError
from epochal.protocol.blockers import HolderKind
from epochal.resources.manifest import StreamManifest
from epochal_catalog.domain.kind import Column, Fence, Json, Record, Removed, Renewed, Rows
from epochal_catalog.errors import StoredStreamError


@dataclass(frozen=True, slots=True)
class StreamRecord(Record):
    """A declared stream. A `uid` is never used again, so a new stream under an old name can be distinguished (S26).

    `created` and `completed` are ISO 8601 in UTC; `completed` is None until every open segment was finishing at once
    (E7 finish).
    """

    uid: str
    namespace: str
    name: str
    generation: int
    manifest: dict[str, Json]
    created: str
    completed: str | None = None


def _completed_once(new: Any, old: Any) -> Any:
    """Completion is recorded once, for ever (E7 finish)."""
    return (new.generation >= old.generation) & (old.completed.is_(None) | (old.completed == new.completed))


STREAM_ROWS = Rows(
    StreamRecord,
    "streams",
    key=("uid",),
    fence=Fence("generation", allows=_completed_once),
    columns={"generation": Column(small=True)},
    unique={"one_live_stream_a_name": ("namespace", "name")},
)


@dataclass(frozen=True, slots=True)
class SegmentRecord(Record):
    """A key range [lo, hi) of a stream, and what its publishers last reported about it.

    `incarnation` rises with every new owner of the segment, and `token` is the fencing token of the newest
    (E12 fencing). The next incarnation, if it has no volume, starts from `lower` (None: never reported) and `writers`,
    and aborts what `horizon` covers: an antichain of maximal times (None: not known). `marks` are facts that outlive a
    publisher and that only publishers read. All these are written together, as the record `record_number` of the
    incarnation (E11 horizon). `finishing` outlives an incarnation. `finishing_number` and `record_number` do not: each
    incarnation starts to count from the beginning.
    """

    uid: str
    id: str
    lo: int
    hi: int
    state: str = "open"
    incarnation: int = 0
    token: int = 0
    lower: list[Json] | None = None
    writers: tuple[str, ...] = ()
    finishing: bool = False
    finishing_number: int = -1
    horizon: list[Json] | None = None
    record_number: int = -1
    marks: tuple[str, ...] = ()


def _not_overtaken(new: Any, old: Any) -> Any:
    """A late record of an incarnation never replaces a newer one (E11 horizon)."""
    return (new.token > old.token) | ((new.token == old.token) & (new.record_number >= old.record_number))


SEGMENT_ROWS = Rows(
    SegmentRecord,
    "segments",
    key=("uid", "id"),
    fence=Fence("token", allows=_not_overtaken),
    of_stream=True,
    order=("uid", "lo"),  # by number: in the database, the bounds are text
    columns={
        "lo": Column(digits=True),
        "hi": Column(digits=True),
    },
)


@dataclass(frozen=True, slots=True)
class HorizonRecorded:
    """A segment with a change only in horizon, marks or record number: stored, not shown to watchers (E11 horizon)."""

    segment: SegmentRecord


@dataclass(frozen=True, slots=True)
class RegistrationRecord(Record):
    """One registration of a publisher process: the segments it took, their incarnations, and where it listens."""

    publisher: str
    token: int
    instance: str
    stream: str
    uid: str
    segments: dict[str, int]
    addresses: dict[str, str]
    since: str


REGISTRATION_ROWS = Rows(
    RegistrationRecord,
    "registrations",
    key=("publisher",),
    fence=Fence("token", strict=True),
    order=("token",),
    columns={"token": Column(unique=True)},
)


@dataclass(frozen=True, slots=True)
class CounterRecord(Record):
    """A number that only rises: the last fencing token, the revision of the catalog."""

    name: str
    value: int


COUNTER_ROWS = Rows(CounterRecord, "counters", key=("name",), fence=Fence("value", strict=True))


@dataclass(frozen=True, slots=True)
class StreamRemoved:
    """The stream was deleted, with its segments, sessions, subscriptions and relays."""

    uid: str


@dataclass(frozen=True, slots=True)
class RegistrationRemoved:
    """The publisher left, or its superseded registration is dropped."""

    publisher: str
    token: int


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


@dataclass(frozen=True, slots=True)
class LivenessNoticed:
    """A publisher's lease lapsed, or came back. The lease is not stored, but watchers are notified."""

    token: int
    live: bool


@dataclass(frozen=True, slots=True)
class Reported:
    """A publisher's counters of a segment, its channels, and who holds time back there.

    Every time that is <= one of `below` is aborted, because its memory was lost (E11 horizon).
    """

    counters: dict[str, float] = field(default_factory=dict)
    holders: tuple[HeldBack, ...] = ()
    below: tuple[Json, ...] = ()
    channels: tuple[ReportedChannel, ...] = ()

    def lost(self, writer: str) -> bool:
        """Whether time is held for this writer because it is lost (E46 hold)."""
        return any(held.kind == HolderKind.LOST and held.writer == writer for held in self.holders)


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """A publisher is alive; kept in memory only, like its reports by segment."""

    token: int
    reports: dict[str, Reported] = field(default_factory=dict)


InMemory: TypeAlias = LeaseRenewed | Renewed
"""Changes that are committed even when the disk takes no writes."""
StateChange: TypeAlias = (
    Record
    | HorizonRecorded
    | StreamRemoved
    | RegistrationRemoved
    | Removed
    | ChangesForgotten
    | LivenessNoticed
    | InMemory
)


def readable(record: StreamRecord) -> StreamManifest:
    """The manifest of a stored stream. Raises `StoredStreamError` where this release cannot read it."""
    try:
        return StreamManifest.from_document(record.manifest)
    except ManifestError as error:
        raise StoredStreamError(
            f"the stored stream {record.namespace}/{record.name} cannot be read by this release; start the one that"
            f" wrote it, or delete the stream there: {error}"
        ) from error

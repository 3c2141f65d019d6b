"""What the catalog remembers, as plain values: one record for each row that is stored.

Rules and store both use these: a decision is a list of records to write, the store
writes them, and memory then takes over exactly what was written.
"""

from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from epochal.protocol.blockers import HolderKind

Json: TypeAlias = Any
"""A value as JSON gives it. Times are kept in this form: an int or nested lists."""


def fields_of(record: Any) -> dict[str, Json]:
    """The fields of a record by name; their values are not copied."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A declared stream. `uid` is never used again, so a stream created anew under an old name is told apart (S26).

    `created` and `completed` are ISO 8601 in UTC; `completed` is None until every open segment was finishing at once
    (E7).
    """

    uid: str
    namespace: str
    name: str
    generation: int
    manifest: dict[str, Json]
    created: str
    completed: str | None = None


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A key range [lo, hi) of a stream, and what its publishers last said of it.

    `incarnation` counts the lives of its publishers and `token` is the fencing token of the newest (E12). `lower`
    (None: never reported) and `writers` are what a next incarnation without a volume starts from. `horizon`, an
    antichain of maximal times, is what it aborts (None: not known), and `marks` are facts that outlive a publisher and
    that only publishers read. All these are written together, as the record `record_number` of the incarnation (E11).
    `finishing` outlives an incarnation, `finishing_number` and `record_number` do not: each incarnation counts from
    the beginning.
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


@dataclass(frozen=True, slots=True)
class HorizonRecorded:
    """A segment of which only the horizon, marks or the record's number changed: stored, shown to no one (E11)."""

    segment: SegmentRecord


@dataclass(frozen=True, slots=True)
class RegistrationRecord:
    """One registration of a publisher process: the segments it took, their incarnations, and where it listens."""

    publisher: str
    token: int
    instance: str
    stream: str
    uid: str
    segments: dict[str, int]
    addresses: dict[str, str]
    since: str


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The newest session of a writer of a stream (E6); `first`: it has had none before, as far as is known here.

    `released`: the number, once what the session held when it was lost may be let go (E46).
    """

    uid: str
    writer: str
    number: int
    first: bool = False
    released: int | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A reader of a stream, one record for each subscription (S31); whoever knows `token` owns it (S29)."""

    id: str
    token: int
    uid: str
    subscriber: str
    since: str


@dataclass(frozen=True, slots=True)
class CounterRecord:
    """A number that only rises: the last fencing token, the revision of the catalog."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class StreamRemoved:
    """The stream, its segments and its sessions are gone."""

    uid: str


@dataclass(frozen=True, slots=True)
class RegistrationRemoved:
    """The publisher left, or its superseded registration is forgotten."""

    publisher: str
    token: int


@dataclass(frozen=True, slots=True)
class SubscriptionRemoved:
    """The reader left, or was not heard of for a TTL (S30)."""

    id: str


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One change as watchers are told of it (S26); `object` is None once it is deleted."""

    revision: int
    kind: str
    op: str
    name: str
    object: dict[str, Json] | None


@dataclass(frozen=True, slots=True)
class ChangesForgotten:
    """Changes below the revision `before` are no longer kept for watchers."""

    before: int


@dataclass(frozen=True, slots=True)
class LivenessNoticed:
    """A publisher's lease lapsed, or came back: nothing that is stored, but watchers are told."""

    token: int
    live: bool


@dataclass(frozen=True, slots=True)
class Reported:
    """What a publisher counts at a segment, and who holds time back there (`Holder` as JSON).

    Every time that is <= one of `below` is aborted, because its memory was lost (E11).
    """

    counters: dict[str, float] = field(default_factory=dict)
    holders: tuple[dict[str, Json], ...] = ()
    below: tuple[Json, ...] = ()

    def lost(self, writer: str) -> bool:
        """Whether time is held for the writer as lost (E46)."""
        return any(holder["kind"] == HolderKind.LOST and holder["writer"] == writer for holder in self.holders)


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """A publisher is alive; in memory only, as is what it reports by segment."""

    token: int
    reports: dict[str, Reported] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionRenewed:
    """A reader is alive; in memory only, as is what it reports."""

    id: str
    lower: list[Json] | None = None
    counters: dict[str, float] = field(default_factory=dict)


InMemory: TypeAlias = LeaseRenewed | SubscriptionRenewed
"""What is true whether or not the disk takes anything."""
Stored: TypeAlias = (
    StreamRecord
    | SegmentRecord
    | HorizonRecorded
    | RegistrationRecord
    | SessionRecord
    | SubscriptionRecord
    | CounterRecord
    | ChangeRecord
)
Removed: TypeAlias = StreamRemoved | RegistrationRemoved | SubscriptionRemoved | ChangesForgotten
Change: TypeAlias = Stored | Removed | LivenessNoticed | InMemory

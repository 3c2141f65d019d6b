"""Streams and their segments as the catalog keeps them: records, tables, fences, memory.

Below the rooms of `domain.kinds`, because each noun there is of a stream and looks it up here. What clients can do with
a stream, and what they see of it, is in `domain.kinds.streams`.
"""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sortedcontainers import SortedSet

from epochal.catalog_api.kinds import fields_of
from epochal.errors import ManifestError, StreamGone, StreamNotFound
from epochal.protocol.times import TimeShape
from epochal.resources.manifest import StreamManifest
from epochal_catalog.domain.kind import Column, Event, Fence, Json, Kind, Memory, Names, Record, Rows
from epochal_catalog.domain.reads import Key, Reading
from epochal_catalog.errors import ReservedName, StoredStreamError

_MOST_COMPARED = 4096
"""Names that are compared with one that is unknown, to find the same one in another namespace."""
_NEIGHBOURS = 16
"""Names before it and after it in its namespace that are compared for a likeness, which takes much longer."""
_NEARLY = 0.8
_MAX_NAME = 80


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

    @property
    def qualified(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


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


@dataclass(slots=True)
class StreamEntry:
    """A stream with its segments, in the order of their key ranges."""

    record: StreamRecord
    manifest: StreamManifest
    not_in_effect: list[dict[str, Json]]
    shape: TimeShape
    """The shape of its times, which never changes; read from the manifest once, because that parses it."""
    reading: Reading
    by_id: dict[str, SegmentRecord] = field(default_factory=dict)
    """The segments. Rules read them by `segment` or `segments`, which note it."""

    @property
    def segments(self) -> dict[str, SegmentRecord]:
        """All segments by id."""
        self.reading.note("segment", self.record.uid)
        return self.by_id

    def segment(self, key: str) -> SegmentRecord | None:
        """One segment, or None."""
        self.reading.note("segment", self.record.uid, key)
        return self.by_id.get(key)

    @property
    def qualified(self) -> str:
        """`namespace/name`."""
        return self.record.qualified

    @property
    def complete(self) -> bool:
        """Whether completion is recorded (E7 finish)."""
        return self.record.completed is not None

    def owned(self, segments: Iterable[str], token: int) -> bool:
        """Whether a registration, by its token, still owns each of these segments that the stream has."""
        for key in segments:
            segment = self.segment(key)
            if segment is not None and segment.token != token:
                return False
        return True

    def open_segments(self) -> list[SegmentRecord]:
        """The segments that take appends."""
        return [segment for segment in self.segments.values() if segment.state == "open"]


def check_name(namespace: str, name: str) -> None:
    """Raises `ReservedName` for `$catalog`, in any namespace, and for every other name that begins with `$` (S26)."""
    if namespace.startswith("$") or name.startswith("$"):
        raise ReservedName(
            f"{name} is reserved: names that begin with $ are the catalog's own. $catalog is the stream of its changes;"
            " GET /v1/streams/$catalog shows it and GET /v1/watch follows it"
        )


class Streams(Memory[StreamRecord | SegmentRecord]):
    """All streams by name and by uid, each with its segments. Notes each stream and segment that is read by itself."""

    notes_reads = True

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._names: SortedSet[str] = SortedSet()
        self._streams: dict[str, StreamEntry] = {}
        self._by_uid: dict[str, StreamEntry] = {}

    def __len__(self) -> int:
        """How many streams there are."""
        return len(self.names)

    def __iter__(self) -> Iterator[StreamEntry]:
        """All streams, by name."""
        return (self._streams[name] for name in self.names)

    @property
    def names(self) -> "SortedSet[str]":
        """`namespace/name` of all streams."""
        self._reading.note("stream")
        return self._names

    def load(self, record: StreamRecord | SegmentRecord, now: float) -> None:
        """Take over what is stored of a stream, or one of its segments."""
        self.put(record, now)

    def put(self, record: StreamRecord | SegmentRecord, now: float) -> str | None:
        """Take over a stream or a segment; a stream's name is returned."""
        if isinstance(record, SegmentRecord):
            self._by_uid[record.uid].by_id[record.id] = record
            return None
        manifest = _readable(record)  # once, here: parsing is slow, and the result is shown often
        planned = [item._asdict() for item in manifest.not_in_effect()]
        known = self._by_uid.get(record.uid)
        if known is not None:
            known.record, known.manifest, known.not_in_effect = record, manifest, planned
            return known.qualified
        entry = StreamEntry(record, manifest, planned, manifest.spec.time.shape, self._reading)
        self._by_uid[record.uid] = self._streams[entry.qualified] = entry
        self._names.add(entry.qualified)
        return entry.qualified

    def remove(self, record: StreamRecord | SegmentRecord) -> str | None:
        """Forget a stream with its segments; its name is returned. A segment is never removed alone."""
        assert isinstance(record, StreamRecord), "segments go with their stream"
        entry = self._by_uid.pop(record.uid)
        del self._streams[entry.qualified]
        self._names.discard(entry.qualified)
        return entry.qualified

    def remove_stream(self, uid: str) -> None:
        """Nothing is left to forget: `remove` was called for the stream."""

    def find(self, namespace: str, name: str) -> StreamEntry | None:
        """The stream of that name, or None."""
        qualified = f"{namespace}/{name}"
        self._reading.note("stream", "name", qualified)
        return self._streams.get(qualified)

    def named(self, qualified: str) -> StreamEntry:
        """The stream of one of `names`."""
        self._reading.note("stream", "name", qualified)
        return self._streams[qualified]

    def by_uid(self, uid: str) -> StreamEntry | None:
        """The stream of that uid, or None when it was deleted (S26)."""
        self._reading.note("stream", "uid", uid)
        return self._by_uid.get(uid)

    def version_of(self, key: Key) -> object:
        """The record of a stream or of a segment, or those of all segments of a stream; None where there is none."""
        match key:
            case ("stream", "name", str() as qualified):
                entry = self._streams.get(qualified)
                return None if entry is None else entry.record
            case ("stream", "uid", str() as uid):
                return self._by_uid[uid].record if uid in self._by_uid else None
            case ("segment", str() as uid):
                return tuple(self._by_uid[uid].by_id.values()) if uid in self._by_uid else None
            case ("segment", str() as uid, str() as segment):
                return self._by_uid[uid].by_id.get(segment) if uid in self._by_uid else None
        raise KeyError(key)

    def stream(self, namespace: str, name: str) -> StreamEntry:
        """The stream of that name; raises `StreamNotFound`."""
        entry = self.find(namespace, name)
        if entry is None:
            close = self._close_name(namespace, name)
            hint = f"did you mean {close}? " if close else ""
            raise StreamNotFound(
                f"there is no stream {namespace}/{name}; {hint}`epochal get streams` (GET /v1/streams) lists what"
                " there is, `epochal apply -f FILE` declares one"
            )
        return entry

    def same_stream(self, namespace: str, name: str, uid: str) -> StreamEntry:
        """The stream of that name and uid.

        Raises `ReservedName`, `StreamNotFound`, and `StreamGone` when the uid is that of an older stream (S26).
        """
        check_name(namespace, name)
        entry = self.stream(namespace, name)
        if entry.record.uid != uid:
            raise StreamGone(f"the stream {entry.qualified} was created again; its uid is now {entry.record.uid}")
        return entry

    def _close_name(self, namespace: str, name: str) -> str:
        """The stream that was probably meant: of this name elsewhere, or of nearly this name here. Empty for none."""
        for qualified in islice(self.names, _MOST_COMPARED):
            if qualified.endswith(f"/{name}"):
                return qualified
        before = self.names.irange(f"{namespace}/", f"{namespace}/{name}", (False, False), reverse=True)
        after = self.names.irange(f"{namespace}/{name}", f"{namespace}0", (False, False))
        near = [*islice(before, _NEIGHBOURS), *islice(after, _NEIGHBOURS)]
        names = [qualified.partition("/")[2] for qualified in near]
        close = difflib.get_close_matches(name[:_MAX_NAME], names, 1, _NEARLY)
        return next((f"{namespace}/{each}" for each in close), "")


def _completed_once(new: Any, old: Any) -> Any:
    """Completion is recorded once, for ever (E7 finish)."""
    return (new.generation >= old.generation) & (old.completed.is_(None) | (old.completed == new.completed))


def _stream_event(record: StreamRecord, _names: Names) -> Event:
    return record.qualified, fields_of(record)


STREAMS: Kind[StreamRecord, Streams] = Kind(
    "stream",
    Rows(
        StreamRecord,
        "streams",
        key=("uid",),
        fence=Fence("generation", allows=_completed_once),
        columns={"generation": Column(small=True)},
        unique={"one_live_stream_a_name": ("namespace", "name")},
    ),
    memory=lambda _settings, reading: Streams(reading),
    event=_stream_event,
)


def _not_overtaken(new: Any, old: Any) -> Any:
    """A late record of an incarnation never replaces a newer one (E11 horizon)."""
    return (new.token > old.token) | ((new.token == old.token) & (new.record_number >= old.record_number))


def _segment_event(record: SegmentRecord, names: Names) -> Event:
    """Never shows what only publishers read, nor what counts their marks and records."""
    stream = names(record.uid)
    shown = {**fields_of(record), "lo": str(record.lo), "hi": str(record.hi), "stream": stream}
    for hidden in ("finishing_number", "horizon", "record_number", "marks"):
        del shown[hidden]
    return f"{stream}/{record.id}", shown


SEGMENTS: Kind[SegmentRecord, Streams] = Kind(
    "segment",
    Rows(
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
    ),
    memory=STREAMS,
    event=_segment_event,
)


@dataclass(frozen=True, slots=True)
class HorizonRecorded:
    """A segment with a change only in horizon, marks or record number: stored, not shown to watchers (E11 horizon)."""

    segment: SegmentRecord


def _readable(record: StreamRecord) -> StreamManifest:
    """The manifest of a stored stream. Raises `StoredStreamError` where this release cannot read it."""
    try:
        return StreamManifest.from_document(record.manifest)
    except ManifestError as error:
        raise StoredStreamError(
            f"the stored stream {record.namespace}/{record.name} cannot be read by this release; start the one that"
            f" wrote it, or delete the stream there: {error}"
        ) from error

"""The catalog's memory: every record, indexed for the questions that are asked.

Apart from the rules because it decides nothing: it takes over records that are already on disk and answers reads. It
does no I/O and reads no clock; `now` is monotonic seconds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from epochal.errors import StreamNotFound
from epochal.resources import StreamManifest
from epochal_catalog.leases import Leases
from epochal_catalog.records import (
    Change,
    CounterRecord,
    Json,
    LeaseRenewed,
    RegistrationRecord,
    RegistrationRemoved,
    SegmentRecord,
    SessionRecord,
    StreamRecord,
    StreamRemoved,
)


@dataclass(slots=True)
class StreamEntry:
    """A stream with its segments, in the order of their key ranges."""

    record: StreamRecord
    manifest: StreamManifest
    not_in_effect: list[dict[str, Json]]
    segments: dict[str, SegmentRecord] = field(default_factory=dict)

    @property
    def qualified(self) -> str:
        """`namespace/name`."""
        return f"{self.record.namespace}/{self.record.name}"

    @property
    def complete(self) -> bool:
        """Whether completion is recorded (E7)."""
        return self.record.completed is not None

    def open_segments(self) -> list[SegmentRecord]:
        """The segments that take appends."""
        return [segment for segment in self.segments.values() if segment.state == "open"]


class State:
    """All records in memory. `commit` is the only way in; it must be given only what the store has written."""

    def __init__(self, ttl: float) -> None:
        self.leases = Leases(ttl)
        self.registrations: dict[str, RegistrationRecord] = {}
        self._by_token: dict[int, RegistrationRecord] = {}
        self._streams: dict[str, StreamEntry] = {}
        self._by_uid: dict[str, StreamEntry] = {}
        self._sessions: dict[str, dict[str, int]] = {}
        self._counters: dict[str, int] = {}

    def load(self, records: Iterable[Change], now: float) -> None:
        """Take over what a restart found on disk; every lease gets one TTL of grace, not verified."""
        self.commit(records, now)
        for token in self._by_token:
            self.leases.grant(token, now, verified=False)

    def commit(self, changes: Iterable[Change], now: float) -> set[str]:
        """Take over what was written; returns the names of the streams whose lookups may answer otherwise now."""
        touched: set[str] = set()
        for change in changes:
            name = self._take(change, now)
            if name is not None:
                touched.add(name)
        return touched

    def _take(self, change: Change, now: float) -> str | None:
        match change:
            case StreamRecord():
                return self._take_stream(change)
            case SegmentRecord():
                self._by_uid[change.uid].segments[change.id] = change
            case SessionRecord():
                self._sessions.setdefault(change.uid, {})[change.writer] = change.number
            case CounterRecord():
                self._counters[change.name] = change.value
            case RegistrationRecord():
                return self._take_registration(change, now)
            case LeaseRenewed():
                visible = self.leases.renew(change.token, now, change.counters)
                return self._by_token[change.token].stream if visible else None
            case StreamRemoved():
                return self._drop_stream(change.uid)
            case RegistrationRemoved():
                return self._drop_registration(change)
        return None

    def _take_stream(self, record: StreamRecord) -> str:
        manifest = StreamManifest.from_document(record.manifest)
        planned = [item._asdict() for item in manifest.not_in_effect()]  # once here, for it is slow and often shown
        known = self._by_uid.get(record.uid)
        if known is not None:
            known.record, known.manifest, known.not_in_effect = record, manifest, planned
            return known.qualified
        entry = StreamEntry(record, manifest, planned)
        self._by_uid[record.uid] = self._streams[entry.qualified] = entry
        return entry.qualified

    def _take_registration(self, record: RegistrationRecord, now: float) -> str:
        before = self.registrations.get(record.publisher)
        if before is not None:
            self._by_token.pop(before.token, None)
            self.leases.drop([before.token])
        self.registrations[record.publisher] = self._by_token[record.token] = record
        self.leases.grant(record.token, now, verified=True)
        return record.stream

    def _drop_stream(self, uid: str) -> str:
        entry = self._by_uid.pop(uid)
        del self._streams[entry.qualified]
        self._sessions.pop(uid, None)
        return entry.qualified

    def _drop_registration(self, change: RegistrationRemoved) -> str | None:
        record = self._by_token.pop(change.token, None)
        self.leases.drop([change.token])
        if record is None:
            return None
        del self.registrations[record.publisher]
        return record.stream

    # --- reads --------------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """Rises with every stored change."""
        return self._counters.get("revision", 0)

    @property
    def last_token(self) -> int:
        """The newest fencing token; it is never given out again (E12, I4)."""
        return self._counters.get("token", 0)

    def find(self, namespace: str, name: str) -> StreamEntry | None:
        """The stream of that name, or None."""
        return self._streams.get(f"{namespace}/{name}")

    def stream(self, namespace: str, name: str) -> StreamEntry:
        """The stream of that name; raises `StreamNotFound`."""
        entry = self.find(namespace, name)
        if entry is None:
            raise StreamNotFound(
                f"there is no stream {namespace}/{name}; `epochal get streams` (GET /v1/streams) lists what there is,"
                " `epochal apply -f FILE` declares one"
            )
        return entry

    def by_uid(self, uid: str) -> StreamEntry | None:
        """The stream of that uid, or None when it was deleted (S26)."""
        return self._by_uid.get(uid)

    def streams(self) -> Iterator[StreamEntry]:
        """All streams, by name."""
        return (self._streams[name] for name in sorted(self._streams))

    def session(self, uid: str, writer: str) -> int:
        """The last session number of a writer; 0 when it never opened."""
        return self._sessions.get(uid, {}).get(writer, 0)

    def publisher_of(self, segment: SegmentRecord) -> RegistrationRecord | None:
        """The registration that owns a segment and whose lease is live."""
        return self._by_token.get(segment.token) if self.leases.live(segment.token) else None

    def served(self, entry: StreamEntry) -> bool:
        """Whether every open segment has a live publisher."""
        return all(self.leases.live(segment.token) for segment in entry.open_segments())

    def current(self, record: RegistrationRecord) -> bool:
        """Whether the registration still owns every segment that it took; False also when its stream is gone."""
        entry = self._by_uid.get(record.uid)
        return entry is not None and all(
            entry.segments[segment].token == record.token for segment in record.segments if segment in entry.segments
        )

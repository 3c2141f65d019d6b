"""The catalog's state in memory: what each kind of record remembers, counters, and the history of changes.

Separate from the rules because it decides nothing: it takes over records that are already on disk and answers reads.
Reads that need both streams and registrations are here; all others are in the memory of their kind. It does no I/O and
reads no clock; `now` is monotonic seconds.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, get_args

from epochal_catalog.domain.change_history import ChangeHistory
from epochal_catalog.domain.kind import Json, Kind, M, Memory, Noticed, R, Record, Removed, Renewed
from epochal_catalog.domain.leases import Leases
from epochal_catalog.domain.reads import Key, Reading, Reads
from epochal_catalog.domain.records import ChangeRecord, ChangesForgotten, CounterRecord, InMemory, StateChange
from epochal_catalog.domain.registrations import PUBLISHERS, RegistrationRecord, Reported, SegmentsReported
from epochal_catalog.domain.stream_entries import (
    SEGMENTS,
    STREAMS,
    HorizonRecorded,
    SegmentRecord,
    StreamEntry,
    StreamRecord,
)

FLOOR = "floor"
"""The counter of the oldest revision that watchers can resume from."""
_UNSEEN = (*get_args(InMemory), HorizonRecorded)
"""Changes of which each memory counts itself what an answer shows; a tuple, because `isinstance` is faster with one."""


class StateSettings(Protocol):
    """The settings that the state itself reads; each kind reads its own (`runtime.settings`)."""

    @property
    def watch_events(self) -> int:
        """Changes that are kept for watchers."""
        ...


class CatalogState:
    """All records in memory. After `load`, only `commit` takes records; it must get only what the store has written.

    Changes in memory alone (`InMemory`) need no store. `version` rises whenever an answer about streams, segments,
    publishers or writers may differ. Unlike the revision it also counts what is not stored, and starts again at 0 with
    the process.
    """

    def __init__(self, kinds: Iterable[Kind[Any, Any]], settings: StateSettings) -> None:
        self.kinds: dict[type, Kind[Any, Any]] = {kind.rows.record: kind for kind in kinds}
        self.reading = Reading()
        self._memories: dict[Kind[Any, Any], Memory[Any]] = {}
        for kind in self.kinds.values():
            made = kind.memory
            self._memories[kind] = self._memories[made] if isinstance(made, Kind) else made(settings, self.reading)
        self._by_name = {kind.name: memory for kind, memory in self._memories.items()}
        self.history = ChangeHistory(settings.watch_events)
        self._changes = 0
        """How often an answer may have changed; what a memory counts as its own `version` is not in it."""
        self._changes_of: Counter[str] = Counter()
        """How often anything of a kind has changed, by its name."""
        self._counters: dict[str, int] = {}
        self.identity = ""
        """Identifies the database: a copy has the same, a new database always another."""

    def __getitem__(self, kind: Kind[R, M]) -> M:
        """What is remembered of one kind."""
        memory: M = self._memories[kind]  # type: ignore[assignment]  # each kind made its own
        if not memory.notes_reads:
            self.reading.note(kind.name)
        return memory

    @property
    def version(self) -> int:
        """The number of the present state, as far as streams, segments, publishers and writers go."""
        return self._changes + self[PUBLISHERS].version

    def versions(self) -> Iterator[int]:
        """Numbers of which one rises whenever an answer may differ."""
        yield self._changes
        for memory in self._memories.values():
            yield memory.version

    def load(self, records: Iterable[StateChange], now: float) -> None:
        """Take over what a restart found on disk; every lease gets one TTL of grace, not verified."""
        shown: dict[str, dict[str, dict[str, Json] | None]] = {kind.name: {} for kind in self.kinds.values()}
        for record in records:
            if isinstance(record, ChangeRecord):
                shown[record.kind][record.name] = record.object
            if isinstance(record, Record) and type(record) in self.kinds:
                self[self.kinds[type(record)]].load(record, now)
            else:
                self._take(record, now)
        for kind, memory in self._memories.items():
            memory.settle(shown[kind.name])
        self.history.settle(self.revision, self.counter(FLOOR) or 0)

    def commit(self, changes: Iterable[StateChange], now: float) -> set[str]:
        """Take over what was written; returns the names of the streams whose lookup answers may have changed."""
        touched: set[str] = set()
        for change in changes:
            if not isinstance(change, _UNSEEN):
                self._changes += 1
            name = self._take(change, now)
            if name is not None:
                touched.add(name)
        return touched

    def sweep(self, now: float, stall: float) -> int:
        """Let overdue leases lapse; returns how many publishers' did. What follows is decided by `Rules.tidy`."""
        lapsed = {kind: memory.sweep(now, stall) for kind, memory in self._memories.items()}
        self._changes += any(lapsed.values())
        self._changes_of.update(kind.name for kind, count in lapsed.items() if count)
        return lapsed[PUBLISHERS]

    def _take(self, change: StateChange, now: float) -> str | None:
        match change:
            case Renewed(kind, key, report):
                return self._changing(kind).renew(key, report, now)
            case SegmentsReported(token, reports):
                self._changes_of[PUBLISHERS.name] += 1
                self[PUBLISHERS].add_reports(token, reports, now)
            case HorizonRecorded(segment):
                return self._changing(SEGMENTS).put(segment, now)
            case Noticed(kind):
                self._changing(kind).notified(change)
            case Removed(kind, record):
                return self._remove(kind, record)
            case CounterRecord():
                self._counters[change.name] = change.value
            case ChangeRecord():
                self.history.add(change)
            case ChangesForgotten():
                self.history.forget(change.before)
            case Record():
                return self._changing(self.kinds[type(change)]).put(change, now)
        return None

    def _remove(self, kind: Kind[Any, Any], record: Record) -> str | None:
        touched = self._changing(kind).remove(record)
        if isinstance(record, StreamRecord):
            for other in self._memories:
                self._changing(other).remove_stream(record.uid)
        return touched

    def _changing(self, kind: Kind[Any, Any]) -> Memory[Any]:
        self._changes_of[kind.name] += 1
        return self._memories[kind]

    # --- reads --------------------------------------------------------------------------------------------------------

    def version_of(self, key: Key) -> object:
        """The version of what a decision read (`reads`)."""
        match key:
            case (kind,):
                return self._changes_of[kind]
            case ("counter", str() as name):
                return self._counters.get(name)
        return self._by_name[key[0]].version_of(key)

    def versions_of(self, keys: Iterable[Key]) -> Reads:
        """The version of each key."""
        return {key: self.version_of(key) for key in keys}

    def holds(self, reads: Reads) -> bool:
        """Whether all that a decision read is still the same."""
        return self.versions_of(reads) == reads

    @property
    def revision(self) -> int:
        """The number of the newest change that watchers can see."""
        return self._counters.get("revision", 0)

    @property
    def last_token(self) -> int:
        """The newest fencing token; it is never given out again (E12 fencing)."""
        return self.counter("token") or 0

    def counter(self, name: str) -> int | None:
        """A stored counter, None when it was never written."""
        self.reading.note("counter", name)
        return self._counters.get(name)

    def name_of(self, uid: str) -> str:
        """`namespace/name` of a stream that exists."""
        entry = self[STREAMS].by_uid(uid)
        assert entry is not None, "the record of a stream goes with it"
        return entry.qualified

    @property
    def leases(self) -> Leases[int]:
        """The leases of publishers, by token."""
        return self[PUBLISHERS].leases

    def report_of(self, segment: SegmentRecord) -> tuple[float, Reported] | None:
        """When the segment's publisher last reported since the catalog started, in monotonic seconds, and what."""
        return self[PUBLISHERS].report(segment.token, segment.id)

    def publisher_of(self, segment: SegmentRecord) -> RegistrationRecord | None:
        """The registration that owns a segment and whose lease is live."""
        return self[PUBLISHERS].of_token(segment.token) if self.leases.live(segment.token) else None

    def served(self, entry: StreamEntry) -> bool:
        """Whether every open segment has a live publisher."""
        return all(self.leases.live(segment.token) for segment in entry.open_segments())

    def current(self, record: RegistrationRecord) -> bool:
        """Whether the registration still owns every segment that it took; False also when its stream is gone."""
        entry = self[STREAMS].by_uid(record.uid)
        return entry is not None and entry.owned(record.segments, record.token)

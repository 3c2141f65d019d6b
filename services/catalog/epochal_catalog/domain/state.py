"""The catalog's state in memory: every record, indexed for the reads that requests need.

Separate from the rules because it decides nothing: it takes over records that are already on disk and answers reads.
It does no I/O and reads no clock; `now` is monotonic seconds.
"""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from sortedcontainers import SortedSet

from epochal.errors import StreamGone, StreamNotFound
from epochal.protocol.times import Time
from epochal.resources.manifest import StreamManifest
from epochal_catalog.domain.change_history import ChangeHistory
from epochal_catalog.domain.kind import Json, Kind, M, Memory, R, Record, Removed, Renewed
from epochal_catalog.domain.leases import Leases
from epochal_catalog.domain.records import (
    ChangeRecord,
    ChangesForgotten,
    CounterRecord,
    HorizonRecorded,
    InMemory,
    LeaseRenewed,
    LivenessNoticed,
    RegistrationRecord,
    RegistrationRemoved,
    Reported,
    SegmentRecord,
    StateChange,
    StreamRecord,
    StreamRemoved,
    readable,
)
from epochal_catalog.errors import ReservedName

_MOST_COMPARED = 4096
"""Names that are compared with one that is unknown, to find the same one in another namespace."""
_NEIGHBOURS = 16
"""Names before it and after it in its namespace that are compared for a likeness, which takes much longer."""
_NEARLY = 0.8
_MAX_NAME = 80
FLOOR = "floor"
"""The counter of the oldest revision that watchers can resume from."""


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
        """Whether completion is recorded (E7 finish)."""
        return self.record.completed is not None

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


class StateSettings(Protocol):
    """The settings that the state itself reads; each kind reads its own (`runtime.settings`)."""

    @property
    def lease_ttl(self) -> float:
        """Seconds that a publisher's lease lasts."""
        ...

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
        self._memories: dict[Kind[Any, Any], Memory[Any]] = {
            kind: kind.memory(settings) for kind in self.kinds.values()
        }
        self.leases: Leases[int] = Leases(settings.lease_ttl)
        self.history = ChangeHistory(settings.watch_events)
        self.registrations: dict[str, RegistrationRecord] = {}
        self.publishers: SortedSet[str] = SortedSet()
        self.names: SortedSet[str] = SortedSet()
        self.noticed: list[LivenessNoticed] = []
        """Leases that lapsed or came back, and of which watchers are not notified yet."""
        self.version = 0
        self._by_token: dict[int, RegistrationRecord] = {}
        self._reports: dict[int, dict[str, tuple[float, Reported]]] = {}
        self._streams: dict[str, StreamEntry] = {}
        self._by_uid: dict[str, StreamEntry] = {}
        self._counters: dict[str, int] = {}
        self.identity = ""
        """Identifies the database: a copy has the same, a new database always another."""

    def __getitem__(self, kind: Kind[R, M]) -> M:
        """What is remembered of one kind."""
        memory: M = self._memories[kind]  # type: ignore[assignment]  # each kind made its own
        return memory

    def versions(self) -> Iterator[int]:
        """Numbers of which one rises whenever an answer may differ."""
        yield self.version
        for memory in self._memories.values():
            yield memory.version

    def load(self, records: Iterable[StateChange], now: float) -> None:
        """Take over what a restart found on disk; every lease gets one TTL of grace, not verified.

        When the last change that is kept about a publisher says that its lease lapsed, or none is kept, watchers are
        notified that it is live again.
        """
        live: dict[str, bool] = {}
        for record in records:
            if isinstance(record, ChangeRecord) and record.kind == "publisher":
                live[record.name] = record.object is not None and bool(record.object["live"])
            if isinstance(record, Record) and type(record) in self.kinds:
                self[self.kinds[type(record)]].load(record, now)
            else:
                self._take(record, now)
        for token in self._by_token:
            self.leases.grant(token, now, verified=False)
        self.noticed = [
            LivenessNoticed(token, True) for token, record in self._by_token.items() if not live.get(record.publisher)
        ]
        self.history.settle(self.revision, self.counter(FLOOR) or 0)

    def commit(self, changes: Iterable[StateChange], now: float) -> set[str]:
        """Take over what was written; returns the names of the streams whose lookup answers may have changed."""
        touched: set[str] = set()
        for change in changes:
            if not isinstance(change, InMemory | HorizonRecorded):
                self.version += 1
            name = self._take(change, now)
            if name is not None:
                touched.add(name)
        return touched

    def sweep(self, now: float, stall: float) -> int:
        """Let overdue leases lapse; returns how many publishers' did. What follows is decided by `Rules.tidy`."""
        lapsed = self.leases.sweep(now, stall)
        self.noticed += [LivenessNoticed(token, False) for token in lapsed]
        others = [memory.sweep(now, stall) for memory in self._memories.values()]
        self.version += bool(lapsed or any(others))
        return len(lapsed)

    def _take(self, change: StateChange, now: float) -> str | None:
        match change:
            case StreamRecord():
                return self._take_stream(change)
            case SegmentRecord():
                self._by_uid[change.uid].segments[change.id] = change
            case HorizonRecorded(segment):
                self._by_uid[segment.uid].segments[segment.id] = segment
            case CounterRecord():
                self._counters[change.name] = change.value
            case RegistrationRecord():
                return self._take_registration(change, now)
            case LeaseRenewed():
                return self._take_renewal(change, now)
            case StreamRemoved():
                return self._drop_stream(change.uid)
            case RegistrationRemoved():
                return self._drop_registration(change)
            case LivenessNoticed():
                self.noticed = [item for item in self.noticed if item != change]
            case Renewed(kind, key, report):
                self[kind].renew(key, report, now)
            case Removed(kind, record):
                self[kind].remove(record)
            case Record() if type(change) in self.kinds:
                self[self.kinds[type(change)]].put(change, now)
            case ChangeRecord():
                self.history.add(change)
            case ChangesForgotten():
                self.history.forget(change.before)
        return None

    def _take_stream(self, record: StreamRecord) -> str:
        manifest = readable(record)  # once, here: parsing is slow, and the result is shown often
        planned = [item._asdict() for item in manifest.not_in_effect()]
        known = self._by_uid.get(record.uid)
        if known is not None:
            known.record, known.manifest, known.not_in_effect = record, manifest, planned
            return known.qualified
        entry = StreamEntry(record, manifest, planned)
        self._by_uid[record.uid] = self._streams[entry.qualified] = entry
        self.names.add(entry.qualified)
        return entry.qualified

    def _take_registration(self, record: RegistrationRecord, now: float) -> str:
        before = self.registrations.get(record.publisher)
        if before is not None:
            self._forget(before.token)
        self.registrations[record.publisher] = self._by_token[record.token] = record
        self.publishers.add(record.publisher)
        self.leases.grant(record.token, now, verified=True)
        return record.stream

    def _take_renewal(self, change: LeaseRenewed, now: float) -> str | None:
        registration = self._by_token.get(change.token)
        if registration is None:
            return None
        if not self.leases.live(change.token):
            self.noticed.append(LivenessNoticed(change.token, True))
        reports = self._reports.setdefault(change.token, {})
        visible = self.leases.renew(change.token, now)
        changed = visible or any(not _same(reports.get(key), report) for key, report in change.reports.items())
        reports.update({key: (now, report) for key, report in change.reports.items()})
        self.version += changed
        return registration.stream if visible else None

    def _drop_stream(self, uid: str) -> str:
        entry = self._by_uid.pop(uid)
        del self._streams[entry.qualified]
        self.names.discard(entry.qualified)
        for memory in self._memories.values():
            memory.remove_stream(uid)
        return entry.qualified

    def _drop_registration(self, change: RegistrationRemoved) -> str | None:
        record = self._forget(change.token)
        if record is None:
            return None
        del self.registrations[record.publisher]
        self.publishers.discard(record.publisher)
        return record.stream

    def _forget(self, token: int) -> RegistrationRecord | None:
        self.leases.drop([token])
        self._reports.pop(token, None)
        self.noticed = [item for item in self.noticed if item.token != token]
        return self._by_token.pop(token, None)

    # --- reads --------------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The number of the newest change that watchers can see."""
        return self._counters.get("revision", 0)

    @property
    def last_token(self) -> int:
        """The newest fencing token; it is never given out again (E12 fencing)."""
        return self._counters.get("token", 0)

    def counter(self, name: str) -> int | None:
        """A stored counter, None when it was never written."""
        return self._counters.get(name)

    def find(self, namespace: str, name: str) -> StreamEntry | None:
        """The stream of that name, or None."""
        return self._streams.get(f"{namespace}/{name}")

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

    def by_uid(self, uid: str) -> StreamEntry | None:
        """The stream of that uid, or None when it was deleted (S26)."""
        return self._by_uid.get(uid)

    def streams(self) -> Iterator[StreamEntry]:
        """All streams, by name."""
        return (self._streams[name] for name in self.names)

    def named(self, qualified: str) -> StreamEntry:
        """The stream of one of `names`."""
        return self._streams[qualified]

    def name_of(self, uid: str) -> str:
        """`namespace/name` of a stream that exists."""
        return self._by_uid[uid].qualified

    def registration(self, token: int) -> RegistrationRecord | None:
        """The registration of that token, while it is the publisher's newest."""
        return self._by_token.get(token)

    def report_of(self, segment: SegmentRecord) -> tuple[float, Reported] | None:
        """When the segment's publisher last reported since the catalog started, in monotonic seconds, and what."""
        return self._reports.get(segment.token, {}).get(segment.id)

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


def _same(known: tuple[float, Reported] | None, new: Reported) -> bool:
    """Whether a report equals the last one, except for the durations in it."""
    if known is None or known[1].counters != new.counters or known[1].below != new.below:
        return False
    if known[1].channels != new.channels:
        return False
    return _holds(known[1]) == _holds(new)


def _holds(report: Reported) -> list[tuple[Time | None, str, str | None]]:
    return [(held.time, held.kind, held.writer) for held in report.holders]

"""Registrations of publishers as the catalog keeps them: record, table, fence, memory with leases and last reports.

Below the rooms of `domain.kinds`, because several of them read here who serves a segment and what was reported of it.
The rules of publishers, and what clients see of them, are in `domain.kinds.publishers`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sortedcontainers import SortedSet

from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.kinds import fields_of
from epochal.catalog_api.requests import ReportedChannel
from epochal.protocol.blockers import HolderKind
from epochal.protocol.times import Time
from epochal_catalog.domain.kind import Column, Event, Fence, Json, Kind, Memory, Names, Noticed, Record, Rows
from epochal_catalog.domain.leases import Leases
from epochal_catalog.domain.reads import Key, Reading


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
class SegmentsReported:
    """What a publisher reported of its segments, by segment; kept in memory only, and lost with the process."""

    token: int
    reports: dict[str, Reported]


class Registrations(Memory[RegistrationRecord]):
    """All registrations by publisher and by token, with their leases and the publishers' last reports.

    A lapsed lease removes nothing: its publisher is no longer shown to those who look it up, and may renew. Notes each
    registration and each report that is read by itself; the leases, and lists, are read as a whole.
    """

    notes_reads = True

    def __init__(self, ttl: float, reading: Reading) -> None:
        self.version = 0
        self._reading = reading
        self._leases: Leases[int] = Leases(ttl)
        self._keys: SortedSet[str] = SortedSet()
        self._by_publisher: dict[str, RegistrationRecord] = {}
        self._by_token: dict[int, RegistrationRecord] = {}
        self._reports: dict[int, dict[str, tuple[float, Reported]]] = {}
        self._notices: list[Noticed] = []
        """Leases that lapsed or came back, and of which watchers are not notified yet."""

    def __len__(self) -> int:
        """How many publishers are registered."""
        return len(self.keys)

    def __iter__(self) -> Iterator[RegistrationRecord]:
        """The newest registration of every publisher."""
        self._reading.note("publisher")
        return iter(self._by_publisher.values())

    @property
    def keys(self) -> "SortedSet[str]":
        """The ids of all publishers."""
        self._reading.note("publisher")
        return self._keys

    @property
    def leases(self) -> Leases[int]:
        """The leases, by token."""
        self._reading.note("publisher")
        return self._leases

    def load(self, record: RegistrationRecord, now: float) -> None:
        """Take over a stored registration, with one TTL of grace: it is not verified until it renews."""
        self._add(record, now, verified=False)

    def settle(self, shown: Mapping[str, dict[str, Json] | None]) -> None:
        """Watchers are notified that a publisher is live again, unless that is what they were shown last."""
        live = {publisher for publisher, record in shown.items() if record is not None and record["live"]}
        self._notices = [_noticed(record, True) for key, record in self._by_publisher.items() if key not in live]

    def put(self, record: RegistrationRecord, now: float) -> str:
        """Take over a registration, in place of an older one of the same publisher."""
        self._add(record, now, verified=True)
        return record.stream

    def _add(self, record: RegistrationRecord, now: float, *, verified: bool) -> None:
        before = self._by_publisher.get(record.publisher)
        if before is not None:
            self._forget(before.token)
        self._by_publisher[record.publisher] = self._by_token[record.token] = record
        self._keys.add(record.publisher)
        self._leases.grant(record.token, now, verified=verified)

    def remove(self, record: RegistrationRecord) -> str | None:
        """Forget a registration, unless a newer one has replaced it."""
        if self._forget(record.token) is None:
            return None
        del self._by_publisher[record.publisher]
        self._keys.discard(record.publisher)
        return record.stream

    def _forget(self, token: int) -> RegistrationRecord | None:
        self._leases.drop([token])
        self._reports.pop(token, None)
        self._notices = [notice for notice in self._notices if notice.record.token != token]
        return self._by_token.pop(token, None)

    def remove_stream(self, uid: str) -> None:
        """Registrations stay, so that their publishers learn that the stream is gone."""

    def renew(self, key: int, report: None, now: float) -> str | None:
        """Renew the lease of a token; what its publisher reports is added by itself (`add_reports`)."""
        record = self._by_token.get(key)
        if record is None:
            return None
        if not self._leases.live(key):
            self._notices.append(_noticed(record, True))
        visible = self._leases.renew(key, now)
        self.version += visible
        return record.stream if visible else None

    def add_reports(self, token: int, reports: Mapping[str, Reported], now: float) -> None:
        """Take over what a publisher reported, by segment."""
        if token not in self._by_token:
            return
        known = self._reports.setdefault(token, {})
        for segment, report in reports.items():
            self.version += not _same(known.get(segment), report)
            known[segment] = now, report

    def sweep(self, now: float, stall: float) -> int:
        """Let overdue leases lapse; watchers are to be notified of each."""
        lapsed = self._leases.sweep(now, stall)
        self._notices += [_noticed(self._by_token[token], False) for token in lapsed]
        return len(lapsed)

    def notices(self) -> Sequence[Noticed]:
        """The leases that lapsed or came back, and of which watchers are not notified yet."""
        self._reading.note("publisher")
        return self._notices

    def notified(self, notice: Noticed) -> None:
        """Watchers were notified."""
        if notice in self._notices:
            self._notices.remove(notice)  # only the first: an equal one of the same lease may be yet to come

    def get(self, publisher: str) -> RegistrationRecord | None:
        """The newest registration of a publisher, or None."""
        self._reading.note("publisher", "id", publisher)
        return self._by_publisher.get(publisher)

    def of_token(self, token: int) -> RegistrationRecord | None:
        """The registration of that token, while it is the publisher's newest."""
        self._reading.note("publisher", "token", token)
        return self._by_token.get(token)

    def report(self, token: int, segment: str) -> tuple[float, Reported] | None:
        """When a publisher last reported about a segment since the catalog started, in monotonic seconds, and what."""
        self._reading.note("publisher", "report", token, segment)
        return self._reports.get(token, {}).get(segment)

    def version_of(self, key: Key) -> object:
        """A registration, or a report; None where there is none."""
        match key:
            case ("publisher", "id", str() as publisher):
                return self._by_publisher.get(publisher)
            case ("publisher", "token", int() as token):
                return self._by_token.get(token)
            case ("publisher", "report", int() as token, str() as segment):
                return self._reports.get(token, {}).get(segment)
        raise KeyError(key)


def _same(known: tuple[float, Reported] | None, new: Reported) -> bool:
    """Whether a report equals the last one, except for the durations in it."""
    if known is None or known[1].counters != new.counters or known[1].below != new.below:
        return False
    if known[1].channels != new.channels:
        return False
    return _holds(known[1]) == _holds(new)


def _holds(report: Reported) -> list[tuple[Time | None, str, str | None]]:
    return [(held.time, held.kind, held.writer) for held in report.holders]


def _event(record: RegistrationRecord, _names: Names) -> Event:
    return record.publisher, {**fields_of(record), "live": True}


PUBLISHERS: Kind[RegistrationRecord, Registrations] = Kind(
    "publisher",
    Rows(
        RegistrationRecord,
        "registrations",
        key=("publisher",),
        fence=Fence("token", strict=True),
        order=("token",),
        columns={"token": Column(unique=True)},
    ),
    memory=lambda settings, reading: Registrations(settings.lease_ttl, reading),
    event=_event,
)


def _noticed(record: RegistrationRecord, live: bool) -> Noticed:
    """A lease lapsed, or came back. It is not stored, but watchers are notified."""
    return Noticed(PUBLISHERS, record, {"live": live})

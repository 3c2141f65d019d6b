"""Entries that are in the catalog only while they renew, such as subscriptions (S31), with their last reports.

Separate from the rest of the state because no data depends on them: they are counted, listed and chosen from. It
decides nothing; `now` is monotonic seconds.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from sortedcontainers import SortedSet

from epochal.catalog_api.kinds import fields_of
from epochal.service.errors import Overloaded
from epochal_catalog.domain.kind import Event, Memory, Names
from epochal_catalog.domain.leases import Leases
from epochal_catalog.domain.reads import Reading

_NOTHING: SortedSet[str] = SortedSet()


class Entry(Protocol):
    """What is stored of one: its id, and the uid of its stream."""

    @property
    def id(self) -> str:
        """Its id, different from that of every other entry of its kind."""
        ...

    @property
    def uid(self) -> str:
        """The uid of its stream."""
        ...


E = TypeVar("E", bound=Entry)
P = TypeVar("P")


class LeasedEntries(Memory[E], Generic[E, P]):
    """All entries of one kind by id, and their ids by the uid of the stream. `version` rises with every report.

    `limit`: the most entries at once; `full` is the error of one too many.
    """

    def __init__(self, ttl: float, limit: int, full: str) -> None:
        self.leases: Leases[str] = Leases(ttl)
        self.keys: SortedSet[str] = SortedSet()
        self.version = 0
        self._limit = limit
        self._full = full
        self._records: dict[str, E] = {}
        self._reports: dict[str, P] = {}
        self._by_stream: dict[str, SortedSet[str]] = {}

    def __len__(self) -> int:
        """How many entries there are, also those whose lease lapsed a moment ago."""
        return len(self._records)

    def get(self, key: str) -> E | None:
        """The entry of that id. Its lease may have lapsed: it is removed a little later."""
        return self._records.get(key)

    def live(self, key: str) -> E | None:
        """The entry of that id, if its lease has not lapsed."""
        return self._records.get(key) if self.leases.live(key) else None

    def verified(self, key: str) -> bool:
        """Whether the entry has renewed since the catalog started, or was made since."""
        lease = self.leases.get(key)
        return lease is not None and lease.verified

    def report(self, key: str) -> P | None:
        """The last report of its owner since the catalog started."""
        return self._reports.get(key)

    def of(self, uid: str) -> SortedSet[str]:
        """The ids of a stream's entries."""
        return self._by_stream.get(uid, _NOTHING)

    def count(self, uid: str) -> int:
        """How many live entries a stream has."""
        return sum(map(self.leases.live, self.of(uid)))

    def check_room(self) -> None:
        """Raises `Overloaded` when there are as many entries as may be."""
        if len(self._records) >= self._limit:
            raise Overloaded(self._full)

    def load(self, record: E, now: float) -> None:
        """Take over a stored entry, with one TTL of grace: it is not verified until it renews."""
        self._add(record, now, verified=False)

    def put(self, record: E, now: float) -> None:
        """Take over an entry, in place of one of the same id."""
        self._add(record, now, verified=True)

    def _add(self, record: E, now: float, *, verified: bool) -> None:
        self.remove(record)
        self._records[record.id] = record
        self.keys.add(record.id)
        self._by_stream.setdefault(record.uid, SortedSet()).add(record.id)
        self.leases.grant(record.id, now, verified=verified)

    def renew(self, key: str, report: P, now: float) -> None:
        """Take over a renewal."""
        if key in self._records:
            self.leases.renew(key, now)
            self._reports[key] = report
            self.version += 1

    def remove(self, record: E) -> None:
        """Forget the entry of this id."""
        key = record.id
        known = self._records.pop(key, None)
        if known is None:
            return
        self.keys.discard(key)
        self.leases.drop([key])
        self._reports.pop(key, None)
        left = self._by_stream[known.uid]
        left.discard(key)
        if not left:
            del self._by_stream[known.uid]

    def remove_stream(self, uid: str) -> None:
        """Forget all entries of a stream that was deleted."""
        for key in list(self.of(uid)):
            self.remove(self._records[key])

    def sweep(self, now: float, stall: float) -> int:
        """Let overdue leases lapse; returns how many did."""
        return len(self.leases.sweep(now, stall))

    def lapsed(self) -> list[E]:
        """The entries whose lease has lapsed."""
        return [self._records[key] for key in self.leases.lapsed()]


def entries(what: str, ttl: str, limit: str) -> Callable[[Any, Reading], LeasedEntries[Any, Any]]:
    """What makes the memory of a kind from the settings of the catalog; `ttl` and `limit` are names of settings."""

    def memory(settings: Any, _reading: Reading) -> LeasedEntries[Any, Any]:
        most = getattr(settings, limit)
        full = f"there are {most} {what} already (EPOCHAL_CATALOG_{limit.upper()}); try later"
        return LeasedEntries(getattr(settings, ttl), most, full)

    return memory


def with_stream(record: Entry, names: Names) -> Event:
    """Shows a whole record, with the name of its stream."""
    return record.id, {**fields_of(record), "stream": names(record.uid)}

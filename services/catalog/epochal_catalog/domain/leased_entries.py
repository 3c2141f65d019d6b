"""What is in the catalog only while it renews: subscriptions (S31) and relays, with their leases and last reports.

Separate from the rest of the state because no data depends on them: they are counted, listed and chosen from. It
decides nothing; `now` is monotonic seconds.
"""

from typing import Generic, Protocol, TypeVar

from sortedcontainers import SortedSet

from epochal_catalog.domain.leases import Leases

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


class EntryReport(Protocol):
    """What one says with a renewal."""

    @property
    def id(self) -> str:
        """The id of its entry."""
        ...


E = TypeVar("E", bound=Entry)
P = TypeVar("P", bound=EntryReport)


class LeasedEntries(Generic[E, P]):
    """All entries of one kind by id, and their ids by the uid of the stream. `version` rises with every report."""

    def __init__(self, ttl: float) -> None:
        self.leases: Leases[str] = Leases(ttl)
        self.keys: SortedSet[str] = SortedSet()
        self.version = 0
        self._records: dict[str, E] = {}
        self._reports: dict[str, P] = {}
        self._by_stream: dict[str, SortedSet[str]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> E | None:
        """The entry of that id. Its lease may have lapsed: it is removed a little later."""
        return self._records.get(key)

    def live(self, key: str) -> E | None:
        """The entry of that id, if its lease has not lapsed."""
        return self._records.get(key) if self.leases.live(key) else None

    def report(self, key: str) -> P | None:
        """The last report of its owner since the catalog started."""
        return self._reports.get(key)

    def of(self, uid: str) -> SortedSet[str]:
        """The ids of a stream's entries."""
        return self._by_stream.get(uid, _NOTHING)

    def count(self, uid: str) -> int:
        """How many live entries a stream has."""
        return sum(map(self.leases.live, self.of(uid)))

    def add(self, record: E, now: float, *, verified: bool) -> None:
        """Take over a stored entry, in place of one of the same id."""
        self.remove(record.id)
        self._records[record.id] = record
        self.keys.add(record.id)
        self._by_stream.setdefault(record.uid, SortedSet()).add(record.id)
        self.leases.grant(record.id, now, verified=verified)

    def renew(self, renewed: P, now: float) -> None:
        """Take over a renewal."""
        if renewed.id in self._records:
            self.leases.renew(renewed.id, now)
            self._reports[renewed.id] = renewed
            self.version += 1

    def remove(self, key: str) -> None:
        """Forget an entry."""
        record = self._records.pop(key, None)
        if record is None:
            return
        self.keys.discard(key)
        self.leases.drop([key])
        self._reports.pop(key, None)
        left = self._by_stream[record.uid]
        left.discard(key)
        if not left:
            del self._by_stream[record.uid]

    def remove_stream(self, uid: str) -> None:
        """Forget all entries of a stream that was deleted."""
        for key in list(self.of(uid)):
            self.remove(key)

"""The subscriptions in memory, each counted separately (S31), with its lease and the last report of its reader.

Separate from the rest of the state because nothing about a stream depends on them: they are only counted and shown.
It decides nothing; `now` is monotonic seconds.
"""

from sortedcontainers import SortedSet

from epochal_catalog.domain.leases import Leases
from epochal_catalog.domain.records import SubscriptionRecord, SubscriptionRenewed

_NOTHING: SortedSet[str] = SortedSet()


class Subscribers:
    """All subscriptions by id, and their ids by the uid of the stream. `version` rises with every report."""

    def __init__(self, ttl: float) -> None:
        self.leases: Leases[str] = Leases(ttl)
        self.keys: SortedSet[str] = SortedSet()
        self.version = 0
        self._records: dict[str, SubscriptionRecord] = {}
        self._reports: dict[str, SubscriptionRenewed] = {}
        self._by_stream: dict[str, SortedSet[str]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> SubscriptionRecord | None:
        """The subscription of that id. Its lease may have lapsed: it is removed a little later."""
        return self._records.get(key)

    def report(self, key: str) -> SubscriptionRenewed | None:
        """The last report of its reader since the catalog started."""
        return self._reports.get(key)

    def of(self, uid: str) -> SortedSet[str]:
        """The ids of a stream's subscriptions."""
        return self._by_stream.get(uid, _NOTHING)

    def count(self, uid: str) -> int:
        """How many live subscriptions a stream has."""
        return sum(map(self.leases.live, self.of(uid)))

    def add(self, record: SubscriptionRecord, now: float, *, verified: bool) -> None:
        """Take over a stored subscription."""
        self._records[record.id] = record
        self.keys.add(record.id)
        self._by_stream.setdefault(record.uid, SortedSet()).add(record.id)
        self.leases.grant(record.id, now, verified=verified)

    def renew(self, renewed: SubscriptionRenewed, now: float) -> None:
        """Take over a renewal."""
        if renewed.id in self._records:
            self.leases.renew(renewed.id, now)
            self._reports[renewed.id] = renewed
            self.version += 1

    def remove(self, key: str) -> None:
        """Forget a subscription."""
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
        """Forget all subscriptions of a stream that was deleted."""
        for key in list(self.of(uid)):
            self.remove(key)

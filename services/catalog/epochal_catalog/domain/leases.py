"""Leases: how long a publisher or a subscriber is taken to be alive.

Separate from the rules because expiry is about time only; they decide what follows from it. When a
publisher's lease lapses, its addresses are withdrawn, but never its segments (E12 fencing). When a subscriber's lapses,
its subscription is withdrawn (S30). Reads no clock: `now` is monotonic seconds, given by the caller.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Lease:
    """One lease. `verified` is False after a restart of the catalog until it is renewed."""

    expires: float
    verified: bool
    live: bool = True


class Leases(Generic[K]):
    """All leases by key: a publisher's fencing token, a subscription's id.

    A lease lapses in `sweep` only, so that the time of a stall can be added to it first.
    """

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self._by_key: dict[K, Lease] = {}
        self._last_sweep: float | None = None

    def get(self, key: K) -> Lease | None:
        """The lease of a key, lapsed or not."""
        return self._by_key.get(key)

    def live(self, key: K) -> bool:
        """Whether the lease exists and has not lapsed."""
        lease = self._by_key.get(key)
        return lease is not None and lease.live

    def grant(self, key: K, now: float, *, verified: bool) -> None:
        """Start a lease of one TTL."""
        self._by_key[key] = Lease(now + self.ttl, verified)

    def renew(self, key: K, now: float) -> bool:
        """Start the TTL again; returns whether that is visible: the lease had lapsed, or was not verified."""
        lease = self._by_key[key]
        visible = not (lease.live and lease.verified)
        lease.expires, lease.verified, lease.live = now + self.ttl, True, True
        return visible

    def drop(self, keys: Iterable[K]) -> None:
        """Forget leases."""
        for key in keys:
            self._by_key.pop(key, None)

    def lapsed(self) -> list[K]:
        """The keys whose leases have lapsed and were not renewed since."""
        return [key for key, lease in self._by_key.items() if not lease.live]

    def lapsed_for(self, key: K, seconds: float, now: float) -> bool:
        """Whether the lease lapsed at least `seconds` ago."""
        lease = self._by_key.get(key)
        return lease is None or (not lease.live and now - lease.expires >= seconds)

    def sweep(self, now: float, stall: float) -> list[K]:
        """Let overdue leases lapse; returns their keys.

        When the last sweep is more than `stall` seconds ago, the catalog itself was not running and no one could renew.
        So every lease is extended by that time before any is checked.
        """
        gap = 0.0 if self._last_sweep is None else now - self._last_sweep
        self._last_sweep = now
        if gap > stall:
            for lease in self._by_key.values():
                lease.expires += gap
        overdue = [key for key, lease in self._by_key.items() if lease.live and lease.expires <= now]
        for key in overdue:
            self._by_key[key].live = False
        return overdue

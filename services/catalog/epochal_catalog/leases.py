"""Leases: for how long a publisher is believed to be alive.

Apart from the registry because expiry is about time only: it withdraws an address and never a segment (E12), so a
lapsed lease comes back with the next renewal. Reads no clock: `now` is monotonic seconds, given by the caller.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Lease:
    """One publisher's lease. `verified` is False after a restart of the catalog until the publisher renews."""

    expires: float
    verified: bool
    live: bool = True
    counters: dict[str, dict[str, float]] = field(default_factory=dict)


class Leases:
    """All leases by fencing token.

    A lease lapses in `sweep`, and there only, so that a stall can be made good first.
    """

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self._by_token: dict[int, Lease] = {}
        self._last_sweep: float | None = None

    def get(self, token: int) -> Lease | None:
        """The lease of a token, lapsed or not."""
        return self._by_token.get(token)

    def live(self, token: int) -> bool:
        """Whether the lease exists and has not lapsed."""
        lease = self._by_token.get(token)
        return lease is not None and lease.live

    def grant(self, token: int, now: float, *, verified: bool) -> None:
        """Start a lease of one TTL."""
        self._by_token[token] = Lease(now + self.ttl, verified)

    def renew(self, token: int, now: float, counters: dict[str, dict[str, float]]) -> bool:
        """Start the TTL anew; returns whether that is visible: the lease had lapsed, or was not verified."""
        lease = self._by_token[token]
        visible = not (lease.live and lease.verified)
        lease.expires, lease.verified, lease.live = now + self.ttl, True, True
        lease.counters.update(counters)
        return visible

    def drop(self, tokens: Iterable[int]) -> None:
        """Forget leases."""
        for token in tokens:
            self._by_token.pop(token, None)

    def lapsed_for(self, token: int, seconds: float, now: float) -> bool:
        """Whether the lease lapsed at least `seconds` ago."""
        lease = self._by_token.get(token)
        return lease is None or (not lease.live and now - lease.expires >= seconds)

    def sweep(self, now: float, stall: float) -> list[int]:
        """Let overdue leases lapse; returns their tokens.

        When the last sweep is more than `stall` seconds ago the catalog itself was not running; nobody could renew
        meanwhile, so every lease is given that time back before any is judged.
        """
        gap = 0.0 if self._last_sweep is None else now - self._last_sweep
        self._last_sweep = now
        if gap > stall:
            for lease in self._by_token.values():
                lease.expires += gap
        overdue = [token for token, lease in self._by_token.items() if lease.live and lease.expires <= now]
        for token in overdue:
            self._by_token[token].live = False
        return overdue

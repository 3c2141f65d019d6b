"""Peers whose messages are no longer read, for a while.

A ROUTER socket can neither close the connection of one peer nor see the peer leave. So a peer that broke the protocol
can only be ignored until the library disconnects it (docs/hostile-input.md).
"""


class Discarded:
    """Routing ids, at most `limit`, each for `ttl` seconds; the oldest is forgotten first."""

    def __init__(self, limit: int, ttl: float) -> None:
        self._limit, self._ttl = limit, ttl
        self._until: dict[bytes, float] = {}

    def add(self, peer: bytes, now: float) -> None:
        """Ignore `peer` from now on."""
        self._until.pop(peer, None)
        if len(self._until) >= self._limit:
            del self._until[next(iter(self._until))]
        self._until[peer] = now + self._ttl

    def __contains__(self, peer: bytes) -> bool:
        return peer in self._until

    def __len__(self) -> int:
        return len(self._until)

    def expire(self, now: float) -> None:
        """Forget the peers whose time is over; entries are in the order of their ends."""
        while self._until:
            peer, until = next(iter(self._until.items()))
            if until > now:
                return
            del self._until[peer]

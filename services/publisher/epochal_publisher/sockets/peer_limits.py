"""Time-outs after which the library disconnects a peer, and the peers whose messages are ignored.

All three sockets use them. With the library's own defaults, a silent connection would stay open for ever.
"""

from dataclasses import dataclass

import zmq

BACKLOG = 4096
"""Connections that may wait to be accepted, if the system allows that many.

With the library's default of 100, every client that connected during a burst had to wait for seconds, until its kernel
tried again.
"""


@dataclass(frozen=True, slots=True)
class SocketTimeouts:
    """Durations in seconds."""

    handshake: float = 2.0
    """How long a connection may take to say that it speaks ZeroMQ."""
    heartbeat: float = 10.0
    """Between the library's own heartbeats."""
    heartbeat_timeout: float = 30.0
    """How long a peer may leave them unanswered."""

    def apply(self, socket: "zmq.Socket[bytes]") -> None:
        """Set the options of a socket before it is bound; they have no effect on an address that is already bound."""
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        # Nothing answers for this domain. But with it, peers of ZMTP 1 and 2 are refused: they cannot authenticate, and
        # one that connects while a socket closes would abort the process.
        socket.setsockopt(zmq.ZAP_DOMAIN, b"epochal")
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(self.handshake * 1000))
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(self.heartbeat * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(self.heartbeat_timeout * 1000))
        # Otherwise the kernel would hold megabytes for a disconnected peer, for minutes after its connection.
        socket.setsockopt(zmq.TCP_MAXRT, int(self.heartbeat_timeout * 1000))


class BlockedPeers:
    """Routing ids of peers whose messages are no longer read: at most `limit`, each for `ttl` seconds.

    A ROUTER socket can neither close the connection of one peer nor see the peer leave. So a peer that broke the
    protocol can only be ignored until the library disconnects it (docs/hostile-input.md). The oldest is forgotten
    first.
    """

    def __init__(self, limit: int, ttl: float) -> None:
        self._limit = limit
        self._ttl = ttl
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

"""How long the library waits for a peer before it disconnects it.

All three sockets use these values. With the library's own defaults, a silent connection would stay open for ever.
"""

from dataclasses import dataclass

import zmq

BACKLOG = 4096
"""Connections that may wait to be accepted, if the system allows so many.

With the library's default of 100, a burst of connections made every client that connected meanwhile wait for seconds,
until its kernel tried again.
"""


@dataclass(frozen=True, slots=True)
class Patience:
    """Durations in seconds."""

    handshake: float = 2.0
    """How long a connection may take to say that it speaks ZeroMQ."""
    heartbeat: float = 10.0
    """Between the library's own heartbeats."""
    heartbeat_timeout: float = 30.0
    """How long a peer may leave them unanswered."""

    def apply(self, socket: "zmq.Socket[bytes]") -> None:
        """Set the options of a socket, before it is bound: what is bound already does not change."""
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(self.handshake * 1000))
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(self.heartbeat * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(self.heartbeat_timeout * 1000))
        # Or else the kernel would hold megabytes for a disconnected peer, for minutes after its connection.
        socket.setsockopt(zmq.TCP_MAXRT, int(self.heartbeat_timeout * 1000))

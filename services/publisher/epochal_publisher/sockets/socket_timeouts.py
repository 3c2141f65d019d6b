"""How long the library waits for a peer before it cuts it.

Apart from the sockets because all three wait alike, and because the library's own defaults would let a silent
connection stand for ever.
"""

from dataclasses import dataclass

import zmq

BACKLOG = 4096
"""Connections that may wait to be accepted, where the system allows it.

With the library's 100 a burst of connections made everybody who connected meanwhile wait seconds for the kernel to ask
again.
"""


@dataclass(frozen=True, slots=True)
class Patience:
    """Durations in seconds."""

    handshake: float = 2.0
    """How long a connection may take to say that it speaks ZeroMQ."""
    heartbeat: float = 10.0
    """Between the library's own heartbeats."""
    heartbeat_timeout: float = 30.0
    """How long a peer may answer none of them."""

    def apply(self, socket: "zmq.Socket[bytes]") -> None:
        """Set it; what is bound already is not changed."""
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(self.handshake * 1000))
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(self.heartbeat * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(self.heartbeat_timeout * 1000))
        # What the kernel holds for a peer that was cut, megabytes, would outlive the connection for minutes.
        socket.setsockopt(zmq.TCP_MAXRT, int(self.heartbeat_timeout * 1000))

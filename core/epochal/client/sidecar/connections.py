"""Connections to sidecars, kept by a process from one writer to the next.

A Spark task's writer lives for milliseconds. A worker process runs one task after another, and a new socket for each
would cost more than everything that is sent over it. A forked child uses none of its parent's.
"""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from time import monotonic
from typing import Any, TypeAlias

import zmq

from epochal.protocol.wire import Frames
from epochal.transport.sockets import Socket

MOST_IDLE = 16
"""Idle connections kept to one sidecar: enough for a writer of a stream with 16 segments."""
IDLE = 60.0
"""Seconds that an idle one is kept, as long as the sidecar keeps its connection to a publisher; then the next writer
closes it."""
MAX_SOCKETS = 16_384


class Use(Enum):
    """What a connection is for.

    Never both. A late answer to an append is recognised by `Passed`, which the next writer waits for. No answer to a
    question comes late, because a connection is kept only when every question is answered.
    """

    QUESTIONS = "questions"
    APPENDS = "appends"


ConnectionKey: TypeAlias = tuple[str, Use]


class Connections:
    """One process's connections. An idle one belongs to no loop, so a writer of any thread may take it."""

    def __init__(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._idle: dict[ConnectionKey, deque[tuple[float, Socket]]] = {}
        self._lock = threading.Lock()

    def take(
        self,
        address: str,
        use: Use,
        on_message: Callable[[Frames], None],
        on_idle: Callable[[], None] | None,
        on_lost: Callable[[], None],
    ) -> Socket:
        """A connection on the running loop, an idle one or a new one. Raises `zmq.ZMQError`."""
        while (socket := self._next((address, use))) is not None:
            if socket.wake(on_message, on_idle, on_lost):
                return socket
            socket.close()
        self.sweep()
        socket = Socket(self._context, zmq.DEALER, on_message, on_idle)
        socket.connect(address, on_lost)
        socket.start()
        return socket

    def give_back(self, address: str, use: Use, socket: Socket) -> None:
        """Keep it for another writer: every answer has come."""
        socket.rest()
        now = monotonic()
        surplus = []
        with self._lock:
            idle = self._idle.setdefault((address, use), deque())
            idle.append((now, socket))
            while idle and (len(idle) > MOST_IDLE or now - idle[0][0] > IDLE):
                surplus.append(idle.popleft()[1])
        for old in surplus:
            old.close()

    def sweep(self) -> None:
        """Close those that were idle for too long, or are broken."""
        with self._lock:
            waiting, self._idle = self._idle, {}
        for key, idle in waiting.items():
            for since, socket in idle:
                if monotonic() - since > IDLE or socket.broken():
                    socket.close()
                else:
                    with self._lock:
                        self._idle.setdefault(key, deque()).append((since, socket))

    def close(self) -> None:
        """Close all that are idle."""
        with self._lock:
            waiting, self._idle = self._idle, {}
        for idle in waiting.values():
            for _, socket in idle:
                socket.close()

    def _next(self, key: ConnectionKey) -> Socket | None:
        """The one that was used last."""
        with self._lock:
            idle = self._idle.get(key)
            since, socket = idle.pop() if idle else (0.0, None)
            if idle is not None and not idle:
                del self._idle[key]
        if socket is not None and monotonic() - since > IDLE:
            socket.close()
            return self._next(key)
        return socket


_by_process: dict[int, Connections] = {}
"""By process id: a forked child finds its parent's in here too, and never touches them."""


def connections() -> Connections:
    """The connections of this process."""
    found = _by_process.get(os.getpid())
    if found is None:
        found = _by_process.setdefault(os.getpid(), Connections())
    return found


@atexit.register
def close_idle() -> None:
    """Close those of this process that are idle; writers that are open keep theirs."""
    found = _by_process.get(os.getpid())
    if found is not None:
        found.close()

"""Connections to sidecars, kept by a process from one writer to the next.

Separate from writers because a Spark task's lives for milliseconds: a worker process runs one task after another, and a
new socket for each would cost more than all that is said over it. A forked child has none of its parent's.
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

from epochal.client.sockets import Frames, Socket

MOST_IDLE = 16
"""Connections to one sidecar that wait for a writer: as many as one with that many segments has."""
IDLE = 60.0
"""Seconds that one waits, as long as its other end keeps the connection to a publisher; then it is closed by the next
writer."""
MAX_SOCKETS = 16_384


class Use(Enum):
    """What a connection is for.

    Never both: what comes late is told from the next writer's own where appends pass (`Passed`), and nothing comes late
    where questions are asked, for each must be answered first.
    """

    QUESTIONS = "questions"
    APPENDS = "appends"


Key: TypeAlias = tuple[str, Use]


class Connections:
    """One process's. They belong to no loop while they wait, so any thread's writer may have one."""

    def __init__(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._idle: dict[Key, deque[tuple[float, Socket]]] = {}
        self._lock = threading.Lock()

    def take(
        self,
        address: str,
        use: Use,
        on_message: Callable[[Frames], None],
        on_idle: Callable[[], None] | None,
        on_lost: Callable[[], None],
    ) -> Socket:
        """A connection on the running loop, one that waited or a new one. Raises `zmq.ZMQError`."""
        while (socket := self._next((address, use))) is not None:
            if socket.wake(on_message, on_idle, on_lost):
                return socket
            socket.close()
        self.sweep()
        socket = Socket(self._context, zmq.DEALER, on_message, on_idle)
        try:
            socket.watch(on_lost)
            socket.zmq.connect(address)
            socket.start()
        except BaseException:
            socket.close()
            raise
        return socket

    def give_back(self, address: str, use: Use, socket: Socket) -> None:
        """Let another writer have it: every answer has come."""
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
        """Close what has waited for long, or is broken."""
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
        """Close all that wait."""
        with self._lock:
            waiting, self._idle = self._idle, {}
        for idle in waiting.values():
            for _, socket in idle:
                socket.close()

    def _next(self, key: Key) -> Socket | None:
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
"""A child keeps its parent's in here, and never touches them."""


def connections() -> Connections:
    """Those of this process."""
    found = _by_process.get(os.getpid())
    if found is None:
        found = _by_process.setdefault(os.getpid(), Connections())
    return found


@atexit.register
def close_idle() -> None:
    """Close those of this process that wait; writers that are open keep theirs."""
    found = _by_process.get(os.getpid())
    if found is not None:
        found.close()

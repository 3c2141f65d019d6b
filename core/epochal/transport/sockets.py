"""ZeroMQ sockets on an asyncio loop: they read until nothing is left, let other tasks run, and report lost connections.

Writers, subscribers and publishers all use sockets in this way, and the options that protect against a harmful peer are
in one place. Plain sockets with `add_reader` keep 0.9-1.0 of the blocking speed; `zmq.asyncio` keeps about half.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from epochal.errors import ConfigError
from epochal.protocol.wire import APART_BYTES, MAX_PAYLOAD, Frames

BURST = 256
"""Messages read before other tasks get a turn."""
BURST_BYTES = 2**20
"""... and bytes: a burst that is passed on at once is still in the processor's cache, and its memory is reused.

A subscriber of 512 kB batches spends a third less processor time on each (docs/performance.md).
"""
BURST_SECONDS = 0.02
"""... and seconds: a mebibyte can hold 100,000 messages, and all answers wait for the end of a burst."""

COPY_BYTES = 256 * 1024
"""Frames up to this size are copied when they are sent.

For a larger one pyzmq keeps the memory until the library has sent it. That wakes a thread for each message, which costs
as much as copying some 300 kB.
"""

_POLLIN = int(zmq.POLLIN)
"""A plain number: an enumeration's own `&` takes a microsecond."""
LEAST_LIBZMQ = (4, 3, 5)
HEARTBEAT_MS = 10_000
HEARTBEAT_TIMEOUT_MS = 30_000
"""ZMTP's own heartbeats disconnect a peer that never reads; Epochal's, every second, notice a silent one sooner."""
SUBSCRIBER_QUEUE = 1000
"""Messages that a SUB takes before they are read; all other sockets take what comes.

libzmq 4.3.5 ends the whole process (`!_io_error`) where a connection breaks whose queue here is full, once it has a
heartbeat to send or to answer there; a peer with 6 kB could do so to a publisher. A queue without a bound is never
full, and honest peers keep to windows and credits (docs/hostile-input.md). A SUB needs the bound, because it stops
reading while its program is slow. So it sends no heartbeats itself. A heartbeat of its publisher can still hit this,
but only among the last 8 kB that the library read before the SUB stopped.
"""
HANDSHAKE_MS = 2_000
CONNECT_MS = 2_000
"""After this time, a peer that answers no packet counts as absent; the system itself would try for two minutes."""
MAX_SUBSCRIPTION = 4096
"""Most bytes of a message that an XPUB takes.

A subscription has 17 bytes here; one of 256 KiB would cost the publisher 50 to 110 times its size.
"""


def check_libzmq() -> None:
    """Refuse a libzmq with known holes; raises `ConfigError`."""
    if zmq.zmq_version_info() < LEAST_LIBZMQ:
        least = ".".join(map(str, LEAST_LIBZMQ))
        raise ConfigError(
            f"libzmq {zmq.zmq_version()} is too old and has known holes; install pyzmq with libzmq {least} or newer"
        )


def _draw_routing_ids() -> None:
    """Make the next ROUTER number its peers from a random start: libzmq aborts when a peer claims another's number.

    libzmq takes the start from the C library's random generator, which it never seeds.
    """
    ctypes.CDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "big")))


def _nothing(_: Frames) -> None:
    """The reader of a resting socket; never called."""


class Socket:
    """One zmq socket whose messages are handed to `on_message` as lists of frames, on the running loop.

    `on_idle` runs after each burst in which something was read, so that the results of a burst can be sent together.
    Without `copy` the frames are the library's own, to be passed on unchanged (`pass_on`).
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        on_message: Callable[[Frames], None],
        on_idle: Callable[[], None] | None = None,
        *,
        max_message: int = MAX_PAYLOAD + APART_BYTES,
        send_queue: int = 0,
        copy: bool = True,
    ) -> None:
        self._copy = copy
        if kind == zmq.ROUTER:
            _draw_routing_ids()
        self.zmq = context.socket(kind)
        self.zmq.linger = 0
        self.zmq.sndhwm = send_queue
        self.zmq.rcvhwm = SUBSCRIBER_QUEUE if kind == zmq.SUB else 0
        self.zmq.setsockopt(zmq.MAXMSGSIZE, max_message)
        self.zmq.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.zmq.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        if kind != zmq.SUB:
            self.zmq.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            self.zmq.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        self.zmq.setsockopt(zmq.RECONNECT_IVL, -1)
        self.zmq.setsockopt(zmq.IPV6, 1)
        self._on_message = on_message
        self._on_idle = on_idle
        self._on_lost: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = None
        self._soon: asyncio.Handle | None = None
        self._looking: asyncio.Handle | None = None
        self._watched = False
        self._paused = False
        self._monitor: tuple[zmq.Socket[bytes], int] | None = None

    def start(self) -> None:
        """Begin to read."""
        self._fd = self.zmq.fileno()
        if not self._paused:
            self._begin_reading(self._fd)

    def send(self, frames: Sequence[bytes | memoryview]) -> None:
        """Queue one message.

        Raises `zmq.Again` if the peer's queue is full, and `zmq.ZMQError` if a ROUTER has no such peer.
        """
        if len(frames) == 1:
            self.zmq.send(frames[0], zmq.NOBLOCK)
        else:
            self.zmq.send_multipart(frames, zmq.NOBLOCK, copy=len(frames[-1]) <= COPY_BYTES)
        self._look_again()

    def pass_on(self, frames: Sequence[zmq.Frame]) -> None:
        """Queue one message of frames that were received without a copy. Raises as `send` does."""
        self.zmq.send_multipart(frames, zmq.NOBLOCK, copy=False)
        self._look_again()

    @property
    def paused(self) -> bool:
        """Whether reading is stopped for now."""
        return self._paused

    def pause(self) -> None:
        """Stop reading; what arrives waits in the socket's bounded queue, then at the sender."""
        self._paused = True
        if self._fd is not None:  # it stays readable, so the loop would call the reader again and again
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            if self._fd is not None:
                self._begin_reading(self._fd)

    def connect(self, address: str, on_lost: Callable[[], None]) -> None:
        """Connect, and `watch` that. Raises `zmq.ZMQError`; the socket is closed then."""
        try:
            self.watch(on_lost)
            self.zmq.connect(address)
        except zmq.ZMQError:
            self.close()
            raise

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost` once when a connection made by this socket fails or breaks."""
        monitor = self.zmq.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        self._monitor = (monitor, monitor.fileno())
        self._on_lost = on_lost
        self._watch()

    def _watch(self) -> None:
        assert self._monitor is not None
        self._loop.add_reader(self._monitor[1], self._find_lost)
        self._watched = True
        self._looking = self._loop.call_soon(self._find_lost)

    def _find_lost(self) -> None:
        if self.broken() and self._on_lost is not None:
            self._on_lost()

    def broken(self) -> bool:
        """Whether a watched connection has failed since this was last asked."""
        broken = False
        while self._monitor is not None and self._monitor[0].poll(0):
            recv_monitor_message(self._monitor[0], zmq.NOBLOCK)
            broken = True
        return broken

    def rest(self) -> None:
        """Leave the loop and keep the connection; queued messages still go out.

        Messages that arrive meanwhile wait for the next user, which calls `wake` and must recognise and drop them.
        """
        self._stop_reading()
        self._on_message = _nothing
        self._on_idle = None
        self._on_lost = None  # also releases its last user from memory

    def wake(
        self, on_message: Callable[[Frames], None], on_idle: Callable[[], None] | None, on_lost: Callable[[], None]
    ) -> bool:
        """Continue after `rest`, on the running loop, which may be another one; False if the connection is lost."""
        if self.broken():
            return False
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._watch()
        self.start()
        return True

    def drain(self) -> None:
        """Read everything that has arrived, now (a publisher does so before it judges silence, E8)."""
        self._drain()

    def close(self) -> None:
        """Stop reading and close; unsent messages are dropped unless `linger` was set."""
        self._stop_reading()
        if self._monitor is not None:
            monitor, _ = self._monitor
            self._monitor = None
            if not self.zmq.closed:  # the context may have ended first, and an error here would hide a cancellation
                self.zmq.disable_monitor()
            monitor.close(0)
        self.zmq.close()

    def _stop_reading(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            self._fd = None
        if self._watched and self._monitor is not None:
            self._loop.remove_reader(self._monitor[1])
            self._watched = False
        for handle in (self._soon, self._looking):
            if handle is not None:  # the next user may be in another thread, with another loop
                handle.cancel()
        self._soon = self._looking = None

    def _reads(self) -> bool:
        return self._fd is not None and not self._paused

    def _begin_reading(self, fd: int) -> None:
        self._loop.add_reader(fd, self._drain)
        self._schedule()

    def _schedule(self) -> None:
        if self._soon is None and self._fd is not None:
            self._soon = self._loop.call_soon(self._drain)

    def _look_again(self) -> None:
        # The descriptor is edge-triggered, and a send may consume the edge of a message that has just arrived. Asking
        # costs less than a turn of the loop that finds nothing.
        if self._soon is None and self._reads() and self._has_message():
            self._schedule()

    def _has_message(self) -> bool:
        """Whether a message can be read. Costs a third of a read that finds none, and as much as some that find one."""
        events: Any = self.zmq.getsockopt(zmq.EVENTS)
        return bool(events & _POLLIN)

    def _drain(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if not self._reads():
            return
        receive, handle, copy = self.zmq.recv_multipart, self._on_message, self._copy
        read = 0
        try:
            left, until = BURST_BYTES, monotonic() + BURST_SECONDS
            while read < BURST:
                frames = receive(zmq.NOBLOCK, copy)
                read += 1
                handle(frames)  # type: ignore[arg-type]  # Frame objects where it was made without copy
                left -= len(frames[-1])
                if not self._reads() or (read == 1 and not self._has_message()):
                    break
                if left < 0 or monotonic() > until:
                    self._schedule()
                    break
            else:
                self._schedule()
        except zmq.Again:
            pass
        if read and self._on_idle is not None and self._fd is not None:
            self._on_idle()

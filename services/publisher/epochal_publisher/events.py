"""The `events` socket: live push to everybody, and who comes and goes.

Apart from the ROUTERs because an XPUB is another thing: what arrives are subscriptions, and what is sent is
dropped, for that subscriber alone, where a queue is full. The queue is bounded in bytes, though
the library counts messages.
"""

from collections.abc import Callable, Iterable, Mapping
from time import monotonic

import zmq

from epochal.client.sockets import MAX_SUBSCRIPTION, Frames, Socket
from epochal_publisher.counters import ProcessCounters
from epochal_publisher.segment import Served

_MESSAGE_OVERHEAD = 128
"""Bytes that the library holds for one queued message beside its content, roughly."""
_FIRST_LARGEST = 4096
"""Messages are taken for this large until a larger one is sent."""


class Events:
    """A bound XPUB; `segments` by id. `buffer_bytes` bounds what is held for one stalled subscriber."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        segments: Mapping[str, Served],
        on_idle: Callable[[], None],
        counters: ProcessCounters,
    ) -> None:
        self._segments, self._counters = segments, counters
        self._buffer_bytes = 64 * 2**20
        self._largest = _FIRST_LARGEST
        self.socket = Socket(
            context, zmq.XPUB, self._receive, on_idle,
            max_message=MAX_SUBSCRIPTION, send_queue=self._buffer_bytes // self._largest,
        )  # fmt: skip
        # Every subscription is told, also to a prefix that somebody holds already: each P<nonce> is a join.
        self.socket.zmq.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.socket.zmq.bind(address)

    def bound(self, buffer_bytes: int) -> None:
        """Hold at most `buffer_bytes` for a subscriber that does not read."""
        self._buffer_bytes = buffer_bytes
        self._adjust()

    def send(self, messages: Iterable[Frames]) -> int:
        """Push; returns the bytes. Never blocks and never fails: who cannot take it sees the gap and heals."""
        total = 0
        send = self.socket.send
        for frames in messages:
            size = sum(map(len, frames))
            if size > self._largest:
                self._largest = size
                self._adjust()
            total += size
            send(frames)
        return total

    def _adjust(self) -> None:
        # The library lets a changed mark count for pipes that exist. 0 would mean no bound.
        self.socket.zmq.sndhwm = max(1, self._buffer_bytes // (self._largest + _MESSAGE_OVERHEAD))

    def _receive(self, frames: Frames) -> None:
        r"""A subscription `\x01<prefix>` or its end `\x00<prefix>`; anything else is counted and ignored."""
        notice = frames[0]
        kind, size = notice[1:2], len(notice)
        if len(frames) == 1 and kind == b"P" and size == 18:
            self._private(notice[0] == 1, notice[2:])
        elif len(frames) == 1 and kind == b"C" and size == 10:
            for served in self._segments.values():
                if served.server.channel == notice[2:]:
                    served.subscribed = notice[0] == 1  # the end is told only when the last one leaves
        else:
            self._counters.refused_messages += 1

    def _private(self, comes: bool, nonce: bytes) -> None:
        every = list(self._segments.values())
        if not comes:
            for served in every:
                served.server.unsubscribed(nonce)
            return
        # Whoever did not say hello here is answered `Refused` by any of them.
        joined = next((served for served in every if served.server.expects(nonce)), every[0])
        joined.counters.joins += 1
        joined.server.subscribed(nonce, monotonic())

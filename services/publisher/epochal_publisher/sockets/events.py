"""The `events` socket: live push to all subscribers, and notice of joins and leaves.

It is an XPUB and receives only subscriptions. If the queue of a subscriber is full, messages for that subscriber alone
are dropped. The queue is bounded in bytes, although the library counts messages.
"""

from collections.abc import Callable, Iterable, Mapping
from time import monotonic

import zmq

from epochal.errors import RemoteProtocolError
from epochal.protocol.wire import CHANNEL_PREFIX, NONCE_PREFIX, Frames
from epochal.transport.sockets import Socket
from epochal_publisher.counters import ProcessCounters
from epochal_publisher.sockets.peer_limits import SocketTimeouts
from epochal_publisher.sockets.served import ServedSegment

MAX_SUBSCRIPTION = 512
"""Bytes of the largest message that a subscriber may send: a handshake needs this much.

A subscription is 18 bytes here, and each byte of one costs 50 to 65 in the library's tables.
"""
_MESSAGE_OVERHEAD = 128
"""Bytes that the library holds for one queued message besides its content, roughly."""
_SLOTS = 2048
_LEAST_SLOT, _MOST_SLOT = 4 * 1024, 64 * 1024
"""Least and most bytes that one place in a queue stands for.

The library counts messages, not bytes. So a message that needs several places is followed by empty messages, which take
the other places in the queues here and at the subscriber. The high-water mark must never be lowered later: a subscriber
that has read everything, but whose last reads were not reported back yet, would then count as full for ever.
"""


class Events:
    """The XPUB; `segments` by id. Subscribers can connect after `listen`.

    `unknown` is called for a subscription id that joins without a hello.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        segments: Mapping[str, ServedSegment],
        on_idle: Callable[[], None],
        counters: ProcessCounters,
        patience: SocketTimeouts,
        unknown: Callable[[bytes], None],
    ) -> None:
        self._segments = segments
        self._unknown = unknown
        self._counters = counters
        self._slot = _MOST_SLOT
        self.socket = Socket(
            context, zmq.XPUB, self._receive, on_idle,
            max_message=MAX_SUBSCRIPTION, send_queue=_SLOTS,
        )  # fmt: skip
        # Receive every subscription, also to a prefix that another subscriber has: each P<nonce> is a join.
        self.socket.zmq.setsockopt(zmq.XPUB_VERBOSE, 1)
        patience.apply(self.socket.zmq)

    def listen(self, address: str, buffer_bytes: int) -> None:
        """Bind; for a stalled subscriber about `buffer_bytes` and one message are held. Raises `zmq.ZMQError`."""
        self._slot = min(max(buffer_bytes // _SLOTS, _LEAST_SLOT), _MOST_SLOT)
        # The library takes the mark for subscribers' queues from the socket when it is bound.
        self.socket.zmq.sndhwm = max(1, buffer_bytes // (self._slot + _MESSAGE_OVERHEAD))  # 0 would mean no bound
        self.socket.zmq.bind(address)

    def send(self, messages: Iterable[Frames]) -> int:
        """Push; returns the bytes. Never blocks or fails: a subscriber that lags too far sees the gap and recovers."""
        total = 0
        send, slot = self.socket.send, self._slot
        for frames in messages:
            size = sum(map(len, frames))
            total += size
            send(frames)
            if size > slot:
                padding = [frames[0][: CHANNEL_PREFIX if frames[0][:1] == b"C" else NONCE_PREFIX]]
                for _ in range((size - 1) // slot):
                    send(padding)
        return total

    def _receive(self, frames: Frames) -> None:
        r"""A subscription `\x01<prefix>` or its end `\x00<prefix>`; anything else is counted and ignored."""
        notice = frames[0]
        kind, size = notice[1:2], len(notice)
        if len(frames) == 1 and kind == b"P" and size == 18:
            self._private(notice[0] == 1, notice[2:])
        elif len(frames) == 1 and kind == b"C" and size == 10:
            for served in self._segments.values():
                # The end arrives only when the last subscriber leaves.
                served.channels.hears(notice[2:], notice[0] == 1)
        else:
            self._counters.refused("events", RemoteProtocolError.code)
            self._counters.shorter_prefixes += len(frames) == 1 and _is_shorter(notice)

    def _private(self, comes: bool, nonce: bytes) -> None:
        every = list(self._segments.values())
        if not comes:
            for served in every:
                served.server.unsubscribed(nonce)
            return
        if any(nonce in served.server.subscriptions for served in every):
            self._counters.refused(
                "events", RemoteProtocolError.code
            )  # another client's, see `SegmentServer.subscribed`
            return
        joined = next((served for served in every if served.server.expects(nonce)), None)
        if joined is None:  # it had no hello here, so it is no join
            self._counters.refused("events", RemoteProtocolError.code)
            self._unknown(nonce)
        else:
            joined.counters.joins += 1
            joined.server.subscribed(nonce, monotonic())
            joined.counters.coarse_joins += joined.server.subscriptions[nonce].coarse


def _is_shorter(notice: bytes) -> bool:
    """Whether the prefix is so short that it covers more than one channel or subscription (F11)."""
    prefix = notice[1:]
    longest = NONCE_PREFIX if prefix[:1] == b"P" else CHANNEL_PREFIX
    return notice[:1] == b"\x01" and prefix[:1] in (b"", b"C", b"P") and len(prefix) < longest

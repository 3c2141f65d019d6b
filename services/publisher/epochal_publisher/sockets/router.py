"""A ROUTER socket that reads protocol messages and survives anything else that arrives.

Shared by `ingest` and `requests`, which differ only in what their messages mean. A message that breaks the protocol is
answered once, with `Refused`, and nothing more is read from that peer.
"""

import logging
from collections.abc import Callable, Iterable
from time import monotonic

import zmq

from epochal.client.sockets import Frames, Socket
from epochal.errors import EpochalError, LocalProtocolError, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol.wire import decode, encode
from epochal_publisher.counters import ProcessCounters
from epochal_publisher.sockets.peer_limits import BlockedPeers, SocketTimeouts

logger = logging.getLogger("epochal.publisher")

RECEIVE_QUEUE = 1000

Handler = Callable[[bytes, m.Message, float], None]


class Router:
    """One bound ROUTER; `handle(peer, message, now)` gets every sound message.

    `send_queue`: messages that one peer may leave unread; windows and credits keep honest peers far below that.
    `max_frame`: bytes of the largest frame that is taken; the library disconnects a peer that sends a larger one.
    `max_messages`: how many one zmq message may hold.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        name: str,
        address: str,
        handle: Handler,
        on_idle: Callable[[], None],
        *,
        send_queue: int,
        counters: ProcessCounters,
        discarded: BlockedPeers,
        max_frame: int,
        max_messages: int,
        patience: SocketTimeouts,
    ) -> None:
        self._name = name
        self._handle = handle
        self._counters = counters
        self._discarded = discarded
        self._max_messages = max_messages
        self.socket = Socket(
            context, zmq.ROUTER, self._receive, on_idle,
            max_message=max_frame, send_queue=send_queue, receive_queue=RECEIVE_QUEUE,
        )  # fmt: skip
        self.socket.zmq.setsockopt(zmq.ROUTER_MANDATORY, 1)
        patience.apply(self.socket.zmq)
        self.socket.zmq.bind(address)

    def send(self, peer: bytes, messages: Iterable[m.Message]) -> None:
        """Send to one peer, packed together. A peer that left is no error: time-outs notice its silence (E3)."""
        try:
            packed = encode(*messages)
        except LocalProtocolError:
            # An answer that cannot be encoded is a bug, but the answers to other peers after it must still be sent.
            logger.exception("an answer could not be written")
            self._counters.failures += 1
        else:
            self.send_frames(peer, packed)

    def send_frames(self, peer: bytes, messages: Iterable[Frames]) -> None:
        """Send messages that are packed already."""
        try:
            for frames in messages:
                self.socket.send([peer, *frames])
        except zmq.ZMQError:
            # EHOSTUNREACH: it left. EAGAIN: it does not read. Either way it must ask again: a ROUTER cannot close it.
            self._counters.dropped_answers += 1

    def refuse(self, peer: bytes, error: EpochalError, answer: m.Message | None = None) -> None:
        """Send one refusal, and read nothing more from this peer."""
        self._counters.refused(self._name, error.code)
        self._discarded.add(peer, monotonic())
        self.send(peer, (answer or m.Refused(0, error.code, str(error)),))

    def _receive(self, frames: Frames) -> None:
        peer = frames[0]
        counters = self._counters
        if peer in self._discarded:
            counters.discarded_messages += 1
            return
        counters.received_messages += 1
        counters.received_bytes += sum(map(len, frames))
        handle, now = self._handle, monotonic()
        try:
            for message in decode(frames[1:], max_messages=self._max_messages):
                handle(peer, message, now)
        except EpochalError as error:
            self.refuse(peer, error)
        except Exception:
            # A bug that one message hits must not stop the socket for all peers.
            logger.exception("a message could not be handled")
            counters.failures += 1
            self.refuse(peer, RemoteProtocolError("the publisher failed on this message; its log says how"))

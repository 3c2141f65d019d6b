"""The sockets `ingest` and `requests`: ROUTERs that read protocol messages and survive anything else that arrives.

They differ only in their messages and their limits. A message that breaks the protocol is answered once, with
`Refused`, and nothing more is read from that peer.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from time import monotonic

import zmq

from epochal.errors import EpochalError, LocalProtocolError, NoPublisher, RemoteProtocolError, Unavailable
from epochal.protocol import messages as m
from epochal.protocol.wire import APART_BYTES, MAX_PAYLOAD, Frames, decode, encode
from epochal.transport.sockets import Socket
from epochal_publisher.counters import ProcessCounters
from epochal_publisher.sockets.peer_limits import BlockedPeers, SocketTimeouts
from epochal_publisher.sockets.served import ServedSegment, WrittenSegment

logger = logging.getLogger("epochal.publisher")

MessageHandler = Callable[[bytes, m.Message, float], None]


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
        handle: MessageHandler,
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
            max_message=max_frame, send_queue=send_queue,
        )  # fmt: skip
        self.socket.zmq.setsockopt(zmq.ROUTER_MANDATORY, 1)
        patience.apply(self.socket.zmq)
        try:
            self.socket.zmq.bind(address)
        except zmq.ZMQError:
            self.socket.close()
            raise

    def send(self, peer: bytes, messages: Iterable[m.Message]) -> None:
        """Send to one peer, packed together. A peer that left is no error: a time-out notices it (E3 lost writers)."""
        try:
            packed = encode(*messages)
        except LocalProtocolError:
            # An answer that cannot be encoded is a bug, but the answers to other peers after it must still be sent.
            logger.exception("an answer could not be written")
            self._counters.failures += 1
        else:
            self.send_frames(peer, packed)

    def send_frames(self, peer: bytes, messages: Iterable[Frames]) -> None:
        """Send messages that are already packed."""
        try:
            for frames in messages:
                self.socket.send([peer, *frames])
        except zmq.ZMQError:
            # EHOSTUNREACH: it left. EAGAIN: it does not read. A ROUTER cannot close it, so the peer must ask again.
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


class Requests:
    """Handler of the `requests` socket: each message from a subscriber goes to its segment's machine; `segments` by id.

    A join ends with its snapshot on `events`, not with an answer here; the two sockets share only the machines.
    """

    SEND_QUEUE = 256
    """A chunk of an answer is up to 512 KiB, and a client that gives credit as it reads has few of them under way."""
    MAX_FRAME = 64 * 1024
    """No request from a subscriber carries a payload."""
    MAX_MESSAGES = 16
    """In one zmq message. Each can cost a replay of a thousand events, and our client sends one at a time."""

    router: Router

    def __init__(self, segments: Mapping[str, ServedSegment]) -> None:
        self._segments = segments

    def handle(self, peer: bytes, message: m.Message, now: float) -> None:
        """Give one message to its segment."""
        match message:
            case m.Hello() | m.Since() | m.Filter():
                served = self._segments.get(message.segment)
                if served is not None:
                    served.server.receive(peer, message, now)
                else:
                    detail = f"segment {message.segment!r} is not served here; look it up again"
                    asked = 0 if isinstance(message, m.Filter) else message.request
                    self.router.send(peer, (m.Refused(asked, NoPublisher.code, detail),))
            case m.Credit():
                for served in self._segments.values():  # it names a request that only one segment knows
                    served.server.receive(peer, message, now)
            case _:
                raise RemoteProtocolError(f"a subscriber does not send {type(message).__name__}")


class Ingest:
    """Handler of the `ingest` socket: each message from a writer goes to its segment's machine; `segments` by id.

    Nearly all of a publisher's work comes through here, one call per message. While `draining`, it takes nothing more.
    """

    SEND_QUEUE = 4096
    """Acknowledgements are small, and one covers many appends."""
    MAX_FRAME = MAX_PAYLOAD + APART_BYTES
    """The same for every `max_payload`: an append above that setting gets an error, not a closed connection."""
    MAX_MESSAGES = 8192
    """In one zmq message; our writers pack up to 240 KiB into one."""

    router: Router

    def __init__(self, segments: Mapping[str, WrittenSegment]) -> None:
        self._segments = segments
        self.draining = False

    def handle(self, peer: bytes, message: m.Message, now: float) -> None:
        """Give one message to its segment."""
        try:
            served = self._segments[message.segment]  # type: ignore[union-attr]  # the except below
        except AttributeError:
            raise RemoteProtocolError(f"a writer does not send {type(message).__name__}") from None
        except KeyError:
            error = NoPublisher(f"segment {message.segment!r} is not served here; look it up again")  # type: ignore[union-attr]
            self._decline(peer, message, error)
            return
        if self.draining:
            self._decline(peer, message, Unavailable("the publisher stops; look the segment up again"))
        else:
            served.publisher.receive(peer, message, now)

    def _decline(self, peer: bytes, message: m.Message, error: EpochalError) -> None:
        match message:
            case m.Open():
                self.router.send(peer, (m.Refused(message.op, error.code, str(error)),))
            case m.Append() | m.Alive() | m.Hold() | m.Abort() | m.Leave():
                self.router.refuse(peer, error, m.Lost(message.segment, error.code, str(error)))
            case _:
                raise RemoteProtocolError(f"a writer does not send {type(message).__name__}")

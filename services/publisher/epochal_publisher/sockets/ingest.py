"""The `ingest` socket: each message from a writer goes to its segment's machine.

Nearly all of a publisher's work comes through here, one call a message.
"""

from collections.abc import Mapping

from epochal.errors import EpochalError, NoPublisher, RemoteProtocolError, Unavailable
from epochal.protocol import messages as m
from epochal.protocol.wire import MAX_PAYLOAD, PACK_BYTES
from epochal_publisher.segments.segment import HostedSegment
from epochal_publisher.sockets.router import Router

SEND_QUEUE = 4096
"""Acknowledgements are small, and one covers many appends."""
MAX_FRAME = MAX_PAYLOAD + PACK_BYTES
"""The same for every `max_payload`: an append above that setting gets an error, not a closed connection."""
MAX_MESSAGES = 8192
"""In one zmq message; our writers pack up to 64 KiB into one."""


class Ingest:
    """Handler of the `ingest` socket; `segments` by id. While `draining`, it takes nothing more."""

    router: Router

    def __init__(self, segments: Mapping[str, HostedSegment]) -> None:
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

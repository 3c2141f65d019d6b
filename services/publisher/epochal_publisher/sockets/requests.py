"""The `requests` socket: each message from a subscriber goes to its segment's machine.

The answer to a join does not come back here but on `events`. The two sockets share only the machines.
"""

from collections.abc import Mapping

from epochal.errors import NoPublisher, RemoteProtocolError
from epochal.protocol import messages as m
from epochal_publisher.segments.segment import HostedSegment
from epochal_publisher.sockets.router import Router

SEND_QUEUE = 256
"""A chunk of an answer is up to 256 KiB, and a client that gives credit as it reads has few of them under way."""
MAX_FRAME = 64 * 1024
"""No request from a subscriber carries a payload."""
MAX_MESSAGES = 16
"""In one zmq message. Each can cost a replay of a thousand events, and our client sends one at a time."""


class Requests:
    """Handler of the `requests` socket; `segments` by id."""

    router: Router

    def __init__(self, segments: Mapping[str, HostedSegment]) -> None:
        self._segments = segments

    def handle(self, peer: bytes, message: m.Message, now: float) -> None:
        """Give one message to its segment."""
        match message:
            case m.Hello() | m.Since():
                served = self._segments.get(message.segment)
                if served is not None:
                    served.server.receive(peer, message, now)
                else:
                    detail = f"segment {message.segment!r} is not served here; look it up again"
                    self.router.send(peer, (m.Refused(message.request, NoPublisher.code, detail),))
            case m.Credit():
                for served in self._segments.values():  # it names a request, which only one segment knows
                    served.server.receive(peer, message, now)
            case _:
                raise RemoteProtocolError(f"a subscriber does not send {type(message).__name__}")

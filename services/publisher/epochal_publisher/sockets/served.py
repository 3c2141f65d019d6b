"""The parts of a segment that the sockets use: its machines, the channels of its subscribers, its counters.

Through these protocols, publishers and relays share the sockets.
"""

from typing import Protocol

from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SegmentServer
from epochal_publisher.counters import SegmentCounters


class ServedSegment(Protocol):
    """A segment of a publisher, or a relay's copy of one."""

    @property
    def server(self) -> SegmentServer:
        """The machine that answers subscribers."""
        ...

    @property
    def channels(self) -> Channels:
        """The channels on which events are pushed."""
        ...

    @property
    def counters(self) -> SegmentCounters:
        """The counters of this segment."""
        ...


class WrittenSegment(Protocol):
    """A segment to which writers append."""

    @property
    def publisher(self) -> SegmentPublisher:
        """The machine that takes messages of writers."""
        ...

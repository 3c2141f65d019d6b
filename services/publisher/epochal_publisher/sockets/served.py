"""What the sockets need of a segment: its machines, the channels of its subscribers, and where to count.

With these the sockets know neither the publisher's segments nor the relay's, which both use them.
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

"""What the sockets need of a segment: its machine for subscribers, their channels, and where to count."""

from typing import Protocol

from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.server import SegmentServer
from epochal_publisher.counters import SegmentCounters


class ServedSegment(Protocol):
    """A segment of a publisher, or what a relay has of one."""

    @property
    def server(self) -> SegmentServer:
        """Answers subscribers."""
        ...

    @property
    def channels(self) -> Channels:
        """Where events are pushed."""
        ...

    @property
    def counters(self) -> SegmentCounters:
        """What happened."""
        ...

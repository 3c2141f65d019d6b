"""A publisher for which the catalog has recorded a horizon beyond all times, so that nothing ever waits for it (E11).

It is for tests that speak to one publisher alone, message by message.
"""

from typing import Any

from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.times import TimeShape


def recorded_publisher(shape: TimeShape | None = None, **settings: Any) -> SegmentPublisher:
    """A fresh one of a stream whose times are ints, or have another shape."""
    limits = PublisherSettings(shape or TimeShape.parse("int"), **settings)
    publisher = SegmentPublisher("uid", "0", limits, incarnation=1, now=0.0)
    record_all(publisher)
    return publisher


def record_all(publisher: SegmentPublisher) -> None:
    """Let nothing that the publisher does from now on wait for the catalog."""
    assert publisher._log.horizon is not None
    for time in publisher.settings.shape.not_reached(()):
        publisher._log.horizon.want(time)
    record = publisher.record()
    assert record is not None
    publisher.recorded(record.number, 0.0)

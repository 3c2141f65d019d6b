"""Checks of single events: their order, times and payload, and that the publisher had not said that there is none.

Sources: rules S33, E14, F7, F10; docs/protocol.md.
"""

from collections.abc import Iterable

import google_crc32c

from epochal.errors import RemoteProtocolError, TimeShapeError
from epochal.protocol import messages as m
from epochal.protocol.times import Time, TimeShape
from epochal.protocol.topics.filter import TopicFilter


class EventChecks:
    """Raises `RemoteProtocolError` for events that cannot be the segment's."""

    __slots__ = ("_checked", "_segment", "_shape")

    def __init__(self, segment: str, shape: TimeShape) -> None:
        self._segment = segment
        self._shape = shape
        self._checked: Time | None = None
        """The last time of a batch that was found to have the stream's shape."""

    def event(self, event: m.Event) -> None:
        """Check that the event comes after its predecessor, and that its times have the stream's shape."""
        if not event.prev < event.seq:
            raise RemoteProtocolError(f"event {event.seq} cannot come after {event.prev}")
        if type(event) is m.Data:
            if event.time != self._checked:
                self.times((event.time,))
                self._checked = event.time
        elif type(event) is m.Frontier:
            self.times([time for time, _ in event.changes])
        else:
            self.times(event.times)  # type: ignore[union-attr]  # the third kind of event

    def times(self, *lists: Iterable[Time]) -> None:
        """Check that all times have the stream's shape."""
        try:
            for times in lists:
                for time in times:
                    self._shape.check(time)
        except TimeShapeError as error:
            raise RemoteProtocolError(f"segment {self._segment}: {error}") from None


class PassedOver:
    """The last range of events in which the publisher has said that there is none for this subscriber (F10).

    The position has passed the range. If an event in it were pushed later, it would be taken for known and dropped, and
    its epoch would lack it. So such an event is an error.
    """

    __slots__ = ("_after", "_topics", "_upto")

    def __init__(self) -> None:
        self._after = self._upto = m.NOTHING_YET
        self._topics: TopicFilter | None = None

    def extend(self, after: int, upto: int, topics: TopicFilter | None) -> None:
        """There is nothing of `topics` after event `after` up to `upto`; for None, nothing on the channel."""
        if after != self._upto or topics != self._topics:
            self._after = after
        self._upto, self._topics = upto, topics

    def check(self, event: m.Event) -> None:
        """Raise `RemoteProtocolError` for a pushed event that should not exist, or whose predecessor should not."""
        topics = self._topics
        named = event.prev if topics is None and event.seq > self._upto else event.seq
        if not self._after < named <= self._upto:
            return
        if topics is None or type(event) is not m.Data or topics.wants(event.topic):
            raise RemoteProtocolError(
                f"event {named} comes after all, and the publisher had said that there is none for this subscriber"
                f" after {self._after} up to {self._upto}"
            )


def in_order(event: m.Event, last: int | None) -> int:
    """The number of the next event on a channel, after the event `last`; None if it is the first.

    Raises `RemoteProtocolError` if it comes out of order.
    """
    if last is not None and event.prev < last:
        raise RemoteProtocolError(f"event {event.seq} names {event.prev} before it; the channel was at {last}")
    return event.seq


def is_damaged(event: m.Event) -> bool:
    """Whether the payload differs from what the writer sent."""
    return type(event) is m.Data and google_crc32c.value(event.payload) != event.crc


def size_of(event: m.Event) -> int:
    """About how many bytes an event takes while it waits."""
    return len(event.payload) + 200 if isinstance(event, m.Data) else 200

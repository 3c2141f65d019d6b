"""What holds of every event, wherever it comes from: its order, its times, its payload.

Separate from the follower because it needs nothing but the event. Sources: rules S33, E14; docs/protocol.md.
"""

from collections.abc import Iterable

import google_crc32c

from epochal.errors import RemoteProtocolError, TimeShapeError
from epochal.protocol import messages as m
from epochal.protocol.times import Time, TimeShape


class EventChecks:
    """Raises `RemoteProtocolError` for events that are none of the segment's."""

    __slots__ = ("_checked", "_segment", "_shape")

    def __init__(self, segment: str, shape: TimeShape) -> None:
        self._segment = segment
        self._shape = shape
        self._checked: Time | None = None
        """The last time of a batch that was found to have the stream's shape."""

    def event(self, event: m.Event) -> None:
        """It follows one before it, and its times have the stream's shape."""
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
        """All have the stream's shape."""
        try:
            for times in lists:
                for time in times:
                    self._shape.check(time)
        except TimeShapeError as error:
            raise RemoteProtocolError(f"segment {self._segment}: {error}") from None


def in_order(event: m.Event, last: int | None) -> int:
    """The last event on a channel, of which this is the next one that has come; None if none had before."""
    if last is not None and event.prev < last:
        raise RemoteProtocolError(f"event {event.seq} names {event.prev} before it; the channel was at {last}")
    return event.seq


def is_damaged(event: m.Event) -> bool:
    """Whether a payload is not what its writer had sent."""
    return type(event) is m.Data and google_crc32c.value(event.payload) != event.crc


def size_of(event: m.Event) -> int:
    """Bytes that an event which waits takes, roughly."""
    return len(event.payload) + 200 if isinstance(event, m.Data) else 200

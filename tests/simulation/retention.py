"""What a segment must still have of its log, worked out from what was logged, how large it is, and when it came.

Separate from `epochal.protocol.log.history`, which drops events: a history that keeps too little must not be the one
that says how much it had to keep.

Sources: rules E10, E13; `history.retention` of a stream's manifest.
"""

from bisect import bisect_left

from epochal.protocol import messages as m

EVENT_BYTES = 200
"""Bytes that each event counts against the retention, beside its payload and topic."""
ROUNDING = 1e-6
"""Seconds by which an event may be too old or not, as the sums of times are not exact."""


class Retention:
    """The events of one log, of which the newest must be kept: as many as fit into `size` bytes, as long as `age`.

    `last` is the event before the first one. `inf` keeps all.
    """

    __slots__ = ("_age", "_came", "_ends", "_last", "_size")

    def __init__(self, last: int, size: float, age: float) -> None:
        self._last, self._size, self._age = last, size, age
        self._ends = [0]
        """Bytes of the first n events."""
        self._came: list[float] = []

    def logged(self, event: m.Event, at: float) -> None:
        """The next event, at time `at` of the publisher's clock."""
        size = len(event.payload) + len(event.topic) if isinstance(event, m.Data) else 0
        self._ends.append(self._ends[-1] + EVENT_BYTES + size)
        self._came.append(at)

    def lost(self) -> None:
        """The last event is no longer in the log: a disk did not keep it."""
        del self._ends[-1], self._came[-1]

    def kept_behind(self, now: float) -> int:
        """The position before the first event that must be there at `now`.

        >>> retention = Retention(m.NOTHING_YET, 500, 10.0)
        >>> for seq, at in enumerate((0.0, 1.0, 12.0)):
        ...     retention.logged(m.Aborted(seq, seq - 1, ()), at)
        >>> retention.kept_behind(1.0), retention.kept_behind(11.5)
        (0, 1)
        """
        too_large = bisect_left(self._ends, self._ends[-1] - self._size)
        too_old = bisect_left(self._came, now - self._age + ROUNDING)
        return self._last + max(too_large, too_old)

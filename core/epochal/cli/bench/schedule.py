"""When `epochal bench` sends what: the moments of a steady rate, and the times of a stream that follow each other.

Nothing here reads a clock: moments are nanoseconds since the beginning.
"""

from dataclasses import dataclass

from epochal.protocol.times import Time

SECOND = 1_000_000_000
"""Nanoseconds."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """`total` records, `rate` of them a second.

    Latency is counted from these moments, and not from when a record was really sent. Otherwise a sender that is held
    up would leave out exactly the records that had to wait ("coordinated omission").
    """

    rate: int
    total: int

    def at(self, number: int) -> int:
        """When record `number`, counted from 0, is due.

        >>> Schedule(1000, 10).at(2)
        2000000
        """
        return number * SECOND // self.rate

    def due(self, elapsed: int) -> int:
        """How many records are due by that moment, from the beginning.

        >>> Schedule(1000, 10).due(1_999_999), Schedule(1000, 10).due(2_000_000), Schedule(1000, 10).due(SECOND)
        (2, 3, 10)
        """
        return min(((elapsed + 1) * self.rate - 1) // SECOND + 1, self.total)


def next_time(time: Time) -> Time | None:
    """The same time with its first int one higher, which leaves most other times open; None for one without ints.

    With times such as (hour, attempt), all attempts of later hours can still be published afterwards.

    >>> next_time(5), next_time((3, 1)), next_time(((), (2, 0))), next_time(())
    (6, (4, 1), ((), (3, 0)), None)
    """
    if isinstance(time, int):
        return time + 1
    for place, part in enumerate(time):
        if (later := next_time(part)) is not None:
            return (*time[:place], later, *time[place + 1 :])
    return None


class EpochSchedule:
    """The epochs that a benchmark appends at: each ends after `seconds`, or after `most_bytes` if that is sooner.

    A reader of whole epochs keeps an epoch in memory until it is complete; so none may grow without end.
    """

    def __init__(self, first: Time, seconds: float, most_bytes: int) -> None:
        self.time = first
        """The time to append at."""
        self.epochs = 0
        """How many epochs got records."""
        self._length = int(seconds * SECOND)
        self._most_bytes = most_bytes
        self._began = 0
        self._bytes = 0

    def add(self, size: int) -> None:
        """Count bytes of payload that are appended."""
        if size and not self._bytes:
            self.epochs += 1
        self._bytes += size

    def advance(self, elapsed: int) -> Time | None:
        """The next time, if the epoch has ended by then: the writer must advance to it."""
        if not self._bytes or (elapsed - self._began < self._length and self._bytes < self._most_bytes):
            return None
        return self._follow(elapsed)

    def end(self) -> Time:
        """The time after the last epoch with records: the writer must advance to it at the end."""
        return self._follow(self._began) if self._bytes else self.time

    def _follow(self, elapsed: int) -> Time:
        later = next_time(self.time)
        assert later is not None, "a benchmark begins at a time that has a next one"
        self.time = later
        self._began = elapsed
        self._bytes = 0
        return later

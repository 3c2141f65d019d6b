"""A histogram of durations: any number of them in bounded memory, and percentiles with a bounded error.

A duration falls into one of 128 buckets for each power of two (nanoseconds), so that a bucket's edges differ by less
than one part in 128. The scheme is that of HdrHistogram (https://hdrhistogram.github.io/HdrHistogram/).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BITS = 7
"""A percentile is at most one part in 2**BITS above the true one, and never below it."""
MOST_BARS = 12
"""Bars above which each covers a whole decade, so that a report fits a terminal of 24 lines."""


@dataclass(frozen=True, slots=True)
class Bar:
    """How many durations were above `low` and at most `high`, in nanoseconds; an edge is exact to one part in 128."""

    low: int
    high: int
    count: int


class Histogram:
    """Durations in nanoseconds. `add` costs O(1), all else O(buckets in use), of which 64-bit values have 7,424."""

    __slots__ = ("_counts", "count", "most")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.most = 0
        """The longest duration, exactly; 0 while there is none."""

    def add(self, nanoseconds: int) -> None:
        """Count one duration. A negative one, which two different clocks can give, counts as 0."""
        value = max(nanoseconds, 0)
        shift = max(value.bit_length() - BITS - 1, 0)
        bucket = (shift << BITS) + (value >> shift)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.most = max(self.most, value)

    def percentile(self, permille: int) -> int | None:
        """The least duration that `permille` of 1,000 do not exceed, in nanoseconds; None while there is none.

        It is the upper edge of its bucket, and never above the longest duration.

        >>> times = Histogram()
        >>> for nanoseconds in (100, 200, 300):
        ...     times.add(nanoseconds)
        >>> times.percentile(500), times.percentile(1000)
        (200, 300)
        """
        rank = -(-self.count * permille // 1000)
        for bucket in sorted(self._counts):
            rank -= self._counts[bucket]
            if rank <= 0:
                return min(_upper_edge(bucket), self.most)
        return None

    def bars(self) -> list[Bar]:
        """The durations between bounds of 1, 2 and 5 times powers of ten, from the shortest to the longest.

        >>> times = Histogram()
        >>> for nanoseconds in (1_500, 1_600, 7_000):
        ...     times.add(nanoseconds)
        >>> [(bar.low, bar.high, bar.count) for bar in times.bars()]
        [(1000, 2000, 2), (2000, 5000, 0), (5000, 10000, 1)]
        """
        bars = self._between(list(_bounds(self.most, (1, 2, 5))))
        return bars if len(bars) <= MOST_BARS else self._between(list(_bounds(self.most, (1,))))

    def _between(self, bounds: Sequence[int]) -> list[Bar]:
        counts = [0] * len(bounds)
        place = 0
        for bucket in sorted(self._counts):
            while min(_upper_edge(bucket), self.most) > bounds[place]:
                place += 1
            counts[place] += self._counts[bucket]
        first = next((place for place, count in enumerate(counts) if count), len(counts))
        return [Bar(bounds[at - 1] if at else 0, bounds[at], counts[at]) for at in range(first, len(counts))]


def _upper_edge(bucket: int) -> int:
    """The longest duration that falls into a bucket."""
    shift = max((bucket >> BITS) - 1, 0)
    return (((bucket - (shift << BITS)) + 1) << shift) - 1


def _bounds(most: int, steps: Sequence[int]) -> Iterator[int]:
    """1 microsecond and its multiples by `steps` and powers of ten, to the first that `most` does not exceed."""
    decade = 1_000
    while True:
        for step in steps:
            yield step * decade
            if step * decade >= most:
                return
        decade *= 10

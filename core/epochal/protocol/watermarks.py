"""Watermarks as readers use them: the window of times in which a reader is, and where in the stream a time is.

Decides nothing about how watermarks come to be: the catalog does that, from writers' marks or from the frontier.

Sources: PDP-33 watermarking, W30, W31, W34, W35; E32, E53.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from epochal.protocol.cuts import Lineage, Side, StreamPosition
from epochal.protocol.times import MAX_TIME

AT_THE_END = MAX_TIME
"""Both bounds of the last watermark of a stream that is complete."""


class Watermark(NamedTuple):
    """What its writers appended before they first noted a time >= `lower` is before `cut` (E25).

    `upper`: the greatest time that any of them had noted. `floor`: none of what a writer appended after it noted a time
    >= `upper` is before it; None where a frontier gives the times, since then a time is found exactly without it.
    """

    number: int
    lower: int
    upper: int
    cut: StreamPosition
    floor: StreamPosition | None = None


class TimeWindow(NamedTuple):
    """The times between which a reader is. All before `lower` was delivered; `upper` is a hint (W34).

    (None, None): nothing was noted, or it is not known yet. (None, U): before the first watermark that is kept.
    (L, None): past all of them.
    """

    lower: int | None
    upper: int | None


def window(lineage: Lineage, watermarks: Sequence[Watermark], position: StreamPosition) -> TimeWindow:
    """Where a reader at `position`, which covers every key, is among the watermarks, oldest first (E32).

    A reader that is past a watermark is past all before it. Of those that it is not past, the first one of which it is
    nowhere beyond gives the upper bound; if it is beyond a part of each, the last one does.
    """
    passed = len(watermarks)
    while passed and not lineage.is_past(position, watermarks[passed - 1].cut):
        passed -= 1
    lower = watermarks[passed - 1].lower if passed else None
    ahead = watermarks[passed:]
    if not ahead:
        return TimeWindow(lower, None)
    first = next((each for each in ahead if Side.BEYOND not in lineage.sides(position, each.cut)), ahead[-1])
    return TimeWindow(lower, first.upper)


def until(watermarks: Sequence[Watermark], time: int) -> Watermark | None:
    """The first watermark before whose cut is all that came before `time` was noted; None where there is none yet."""
    at = bisect_left(watermarks, time, key=attrgetter("lower"))
    return watermarks[at] if at < len(watermarks) else None


def since(watermarks: Sequence[Watermark], time: int) -> Watermark | None:
    """The last watermark after whose floor is all that came once `time` was noted; None where none is so early."""
    at = bisect_left(watermarks, time + 1, key=attrgetter("upper"))
    return watermarks[at - 1] if at else None


def thinned(numbers: Sequence[int], most: int) -> list[int]:
    """Which of these watermarks, by number and oldest first, to drop so that at most `most` are kept (E53).

    Every second one of the older half goes, so that those that stay are the further apart the older they are.

    >>> thinned([1, 2, 3, 4, 5], 4), thinned([1, 2, 3], 4)
    ([1], [])
    """
    return list(numbers[: len(numbers) // 2 : 2]) if len(numbers) > most else []

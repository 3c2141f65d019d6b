"""The partial order of times a second time, by brute force, for the oracle and the checks.

Separate from `epochal.protocol.times` and `frontier` because a mistake in those must not excuse itself: whoever judges
the machines shares no code with them. Sets of times are plain sets; nothing is kept small or remembered.
"""

from collections.abc import Iterable

from epochal.protocol.times import Time


def numbers(time: Time) -> list[int]:
    """The ints of a time, from left to right.

    >>> numbers((3, (0, 2)))
    [3, 0, 2]
    """
    if isinstance(time, int):
        return [time]
    return [number for part in time for number in numbers(part)]


def at_most(a: Time, b: Time) -> bool:
    """Whether each number of `a` is at most its counterpart in `b`.

    >>> at_most(3, 5), at_most((0, 3), (5, 0)), at_most((1, (0, 2)), (1, (1, 2)))
    (True, False, True)
    """
    return all(x <= y for x, y in zip(numbers(a), numbers(b), strict=True))


def reached(frontier: Iterable[Time], time: Time) -> bool:
    """Whether some time of `frontier` is at most `time`."""
    return any(at_most(element, time) for element in frontier)


def covered(time: Time, limits: Iterable[Time]) -> bool:
    """Whether `time` is at most one of `limits`."""
    return any(at_most(time, limit) for limit in limits)


def maximal(times: Iterable[Time]) -> set[Time]:
    """Those times that are not at most another one."""
    all_of_them = set(times)
    return {time for time in all_of_them if not covered(time, all_of_them - {time})}


def minimal(times: Iterable[Time]) -> frozenset[Time]:
    """Those times that no other one is at most."""
    all_of_them = set(times)
    return frozenset(time for time in all_of_them if not reached(all_of_them - {time}, time))


def is_antichain(times: Iterable[Time]) -> bool:
    """Whether no time is at most another one."""
    all_of_them = set(times)
    return maximal(all_of_them) == all_of_them

"""The numbers that a catalog gives out: each above all before, and none below the clock (E12).

Separate from the rules because it says for all of them why a database that is put back from an older copy gives no
number out twice: what the copy does not know of was given out earlier, so it is below the clock.
"""

ROOM_BITS = 10
"""A millisecond has room for 1,024 numbers; beyond that they run ahead of the clock."""
_HIGHEST = (1 << 53) - (1 << 40)
"""Every JSON reader keeps 53 bits. A clock that is beyond (the year 2248) moves no number any more."""


def least(seconds: float) -> int:
    """The least number that may be given out at `seconds` since 1970, UTC.

    >>> least(0.0), least(1.5)
    (0, 1536000)
    """
    return min(max(int(seconds * 1000), 0) << ROOM_BITS, _HIGHEST)


def following(last: int, floor: int) -> int:
    """The next number after `last`, not below `floor`: also where the clock was set back.

    >>> following(7, 0), following(7, 100), following(100, 7)
    (8, 100, 101)
    """
    return max(last + 1, floor)

"""The numbers that a catalog gives out: each is greater than all before it, and none is below the clock (E12).

So no number is given out twice, even when the database is restored from an older copy: the numbers that the copy does
not know were given out earlier, so they are below the clock.
"""

ROOM_BITS = 10
"""A millisecond has room for 1,024 numbers; more than that run ahead of the clock."""
_HIGHEST = (1 << 53) - (1 << 40)
"""Every JSON reader keeps 53 bits. From the year 2248 on, the clock no longer raises this minimum."""


def least(seconds: float) -> int:
    """The least number that may be given out at `seconds` since 1970, UTC.

    >>> least(0.0), least(1.5)
    (0, 1536000)
    """
    return min(max(int(seconds * 1000), 0) << ROOM_BITS, _HIGHEST)


def following(last: int, floor: int) -> int:
    """The next number after `last`, not below `floor`. It rises even when the clock was set back.

    >>> following(7, 0), following(7, 100), following(100, 7)
    (8, 100, 101)
    """
    return max(last + 1, floor)

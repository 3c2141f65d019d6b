"""Times and durations as people write them: the same in a table, a sentence and a log line.

It imports no pydantic, which takes longer to import than a list takes to print.
"""

from epochal.protocol.times import Time, to_json


def show_time(time: Time) -> str:
    """A time as people write it.

    >>> show_time(3), show_time((1, (2, 3)))
    ('3', '(1, (2, 3))')
    """
    return str(to_json(time)).replace("[", "(").replace("]", ")")


def show_seconds(seconds: float) -> str:
    """A duration as people write it, in its one or two largest units.

    >>> [show_seconds(value) for value in (0.42, 12.3, 192, 7500, 273_600)]
    ['0.4 s', '12 s', '3m12s', '2h05m', '3d04h']
    """
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"

"""Tables and values as text: drawn for a terminal, plain aligned lines for anything else.

Apart from the commands because scripts read the plain form: no colours, no frames, no wrapping, nothing cut off.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from epochal.protocol.times import Time, less_than, to_json


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under upper-case column names."""
    cells = [list(map(_printable, row)) for row in rows]
    if sys.stdout.isatty():
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    for line in plain_lines(columns, cells):
        print(line)


def plain_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns aligned by spaces, two between them.

    >>> plain_lines(["A", "LONG"], [["xyz", "1"]])
    ['A    LONG', 'xyz  1']
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (columns, *rows)]
    return ["  ".join(line).rstrip() for line in lines]


def print_fields(fields: Iterable[tuple[str, str]], indent: str = "") -> None:
    """Print `name: value` lines with the values aligned."""
    pairs = list(fields)
    width = max((len(name) for name, _ in pairs), default=0) + 1
    for name, value in pairs:
        print(f"{indent}{(name + ':').ljust(width)}  {_printable(value)}".rstrip())


def flat(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A document as (path, value) pairs.

    >>> flat({"time": {"shape": "int"}, "segments": 3})
    [('time.shape', 'int'), ('segments', '3')]
    """
    pairs: list[tuple[str, str]] = []
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            pairs.extend(flat(value, f"{prefix}{key}."))
        else:
            pairs.append((prefix + key, str(value)))
    return pairs


def show_time(time: Time) -> str:
    """A time as people write it.

    >>> show_time(3), show_time((1, (2, 3)))
    ('3', '(1, (2, 3))')
    """
    return str(to_json(time)).replace("[", "(").replace("]", ")")


def show_frontier(lower: Sequence[Time] | None) -> str:
    """A frontier; `-` while it is not known, `{}` when nothing more can come.

    >>> show_frontier([(0, 2), (1, 0)]), show_frontier([]), show_frontier(None)
    ('{(0, 2), (1, 0)}', '{}', '-')
    """
    return "-" if lower is None else "{" + ", ".join(map(show_time, sorted(lower))) + "}"


def merge_frontiers(lowers: Iterable[Sequence[Time] | None]) -> list[Time] | None:
    """The minimal times of several segments' lower frontiers; None while one of them is not known."""
    times: set[Time] = set()
    for lower in lowers:
        if lower is None:
            return None
        times.update(lower)
    return [time for time in times if not any(less_than(other, time) for other in times)]


def show_age(since: str, now: datetime | None = None) -> str:
    """How long ago an ISO 8601 moment was, in one or two units.

    >>> show_age("2024-01-01T00:00:00+00:00", datetime(2024, 1, 2, 3, 4, tzinfo=UTC))
    '1d3h'
    """
    try:
        then = datetime.fromisoformat(since)
    except ValueError:
        return "-"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = max(int(((now or datetime.now(UTC)) - then).total_seconds()), 0)
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"


def _printable(text: str) -> str:
    """`text` without control characters: what others published must not steer the reader's terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

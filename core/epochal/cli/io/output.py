"""Tables, times and records as text: drawn for a terminal, plain aligned lines for anything else.

Scripts read the plain form: no colours, no frames, no wrapping, nothing cut off. `pub` reads what `sub --raw` prints.
"""

import contextlib
import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from epochal.catalog_api.texts import show_time
from epochal.cli.io.terminal import console, printable
from epochal.errors import TimeShapeError
from epochal.protocol.times import Time, TimeShape, less_than

STYLES = {
    **dict.fromkeys(("Ready", "live", "ok", "yes"), "green"),
    **dict.fromkeys(("Pending", "unverified", "warn"), "yellow"),
    **dict.fromkeys(("lapsed", "fail", "damaged"), "bold red"),
    **dict.fromkeys(("Complete", "superseded"), "cyan"),
}
"""How words for states look on a terminal."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under upper-case column names; a terminal gets the same lines with colours."""
    cells = [list(map(printable, row)) for row in rows]
    if not sys.stdout.isatty():
        for line in plain_lines(columns, cells):
            print(line)
        return
    from rich.text import Text

    screen, widths = console(), _widths(columns, cells)
    screen.print(Text(aligned(columns, widths), style="bold"), soft_wrap=True)
    for row in cells:
        parts = [(cell.ljust(width), STYLES.get(cell, "")) for cell, width in zip(row, widths, strict=True)]
        shown = Text("  ").join(Text(text, style) for text, style in parts)
        shown.rstrip()
        screen.print(shown, soft_wrap=True)


def print_document(document: object, in_yaml: bool) -> None:
    """Print one document as JSON or YAML, keys in the order that the catalog gave them."""
    print(as_yaml(document) if in_yaml else dumps(document, indent=2) + "\n", end="")


def as_yaml(document: object) -> str:
    """A document as YAML, with a final newline; in ASCII if a character in it could control a terminal."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    if not text.replace("\n", "").isprintable():
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=False)
    return text


def plain_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns aligned by spaces, two between them.

    >>> plain_lines(["A", "LONG"], [["xyz", "1"]])
    ['A    LONG', 'xyz  1']
    """
    widths = _widths(columns, rows)
    return [aligned(row, widths) for row in (columns, *rows)]


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(columns, *rows, strict=True)]


def aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """One line of cells of the given widths."""
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def print_fields(fields: Iterable[tuple[str, str]], indent: str = "") -> None:
    """Print `name: value` lines with the values aligned; an empty name continues the one before."""
    pairs = list(fields)
    width = max((len(name) for name, _ in pairs), default=0) + 1
    for name, value in pairs:
        head = f"{indent}{(name + ':' if name else '').ljust(width)}  "
        print(hanging(head, printable(value)))


def hanging(head: str, text: str) -> str:
    """`text` after `head`: on a terminal wrapped with a hanging indent, else in one line."""
    room = shutil.get_terminal_size().columns - len(head)
    if not sys.stdout.isatty() or room < 30:
        return (head + text).rstrip()
    lines = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    return f"\n{' ' * len(head)}".join([(head + lines[0]).rstrip(), *lines[1:]])


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


MOST_SAID = 3
"""Reasons that one line says; the others are counted."""


def show_some(texts: Sequence[str]) -> str:
    """The first texts in one line, and how many more there are.

    >>> show_some(["a", "b", "c", "d"])
    'a; b; c; and 1 more'
    """
    more = f"; and {len(texts) - MOST_SAID} more" if len(texts) > MOST_SAID else ""
    return "; ".join(texts[:MOST_SAID]) + more


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


def show_size(size: int) -> str:
    """A number of bytes in its largest unit.

    >>> [show_size(size) for size in (0, 1023, 2048, 1_500_000)]
    ['0 B', '1023 B', '2 KiB', '1.4 MiB']
    """
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.0f} KiB" if size < 1024 * 1000 else f"{size / 2**20:,.1f} MiB"


def show_share(share: float) -> str:
    """A share from 0 to 1 in percent; only exactly nothing is `0 %`, and only exactly all `100 %`.

    >>> [show_share(share) for share in (0.0, 0.004, 0.254, 0.999, 1.0)]
    ['0 %', '<1 %', '25 %', '>99 %', '100 %']
    """
    if 0 < share < 0.01:
        return "<1 %"
    return ">99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def parse_time(text: str, shape: TimeShape) -> Time:
    """Parse a time such as `5` or `(5, 1)`; raises `TimeShapeError` if it does not have the `shape`.

    >>> parse_time("(5, (1, 2))", TimeShape.parse("(int, (int, int))"))
    (5, (1, 2))
    """
    as_json = re.sub(r",\s*\)", ")", text).replace("(", "[").replace(")", "]")
    try:
        return shape.from_json(json.loads(as_json))
    except (ValueError, RecursionError, TimeShapeError):
        raise TimeShapeError(f"'{text[:80]}' is no time; this stream's have the shape {shape}") from None


def rows(records: Iterable[Any], *, exact: bool = False) -> Iterator[Any]:
    """The records; an Arrow batch is yielded as its rows.

    A value that Python lacks, such as a date after the year 9999, becomes Arrow's own text; with `exact` it raises
    `ValueError` or `OverflowError`.
    """
    for record in records:
        if type(record).__name__ == "RecordBatch":
            columns = [_values(column, exact) for column in record.columns]
            names = _distinct(record.schema.names)
            for row in zip(*columns, strict=True) if columns else [()] * record.num_rows:
                yield dict(zip(names, row, strict=True))
        else:
            yield record


def _values(column: Any, exact: bool) -> list[Any]:
    from epochal.client.encoding.plain_columns import as_texts, exact_values  # here: what reads no Arrow loads none

    try:
        return exact_values(column)
    except (ValueError, OverflowError):
        if exact:
            raise
        return exact_values(as_texts(column))


def _distinct(names: Sequence[str]) -> list[str]:
    """Names of columns, the second of a name as `name#2`: a payload is published as it is, and may repeat names."""
    return [f"{name}#{names[:at].count(name) + 1}" if name in names[:at] else name for at, name in enumerate(names)]


def dumps(value: Any, indent: int | None = None) -> str:
    r"""JSON, in one line without `indent`. Characters that could control a terminal are escaped.

    >>> print(dumps("é \x9b2J \u202e"))
    "é \u009b2J \u202e"
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if text.isprintable() else _UNUSUAL.sub(_escaped, text)


_UNUSUAL = re.compile(r"[^ -~\n]")


def _escaped(found: "re.Match[str]") -> str:
    char = found[0]
    return char if char.isprintable() else json.dumps(char)[1:-1]


def show_record(record: Any) -> str:
    r"""A record as one line of printable text: JSON, bytes as text with escapes.

    >>> show_record({"a": 1}), show_record(b"x\n")
    ('{"a": 1}', 'x\\n')
    """
    if isinstance(record, bytes | bytearray | memoryview):
        return printable(bytes(record).decode("utf-8", "backslashreplace"))
    return printable(dumps(json_value(record)))


def json_value(record: Any) -> Any:
    r"""A record as a JSON value. Bytes become text with escapes where they are not UTF-8; keys become texts.

    Numbers that JSON lacks become their names, and dates ISO 8601 texts. A map in which two keys would become the
    same text becomes a list of pairs.

    >>> json_value({b"a": float("nan"), 2: [b"\xff", (1, None)]})
    {'a': 'NaN', '2': ['\\xff', [1, None]]}
    """
    match record:
        case None | bool() | int() | str():
            return record
        case float():
            return record if math.isfinite(record) else _NOT_FINITE.get(record, "NaN")
        case bytes() | bytearray() | memoryview():
            return bytes(record).decode("utf-8", "backslashreplace")
        case Mapping():
            shown = {_key(key): json_value(value) for key, value in record.items()}
            if len(shown) == len(record):
                return shown
            return [[json_value(key), json_value(value)] for key, value in record.items()]  # keys such as 1 and "1"
        case list() | tuple():
            return [json_value(value) for value in record]
        case _:
            return record.isoformat() if hasattr(record, "isoformat") else str(record)


def raw_record(record: Any) -> bytes:
    """A record as it was published: bytes untouched, anything else as JSON."""
    if isinstance(record, bytes | bytearray | memoryview):
        return bytes(record)
    return dumps(json_value(record)).encode("utf-8", "backslashreplace")


@contextlib.contextmanager
def deeper() -> Iterator[None]:
    """Let records be shown that are nested deeper than Python's limit of calls allows: a payload may be."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


DEEPEST = 10_000
"""Recursion depth for a record of a thousand levels, the most that msgpack and json have carried."""

_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _key(key: Any) -> str:
    value = json_value(key)
    return value if isinstance(value, str) else dumps(value)

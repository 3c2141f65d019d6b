"""Records and times as text on a command line.

`pub` and `sub` must agree: what `sub --raw` prints, `pub` reads.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from epochal.cli.io.output import printable
from epochal.errors import TimeShapeError
from epochal.protocol.times import Time, TimeShape


def parse_time(text: str, shape: TimeShape) -> Time:
    """A time such as `5` or `(5, 1)`; raises `TimeShapeError` if it is none of `shape`.

    >>> parse_time("(5, (1, 2))", TimeShape.parse("(int, (int, int))"))
    (5, (1, 2))
    """
    as_json = re.sub(r",\s*\)", ")", text).replace("(", "[").replace(")", "]")
    try:
        return shape.from_json(json.loads(as_json))
    except (ValueError, RecursionError, TimeShapeError):
        raise TimeShapeError(f"'{text[:80]}' is no time; this stream's have the shape {shape}") from None


def rows(records: Iterable[Any]) -> Iterator[Any]:
    """The records, an Arrow batch as its rows."""
    for record in records:
        if type(record).__name__ == "RecordBatch":
            yield from record.to_pylist()
        else:
            yield record


def dumps(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, ensure_ascii=False)


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

    Numbers that JSON lacks become their names, and dates what ISO 8601 has for them.

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
            return {_key(key): json_value(value) for key, value in record.items()}
        case list() | tuple():
            return [json_value(value) for value in record]
        case _:
            return record.isoformat() if hasattr(record, "isoformat") else str(record)


def raw_record(record: Any) -> bytes:
    """A record as it was published: bytes untouched, anything else as JSON."""
    if isinstance(record, bytes | bytearray | memoryview):
        return bytes(record)
    return dumps(json_value(record)).encode("utf-8", "backslashreplace")


_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _key(key: Any) -> str:
    value = json_value(key)
    return value if isinstance(value, str) else dumps(value)

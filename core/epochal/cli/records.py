"""Records and times as text on a command line.

Apart from `pub` and `sub` because both must agree: what `sub --raw` prints, `pub` reads.
"""

import json
import re
from typing import Any

from epochal.errors import RecordTypeError, TimeShapeError
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


def parse_record(text: str, encoding: str) -> Any:
    """A record of one line: bytes as they are; for msgpack and json a JSON value, else the text itself.

    >>> parse_record("x", "bytes"), parse_record('{"a": 1}', "json"), parse_record("JFK", "msgpack")
    (b'x', {'a': 1}, 'JFK')
    """
    match encoding:
        case "bytes":
            return text.encode()
        case "msgpack" | "json":
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                return text
        case _:
            raise RecordTypeError(
                f"records of encoding {encoding} cannot be written on a command line; use the library"
            )


def show_record(record: Any) -> str:
    r"""A record as one line of printable text: JSON, bytes as text with escapes.

    >>> show_record({"a": 1}), show_record(b"x\n")
    ('{"a": 1}', 'x\\n')
    """
    if isinstance(record, bytes | bytearray | memoryview):
        return _escaped(bytes(record).decode("utf-8", "backslashreplace"))
    return _escaped(json.dumps(record, ensure_ascii=False, default=_other))


def json_value(record: Any) -> Any:
    """A record as a JSON value; bytes become text, with escapes where they are not UTF-8."""
    if isinstance(record, bytes | bytearray | memoryview):
        return bytes(record).decode("utf-8", "backslashreplace")
    return json.loads(json.dumps(record, default=_other))


def raw_record(record: Any) -> bytes:
    """A record as it was published: bytes untouched, anything else as JSON."""
    if isinstance(record, bytes | bytearray | memoryview):
        return bytes(record)
    return json.dumps(record, ensure_ascii=False, default=_other).encode()


def _other(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


def _escaped(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

"""The records of a benchmark, as each encoding carries them.

A record is ASCII text of the wanted size: bytes in streams of bytes and msgpack, a text in json, a row of one binary
column in arrow, where all rows of a batch are one record batch. A record of `bench latency` begins with the mark of the
run and the moment at which it is due, both in hexadecimal digits, which every encoding leaves as they are.
"""

from collections.abc import Sequence
from typing import Any

import epochal
from epochal.client.encoding.arrow_schemas import pyarrow

_DIGITS = 16
STAMP = 2 * _DIGITS
"""Bytes of a mark and a moment: the least size of a record that carries them."""
_FILLER = b"epochal bench "
COLUMN = "record"


def filler(size: int) -> bytes:
    """A record of the wanted size, without information.

    >>> filler(20)
    b'epochal bench epocha'
    """
    return (_FILLER * (size // len(_FILLER) + 1))[:size]


def stamped(mark: bytes, moment: int, rest: bytes) -> bytes:
    """A record of a run, to be sent at `moment` (nanoseconds of a clock of this process)."""
    return b"%b%016x%b" % (mark, moment, rest)


def moment_of(record: bytes) -> int:
    """When a stamped record was due.

    >>> moment_of(stamped(b"0123456789abcdef", 1_700, b"rest"))
    1700
    """
    return int(record[_DIGITS:STAMP], 16)


def encodable(encoding: str, values: Sequence[bytes]) -> list[Any]:
    """Values as the writer of a stream of that encoding takes them; `ConfigError` for arrow without pyarrow."""
    if encoding == "arrow":
        pa = pyarrow()
        schema = pa.schema([pa.field(COLUMN, pa.binary(), nullable=False)])
        return [pa.RecordBatch.from_pydict({COLUMN: list(values)}, schema=schema)]
    return [value.decode("ascii") for value in values] if encoding == "json" else list(values)


def values_of(data: epochal.Data, encoding: str) -> list[bytes]:
    """The values of a batch that `encodable` made."""
    if encoding == "arrow":
        return [value for batch in data.records() for value in batch.column(0).to_pylist()]
    return [value.encode("ascii") for value in data.records()] if encoding == "json" else data.records()


def count_records(data: epochal.Data, encoding: str) -> int:
    """How many records a batch has. An Arrow batch must be decoded for that, to count its rows."""
    return sum(batch.num_rows for batch in data.records()) if encoding == "arrow" else data.count

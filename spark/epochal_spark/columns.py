"""Arrow record batches as appends: which rows belong to one time and one segment, and what their payload holds.

Apart from the sink because it is plain column work that needs neither Spark's runtime nor a network, and is where the
time of a task goes. A record is a map from column name to value, of every column but the time's: the time is the
epoch's.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from epochal.errors import RecordTypeError, TimeShapeError
from epochal.protocol.times import Time

APPEND_RECORDS = 4096
"""Records of one append at most: large enough that its overhead does not show, small enough that a subscriber gets the
first of them early."""

APPEND_BYTES = 4 << 20
"""Bytes of one append, roughly, as Arrow holds them; well below the publisher's limit of 16 MiB."""

Place = Callable[[bytes | None], str]
"""Which segment takes a key."""


class Group(NamedTuple):
    """Rows of one time and one segment, in the order in which they came; `key` is that of one of them."""

    time: Time
    segment: str
    key: bytes | None
    rows: pa.RecordBatch


def groups(batch: pa.RecordBatch, time: str, key: str | None, place: Place) -> Iterator[Group]:
    """Divide a batch by time and segment, in the order of times. The same batch gives the same groups, always.

    Raises `TimeShapeError` for a time that is null or negative.
    """
    if not batch.num_rows:
        return
    leaves = [_checked(leaf, time) for leaf in _leaves(batch.column(time))]
    segments, keys, placed = _placed(batch, key, place)
    order = np.lexsort((placed, *reversed(leaves)))  # stable: rows of one group keep their order
    columns = [leaf[order] for leaf in (*leaves, placed)]
    changed = np.zeros(len(order) - 1, dtype=bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    starts = [0, *(np.flatnonzero(changed) + 1).tolist(), len(order)]
    rows = batch.select([name for name in batch.schema.names if name != time]).take(pa.array(order))
    times = batch.column(time)
    for start, end in pairwise(starts):
        at = int(columns[-1][start])
        yield Group(_time(times[int(order[start])].as_py()), segments[at], keys[at], rows.slice(start, end - start))


def chunks(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide the rows of one group into what one append carries."""
    size = max(1, min(APPEND_RECORDS, rows.num_rows * APPEND_BYTES // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def records(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as maps, column by column, which is several times faster than row by row."""
    names = rows.schema.names
    columns = [column.to_pylist(maps_as_pydicts="strict") for column in rows.columns]
    if not columns:
        return [{} for _ in range(rows.num_rows)]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """The ints of a time column, in the order of the shape."""
    if pa.types.is_struct(column.type):
        for part in column.flatten():  # carries the nulls of the struct into its parts
            yield from _leaves(part)
    else:
        yield column


def _checked(leaf: pa.Array, name: str) -> "np.ndarray[Any, np.dtype[np.int64]]":
    if not pa.types.is_integer(leaf.type):
        raise TimeShapeError(f"the time column {name!r} holds {leaf.type}; a time is an int or a struct of ints")
    if leaf.null_count:
        raise TimeShapeError(f"the time column {name!r} holds null; every record needs a time")
    values: np.ndarray[Any, np.dtype[np.int64]] = leaf.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if values.size and values.min() < 0:
        raise TimeShapeError(f"the time column {name!r} holds {values.min()}; times are 0 or greater")
    return values


def _placed(
    batch: pa.RecordBatch, key: str | None, place: Place
) -> "tuple[list[str], list[bytes | None], np.ndarray[Any, np.dtype[np.int64]]]":
    """The segments in use with a key of each, and for every row the index of its segment."""
    if key is None:
        return [place(None)], [None], np.zeros(batch.num_rows, dtype=np.int64)
    encoded = batch.column(key).dictionary_encode(null_encoding="encode")
    segments: dict[str, int] = {}
    keys: list[bytes | None] = []
    indices = []
    for value in encoded.dictionary.to_pylist():
        raw = key_bytes(value)
        segment = place(raw)
        if segment not in segments:
            segments[segment] = len(segments)
            keys.append(raw)
        indices.append(segments[segment])
    distinct = np.asarray(indices, dtype=np.int64)
    return list(segments), keys, distinct[encoded.indices.to_numpy(zero_copy_only=False)]


def key_bytes(value: Any) -> bytes | None:
    """A key as the bytes that place it: text as UTF-8, an int in decimal digits, null as no key.

    >>> key_bytes("JFK"), key_bytes(7), key_bytes(None)
    (b'JFK', b'7', None)
    """
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode()
        case int():
            return str(value).encode()
        case _:
            raise RecordTypeError(f"a key is text, bytes or an int, not {type(value).__name__}")


def _time(value: Any) -> Time:
    return value if isinstance(value, int) else tuple(_time(part) for part in value.values())

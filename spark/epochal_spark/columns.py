"""Which rows of an Arrow record batch belong to one time and one segment.

Separate from the sink because it is plain column work that needs neither Spark's runtime nor a network, and because a
task spends most of its time here.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from epochal.errors import RecordTypeError, TimeShapeError
from epochal.protocol.times import Time

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

Place = Callable[[bytes | None], str]
"""Which segment takes a key."""


class Group(NamedTuple):
    """Rows of one time and one segment, in the order in which they came; `key` is that of one of them."""

    time: Time
    segment: str
    key: bytes | None
    rows: pa.RecordBatch


def groups(
    batch: pa.RecordBatch, time: str, key: str | None, place: Place, rows: pa.RecordBatch | None = None
) -> Iterator[Group]:
    """Divide a batch by time and segment, in the order of times. The same batch gives the same groups, always.

    `rows`, if given, are divided instead of the batch's own. Raises `TimeShapeError` for a time that is null or
    negative.
    """
    if not batch.num_rows:
        return
    leaves = [_checked(leaf, time) for leaf in _leaves(batch.column(time))]
    segments, keys, placed = _placed(batch, key, place)
    columns, order = _ordered([*leaves, placed])
    changed = np.zeros(batch.num_rows - 1, dtype=bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    starts = [0, *(np.flatnonzero(changed) + 1).tolist(), batch.num_rows]
    divided = batch if rows is None else rows
    if order is not None:
        divided = divided.take(pa.array(order))
    times = batch.column(time)
    for start, end in pairwise(starts):
        at, first = int(columns[-1][start]), start if order is None else int(order[start])
        yield Group(_time(times[first].as_py()), segments[at], keys[at], divided.slice(start, end - start))


def _ordered(columns: list[Ints]) -> tuple[list[Ints], Ints | None]:
    """The columns sorted, by the first column first, and the indices that sort rows so; None where they are sorted."""
    if len(columns) == 2 and not columns[1].any() and bool((columns[0][1:] >= columns[0][:-1]).all()):
        return columns, None
    order = np.lexsort(columns[::-1])  # stable: rows of one group keep their order
    return [column[order] for column in columns], order


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """The ints of a time column, in the order of the shape."""
    if pa.types.is_struct(column.type):
        for part in column.flatten():  # carries the nulls of the struct into its parts
            yield from _leaves(part)
    else:
        yield column


def _checked(leaf: pa.Array, name: str) -> Ints:
    if not pa.types.is_integer(leaf.type):
        raise TimeShapeError(f"the time column {name!r} holds {leaf.type}; a time is an int or a struct of ints")
    if leaf.null_count:
        raise TimeShapeError(f"the time column {name!r} holds null; every record needs a time")
    values: Ints = leaf.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if values.size and values.min() < 0:
        raise TimeShapeError(f"the time column {name!r} holds {values.min()}; times are 0 or greater")
    return values


def _placed(batch: pa.RecordBatch, key: str | None, place: Place) -> tuple[list[str], list[bytes | None], Ints]:
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

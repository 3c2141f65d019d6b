"""Turns a DataFrame's columns into the records of an append, in the encoding and the schema that the stream declares.

Rows are divided by time, segment and topic first. With `arrow` a record is a whole record batch and nothing is done row
by row. With `msgpack` and `json` a record is a map from column name to value. This is plain column work, without
Spark's runtime or a network, and a task spends most of its time in it.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from epochal.client.encoding.arrow_schemas import to_arrow
from epochal.client.encoding.columns import key_bytes, maps, plain_type, too_long
from epochal.client.encoding.plain_columns import plain_array
from epochal.errors import RecordTypeError, TimeShapeError
from epochal.protocol.times import Time
from epochal.protocol.wire import MAX_KEY, MAX_TOPIC
from epochal_spark.declaration import Declared
from epochal_spark.schemas import payload_columns

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

Placer = Callable[[bytes | None], str]
"""Returns the segment for a key."""


class Group(NamedTuple):
    """Rows of one time, segment and topic, in their original order; `key` is a key that leads to the segment."""

    time: Time
    segment: str
    topic: bytes
    key: bytes | None
    rows: pa.RecordBatch


def groups(
    batch: pa.RecordBatch,
    time: str,
    key: str | None,
    topic: str | None,
    place: Placer,
    rows: pa.RecordBatch | None = None,
) -> Iterator[Group]:
    """Divide a batch by time, segment and topic, in the order of times. The same batch gives the same groups, always.

    `rows`, if given, are divided instead of the batch's own. Raises `TimeShapeError` for a time that is null or
    negative, `UsageError` for a key or topic that is too long.
    """
    if not batch.num_rows:
        return
    leaves = [_checked(leaf, time) for leaf in _leaves(batch.column(time))]
    segments, keys, placed = _placed(batch, key, place)
    topics, named = _topics(batch, topic)
    columns, order = _ordered([*leaves, placed * len(topics) + named])
    changed = np.zeros(batch.num_rows - 1, dtype=bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    starts = [0, *(np.flatnonzero(changed) + 1).tolist(), batch.num_rows]
    divided = batch if rows is None else rows
    if order is not None:
        divided = divided.take(pa.array(order))
    times = batch.column(time)
    for start, end in pairwise(starts):
        at, name = divmod(int(columns[-1][start]), len(topics))
        first = start if order is None else int(order[start])
        part = divided.slice(start, end - start)
        yield Group(_time(times[first].as_py()), segments[at], topics[name], keys[at], part)


def _ordered(columns: list[Ints]) -> tuple[list[Ints], Ints | None]:
    """The columns sorted, by the first column first, and the indices that sort the rows; None if already sorted."""
    if len(columns) == 2 and not columns[1].any() and bool((columns[0][1:] >= columns[0][:-1]).all()):
        return columns, None
    order = np.lexsort(columns[::-1])  # stable: rows of one group keep their order
    return [column[order] for column in columns], order


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """The ints of a time column, in the order of the shape."""
    if pa.types.is_struct(column.type):
        for part in column.flatten():  # the nulls of the struct become nulls of its parts
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


def _placed(batch: pa.RecordBatch, key: str | None, place: Placer) -> tuple[list[str], list[bytes | None], Ints]:
    """The segments in use with a key of each, and for every row the index of its segment."""
    if key is None:
        return [place(None)], [None], np.zeros(batch.num_rows, dtype=np.int64)
    encoded = batch.column(key).dictionary_encode(null_encoding="encode")
    segments: dict[str, int] = {}
    keys: list[bytes | None] = []
    indices = []
    for value in encoded.dictionary.to_pylist():
        raw = key_bytes(value)
        if raw is not None and len(raw) > MAX_KEY:
            raise too_long(key, "key", raw, MAX_KEY)
        segment = place(raw)
        if segment not in segments:
            segments[segment] = len(segments)
            keys.append(raw)
        indices.append(segments[segment])
    distinct = np.asarray(indices, dtype=np.int64)
    return list(segments), keys, distinct[encoded.indices.to_numpy(zero_copy_only=False)]


def _topics(batch: pa.RecordBatch, name: str | None) -> tuple[list[bytes], Ints]:
    """The topics in use, sorted, and for every row the index of its topic. Null is the empty topic."""
    if name is None:
        return [b""], np.zeros(batch.num_rows, dtype=np.int64)
    encoded = batch.column(name).dictionary_encode(null_encoding="encode")
    given = [key_bytes(value) or b"" for value in encoded.dictionary.to_pylist()]
    for topic in given:
        if len(topic) > MAX_TOPIC:
            raise too_long(name, "topic", topic, MAX_TOPIC)
    topics = sorted(set(given))  # sorted, so that another order of rows with the same topics gives the same batches
    index = {topic: at for at, topic in enumerate(topics)}
    distinct = np.asarray([index[topic] for topic in given], dtype=np.int64)
    return topics, distinct[encoded.indices.to_numpy(zero_copy_only=False)]


def _time(value: Any) -> Time:
    return value if isinstance(value, int) else tuple(_time(part) for part in value.values())


APPEND_RECORDS = 4096
"""Records of one append at most: large enough that its overhead does not show, small enough that a subscriber gets the
first of them early."""

APPEND_BYTES = 4 << 20
"""About the most bytes of one append, in Arrow's memory; well below the publisher's limit of 16 MiB."""


class Payload:
    """Turns rows into the records of one stream."""

    def __init__(self, declared: Declared, time: str) -> None:
        self._declared = declared
        self._time = time
        self._arrow = declared.encoding == "arrow"
        self._given: pa.Schema | None = None
        self._wanted: pa.Schema

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that a record holds, in order and of the declared types.

        Raises `RecordTypeError` that names the column, for a null or a value that the declared field cannot hold.
        """
        if self._given is None or not batch.schema.equals(self._given, check_metadata=True):
            self._given, self._wanted = batch.schema, self._schema_for(batch.schema)
        columns = [self._column(batch.column(field.name), field) for field in self._wanted]
        if not columns:
            return batch.select([])
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)

    def chunks(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Divide the rows of one group into parts of one append each."""
        most = rows.num_rows if self._arrow else min(APPEND_RECORDS, rows.num_rows)
        size = max(1, min(most, rows.num_rows * APPEND_BYTES // max(1, rows.nbytes)))
        for start in range(0, rows.num_rows, size):
            yield rows.slice(start, size)

    def records(self, rows: pa.RecordBatch) -> list[Any]:
        """The rows as the records of one append: one record batch, or a map for each row."""
        return [rows] if self._arrow else maps(rows)

    def _schema_for(self, given: pa.Schema) -> pa.Schema:
        if self._declared.schema is not None:
            schema: pa.Schema = to_arrow(self._declared.schema)
            return schema
        names = payload_columns(given.names, self._time, None)
        return pa.schema([pa.field(name, plain_type(given.field(name).type)) for name in names])

    def _column(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if not field.nullable and column.null_count:
            raise RecordTypeError(f"column {field.name!r} holds null; the stream's field is not nullable")
        if column.type.equals(field.type, check_metadata=True):
            return column
        plain = plain_array(column, field.name)
        try:
            return plain if plain.type.equals(field.type) else plain.cast(field.type)
        except pa.ArrowException as error:
            detail = f"column {field.name!r} holds what the stream's {field.type} cannot: {error}"
            raise RecordTypeError(detail) from None

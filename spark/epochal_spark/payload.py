"""Turns a DataFrame's columns into the records of an append, in the encoding and the schema that the stream declares.

Separate from `columns`, which divides rows by time and segment; this module decides what a subscriber gets. With
`arrow` a record is a whole record batch and nothing is done row by row. With `msgpack` and `json` a record is a map
from column name to value.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from epochal.client.encoding.arrow_schemas import to_arrow
from epochal.errors import RecordTypeError
from epochal_spark.declaration import Declared
from epochal_spark.schemas import payload_columns

APPEND_RECORDS = 4096
"""Records of one append at most: large enough that its overhead does not show, small enough that a subscriber gets the
first of them early."""

APPEND_BYTES = 4 << 20
"""Bytes of one append, roughly, as Arrow holds them; well below the publisher's limit of 16 MiB."""


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
        """Divide the rows of one group into what one append carries."""
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
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid as error:
            detail = f"column {field.name!r} holds what the stream's {field.type} cannot: {error}"
            raise RecordTypeError(detail) from None


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type as a subscriber gets it, whatever Spark's settings: instants in UTC, no large types, all nullable."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp(kind.unit, kind.tz and "UTC")
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(member.name, plain_type(member.type)) for member in kind])
    return kind


def maps(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """A map for each row; made in Arrow, several times faster than row by row here."""
    if not rows.num_columns:
        return [{} for _ in range(rows.num_rows)]
    array = rows.to_struct_array()
    # Converting maps to dicts doubles the time, so it is requested only where there are any.
    found: list[dict[str, Any]] = array.to_pylist(maps_as_pydicts="strict" if _has_map(array.type) else None)
    return found


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(index).type) for index in range(kind.num_fields))

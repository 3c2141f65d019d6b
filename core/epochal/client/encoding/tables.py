"""The records of an epoch as one table.

It does the reverse of `frames`; a reader needs nothing of what a writer must check and divide.
"""

import json
import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from epochal.client.encoding.arrow_schemas import to_arrow
from epochal.client.encoding.columns import is_carried, mixture, needs
from epochal.client.encoding.plain_columns import check_members, exact_values, parts_of
from epochal.client.encoding.record_checks import value_fault
from epochal.errors import UsageError
from epochal.resources.schemas import Field, Schema


def to_table(found: Iterable[Any], schema: Schema | None = None) -> Any:
    """The records of an epoch as a `pyarrow.Table`; one without columns if there are none.

    Raises `UsageError` for records that are neither record batches nor mappings, or whose values make no column.
    """
    pa = needs("pyarrow")
    rows = list(found)
    if not rows:
        return pa.table({})
    batches = [row for row in rows if isinstance(row, pa.RecordBatch)]
    if len(batches) == len(rows):
        return _concatenated(batches)
    for row in rows:
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            kind = type(row).__name__ if not isinstance(row, Mapping) else "a mapping with other names"
            raise UsageError(f"a record becomes a row if it is a mapping from text to values, and one here is {kind}")
    declared = {} if schema is None else _exact_fields(schema)
    names = dict.fromkeys(chain([] if schema is None else [field.name for field in schema.fields], *rows))
    return pa.table({name: _array([row.get(name) for row in rows], name, declared.get(name)) for name in names})


def to_pandas(table: Any) -> Any:
    """The table as a `pandas.DataFrame`, each value as it is.

    Where pandas' own types have no null, or the same for null and NaN, a column that needs it is of a nullable type:
    `Int64`, `UInt8`, `boolean`, `Float64`. Raises `UsageError` that names a column of which pandas has no type.
    """
    pd = needs("pandas")
    index = _index_columns(table.schema)
    columns = [(name, table[at]) for at, name in enumerate(table.column_names) if name not in index]
    for name, column in columns:
        check_members(column.type, name)
    frame = _converted(table)
    for at, (name, column) in enumerate(columns):
        if (dtype := _nullable_dtype(pd, column)) is not None:
            frame.isetitem(at, dtype.__from_arrow__(column))
        elif _is_changed(column.type):
            frame.isetitem(at, pd.Series(_objects(column, name), dtype=object, index=frame.index))
    return frame


def _converted(table: Any) -> Any:
    try:
        return table.to_pandas(**_AS_THEY_ARE)
    except _faults() as error:
        for at, name in enumerate(table.column_names):
            try:
                table[at].to_pandas(**_AS_THEY_ARE)
            except _faults() as reason:
                kind = table[at].type
                raise UsageError(
                    f"column {name!r} is {kind}, and pandas cannot hold it: {reason}; use to_arrow()"
                ) from None
        raise UsageError(f"pandas cannot hold this table: {error}; use to_arrow()") from None


_AS_THEY_ARE = {"integer_object_nulls": True}
"""Without it an int beside a null becomes a float, also within lists."""


def _faults() -> tuple[type[Exception], ...]:
    return (needs("pyarrow").ArrowException, OverflowError, ValueError)


def _index_columns(schema: Any) -> set[str]:
    """The columns that become the index, in record batches that pandas made."""
    written = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    return {name for name in written.get("index_columns", ()) if isinstance(name, str)}


def _nullable_dtype(pd: Any, column: Any) -> Any:
    """The type of pandas that holds the nulls of this column of plain numbers or booleans; None where it needs none."""
    pa, pc = needs("pyarrow"), needs("pyarrow.compute")
    kind = column.type
    if not column.null_count:
        return None
    if pa.types.is_boolean(kind):
        return pd.BooleanDtype()
    if pa.types.is_integer(kind):
        return pd.api.types.pandas_dtype(f"{'U' if str(kind).startswith('u') else ''}Int{kind.bit_width}")
    if (pa.types.is_float32(kind) or pa.types.is_float64(kind)) and pc.any(pc.is_nan(column)).as_py():
        return pd.api.types.pandas_dtype(f"Float{kind.bit_width}")  # else NaN, which pandas has for null in floats
    return None


def _is_changed(kind: Any, *, nested: bool = False, member: bool = False) -> bool:
    """Whether pandas loses something of a nested type: the zone of a time in a list, the unit of one in a struct."""
    types = needs("pyarrow").types
    if types.is_timestamp(kind):
        return nested and (kind.tz is not None or (member and kind.unit == "ns"))
    if types.is_duration(kind):
        return member
    member = member or types.is_struct(kind) or types.is_map(kind)
    return any(_is_changed(inner, nested=True, member=member) for inner, _ in parts_of(kind, ""))


def _objects(column: Any, name: str) -> list[Any]:
    try:
        found: list[Any] = exact_values(column)
    except _faults() as error:
        raise UsageError(
            f"column {name!r} is {column.type}, and pandas cannot hold it: {error}; use to_arrow()"
        ) from None
    return found


def _concatenated(batches: list[Any]) -> Any:
    pa = needs("pyarrow")
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise UsageError(f"the record batches of this epoch have different schemas: {error}") from None


def _exact_fields(schema: Schema) -> dict[str, tuple[Field, Any]]:
    """The fields, with Arrow types, whose values msgpack and json carry as they are, in one form only."""
    pairs = zip(schema.fields, to_arrow(schema), strict=True)
    return {field.name: (field, kind.type) for field, kind in pairs if is_carried(kind.type, "json")}


def _array(values: list[Any], name: str, declared: tuple[Field, Any] | None) -> Any:
    """A column of these values; of the declared type, which must hold each of them as it is."""
    pa = needs("pyarrow")
    try:
        if declared is None:
            if mixed := mixture(values):
                raise UsageError(f"the values of {name!r} in this epoch are not of one type: {mixed}")
            return _inferred(values)
        field, kind = declared
        if fault := value_fault(field, "json", values):
            raise UsageError(f"the values of {name!r} in this epoch are not what the stream declares: it{fault}")
        array = pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise UsageError(f"the values of {name!r} in this epoch are not of one type: {error}") from None
    if pa.types.is_float32(kind) and (large := _too_large(values, array)) is not None:
        raise UsageError(f"the values of {name!r} in this epoch do not fit {field.type}: {large}")
    return array


def _inferred(values: list[Any]) -> Any:
    pa = needs("pyarrow")
    try:
        return pa.array(values)
    except OverflowError:
        if set(map(type, values)) <= {int, type(None)}:
            return pa.array(values, pa.uint64())  # the other ints that msgpack has
        raise


def _too_large(values: list[Any], array: Any) -> Any:
    """The first finite value that became infinite as a float32; None if there is none."""
    infinite = needs("pyarrow.compute").is_inf(array).to_pylist()
    return next(
        (value for value, is_one in zip(values, infinite, strict=True) if is_one and math.isfinite(value)), None
    )

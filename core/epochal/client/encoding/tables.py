"""The records of an epoch as one table.

Separate from `frames`, which does the reverse, because a reader needs nothing of what a writer must check and divide.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from epochal.client.encoding.arrow_schemas import to_arrow
from epochal.client.encoding.columns import is_carried, needs
from epochal.errors import UsageError
from epochal.resources.schemas import Schema


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
    types = {} if schema is None else _exact_types(schema)
    names = dict.fromkeys(chain([] if schema is None else [field.name for field in schema.fields], *rows))
    return pa.table({name: _array([row.get(name) for row in rows], name, types.get(name)) for name in names})


def _concatenated(batches: list[Any]) -> Any:
    pa = needs("pyarrow")
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise UsageError(f"the record batches of this epoch have different schemas: {error}") from None


def _exact_types(schema: Schema) -> dict[str, Any]:
    """The Arrow types of the fields whose values msgpack and json carry as they are, in one form only."""
    return {field.name: field.type for field in to_arrow(schema) if is_carried(field.type, "json")}


def _array(values: list[Any], name: str, kind: Any) -> Any:
    pa = needs("pyarrow")
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise UsageError(f"the values of {name!r} in this epoch are not of one type: {error}") from None

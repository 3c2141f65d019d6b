"""Makes Arrow record batches from rows of JSON or of files: in the declared types, with every value unchanged.

`pyarrow.RecordBatch.from_pylist` would take 1.5 for an int, leave out fields that the schema does not have, and put
null where the schema has none.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from epochal.client.encoding.arrow_schemas import pyarrow, to_arrow
from epochal.client.encoding.columns import is_alike, is_carried, mixture
from epochal.client.encoding.record_checks import value_fault
from epochal.errors import RecordTypeError
from epochal.resources.problems import nearest
from epochal.resources.schemas import Field, Schema


def record_batch(records: Sequence[Mapping[str, Any]], schema: Schema | None) -> Any:
    """One `pyarrow.RecordBatch`; without a schema its types follow from the values.

    Raises `RecordTypeError` that names the field.
    """
    pa = pyarrow()
    names = dict.fromkeys(name for record in records for name in record)
    if schema is None:
        columns = {name: [record.get(name) for record in records] for name in names}
        arrays = [_inferred(name, values) for name, values in columns.items()]
        return pa.RecordBatch.from_arrays(arrays, names=[*columns])
    declared = [field.name for field in schema.fields]
    for name in names:
        if name not in declared:
            hint = nearest(name, declared)
            raise RecordTypeError(f"it has a field {name[:80]}, which the stream does not declare; {hint}")
    kinds = to_arrow(schema)
    arrays = [
        _declared(field, kind.type, [record.get(field.name) for record in records])
        for field, kind in zip(schema.fields, kinds, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=kinds)


def _inferred(name: str, values: list[Any]) -> Any:
    pa = pyarrow()
    if mixed := mixture(values):
        raise RecordTypeError(f"the values of its field {name} are not of one type: {mixed}")
    try:
        return pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise RecordTypeError(f"the values of its field {name} are not of one type: {error}") from None


def _declared(field: Field, kind: Any, values: list[Any]) -> Any:
    pa = pyarrow()
    if not field.nullable and None in values:
        raise RecordTypeError(
            f"its field {field.name} is missing; it must be {field.type}, and is declared as not null"
        )
    fault = value_fault(field, "json", values) if is_carried(kind, "json") else ""
    if fault:
        raise RecordTypeError(f"its field {field.name}{fault}")
    try:
        if not is_carried(kind, "json") and not mixture(values):
            found = _of_python(values)
            if found is not None and is_alike(found.type, kind):
                return found.cast(kind)  # raises for a value that the declared unit or scale cannot hold
        array = pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise RecordTypeError(f"its field {field.name} must be {field.type}: {error}") from None
    if pa.types.is_float32(kind):
        for value, held in zip(values, array.to_pylist(), strict=True):
            if held is not None and math.isinf(held) and math.isfinite(value):
                raise RecordTypeError(f"its field {field.name} must be {field.type}, and {value} is too large")
    return array


def _of_python(values: list[Any]) -> Any:
    """The Arrow type of the values; None for texts and numbers, where the declared type decides."""
    pa = pyarrow()
    if any(isinstance(value, str | int | float) for value in values):
        return None
    try:
        return pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None

"""Converts declared payload schemas to Arrow schemas and back.

Separate from the schemas themselves because pyarrow is installed only where Arrow is used. Nothing here imports it
before it is needed, and without it the error says what to install.
"""

from typing import Any

from epochal.errors import ConfigError, Problem
from epochal.resources.schemas import Decimal, Field, ListOf, Plain, Schema, Struct, Timestamp, Type, parse_type

_NAMES = {"bool": "bool_", "float32": "float32", "float64": "float64"}


def pyarrow() -> Any:
    """The module; raises `ConfigError` that says what to install."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise ConfigError("the encoding arrow needs pyarrow, which is not installed: pip install pyarrow") from None
    return pyarrow


def is_arrow(value: object) -> bool:
    """Whether `value` is a `pyarrow.Schema`, without importing pyarrow."""
    return type(value).__module__.partition(".")[0] == "pyarrow" and type(value).__name__ == "Schema"


def to_arrow(schema: Schema) -> Any:
    """The `pyarrow.Schema`; members of structs and items of lists may be null."""
    pa = pyarrow()
    return pa.schema([pa.field(field.name, _to_type(pa, field.type), field.nullable) for field in schema.fields])


def from_arrow(schema: Any) -> Schema:
    """The schema of a `pyarrow.Schema`; raises `ConfigError` that names each field whose type no stream can declare."""
    fields: list[Field] = []
    problems: list[Problem] = []
    for field in schema:
        try:
            fields.append(Field(field.name, _from_type(pyarrow(), field.type), field.nullable))
        except ValueError as error:
            problems.append(Problem(f"payload.schema.fields.{field.name}.type", str(error), "cast the column"))
    if problems:
        raise ConfigError("a stream cannot declare this Arrow schema", problems)
    return Schema(tuple(fields))


def _to_type(pa: Any, kind: Type) -> Any:
    match kind:
        case Plain():
            return getattr(pa, _NAMES.get(kind.name, kind.name))()
        case Timestamp():
            return pa.timestamp(kind.unit, kind.zone or None)
        case Decimal():
            return pa.decimal128(kind.precision, kind.scale)
        case ListOf():
            return pa.list_(_to_type(pa, kind.item))
        case Struct():
            return pa.struct([pa.field(name, _to_type(pa, member)) for name, member in kind.members])


def _from_type(pa: Any, kind: Any) -> Type:
    types = pa.types
    if types.is_timestamp(kind):
        return Timestamp(kind.unit, kind.tz or "")
    if types.is_decimal128(kind):
        return Decimal(kind.precision, kind.scale)
    if types.is_list(kind):
        return ListOf(_from_type(pa, kind.value_type))
    if types.is_struct(kind):
        members = tuple((member.name, _from_type(pa, member.type)) for member in kind)
        read = parse_type(str(Struct(members))) if members else None
        if read != Struct(members):
            raise ValueError(f"{kind} has a member whose name cannot be written down")
        return Struct(members)
    name = {"float": "float32", "double": "float64", "halffloat": "float16"}.get(str(kind), str(kind))
    if name == "date32[day]":
        name = "date32"
    plain = parse_type(name)  # refuses what is not in the grammar
    if not isinstance(plain, Plain):
        raise ValueError(f"{kind} is not known")
    return plain

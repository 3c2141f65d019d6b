"""Checks that a DataFrame's columns can be published.

A query is refused here before it starts; `payload` works on the data. The error names every wrong column, its type in
the stream and in the DataFrame, and how to correct it.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import types as t

from epochal.errors import ConfigError, Problem, TimeShapeError
from epochal.protocol.times import TimeShape
from epochal.resources.schemas import Decimal, ListOf, Plain, Schema, Struct, Timestamp, Type
from epochal_spark.declaration import Declared
from epochal_spark.options import SinkOptions

_MSGPACK = (t.NullType, t.BooleanType, t.IntegralType, t.FloatType, t.DoubleType, t.StringType, t.BinaryType)
_ARROW = (*_MSGPACK, t.DecimalType, t.DateType, t.TimestampType, t.TimestampNTZType, t.TimeType, t.DayTimeIntervalType)
_JSON = tuple(kind for kind in _MSGPACK if kind is not t.BinaryType)
_CARRIED = {"msgpack": _MSGPACK, "arrow": _ARROW, "json": _JSON}
"""Plain types that an encoding carries; maps with text keys, arrays and structs of them as well."""

_SPARK_TYPES = {
    "bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint",
    "uint8": "smallint", "uint16": "int", "uint32": "bigint", "uint64": "bigint",
    "float32": "float", "float64": "double", "string": "string", "binary": "binary", "date32": "date",
}  # fmt: skip
"""Spark's type for each plain type. Spark has no unsigned ints: the next larger type carries them, value by value."""


def check_schema(schema: t.StructType, options: SinkOptions, declared: Declared | None = None) -> None:
    """Raise `ConfigError` with every column that cannot be published; `declared` is the stream's, where it is known."""
    encoding = "arrow" if declared is None else declared.encoding
    problems = [*_columns(schema), *_time(schema, options.time, declared)]
    problems += [*_key(schema, options.key), *_topic(schema, options.topic)]
    fields = None if declared is None else declared.schema
    if fields is not None:
        problems += _fields(schema, {options.time, options.key, options.topic}, fields)
    problems += _payload(schema, payload_columns(schema.names, options.time, fields), encoding)
    if declared is not None and encoding == "arrow" and schema.names == [options.time]:
        problems.append(Problem(options.time, "is the only column", "the time is the epoch's; add another column"))
    if problems:
        raise ConfigError(f"the columns cannot be published to {options.stream}:", problems)


def payload_columns(names: list[str], time: str, declared: Schema | None) -> list[str]:
    """The columns that a record holds, in order: the declared ones, else all but the time, which is the epoch's."""
    if declared is not None:
        return [field.name for field in declared.fields]
    return [name for name in names if name != time]


def spark_type(kind: Type) -> str:
    """The type of a column that carries a declared type, as Spark spells it.

    >>> from epochal.resources.schemas import parse_type
    >>> spark_type(parse_type("struct<at: timestamp[ms, UTC], fares: list<decimal128(9, 2)>>"))
    'struct<at:timestamp,fares:array<decimal(9,2)>>'
    """
    match kind:
        case Plain():
            return _SPARK_TYPES[kind.name]
        case Timestamp():
            return "timestamp" if kind.zone else "timestamp_ntz"
        case Decimal():
            return f"decimal({kind.precision},{kind.scale})"
        case ListOf():
            return f"array<{spark_type(kind.item)}>"
        case Struct():
            return f"struct<{','.join(f'{name}:{spark_type(member)}' for name, member in kind.members)}>"


def _columns(schema: t.StructType) -> Iterator[Problem]:
    for name in sorted({name for name in schema.names if schema.names.count(name) > 1}):
        yield Problem(name, "is there more than once", "give every column a name of its own")


def _time(schema: t.StructType, name: str, declared: Declared | None) -> Iterator[Problem]:
    if name not in schema.names:
        yield Problem(name, "is no column (option time)", f"there are {', '.join(schema.names)}")
        return
    kind = schema[name].dataType
    try:
        form = _form(kind)
    except TimeShapeError:
        hint = f'a time is an integer, or a struct of integers; cast it, e.g. f.col("{name}").cast("bigint")'
        yield Problem(name, f"is {kind.simpleString()} (option time)", hint)
        return
    if declared is not None and form != declared.shape.form:
        yield Problem(name, f"has the shape {TimeShape(form)}", f"the stream's times have the shape {declared.shape}")


def _form(kind: t.DataType) -> Any:
    """The shape's form of a column's type; raises `TimeShapeError` where it has none."""
    if isinstance(kind, t.IntegralType):
        return None
    if isinstance(kind, t.StructType):
        return tuple(_form(field.dataType) for field in kind.fields)
    raise TimeShapeError(f"{kind.simpleString()} is no time")


def _key(schema: t.StructType, name: str | None) -> Iterator[Problem]:
    if name is None:
        return
    if name not in schema.names:
        yield Problem(name, "is no column (option key)", f"there are {', '.join(schema.names)}")
    elif not isinstance(schema[name].dataType, t.StringType | t.BinaryType | t.IntegralType):
        kind = schema[name].dataType.simpleString()
        yield Problem(name, f"is {kind} (option key)", "a key is a string, binary or an integer; cast it")


def _topic(schema: t.StructType, name: str | None) -> Iterator[Problem]:
    if name is None:
        return
    if name not in schema.names:
        yield Problem(name, "is no column (option topic)", f"there are {', '.join(schema.names)}")
    elif not isinstance(schema[name].dataType, t.StringType | t.BinaryType):
        kind = schema[name].dataType.simpleString()
        yield Problem(name, f"is {kind} (option topic)", "a topic is a string or binary; cast it")


def _fields(schema: t.StructType, used: set[str | None], declared: Schema) -> Iterator[Problem]:
    """The differences between the columns and the fields that the stream declares (S28).

    Columns that are `used` for time, key or topic need no field: their values are in the epoch or its batches.
    """
    has = {field.name: field.dataType for field in schema.fields}
    for field in declared.fields:
        wanted = spark_type(field.type)
        if field.name not in has:
            mend = f'.withColumn("{field.name}", f.lit(None).cast("{wanted}"))' if field.nullable else "add it"
            yield Problem(field.name, f"is no column; the stream has {field.type}", mend)
        elif (found := _spelled(has[field.name])) != wanted:
            mend = f'.withColumn("{field.name}", f.col("{field.name}").cast("{wanted}"))'
            yield Problem(field.name, f"is {found}; the stream has {field.type}", mend)
    for name in has.keys() - {field.name for field in declared.fields} - used:
        yield Problem(name, f"is {_spelled(has[name])}; the stream has no such field", f'.drop("{name}")')


def _spelled(kind: t.DataType) -> str:
    return "string" if isinstance(kind, t.StringType) else kind.simpleString()


def _payload(schema: t.StructType, names: list[str], encoding: str) -> Iterator[Problem]:
    for field in schema.fields:
        if field.name in names:
            yield from _carried(field.name, field.dataType, encoding)


def _carried(path: str, kind: t.DataType, encoding: str) -> Iterator[Problem]:
    """The parts of a column that the encoding cannot carry."""
    match kind:
        case t.StructType():
            for name in sorted({name for name in kind.names if kind.names.count(name) > 1}):
                yield Problem(path, f"has the member {name} more than once", "give every member a name of its own")
            for field in kind.fields:
                yield from _carried(f"{path}.{field.name}", field.dataType, encoding)
        case t.ArrayType():
            yield from _carried(f"{path}[]", kind.elementType, encoding)
        case t.MapType() if isinstance(kind.keyType, t.StringType):
            yield from _carried(f"{path}{{}}", kind.valueType, encoding)
        case _ if not isinstance(kind, _CARRIED[encoding]):
            hint = "cast it to string or bigint" + ("" if encoding == "arrow" else ", or declare encoding: arrow")
            yield Problem(path, f"is {kind.simpleString()}, which {encoding} cannot carry", hint)

"""What a DataFrame's columns must be so that they can be published.

Apart from `columns`, which works on the data: here a query is refused before it starts, with every wrong column named.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import types as t

from epochal.errors import ConfigError, Problem, TimeShapeError
from epochal.protocol.times import TimeShape
from epochal_spark.options import SinkOptions

_PLAIN = (t.NullType, t.BooleanType, t.IntegralType, t.FloatType, t.DoubleType, t.StringType, t.BinaryType)


def check_schema(schema: t.StructType, options: SinkOptions, shape: TimeShape | None = None) -> None:
    """Raise `ConfigError` with every column that cannot be published; `shape` is the stream's, where it is known."""
    problems = [*_time(schema, options.time, shape), *_key(schema, options.key), *_payload(schema, options.time)]
    if problems:
        raise ConfigError(f"the columns cannot be published to {options.stream}:", problems)


def _time(schema: t.StructType, name: str, shape: TimeShape | None) -> Iterator[Problem]:
    if name not in schema.names:
        yield Problem(name, "is no column (option time)", f"there are {', '.join(schema.names)}")
        return
    kind = schema[name].dataType
    try:
        form = _form(kind)
    except TimeShapeError:
        yield Problem(
            name, f"is {kind.simpleString()} (option time)", "a time is an integer, or a struct of integers; cast it"
        )
        return
    if shape is not None and form != shape.form:
        yield Problem(name, f"has the shape {TimeShape(form)}", f"the stream's times have the shape {shape}")


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


def _payload(schema: t.StructType, time: str) -> Iterator[Problem]:
    for name in schema.names:
        if schema.names.count(name) > 1:
            yield Problem(name, "stands more than once", "give every column a name of its own")
    for field in schema.fields:
        if field.name != time:
            yield from _carried(field.name, field.dataType)


def _carried(path: str, kind: t.DataType) -> Iterator[Problem]:
    """What msgpack cannot carry."""
    match kind:
        case t.StructType():
            for field in kind.fields:
                yield from _carried(f"{path}.{field.name}", field.dataType)
        case t.ArrayType():
            yield from _carried(f"{path}[]", kind.elementType)
        case t.MapType() if isinstance(kind.keyType, t.StringType):
            yield from _carried(f"{path}{{}}", kind.valueType)
        case _ if not isinstance(kind, _PLAIN):
            yield Problem(path, f"is {kind.simpleString()}, which msgpack cannot carry", "cast it to string or bigint")

"""Tables of pandas, polars and Arrow, checked and divided into what is appended.

This is column work: it needs pyarrow, but no stream. A table is whatever offers Arrow's C stream, so polars is never
imported.

Rows are divided by time and segment without Python code for each row: they are sorted in Arrow, and each group is a
slice of the sorted table.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from epochal.client.encoding.arrow_schemas import to_arrow
from epochal.client.encoding.columns import (
    check_keys,
    is_alike,
    is_carried,
    key_bytes,
    leaves,
    maps,
    mixture,
    needs,
    uncarried,
)
from epochal.client.encoding.encodings import MAX_RECORDS
from epochal.client.encoding.plain_columns import check_members, plain_column
from epochal.errors import TimeShapeError, UsageError
from epochal.protocol.times import TimeShape
from epochal.resources.problems import nearest
from epochal.resources.schemas import Schema

APPEND_BYTES = 4 * 2**20
"""Bytes of one append, roughly, as Arrow holds them; well below the publisher's limit of 16 MiB."""

TimeColumns: TypeAlias = str | Sequence[str]
"""The column of times, or one for each part of a time that is a tuple."""

_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas calls the column of an index without a name, such as the one that is left by a filter."""


class Group(NamedTuple):
    """Rows of one time and one segment, in the order of the frame."""

    time: Any
    """As the frame has it."""
    segment: str | None
    """None for rows without a key: any segment may take them."""
    key: bytes | None
    """That of all rows; None where they differ."""
    rows: Any
    """A `pyarrow.Table`."""


@dataclass(frozen=True, slots=True)
class _Times:
    """The columns that times are made of; `form` mirrors a time, with None for each of these columns."""

    form: Any
    leaves: list[Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a frame to append: the columns of the records, and the time, key and topic of each row."""

    columns: Any
    """A `pyarrow.Table` of what the records hold."""
    times: _Times
    keys: Any
    """The column of keys; None if there is none."""


# ---- from a frame to groups of rows ----


def read(
    frame: Any,
    time: TimeColumns | None,
    key: str | None,
    *,
    encoding: str,
    schema: Schema | None = None,
    shape: TimeShape | None = None,
) -> Rows:
    """Check a frame against the stream, and find its columns.

    `time` None: the rows have no times of their own. `shape`: that of the stream's times; None where a `time_codec`
    makes them, from any values. Raises `UsageError` that names the column, and `TimeShapeError` for one of times.
    """
    needs("pyarrow.compute")
    if encoding == "bytes":
        raise UsageError("this stream's encoding is bytes, which has no rows; declare arrow, msgpack or json")
    table = _plain(_table(frame))
    names = [] if time is None else [time] if isinstance(time, str) else list(time)
    wanted = set() if schema is None else {field.name for field in schema.fields}
    unnamed = [name for name in table.column_names if _INDEX.fullmatch(name) and name not in {*names, key, *wanted}]
    table = table.drop_columns(unnamed)
    times = _times(table, time, shape)
    keys = None if key is None else _key_column(table, key)
    return Rows(_columns(table, names, key, encoding, schema), times, keys)


def groups(rows: Rows, place: Callable[[bytes], str]) -> Iterator[Group]:
    """Divide rows by time and segment, in ascending order of times; `place` says which segment takes a key.

    Rows of one group keep their order. A time is an int, or a tuple as the shape has it.
    """
    pa, pc = needs("pyarrow"), needs("pyarrow.compute")
    count = rows.columns.num_rows
    if not count:
        return
    segments, keys, placed = _placed(rows.keys, count, place)
    names = [str(index) for index in range(len(rows.times.leaves))]
    order_by = [*names, "segment"]
    by = pa.table({**dict(zip(names, rows.times.leaves, strict=True)), **placed})
    order = pc.sort_indices(by, sort_keys=[(name, "ascending") for name in order_by])  # stable: groups keep their order
    columns = rows.columns
    if not order.equals(pa.arange(0, count).cast(order.type)):
        by, columns = by.take(order), _taken(columns, order)
    starts = _starts(by.select(order_by))
    first = by.take(starts)
    times = zip(*(first[name].to_pylist() for name in names), strict=True) if names else iter([()] * len(starts))
    bounds = pairwise([*starts.to_pylist(), count])
    for values, (start, end), segment in zip(times, bounds, first["segment"].to_pylist(), strict=True):
        key = _shared(pc, by["key"].slice(start, end - start), keys)
        time = _filled(rows.times.form, iter(values))
        yield Group(time, segments[segment], key, columns.slice(start, end - start))


def _taken(columns: Any, order: Any) -> Any:
    pa = needs("pyarrow")
    taken = []
    for name in columns.column_names:
        try:
            taken.append(columns[name].take(order))
        except pa.ArrowInvalid as error:  # the offsets of text and binary have 32 bits
            raise UsageError(f"column {name!r} holds more than 2 GiB, so append the frame in parts: {error}") from None
        except pa.ArrowException as error:
            kind = columns[name].type
            raise UsageError(f"column {name!r} is {kind}, of which rows cannot be put in order: {error}") from None
    return pa.table(taken, schema=columns.schema)


def pieces(rows: Any, encoding: str, most: int) -> Iterator[Any]:
    """Divide the rows of a group into what one append carries: about 4 MiB, and up to `most` records."""
    most = MAX_RECORDS if encoding == "arrow" else most
    size = max(1, min(most, rows.num_rows * APPEND_BYTES // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def records(rows: Any, encoding: str) -> list[Any]:
    """Rows as the writer takes them: one record batch, or a map for each row."""
    return rows.combine_chunks().to_batches() if encoding == "arrow" else maps(rows)


def _table(frame: Any) -> Any:
    pa = needs("pyarrow")
    if not hasattr(frame, "__arrow_c_stream__"):
        kind = type(frame).__name__
        raise UsageError(f"a frame is a table of pandas (2.2 or newer), polars or Arrow, not {kind}")
    _check_objects(frame)
    try:
        table = pa.table(frame)
    except _unreadable() as error:
        column = _named_unreadable(frame)
        raise UsageError(f"the frame cannot be read as an Arrow table: {column}{error}") from None
    names = table.column_names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"column {twice[0]!r} is there more than once; give every column a name of its own")
    return table


def _unreadable() -> tuple[type[Exception], ...]:
    """What pyarrow raises for a frame, or a column, of which it makes no table."""
    return (needs("pyarrow").ArrowException, OverflowError, TypeError, ValueError)


def _named_unreadable(frame: Any) -> str:
    """Names the first column that is no Arrow column by itself; empty where none can be asked for."""
    for name in getattr(frame, "columns", ()):
        try:
            needs("pyarrow").table(frame[[name]])
        except _unreadable():
            return f"column {name!r}: "
        except Exception:  # not a frame that gives single columns so
            break
    return ""


def _check_objects(frame: Any) -> None:
    """Refuse columns of Python objects that would become other values in Arrow without an error."""
    library = type(frame).__module__.partition(".")[0]
    if library == "polars":
        for name, kind in zip(frame.columns, frame.dtypes, strict=True):
            if str(kind) == "Object":  # given away as the addresses of the objects
                raise UsageError(f"column {name!r} holds Python objects, which Arrow has not: cast it")
    if library == "pandas" and hasattr(frame, "dtypes"):
        for at, (name, kind) in enumerate(zip(frame.columns, frame.dtypes, strict=True)):
            if str(kind) == "object" and (mixed := mixture(frame.iloc[:, at].dropna().tolist())):
                raise UsageError(f"column {name!r} holds {mixed}, which one column cannot keep apart: cast it")


def _plain(table: Any) -> Any:
    """The table with the types that subscribers get, and without what pandas writes beside the columns."""
    for field in table.schema:
        check_members(field.type, field.name)
    return needs("pyarrow").table({name: plain_column(table[name], name) for name in table.column_names})


def _cast(column: Any, field: Any) -> Any:
    pa = needs("pyarrow")
    if column.type.equals(field.type):
        return column
    try:
        cast = column.cast(field.type)
    except pa.ArrowException as error:
        raise UsageError(f"column {field.name!r} is {column.type}, and {field.type} cannot hold it: {error}") from None
    for given, made in zip(column.chunks, cast.chunks, strict=True):
        _check_rounding(given, made, field.name)
    return cast


def _check_rounding(given: Any, made: Any, name: str) -> None:
    """Raise `UsageError` where a cast has rounded: Arrow does so to a smaller float, and refuses all else."""
    pa, pc = needs("pyarrow"), needs("pyarrow.compute")
    if not any(pa.types.is_floating(leaf.type) for leaf, _ in leaves(made, name)):
        return
    before = {path: leaf for leaf, path in leaves(given, name)}
    for leaf, path in leaves(made, name):
        first = before.get(path)  # none within what is null in every row
        if first is not None and pa.types.is_floating(first.type) and first.type.bit_width > leaf.type.bit_width:
            rounded = pc.and_not(pc.not_equal(first, leaf.cast(first.type)), pc.is_nan(first))
            if pc.any(rounded).as_py():
                value = first.filter(rounded)[0]
                raise UsageError(
                    f"column {path!r} is {first.type}, and {leaf.type} cannot hold it: {value} is rounded; cast it"
                )


def _column(table: Any, name: str, parameter: str) -> Any:
    if name not in table.column_names:
        hint = nearest(str(name), table.column_names)
        raise UsageError(f"{parameter}= names the column {name!r}, which the frame does not have; {hint}")
    return table[name]


# ---- times ----


def _times(table: Any, given: TimeColumns | None, shape: TimeShape | None) -> _Times:
    if given is None:
        return _Times((), [])
    names = [given] if isinstance(given, str) else list(given)
    columns = [_column(table, name, "time") for name in names]
    forms = tuple(_form(column.type) for column in columns)
    form = forms[0] if isinstance(given, str) else forms
    if shape is not None and form != shape.form:
        raise TimeShapeError(
            f"time={given!r} has the shape {TimeShape(form)}, and the stream's times have the shape {shape}; "
            "name one column of integers for each part, or a struct of them"
        )
    leaves = [
        _checked(leaf, name, integers=shape is not None)
        for name, column in zip(names, columns, strict=True)
        for leaf in _leaves(column)
    ]
    return _Times(form, leaves)


def _form(kind: Any) -> Any:
    types = needs("pyarrow").types
    return tuple(_form(member.type) for member in kind) if types.is_struct(kind) else None


def _leaves(column: Any) -> Iterator[Any]:
    """The columns of ints of a time column, in the order of the shape."""
    if _form(column.type) is None:
        yield column
    else:
        for part in column.flatten():  # carries the nulls of the struct into its parts
            yield from _leaves(part)


def _checked(leaf: Any, name: str, *, integers: bool) -> Any:
    """The column, as int64 where it must hold times itself; `integers` is false where a codec makes the times."""
    pa, pc = needs("pyarrow"), needs("pyarrow.compute")
    types = pa.types
    if integers and not types.is_integer(leaf.type):
        raise TimeShapeError(f"the time column {name!r} is {leaf.type}; a time is an integer: cast it to int64")
    if leaf.null_count:
        raise TimeShapeError(
            f"the time column {name!r} holds null in {leaf.null_count} of {len(leaf)} rows; every row needs a time"
        )
    if types.is_nested(leaf.type):
        raise TimeShapeError(f"the time column {name!r} is {leaf.type}; name a column of plain values, or a struct")
    if not integers:
        return leaf
    span = pc.min_max(leaf).as_py()
    if len(leaf) and not 0 <= span["min"] <= span["max"] < 2**63:
        raise TimeShapeError(f"the time column {name!r} holds {span['min']} to {span['max']}; times are 0 .. 2^63-1")
    return leaf.cast(pa.int64())


def _filled(form: Any, values: Iterator[Any]) -> Any:
    """The time of a form, with these values in place of each None."""
    return next(values) if form is None else tuple(_filled(part, values) for part in form)


# ---- keys ----


def _key_column(table: Any, name: str) -> Any:
    types = needs("pyarrow").types
    column = _column(table, name, "key")
    allowed = (types.is_string, types.is_integer, types.is_binary, types.is_fixed_size_binary, types.is_null)
    if not any(is_one(column.type) for is_one in allowed):
        raise UsageError(f"the key column {name!r} is {column.type}; a key is text, binary or an integer: cast it")
    if types.is_string(column.type) or types.is_binary(column.type) or types.is_fixed_size_binary(column.type):
        check_keys(column, name)
    return column


def _placed(
    column: Any, count: int, place: Callable[[bytes], str]
) -> tuple[list[str | None], list[bytes | None], dict[str, Any]]:
    """The segments in use, the distinct keys, and for every row the indices of both."""
    pa = needs("pyarrow")
    nothing = pa.nulls(count, pa.int32())
    if column is None or pa.types.is_null(column.type):
        return [None], [], {"segment": nothing.fill_null(0), "key": nothing}
    encoded = column.dictionary_encode().combine_chunks()
    keys = [key_bytes(value) for value in encoded.dictionary.to_pylist()]
    segments: dict[str | None, int] = {None: 0}
    places = [segments.setdefault(place(key), len(segments)) for key in keys if key is not None]
    placed = pa.array(places, pa.int32()).take(encoded.indices).fill_null(0)
    return list(segments), keys, {"segment": placed, "key": encoded.indices}


def _shared(pc: Any, indices: Any, keys: list[bytes | None]) -> bytes | None:
    """The key of all these rows; None where they differ, or have none. Rows without a key have no other beside them."""
    span = pc.min_max(indices).as_py()
    return keys[span["min"]] if span["min"] is not None and span["min"] == span["max"] else None


def _starts(by: Any) -> Any:
    """Where in these sorted columns the values change, as indices; the first is 0."""
    pa, pc = needs("pyarrow"), needs("pyarrow.compute")
    count = by.num_rows
    changed = pa.nulls(count - 1, pa.bool_()).fill_null(False)
    for column in by.columns:
        changed = pc.or_(changed, pc.not_equal(column.slice(1), column.slice(0, count - 1)))
    flags = changed.combine_chunks() if isinstance(changed, pa.ChunkedArray) else changed
    return pc.indices_nonzero(pa.concat_arrays([pa.array([True]), flags]))


# ---- what a record holds ----


def _columns(table: Any, times: list[str], key: str | None, encoding: str, schema: Schema | None) -> Any:
    """The declared fields; where none are declared, all columns but the times, which are the epochs'."""
    if schema is not None:
        table = _declared(table, {*times, key}, encoding, schema)
    else:
        table = table.drop_columns([name for name in table.column_names if name in times])
    if not table.num_columns:
        raise UsageError("no column of the frame is part of a record, so all records would be empty; add one")
    for field in table.schema:
        _check_carried(table[field.name], field, encoding)
    return table


def _declared(table: Any, placing: set[str | None], encoding: str, schema: Schema) -> Any:
    """The columns of the declared fields; `placing` are columns that need not be declared."""
    pa = needs("pyarrow")
    wanted = to_arrow(schema)
    for name in table.column_names:
        if name not in wanted.names and name not in placing:
            hint = nearest(name, wanted.names)
            raise UsageError(f"the stream declares no field for the column {name!r}: drop it; {hint}")
    found: dict[str, Any] = {}
    for field in wanted:
        if field.name in table.column_names:
            found[field.name] = _as_declared(table[field.name], field, encoding)
        elif not field.nullable:
            raise UsageError(f"the frame has no column {field.name!r}; the stream declares {field.type}, not null")
        elif encoding == "arrow":
            found[field.name] = pa.nulls(table.num_rows, field.type)
    if encoding == "arrow":
        return pa.table(list(found.values()), schema=wanted)
    return pa.table(found)


def _as_declared(column: Any, field: Any, encoding: str) -> Any:
    if column.null_count and not field.nullable:
        nulls = f"null in {column.null_count} of {len(column)} rows"
        raise UsageError(f"column {field.name!r} holds {nulls}; the stream declares it as not null")
    if not is_carried(field.type, encoding):
        return column  # written as text or a number, and compared with the schema record by record
    if not is_alike(column.type, field.type):
        raise UsageError(f"column {field.name!r} is {column.type}; the stream declares {field.type}: cast it")
    return _cast(column, field)


def _check_carried(column: Any, field: Any, encoding: str) -> None:
    pa, pc = needs("pyarrow"), needs("pyarrow.compute")
    if (found := uncarried(field.type, encoding, field.name)) is not None:
        kind, path = found
        part = "" if path == field.name else f" ({path} is {kind})"
        raise UsageError(
            f"column {field.name!r} is {field.type}, which {encoding} cannot carry{part}: cast it to text or an integer"
        )
    if encoding != "json":
        return
    for chunk in column.chunks:
        for leaf, path in leaves(chunk, field.name):
            if pa.types.is_floating(leaf.type) and pc.any(pc.invert(pc.is_finite(leaf))).as_py():
                raise UsageError(f"column {path!r} holds NaN or infinity, which JSON has not: replace it, or use null")

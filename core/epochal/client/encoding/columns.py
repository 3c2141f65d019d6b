"""Arrow columns as records and keys: which types subscribers get, and what each encoding carries.

Spark's tasks, which divide their rows themselves, use it as `frames` does. Nothing here imports pyarrow before it is
needed.
"""

import numbers
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from importlib import import_module
from itertools import chain
from typing import Any

from epochal.errors import RecordTypeError, UsageError
from epochal.protocol.wire import MAX_KEY


def needs(module: str) -> Any:
    """The module; raises `UsageError` that says what to install."""
    try:
        return import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise UsageError(f'this needs {name}, which is not installed: pip install "epochal[frames]"') from None


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


def check_keys(column: Any, name: str) -> None:
    """Raise `UsageError` that names the column, if it holds a text or bytes too long for a key."""
    pc = needs("pyarrow.compute")
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if longest > MAX_KEY:
        value = column.filter(pc.greater(pc.binary_length(column), MAX_KEY))[0].as_py()
        raise too_long(name, "key", key_bytes(value) or b"", MAX_KEY)


def too_long(name: str, what: str, value: bytes, most: int) -> UsageError:
    """The error of a column with a key or topic that is too long, of which it shows the beginning."""
    begin = value[:_SHOWN].decode(errors="replace")
    return UsageError(
        f"the {what} column {name!r} holds a {what} of {len(value):,} bytes, which begins with {begin!r}; a {what} has "
        f"at most {most:,} bytes"
    )


_SHOWN = 60
"""Bytes of a key or topic that an error shows."""


def plain_type(kind: Any) -> Any:
    """The type as a subscriber gets it, from whatever program: instants in UTC, no large types, all nullable.

    Categories become their values, because a batch would carry all of them even if it uses one. `plain_columns` makes
    the values.
    """
    pa = needs("pyarrow")
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_timestamp(kind):
        return pa.timestamp(kind.unit, kind.tz and "UTC")
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if any(
        is_one(kind) for is_one in (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    ):
        return pa.list_(plain_type(kind.value_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(member.name, plain_type(member.type)) for member in kind])
    return kind


def maps(rows: Any) -> list[dict[str, Any]]:
    """A map for each row of a record batch or a table; made in Arrow, several times faster than row by row here.

    Raises `RecordTypeError` for a map that has a key twice.
    """
    if not rows.num_columns:
        return [{} for _ in range(rows.num_rows)]
    array = rows.to_struct_array()
    # Converting maps to dicts doubles the time, so it is requested only where there are any.
    try:
        found: list[dict[str, Any]] = array.to_pylist(maps_as_pydicts="strict" if _has_map(array.type) else None)
    except (KeyError, ValueError) as error:  # pyarrow replaces its own KeyError by a ValueError about struct members
        for name in rows.schema.names:
            try:
                rows.column(name).to_pylist(maps_as_pydicts="strict")
            except KeyError:
                raise RecordTypeError(f"column {name!r} holds a map with a key twice; a record has it once") from None
        raise RecordTypeError(f"the rows cannot be made records: {error}") from None
    return found


def _has_map(kind: Any) -> bool:
    if needs("pyarrow").types.is_map(kind):
        return True
    return any(_has_map(kind.field(index).type) for index in range(kind.num_fields))


def is_carried(kind: Any, encoding: str) -> bool:
    """Whether values of an Arrow type can be written in the encoding as they are."""
    return uncarried(kind, encoding) is None


def uncarried(kind: Any, encoding: str, path: str = "") -> tuple[Any, str] | None:
    """The first part of a plain type that cannot be written in the encoding as it is, and its path; None if all can."""
    types = needs("pyarrow").types
    if encoding == "arrow":
        return None
    if types.is_struct(kind):
        parts = (uncarried(member.type, encoding, f"{path}.{member.name}") for member in kind)
        return next((part for part in parts if part is not None), None)
    if types.is_list(kind) or types.is_fixed_size_list(kind):
        return uncarried(kind.value_type, encoding, f"{path}[]")
    if types.is_map(kind) and types.is_string(kind.key_type):
        return uncarried(kind.item_type, encoding, f"{path}{{}}")
    if encoding == "msgpack" and (types.is_binary(kind) or types.is_fixed_size_binary(kind)):
        return None
    plain = (types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_string)
    return None if any(is_one(kind) for is_one in plain) else (kind, path)


def leaves(array: Any, path: str) -> Iterator[tuple[Any, str]]:
    """The arrays of plain values in an array of a plain type, each with its path; a map's keys are left out."""
    types = needs("pyarrow").types
    kind = array.type
    if types.is_struct(kind):
        for member, part in zip(kind, array.flatten(), strict=True):
            yield from leaves(part, f"{path}.{member.name}")
    elif types.is_map(kind):
        offsets = array.offsets
        first, last = (offsets[0].as_py(), offsets[-1].as_py()) if len(array) else (0, 0)
        yield from leaves(array.items.slice(first, last - first), f"{path}{{}}")
    elif types.is_list(kind) or types.is_fixed_size_list(kind):
        yield from leaves(array.flatten(), f"{path}[]")
    else:
        yield array, path


# ---- Python values that Arrow would take as one type, and change ----

_MIXED = (("booleans", "numbers"), ("text", "bytes"), ("dates", "datetimes"))


def mixture(values: Sequence[Any]) -> str:
    """What Arrow would make one column of by changing some of the values: `text and bytes`; empty if nothing.

    >>> mixture([1, 2.5, None]), mixture(["a", b"a"]), mixture([[True], [1.5]])
    ('', 'text and bytes', 'booleans and numbers')
    """
    kinds = set(map(type, values))
    families = {_family(kind) for kind in kinds}
    for one, other in _MIXED:
        if one in families and other in families:
            return f"{one} and {other}"
    if "datetimes" in families and len({value.tzinfo is None for value in values if isinstance(value, datetime)}) > 1:
        return "datetimes with and without a zone"
    if any(hasattr(kind, "nanosecond") or hasattr(kind, "nanoseconds") for kind in kinds):  # pandas' own, as objects
        parts = (getattr(value, "nanosecond", getattr(value, "nanoseconds", 0)) for value in values)
        if any(parts):
            return "times with nanoseconds as Python objects"
    if "lists" in families:
        inner = chain.from_iterable(value for value in values if isinstance(value, list | tuple))
        if mixed := mixture(list(inner)):
            return mixed
    members: dict[Any, list[Any]] = defaultdict(list)
    if "mappings" in families:
        for value in values:
            if isinstance(value, Mapping):
                for name, member in value.items():
                    members[name].append(member)
    return next((mixed for column in members.values() if (mixed := mixture(column))), "")


def _family(kind: type) -> str:
    if issubclass(kind, bool) or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")):
        return "booleans"
    families: tuple[tuple[Any, str], ...] = (
        (numbers.Number, "numbers"), (str, "text"), ((bytes, bytearray, memoryview), "bytes"),
        (datetime, "datetimes"), (date, "dates"), ((list, tuple), "lists"), (Mapping, "mappings"),
    )  # fmt: skip
    return next((name for classes, name in families if issubclass(kind, classes)), "")


def is_alike(given: Any, wanted: Any) -> bool:
    """Whether a cast from one type to the other keeps the meaning of each value: no text becomes a number."""
    types = needs("pyarrow").types
    if types.is_null(given):
        return True
    if types.is_struct(given) and types.is_struct(wanted):
        members = {member.name: member.type for member in wanted}
        return {member.name for member in given} == {*members} and all(
            is_alike(member.type, members[member.name]) for member in given
        )
    if types.is_list(wanted):
        return bool(types.is_list(given) or types.is_fixed_size_list(given)) and is_alike(
            given.value_type, wanted.value_type
        )
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        return bool(given.tz) == bool(wanted.tz)
    families = (_is_number, types.is_boolean, types.is_string, _is_binary, types.is_date, types.is_decimal)
    return any(is_one(given) and is_one(wanted) for is_one in families)


def _is_number(kind: Any) -> bool:
    types = needs("pyarrow").types
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _is_binary(kind: Any) -> bool:
    types = needs("pyarrow").types
    return bool(types.is_binary(kind) or types.is_fixed_size_binary(kind))

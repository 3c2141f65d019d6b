"""Arrow columns as records and keys: which types subscribers get, and what each encoding carries.

Separate from `frames` because Spark's tasks, which divide their rows themselves, need the same. Nothing here imports
pyarrow before it is needed.
"""

from importlib import import_module
from typing import Any

from epochal.errors import RecordTypeError, UsageError


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


def plain_type(kind: Any) -> Any:
    """The type as a subscriber gets it, from whatever program: instants in UTC, no large types, all nullable.

    Categories become their values, because a batch would carry all of them even if it uses one.
    """
    pa = needs("pyarrow")
    types = pa.types
    if types.is_dictionary(kind):
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
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(member.name, plain_type(member.type)) for member in kind])
    return kind


def maps(rows: Any) -> list[dict[str, Any]]:
    """A map for each row of a record batch or a table; made in Arrow, several times faster than row by row here."""
    if not rows.num_columns:
        return [{} for _ in range(rows.num_rows)]
    array = rows.to_struct_array()
    # Converting maps to dicts doubles the time, so it is requested only where there are any.
    found: list[dict[str, Any]] = array.to_pylist(maps_as_pydicts="strict" if _has_map(array.type) else None)
    return found


def _has_map(kind: Any) -> bool:
    if needs("pyarrow").types.is_map(kind):
        return True
    return any(_has_map(kind.field(index).type) for index in range(kind.num_fields))


def is_carried(kind: Any, encoding: str) -> bool:
    """Whether values of an Arrow type can be written in the encoding as they are."""
    types = needs("pyarrow").types
    if encoding == "arrow":
        return True
    if types.is_struct(kind):
        return all(is_carried(member.type, encoding) for member in kind)
    if types.is_list(kind) or types.is_fixed_size_list(kind):
        return is_carried(kind.value_type, encoding)
    if types.is_map(kind):
        return bool(types.is_string(kind.key_type)) and is_carried(kind.item_type, encoding)
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return encoding == "msgpack"
    plain = (types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_string)
    return any(is_one(kind) for is_one in plain)


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

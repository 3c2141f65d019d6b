"""Columns of any Arrow type as the types that subscribers get, with each value as it was.

`columns` names these types; this module builds the arrays. Arrow's own casts are used for plain values only: between
nested types some are missing (a dictionary of string views), and some give wrong values without an error (a list view
as a list, in pyarrow 26).
"""

from collections.abc import Callable
from typing import Any

from epochal.client.encoding.columns import needs, plain_type
from epochal.errors import UsageError


def check_members(kind: Any, path: str) -> None:
    """Raise `UsageError` that names the column `path`, or a part of it, if a struct has two members of one name."""
    if needs("pyarrow").types.is_struct(kind):
        names = [member.name for member in kind]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"column {path!r} has the member {twice[0]!r} more than once; give each a name of its own")
    for inner, below in parts_of(kind, path):
        check_members(inner, below)


def parts_of(kind: Any, path: str) -> list[tuple[Any, str]]:
    """The types within a nested type, each with its path: `x.member`, `x[]` for items, `x{}` for a map's values."""
    types = needs("pyarrow").types
    if types.is_struct(kind):
        return [(member.type, f"{path}.{member.name}") for member in kind]
    if types.is_map(kind):
        return [(kind.key_type, f"{path}{{}}"), (kind.item_type, f"{path}{{}}")]
    if is_list(kind) or types.is_fixed_size_list(kind):
        return [(kind.value_type, f"{path}[]")]
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return [(kind.value_type, path)]
    return []


def is_list(kind: Any) -> bool:
    """Whether it is a list of any length, however Arrow lays it out."""
    types = needs("pyarrow").types
    kinds = (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    return any(is_one(kind) for is_one in kinds)


def plain_column(column: Any, name: str) -> Any:
    """The column as a `pyarrow.ChunkedArray` of its `plain_type`.

    Raises `UsageError` that names the column, and the part of a nested one, where this cannot be.
    """
    pa = needs("pyarrow")
    wanted = plain_type(column.type)
    if column.type.equals(wanted):
        return column
    return pa.chunked_array([plain_array(chunk, name) for chunk in column.chunks], wanted)


def plain_array(array: Any, path: str) -> Any:
    """As `plain_column`, for one `pyarrow.Array`."""
    pa = needs("pyarrow")
    wanted = plain_type(array.type)
    if array.type.equals(wanted):
        return array
    try:
        return _rebuilt(array, wanted, path)
    except (pa.ArrowException, OverflowError) as error:
        raise UsageError(f"column {path!r} is {array.type}, and {wanted} cannot hold it: {error}") from None


def _rebuilt(array: Any, wanted: Any, path: str) -> Any:
    pa, pc = needs("pyarrow"), needs("pyarrow.compute")
    types, kind = pa.types, array.type
    if types.is_dictionary(kind):
        return plain_array(array.dictionary, path).take(array.indices)
    if types.is_run_end_encoded(kind):
        return plain_array(pc.run_end_decode(array), path)
    if types.is_struct(kind):
        members = [plain_array(array.field(at), f"{path}.{kind.field(at).name}") for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(members, fields=list(wanted), mask=array.is_null())
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        return pa.FixedSizeListArray.from_arrays(plain_array(values, f"{path}[]"), type=wanted, mask=array.is_null())
    if types.is_map(kind):
        keys, items = (
            plain_array(part, f"{path}{{}}") for part in (array.keys, array.items)
        )  # of all maps, in a slice too
        offsets = pc.add(array.offsets, 0)  # a copy: those of a slice cannot be combined with a mask
        return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=array.is_null())
    if is_list(kind):
        values = plain_array(array.flatten(), f"{path}[]")  # without what null entries may cover
        return pa.ListArray.from_arrays(_offsets(array), values, type=wanted, mask=array.is_null())
    return array.cast(wanted)


def _offsets(array: Any) -> Any:
    """Where each list begins among the flattened values of all; a null one has none."""
    pa, pc = needs("pyarrow"), needs("pyarrow.compute")
    lengths = pc.list_value_length(array).fill_null(0).cast(pa.int64())
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)]).cast(pa.int32())


def exact_values(array: Any) -> list[Any]:
    """The values as Python has them; raises what pyarrow raises, `ValueError` or `OverflowError`, where it cannot.

    A time of day is of microseconds there, and pyarrow drops what is beyond without an error.
    """
    in_microseconds = _in_microseconds(array.type)
    checked = array if in_microseconds.equals(array.type) else array.cast(in_microseconds)
    values: list[Any] = checked.to_pylist()
    return values


def as_texts(array: Any) -> Any:
    """The array with its dates, times and durations as texts, as Arrow writes them; also within nested types."""
    types = needs("pyarrow").types
    return array.cast(_replaced(array.type, types.is_temporal, lambda kind: needs("pyarrow").string()))


def _in_microseconds(kind: Any) -> Any:
    pa = needs("pyarrow")
    return _replaced(kind, pa.types.is_time64, lambda _: pa.time64("us"))


def _replaced(kind: Any, is_one: Callable[[Any], bool], other: Callable[[Any], Any]) -> Any:
    """The type with another in place of each type of which `is_one` is true, wherever in it that is."""
    pa = needs("pyarrow")
    types = pa.types
    if is_one(kind):
        return other(kind)
    if types.is_struct(kind):
        return pa.struct([member.with_type(_replaced(member.type, is_one, other)) for member in kind])
    if types.is_map(kind):
        return pa.map_(_replaced(kind.key_type, is_one, other), _replaced(kind.item_type, is_one, other))
    if types.is_fixed_size_list(kind):
        return pa.list_(_replaced(kind.value_type, is_one, other), kind.list_size)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_replaced(kind.value_type, is_one, other)))
    return kind

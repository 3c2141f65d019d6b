"""Compares records with the schema that their stream declares, before they are encoded (S28).

Arrow batches carry their schema, and are checked where they are encoded; here are the records of msgpack and json
streams. What is right takes no Python code for each record: types are collected column by column. Only where a column
has something else are its records looked at one after the other, to name the first wrong one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeAlias

from epochal.resources.problems import nearest, show
from epochal.resources.schemas import Field, ListOf, Plain, Schema, Struct, Type

_NONE = type(None)
_TEXT_OR_NUMBER = frozenset((str, int, float))
"""What dates, times and decimals are written as: neither msgpack nor JSON has them."""
_Kinds: TypeAlias = frozenset[Any]
_BINARY: dict[str, _Kinds] = {"msgpack": frozenset((bytes, bytearray, memoryview)), "json": frozenset((str,))}
_PLAIN: dict[str, _Kinds] = {
    "bool": frozenset((bool,)), "string": frozenset((str,)), "date32": _TEXT_OR_NUMBER,
    "float32": frozenset((float, int)), "float64": frozenset((float, int)),
}  # fmt: skip
Judge: TypeAlias = Callable[[Any], str]
"""Says what is wrong with a value: where, and why; empty if it is right."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the record at `index`: `its field delay must be int32, not the text 'late'`."""

    index: int
    reason: str


class _Column(NamedTuple):
    """One field: the types that are right, the bounds of ints, and the judge of a value that these do not settle."""

    name: str
    kinds: _Kinds
    bounds: tuple[int, int] | None
    nested: bool
    judge: Judge


class RecordChecks:
    """The checks of one schema; `encoding`: msgpack or json.

    >>> checks = RecordChecks(Schema.parse({"fields": [{"name": "delay", "type": "int32"}]}), "json")
    >>> checks.fault([{"delay": 3}, {}, {"delay": None}])
    >>> checks.fault([{"delay": 3}, {"delay": "late"}])
    Fault(index=1, reason="its field delay must be int32, not the text 'late'")
    >>> checks.fault([{"dealy": 3}])
    Fault(index=0, reason="it has a field dealy, which the stream does not declare; did you mean 'delay'?")
    """

    def __init__(self, schema: Schema, encoding: str) -> None:
        self._columns = [_column(field, encoding) for field in schema.fields]
        self._names = frozenset(field.name for field in schema.fields)

    def fault(self, records: Sequence[Any]) -> Fault | None:
        """The first record that is not of the schema; None if all are."""
        if self._are_right(records):
            return None
        faults = (Fault(index, reason) for index, record in enumerate(records) if (reason := self._judge(record)))
        return next(faults, None)

    def _are_right(self, records: Sequence[Any]) -> bool:
        """Whether all are right at first sight; records of unusual types are not, and may be right all the same."""
        if set(map(type, records)) != {dict} or not self._names.issuperset(chain.from_iterable(records)):
            return False
        return all(_is_right(column, list(map(dict.get, records, repeat(column.name)))) for column in self._columns)

    def _judge(self, record: Any) -> str:
        if not isinstance(record, Mapping):
            return f"it is {show(record)}, and the stream declares fields: a record is a mapping of these"
        for name in record:
            if name not in self._names:
                hint = nearest(str(name), sorted(self._names))
                return f"it has a field {str(name)[:80]}, which the stream does not declare; {hint}"
        for column in self._columns:
            if reason := column.judge(record.get(column.name)):
                return f"its field {column.name}{reason}"
        return ""


def record_checks(schema: Schema | None, encoding: str) -> RecordChecks | None:
    """The checks of a stream's records; None where it declares no fields, or its encoding has none or its own."""
    return RecordChecks(schema, encoding) if schema is not None and encoding in _BINARY else None


def value_fault(field: Field, encoding: str, values: Sequence[Any]) -> str:
    """What is wrong with the first of these values that `field` cannot hold: ` must be int32, not the text 'late'`.

    Empty if all are right; null always is.
    """
    column = _column(Field(field.name, field.type, True), encoding)
    return "" if _is_right(column, values) else next(filter(None, map(column.judge, values)), "")


def _is_right(column: _Column, values: Sequence[Any]) -> bool:
    """Whether these values of a column are right at first sight."""
    if not column.kinds.issuperset(map(type, values)):
        return False
    if column.bounds is not None:
        numbers = [value for value in values if value is not None]
        if numbers and not (column.bounds[0] <= min(numbers) and max(numbers) <= column.bounds[1]):
            return False
    return not (column.nested and any(map(column.judge, values)))


def _column(field: Field, encoding: str) -> _Column:
    kinds, bounds, inner = _of(field.type, encoding)
    judge = _nullable(inner) if field.nullable else _required(inner, field.type)
    return _Column(field.name, kinds | {_NONE} if field.nullable else kinds, bounds, _is_nested(field.type), judge)


def _is_nested(kind: Type) -> bool:
    return isinstance(kind, ListOf | Struct)


def _nullable(judge: Judge) -> Judge:
    return lambda value: "" if value is None else judge(value)


def _required(judge: Judge, kind: Type) -> Judge:
    return lambda value: (
        f" is missing; it must be {kind}, and is declared as not null" if value is None else judge(value)
    )


def _of(kind: Type, encoding: str) -> tuple[_Kinds, tuple[int, int] | None, Judge]:
    """The types of right values, the bounds of ints, and the judge of one value."""
    match kind:
        case ListOf(item):
            each = _nullable(_of(item, encoding)[2])
            return frozenset((list, tuple)), None, lambda value: _judge_list(value, kind, each)
        case Struct(members):
            judges = {name: _nullable(_of(member, encoding)[2]) for name, member in members}
            return frozenset((dict,)), None, lambda value: _judge_struct(value, kind, judges)
        case Plain("binary"):
            kinds = _BINARY[encoding]
        case Plain(name) if name in _PLAIN:
            kinds = _PLAIN[name]
        case Plain(name):
            bounds = _bounds(name)
            return frozenset((int,)), bounds, lambda value: _judge_int(value, kind, bounds)
        case _:
            kinds = _TEXT_OR_NUMBER
    return kinds, None, lambda value: _judge_plain(value, kind, kinds)


def _bounds(name: str) -> tuple[int, int]:
    bits = int(name.lstrip("uint"))
    return (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _wrong(value: Any, kind: Type) -> str:
    return f" must be {kind}, not {show(value)}"


def _judge_plain(value: Any, kind: Type, kinds: _Kinds) -> str:
    right = isinstance(value, tuple(kinds)) and (bool in kinds or not isinstance(value, bool))
    return "" if right else _wrong(value, kind)


def _judge_int(value: Any, kind: Type, bounds: tuple[int, int]) -> str:
    right = isinstance(value, int) and not isinstance(value, bool) and bounds[0] <= value <= bounds[1]
    return "" if right else _wrong(value, kind)


def _judge_list(value: Any, kind: Type, judge: Judge) -> str:
    if not isinstance(value, list | tuple):
        return _wrong(value, kind)
    return next((f"[{index}]{reason}" for index, item in enumerate(value) if (reason := judge(item))), "")


def _judge_struct(value: Any, kind: Type, judges: Mapping[str, Judge]) -> str:
    if not isinstance(value, Mapping):
        return _wrong(value, kind)
    unknown = next((name for name in value if name not in judges), None)
    if unknown is not None:
        return (
            f" has a member {str(unknown)[:80]}, which the stream does not declare; {nearest(str(unknown), [*judges])}"
        )
    return next((f".{name}{reason}" for name, judge in judges.items() if (reason := judge(value.get(name)))), "")

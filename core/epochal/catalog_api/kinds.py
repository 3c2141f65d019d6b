"""The kinds of the fields of this package: what pydantic accepts for each, without turning one type into another.

Without the check, a wrong type would show only later, as a `TypeError` in some task that no one awaits. Unknown fields
are ignored: a newer client or catalog may send them.
"""

import re
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, Strict, TypeAdapter, WithJsonSchema
from pydantic_core import core_schema

from epochal.errors import TimeShapeError
from epochal.protocol.times import Time, from_json

MAX_TEXT = 1 << 20
"""Characters of one string; a manifest's texts are far below."""


def _text(value: str) -> str:
    """JSON can spell half a surrogate pair, and such a text could not be sent on as UTF-8."""
    if not value.isascii() and re.search("[\ud800-\udfff]", value):
        raise ValueError("it has half of a surrogate pair")
    return value


def _key(value: Any) -> int:
    if not isinstance(value, str | int):
        raise ValueError("a bound of a key range is a decimal string")
    return int(value)


class _TimeForm:
    """Reads a time by `from_json`: pydantic cannot follow a type that contains itself."""

    @staticmethod
    def __get_pydantic_core_schema__(_source: Any, _handler: object) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(_time)


def _time(value: Any) -> Time:
    try:
        return from_json(value)
    except (TimeShapeError, RecursionError) as error:
        raise ValueError(str(error)) from None


Flag: TypeAlias = Annotated[bool, Strict()]
Whole: TypeAlias = Annotated[int, Strict()]
Seconds: TypeAlias = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Text: TypeAlias = Annotated[
    str, Strict(), Field(max_length=MAX_TEXT), AfterValidator(_text), WithJsonSchema({"type": "string"})
]
Number: TypeAlias = Whole | Seconds
Key: TypeAlias = Annotated[int, BeforeValidator(_key), PlainSerializer(str)]
"""A bound of a key range: 2^64 does not fit a JSON number everywhere, so it is sent as a decimal string."""
LogicalTime: TypeAlias = Annotated[Time, _TimeForm, WithJsonSchema({})]
AnyTime: TypeAlias = Annotated[LogicalTime | None, WithJsonSchema({})]
"""A time, or None where there is none yet."""
Times: TypeAlias = tuple[LogicalTime, ...]


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name; their values are not copied."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


class Answer:
    """An answer: a dataclass whose fields are of the kinds of this module.

    A catalog sends every field. A client reads an answer without a field that has a default, so a field that is added
    later has one: a catalog of the version before does not send it.
    """

    __slots__ = ()

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read one; raises `ValueError` or `TypeError` for what is none."""
        kind: Any = cls
        found: Self = adapter(kind).validate_python(value)
        return found

    def to_json(self) -> dict[str, Any]:
        """The form in which it is sent."""
        kind: Any = type(self)
        drawn: dict[str, Any] = adapter(kind).dump_python(self, mode="json", by_alias=True)
        return drawn


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """What reads values of a kind; made when it is first needed, because that takes milliseconds."""
    return TypeAdapter(kind)

"""Reads the catalog's answers, in which each value must have its declared type; else `RemoteProtocolError`.

The types are the annotations in `types`, made of the kinds here, and pydantic checks them. Without the check, a wrong
type would show only later, as a `TypeError` in some task that no one awaits. Unknown fields are ignored: a newer
catalog may send them.
"""

import re
import reprlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, Strict, TypeAdapter, ValidationError
from pydantic_core import core_schema

from epochal.errors import EpochalError, RemoteProtocolError, TimeShapeError
from epochal.protocol.times import Time, from_json

MAX_TEXT = 1 << 20
"""Characters of one string; a manifest's texts are far below."""

_ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")

V = TypeVar("V")


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
Text: TypeAlias = Annotated[str, Strict(), Field(max_length=MAX_TEXT), AfterValidator(_text)]
Number: TypeAlias = Whole | Seconds
Key: TypeAlias = Annotated[int, BeforeValidator(_key)]
"""A bound of a key range: 2^64 does not fit a JSON number everywhere, so it is sent as a decimal string."""
LogicalTime: TypeAlias = Annotated[Time, _TimeForm]
Times: TypeAlias = tuple[LogicalTime, ...]

_KINDS: dict[type, Any] = {bool: Flag, int: Whole, float: Seconds, str: Text}


class Answer:
    """What is read from an answer: a dataclass whose fields are of the kinds of this module."""

    __slots__ = ()

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read one; raises `ValueError` or `TypeError` for what is none."""
        kind: Any = cls
        found: Self = _adapter(kind).validate_python(value)
        return found


def read(from_json: Callable[[Any], V], value: Any) -> V:
    """What `from_json(value)` makes, with every field of its declared type; else `RemoteProtocolError`."""
    try:
        return from_json(value)
    except ValidationError as error:
        raise RemoteProtocolError(_reason(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, EpochalError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise RemoteProtocolError(f"the catalog's answer cannot be read: {reason}") from None


def get(answer: Any, name: str, kind: type[V]) -> V:
    """The value of `name` in an answer; raises `RemoteProtocolError` if it is not there or of another type."""
    if not isinstance(answer, dict) or name not in answer:
        raise RemoteProtocolError(f"the catalog's answer has no {name!r}: {reprlib.repr(answer)}")
    try:
        found: V = _adapter(_KINDS.get(kind, kind)).validate_python(answer[name])
    except ValidationError:
        raise RemoteProtocolError(f"the catalog's answer has {reprlib.repr(answer[name])} as {name}") from None
    return found


def address(addresses: Mapping[str, str], socket: str) -> str:
    """The address of a publisher's `socket`: only TCP, because another transport could open something on this host."""
    found = addresses.get(socket, "")
    if _ADDRESS.fullmatch(found) is None:
        raise RemoteProtocolError(f"the catalog names {reprlib.repr(found)} as {socket}; tcp://HOST:PORT was expected")
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made when it is first needed, because that takes milliseconds."""
    return TypeAdapter(kind)


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join(map(str, (error.title, *first["loc"])))
    if first["type"] == "missing":
        return f"the catalog's answer has no {path}"
    return f"the catalog's answer has {reprlib.repr(first['input'])} as {path}"

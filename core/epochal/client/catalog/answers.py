"""Reads the catalog's answers and checks that each value has its declared type; else `RemoteProtocolError`.

The check is the same for all answers: the types come from the annotations in `types`. Without it, a wrong type would
show only later, as a `TypeError` in some task that no one awaits.
"""

import math
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, ForwardRef, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from epochal.errors import EpochalError, RemoteProtocolError

MAX_TEXT = 1 << 20
"""Characters of one string; a manifest's texts are far below."""

_ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")

V = TypeVar("V")


def read(from_json: Callable[..., V], *values: Any) -> V:
    """What `from_json(*values)` makes, with every field of its declared type; else `RemoteProtocolError`."""
    try:
        found = from_json(*values)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, EpochalError) as error:
        raise RemoteProtocolError(f"the catalog's answer cannot be read: {_short(error)}") from None
    _check(found, type(found), type(found).__name__)
    return found


def get(answer: Any, name: str, kind: type[V]) -> V:
    """The value of `name` in an answer; raises `RemoteProtocolError` if it is not there or of another type."""
    if not isinstance(answer, dict) or name not in answer:
        raise RemoteProtocolError(f"the catalog's answer has no {name!r}: {reprlib.repr(answer)}")
    value: Any = answer[name]
    _check(value, kind, name)
    return cast("V", float(value) if kind is float else value)


def address(addresses: Mapping[str, str], socket: str) -> str:
    """The address of a publisher's `socket`: only TCP, because another transport could open something on this host."""
    found = addresses.get(socket, "")
    if _ADDRESS.fullmatch(found) is None:
        raise RemoteProtocolError(f"the catalog names {reprlib.repr(found)} as {socket}; tcp://HOST:PORT was expected")
    return found


def _check(value: Any, hint: Any, path: str) -> None:
    if not _is(value, hint, path):
        raise RemoteProtocolError(f"the catalog's answer has {reprlib.repr(value)} as {path}")


def _is(value: Any, hint: Any, path: str) -> bool:
    """Whether `value` is of the annotated type; parts of it that are not raise with their own path."""
    if hint is Any or isinstance(hint, ForwardRef):  # within a time, which was read as one
        return True
    if hint is float:
        return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 2**64)
    if hint is str:
        return isinstance(value, str) and len(value) <= MAX_TEXT and _is_text(value)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_is(value, choice, path) for choice in get_args(hint))
    if origin is tuple:
        return type(value) is tuple and all(_is(part, get_args(hint)[0], path) for part in value)
    if origin is not None:
        return isinstance(value, Mapping) and all(
            isinstance(key, str) and _is(part, get_args(hint)[1], f"{path}.{key}") for key, part in value.items()
        )
    if is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]  # `is_dataclass` admits instances too; a hint is a class
            for name, kind in _hints(type(value)).items():
                _check(getattr(value, name), kind, f"{path}.{name}")
            return True
        return False
    return type(value) is hint or (hint is not int and isinstance(value, hint))


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: NoneType if hints[field.name] is None else hints[field.name] for field in fields(kind)}


def _is_text(value: str) -> bool:
    """Whether it can be written as UTF-8: JSON can spell half a surrogate pair, and nothing could be sent then."""
    return value.isascii() or not re.search("[\ud800-\udfff]", value)


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"

"""Reads the catalog's answers: one that is not of its form is a `RemoteProtocolError`, which says what is wrong."""

import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from epochal.catalog_api.kinds import Flag, Seconds, Text, Whole, adapter
from epochal.errors import EpochalError, RemoteProtocolError

_ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")

V = TypeVar("V")

_KINDS: dict[type, Any] = {bool: Flag, int: Whole, float: Seconds, str: Text}


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
        found: V = adapter(_KINDS.get(kind, kind)).validate_python(answer[name])
    except ValidationError:
        raise RemoteProtocolError(f"the catalog's answer has {reprlib.repr(answer[name])} as {name}") from None
    return found


def address(addresses: Mapping[str, str], socket: str) -> str:
    """The address of a publisher's `socket`: only TCP, because another transport could open something on this host."""
    found = addresses.get(socket, "")
    if _ADDRESS.fullmatch(found) is None:
        raise RemoteProtocolError(f"the catalog names {reprlib.repr(found)} as {socket}; tcp://HOST:PORT was expected")
    return found


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join(map(str, (error.title, *first["loc"])))
    if first["type"] == "missing":
        return f"the catalog's answer has no {path}"
    return f"the catalog's answer has {reprlib.repr(first['input'])} as {path}"

"""Machines and messages as plain values, equal where only names and numbers differ that nothing depends on.

Subscription ids and tokens are drawn once and only compared, so they are named in the order in which they are met. What
counts requests only goes up and is only compared, so requests count from the last one.
"""

from collections import deque
from collections.abc import Collection, Hashable
from enum import Enum
from typing import Any

from epochal.protocol.topics.filter import TopicFilter

_COUNTED = frozenset(("request", "op"))
"""The fields of messages that name a request; 0 names none."""


class Names:
    """What ids are called in one state; `request` is the last request's number."""

    def __init__(self, request: int = 0) -> None:
        self._request = request
        self._names: dict[bytes, int] = {}

    def of(self, raw: bytes) -> str:
        """What bytes are called that may be an id, or the prefix of messages that one makes."""
        for kind in (b"nonce", b"tok"):
            at = raw.find(kind)
            if at >= 0:
                return f"{raw[:at]!r}{kind!r}{self._names.setdefault(raw[at:], len(self._names))}"
        return repr(raw)

    def of_request(self, number: int) -> Hashable:
        """The same for a request's number."""
        return number and f"request {number - self._request}"


def plain(value: Any, names: Names, leave_out: Collection[str] = ()) -> Hashable:
    """A value, with all that it holds, as something that can be hashed; without the attributes in `leave_out`."""
    if value is None or (isinstance(value, int | str | float) and not isinstance(value, Enum)):
        return value
    if isinstance(value, bytes):
        return names.of(value)
    if isinstance(value, TopicFilter):
        return value.entries
    if isinstance(value, Enum):
        return value.name
    fields: tuple[str, ...] | None = getattr(value, "_fields", None)
    if fields is not None:
        return (type(value).__name__, *(
            names.of_request(part) if name in _COUNTED else plain(part, names, leave_out)
            for name, part in zip(fields, value, strict=True) if name not in leave_out
        ))  # fmt: skip
    if isinstance(value, tuple | list | deque):
        return tuple(plain(part, names, leave_out) for part in value)
    if isinstance(value, dict):
        return tuple(
            (plain(name, names), plain(part, names, leave_out)) for name, part in value.items() if name not in leave_out
        )
    if isinstance(value, set | frozenset):
        return tuple(sorted(plain(part, names, leave_out) for part in value))  # type: ignore[type-var]
    attributes = vars(value) if hasattr(value, "__dict__") else {name: getattr(value, name) for name in value.__slots__}
    return type(value).__name__, plain(attributes, names, leave_out)

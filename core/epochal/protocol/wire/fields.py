"""What a field of a header may hold: one check for each type of field.

Each check returns the value as the messages hold it, or raises `RemoteProtocolError` that says what was expected.
"""

import reprlib
from collections.abc import Callable
from typing import Any

from epochal.errors import LimitExceeded, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol.times import MAX_SHAPE_DEPTH, MAX_TIME, Time
from epochal.protocol.wire.limits import MAX_DEPTH, MAX_HEADER, MAX_ITEMS, MAX_TEXT, MAX_TOPIC, TRACE_BYTES

Check = Callable[[Any], Any]
"""Returns the value of a field as a message holds it, or raises `RemoteProtocolError`."""


def unexpected(expected: str, value: object) -> RemoteProtocolError:
    """The error for a field that is not what was expected."""
    # reprlib looks only a few levels and items deep, so that a hostile value costs nothing to show.
    return RemoteProtocolError(f"expected {expected}, got {reprlib.repr(value)[:80]}")


def integer(value: Any) -> int:
    """An int from -1, which means "none yet" where that makes sense."""
    if type(value) is int and -1 <= value <= MAX_TIME:
        return value
    raise unexpected("an int in -1 .. 2^63-1", value)


def count(value: Any) -> int:
    """An int of 32 bits without a sign."""
    if type(value) is int and 0 <= value <= 0xFFFFFFFF:
        return value
    raise unexpected("an int in 0 .. 2^32-1", value)


def trace_or_none(value: Any) -> bytes | None:
    """The context of a trace; None for anything else, as in a batch."""
    return value if is_trace(value) else None


def is_trace(value: Any) -> bool:
    """Whether `value` is an id of a trace and one of a span, neither all zero, and flags."""
    return type(value) is bytes and len(value) == TRACE_BYTES and any(value[:16]) and any(value[16:24])


def seconds(value: Any) -> float:
    """A duration of up to a day."""
    if type(value) in (int, float) and 0 <= value <= 86_400:
        return float(value)
    raise unexpected("seconds in 0 .. 86400", value)


def boolean(value: Any) -> bool:
    """True or False."""
    if type(value) is bool:
        return value
    raise unexpected("a boolean", value)


def text(value: Any) -> str:
    """A string that fits most fields."""
    if type(value) is str and len(value) <= MAX_TEXT:
        return value
    raise unexpected(f"a string of at most {MAX_TEXT} characters", value)


def long_text(value: Any) -> str:
    """A string that may take up a whole header."""
    if type(value) is str and len(value) <= MAX_HEADER:
        return value
    raise unexpected(f"a string of at most {MAX_HEADER} characters", value)


def sized(size: int) -> Check:
    """A check for exactly `size` bytes."""

    def check(value: Any) -> bytes:
        if type(value) is bytes and len(value) == size:
            return value
        raise unexpected(f"{size} bytes", value)

    return check


def topic(value: Any) -> bytes:
    """The topic of a batch, or a prefix of topics."""
    if type(value) is bytes and len(value) <= MAX_TOPIC:
        return value
    raise unexpected(f"a topic of at most {MAX_TOPIC} bytes", value)


def time(value: Any, depth: int = 0) -> Time:
    """A time of any shape; whether it has the shape of the stream is checked where that is known."""
    if type(value) is int and 0 <= value <= MAX_TIME:
        return value
    if type(value) is tuple and depth <= MAX_SHAPE_DEPTH:
        for part in value:
            time(part, depth + 1)
        return value
    raise unexpected("a time: an int in 0 .. 2^63-1 or a nested array of such", value)


def change(value: Any) -> tuple[Time, int]:
    """A time, and by how much its count changes."""
    if type(value) is tuple and len(value) == 2 and type(value[1]) is int and -(2**31) <= value[1] < 2**31:
        return (time(value[0]), value[1])
    raise unexpected("a pair of a time and a change of its count", value)


def many(item: Check) -> Check:
    """A check for an array in which every item passes `item`."""

    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is tuple and len(value) <= MAX_ITEMS:
            return tuple(map(item, value))
        raise unexpected(f"an array of at most {MAX_ITEMS}", value)

    return check


def optional(item: Check) -> Check:
    """A check for nil, or what passes `item`."""
    return lambda value: None if value is None else item(value)


def times_or_none(value: Any) -> tuple[Any, ...]:
    """Times; none of them for nil."""
    return () if value is None else times(value)


def position(value: Any) -> m.Position:
    """A position in the log of a segment."""
    if type(value) is tuple and len(value) == 2:
        return m.Position(integer(value[0]), integer(value[1]))
    raise unexpected("a position [incarnation, seq]", value)


def resume(value: Any) -> m.Resume:
    """What a writer that comes back says that it had there."""
    if type(value) is tuple and len(value) == 3:
        return m.Resume(integer(value[0]), times(value[1]), times(value[2]))
    raise unexpected("[number, held, touched]", value)


def prefixes(value: Any) -> m.Prefixes:
    """A filter, of as many prefixes and bytes as one message may hold; else raises `LimitExceeded`."""
    if type(value) is not tuple or len(value) != 2:
        raise unexpected("a filter [wanted, rejected]", value)
    wanted, rejected = topics(value[0]), topics(value[1])
    if len(wanted) + len(rejected) > m.MAX_FILTER_ENTRIES:
        raise LimitExceeded(
            f"a filter of {len(wanted) + len(rejected)} prefixes; one message takes {m.MAX_FILTER_ENTRIES}"
        )
    size = sum(map(len, (*wanted, *rejected)))
    if size > m.MAX_FILTER_BYTES:
        raise LimitExceeded(f"a filter of {size} bytes; one message takes {m.MAX_FILTER_BYTES}")
    return wanted, rejected


def step(value: Any) -> int:
    """A step towards a filter: subscribe, reject or reset."""
    if type(value) is int and 1 <= value <= 3:
        return value
    raise unexpected("a step 1, 2 or 3", value)


def question(value: Any) -> m.AskKind:
    """What a writer asks a sidecar."""
    try:
        return m.AskKind(value)
    except ValueError:
        raise unexpected("open, get or session", value) from None


def leaving(value: Any) -> m.Leaving:
    """How a writer leaves."""
    try:
        return m.Leaving(value)
    except ValueError:
        raise unexpected("close, finish or abort", value) from None


times = many(time)
topics = many(topic)


def check_depth(fields: tuple[Any, ...], depth: int) -> None:
    """Raise `LimitExceeded` for fields with more arrays within arrays than `MAX_DEPTH`, `depth` of them around."""
    if depth > MAX_DEPTH:
        raise LimitExceeded(f"a header nests at most {MAX_DEPTH} arrays")
    for value in fields:
        if type(value) is tuple:
            check_depth(value, depth + 1)

"""The optional fields of a batch, which come after its checksum: `Meta` from these fields, and back.

A field with another form is left out and counted, and the batch is accepted all the same.
"""

from collections.abc import Callable
from typing import Any, Final

from epochal.protocol import messages as m
from epochal.protocol.times import MAX_TIME
from epochal.protocol.wire.fields import check_depth, is_trace
from epochal.protocol.wire.limits import MAX_HEADERS, MAX_KEY, MAX_TRACESTATE


def _is_headers(value: Any) -> bool:
    """Whether `value` is names and values in turn, each name once, within the limit."""
    return (
        type(value) is tuple and len(value) % 2 == 0 and all(type(part) is bytes for part in value)
        and sum(map(len, value)) <= MAX_HEADERS and len(set(value[::2])) * 2 == len(value)
    )  # fmt: skip


META_CHECKS: Final[tuple[Callable[[Any], bool], ...]] = (
    is_trace,
    lambda value: type(value) is bytes and len(value) <= MAX_TRACESTATE,
    lambda value: type(value) is bytes and len(value) <= MAX_KEY,
    lambda value: type(value) is int and 0 <= value <= MAX_TIME,
    _is_headers,
    lambda value: type(value) is int and 0 <= value <= MAX_TIME,
)
"""One check for each part of `Meta`, in order; nil means that the part is not there."""
_HEADERS: Final = m.Meta._fields.index("headers")
NO_META: Final = m.Meta()
"""Nothing is set."""


def _read_meta(parts: tuple[Any, ...]) -> m.Meta | None:
    """The `Meta` in these fields, each checked by itself; None where they say nothing."""
    read: list[Any] = list(NO_META[:-1])
    ignored = 0
    for at, (sound, value) in enumerate(zip(META_CHECKS, parts, strict=False)):
        if value is None:
            continue
        if sound(value):
            read[at] = value
        else:
            ignored += 1
    flat = read[_HEADERS]
    read[_HEADERS] = tuple(zip(flat[::2], flat[1::2], strict=True))
    meta = m.Meta(*read)._replace(ignored=ignored)
    return None if meta == NO_META else meta


def meta_after_checksum(parts: tuple[Any, ...]) -> m.Meta | None:
    """The `Meta` in the fields after a batch's checksum, which may hold anything; None where they say nothing.

    Batches with the same trace and nothing else share one `Meta`. Raises `LimitExceeded` for arrays nested too deep.
    """
    global _read_last
    last, meta = _read_last
    if parts == last:
        return meta
    check_depth(parts, 1)
    read = _read_meta(parts)
    if len(parts) == 1 and read is not None and read.trace is not None:
        _read_last = parts, read
    return read


_read_last: tuple[tuple[Any, ...], m.Meta | None] = ((), None)
"""The last fields that were a trace and nothing else, and their `Meta`."""


def meta_fields(meta: m.Meta) -> list[Any]:
    """The fields of `meta` as they come after a batch's checksum, without those at the end that are not set."""
    trace, tracestate, key, published, headers, source, _ = meta
    flat = tuple(part for pair in headers for part in pair)
    fields = [trace, tracestate or None, key, published, flat or None, source]
    while fields and fields[-1] is None:
        fields.pop()
    return fields

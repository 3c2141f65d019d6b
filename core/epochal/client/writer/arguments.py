"""What a program passes with an append, checked before anything is encoded, and as the metadata of its batch."""

import functools
import time as wall
from collections.abc import Mapping

from epochal.client.tracing import Trace
from epochal.client.writer.batching import Headers
from epochal.errors import RecordTypeError, UsageError
from epochal.protocol import messages as m
from epochal.protocol.wire import MAX_HEADERS, MAX_KEY, MAX_TOPIC


def check_arguments(records: object, key: object, topic: object) -> None:
    """Raise `RecordTypeError` for records that are no list, and `UsageError` for a key or topic that is not allowed."""
    if not isinstance(records, list | tuple) or not records:
        raise RecordTypeError("append takes a list (or tuple) of at least one record")
    if not (key is None or isinstance(key, bytes)):
        raise UsageError(f"a key is bytes, not {type(key).__name__}; encode it first")
    if key is not None and len(key) > MAX_KEY:
        raise UsageError(f"a key is at most {MAX_KEY:,} bytes, and one of {len(key):,} begins with {key[:40]!r}")
    if not isinstance(topic, bytes) or len(topic) > MAX_TOPIC:  # as check_topic: a call fewer for each record
        raise _wrong_topic(topic)


def check_topic(topic: object) -> None:
    """Raise `UsageError` for a topic that is not bytes, or too long."""
    if not isinstance(topic, bytes) or len(topic) > MAX_TOPIC:
        raise _wrong_topic(topic)


def _wrong_topic(topic: object) -> UsageError:
    return UsageError(f"a topic is at most {MAX_TOPIC} bytes, not {str(topic)[:80]!r}")


def checked_headers(headers: Mapping[bytes, bytes]) -> Headers:
    """The headers by name; raises `UsageError` for what is not bytes, or too large."""
    if not isinstance(headers, Mapping):
        raise UsageError(f"headers is a mapping of bytes to bytes, not {type(headers).__name__}")
    for part in (*headers, *headers.values()):
        if not isinstance(part, bytes):
            raise UsageError(f"headers: names and values are bytes, not {type(part).__name__}; encode them first")
    size = sum(len(name) + len(value) for name, value in headers.items())
    if size > MAX_HEADERS:
        raise UsageError(f"headers hold {size} bytes; at most {MAX_HEADERS} are allowed")
    return tuple(sorted(headers.items()))


def batch_meta(
    key: bytes | None, headers: Headers, trace: Trace | None, source: int | None = None, *, clock: bool
) -> m.Meta | None:
    """The metadata of a batch, with `clock` also the time on this machine's clock; None where nothing is set."""
    if key is None and not headers and trace is None and not clock and source is None:
        return None
    if trace is not None and key is None and not headers and not clock and source is None:
        return _trace_only(trace)
    ids, state = trace or (None, b"")
    return m.Meta(ids, state, key, wall.time_ns() // 1_000_000 if clock else None, headers, source)


@functools.lru_cache(64)
def _trace_only(trace: Trace) -> m.Meta:
    """The metadata of a trace and nothing else: batches of one trace share it, which is also cheaper to send."""
    return m.Meta(*trace)

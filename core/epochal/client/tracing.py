"""The trace in which a batch is made, as its header carries it, and the span in which an epoch is processed.

The library needs no tracing package: a program that traces has loaded OpenTelemetry's API itself. For any other
program, the only cost is a look into the loaded modules.

Source: W3C Trace Context; OpenTelemetry semantic conventions, messaging.
"""

import functools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from epochal.otel import names
from epochal.protocol.times import Time, to_json

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

    from epochal.protocol.messages import Meta

Trace: TypeAlias = tuple[bytes, bytes]
"""16 bytes of a trace id, 8 of a span id, 1 of flags; and the tracestate, at most 512 bytes."""

MAX_TRACESTATE = 512


def current_trace() -> Trace | None:
    """The caller's trace and span; None outside of every trace. An unsampled trace counts too; its flags say so."""
    global _last, _context
    context = _context
    if context is None:
        if "opentelemetry.trace" not in sys.modules:
            return None
        context = _context = _found_context()
    span, last = context.get().get(_key), _last
    if span is not last[0]:
        last = _last = span, None if span is None else _trace_of(span.get_span_context())
    return last[1]


def _trace_of(context: "SpanContext") -> Trace | None:
    if not context.is_valid:
        return None
    ids = context.trace_id.to_bytes(16, "big") + context.span_id.to_bytes(8, "big")
    state = context.trace_state.to_header().encode() if context.trace_state else b""
    return ids + bytes([context.trace_flags]), state if len(state) <= MAX_TRACESTATE else b""


_last: "tuple[Span | None, Trace | None]" = None, None
"""The last span and its trace: a program appends many batches in one span, whose context never changes."""
_context: Any = None
"""What holds the API's current context: a `ContextVar` or an `_Api`; None until the program has loaded the API."""
_key = "current-span"


class _Api:
    """Gets the current span by the API's own function."""

    def get(self) -> Mapping[str, Any]:
        from opentelemetry.trace import INVALID_SPAN, get_current_span

        span = get_current_span()
        return {} if span is INVALID_SPAN else {_key: span}


def _found_context() -> Any:
    """Find the API's context variable, to read it directly: its function calls five others, 5 % of a small append.

    Neither name is public, and OTEL_PYTHON_CONTEXT may choose another context: then the API's function is called.
    """
    global _key
    from opentelemetry import context
    from opentelemetry.trace import propagation

    variable = getattr(getattr(context, "_RUNTIME_CONTEXT", None), "_current_context", None)
    key = getattr(propagation, "_SPAN_KEY", None)
    if isinstance(variable, ContextVar) and isinstance(key, str):
        _key = key
        return variable
    return _Api()


def traceparent(trace: bytes) -> str:
    """A trace as text, for HTTP and for people.

    >>> traceparent(bytes.fromhex("0af7651916cd43dd8448eb211c80319c" "b7ad6b7169203331" "01"))
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    """
    return f"00-{trace[:16].hex()}-{trace[16:24].hex()}-{trace[24:].hex()}"


def trace_headers() -> dict[str, str] | None:
    """The headers by which a request over HTTP says in which trace it is; None outside of every one."""
    trace = current_trace()
    if trace is None:
        return None
    headers = {"traceparent": traceparent(trace[0])}
    if trace[1]:
        headers["tracestate"] = trace[1].decode("ascii", "ignore")
    return headers


# ---- processing ----


class TracedBatch(Protocol):
    """A batch, as its span sees it."""

    @property
    def count(self) -> int:
        """Records in the batch."""
        ...

    @property
    def _meta(self) -> "Meta": ...


@contextmanager
def processing(stream: str, time: Time, batches: "Sequence[TracedBatch]") -> Iterator[None]:
    """The span and the current context in which an epoch is processed; nothing in a program that does not trace.

    It links to the span of each batch; where all batches are of one trace, it also has the first of these as its
    parent, because a waterfall is drawn from parents.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        yield
        return
    parents, left_out, one = contexts(batch._meta for batch in batches)
    attributes = names.on_stream("process", stream)
    attributes |= {names.MESSAGES: sum(batch.count for batch in batches), names.TIME: json.dumps(to_json(time))}
    if left_out:
        attributes[names.LINKS_LEFT_OUT] = left_out
    links, context = [api.Link(parent) for parent in parents], None
    if one:
        here = api.get_current_span().get_span_context()
        if here.is_valid and len(links) < names.MAX_LINKS:
            links.append(api.Link(here))
        context = api.set_span_in_context(api.NonRecordingSpan(parents[0]))
    tracer = api.get_tracer(names.SCOPE)
    began = perf_counter()
    failure = ""
    with tracer.start_as_current_span(
        names.span_name("process", stream), context, api.SpanKind.CONSUMER, attributes, links
    ) as span:
        try:
            yield
        except BaseException as error:
            failure = type(error).__qualname__
            span.set_attribute(names.ERROR, failure)
            raise
        finally:
            _processed(stream, perf_counter() - began, failure)


def contexts(metas: Iterable["Meta"]) -> "tuple[list[SpanContext], int, bool]":
    """The spans that the batches were made in, each once, up to a span's number of links; how many are left out.

    The third value is true when there is at least one, and all are of one trace.
    """
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    found: dict[bytes, Meta] = {}
    for meta in metas:
        if meta.trace is not None:
            found.setdefault(meta.trace[:24], meta)
    places = []
    for ids, meta in list(found.items())[: names.MAX_LINKS]:
        assert meta.trace is not None
        state = TraceState.from_header([meta.tracestate.decode("ascii", "replace")]) if meta.tracestate else None
        trace_id, span_id = int.from_bytes(ids[:16], "big"), int.from_bytes(ids[16:], "big")
        places.append(SpanContext(trace_id, span_id, True, TraceFlags(meta.trace[24]), state))
    return places, max(len(found) - names.MAX_LINKS, 0), len({ids[:16] for ids in found}) == 1


def _processed(stream: str, seconds: float, failure: str) -> None:
    """Record how long it took, in a program that has loaded the API of metrics."""
    if "opentelemetry.metrics" not in sys.modules:
        return
    attributes = names.on_stream("process", stream)
    if failure:
        attributes[names.ERROR] = failure
    _process_duration().record(seconds, attributes)


@functools.cache
def _process_duration() -> Any:
    from opentelemetry import metrics

    return metrics.get_meter(names.SCOPE).create_histogram(
        names.PROCESS_DURATION, "s", "How long epochs took to be processed",
        explicit_bucket_boundaries_advisory=names.DURATION_BOUNDS,
    )  # fmt: skip

"""Spans that are recorded in one piece when they are over, for what happens thousands of times a second.

The SDK's spans can be changed until they end: each takes 43 us to make and 48 to encode, a quarter of what a publisher
spends on a batch for 64 subscribers. A span of this module takes a fifth of that (docs/performance.md). They are used
where we have set up the SDK and its sampler takes every span whose parent is sampled; elsewhere the SDK makes the same
span.
"""

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from epochal.otel import names

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Tracer

_LOCAL, _REMOTE = 0x100, 0x200
"""OTLP's flags: it is known whether a context came from another process, and the context did."""
_INTERNAL = 1
"""The kind of span."""
_FOLLOWS = re.compile(
    r"ParentBased\{root:(AlwaysOnSampler|AlwaysOffSampler|TraceIdRatioBased\{[^{}]*\}),"
    r"remoteParentSampled:AlwaysOnSampler,"
)
_FIELDS = {str: "string_value", int: "int_value", float: "double_value", bool: "bool_value"}


class Finished(NamedTuple):
    """A span below a sampled parent in another process; `start` and `end` in nanoseconds since 1970.

    `parent` and `links` are as in `Meta.trace`: 16 bytes of a trace id, 8 of a span id, 1 of flags.
    """

    name: str
    parent: bytes
    tracestate: bytes
    links: tuple[bytes, ...]
    start: int
    end: int
    attributes: names.Attributes


def follows_parents(sampler: Any) -> bool:
    """Whether this sampler takes every span whose parent, in another process, is sampled; if unsure, False."""
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

    if type(sampler) is not ParentBased:
        return sampler is ALWAYS_ON
    describe: Any = sampler.get_description
    return _FOLLOWS.match(describe()) is not None


def by_sdk(tracer: "Tracer", finished: Finished) -> None:
    """Let the SDK make the span, with its sampler and processors."""
    from opentelemetry.trace import Link, NonRecordingSpan, set_span_in_context

    links = [Link(_context(link, b"")) for link in finished.links]
    parent = set_span_in_context(NonRecordingSpan(_context(finished.parent, finished.tracestate)))
    span = tracer.start_span(
        finished.name, parent, attributes=finished.attributes, links=links, start_time=finished.start
    )
    span.end(finished.end)


def _context(trace: bytes, tracestate: bytes) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    state = TraceState.from_header([tracestate.decode("ascii", "replace")]) if tracestate else None
    ids = int.from_bytes(trace[:16], "big"), int.from_bytes(trace[16:24], "big")
    return SpanContext(*ids, True, TraceFlags(trace[24]), state)


class Encoder:
    """Encodes finished spans for OTLP, as spans of one resource. Needs the SDK's exporter, whose messages it uses."""

    def __init__(self, resource: "Resource") -> None:
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext

        # Resource and scope as the SDK encodes them, taken from a span that is dropped.
        scope = InstrumentationScope(names.SCOPE, "", "")
        span = ReadableSpan("", SpanContext(1, 1, False), resource=resource, instrumentation_scope=scope)
        self._empty = encode_spans([span])
        del self._empty.resource_spans[0].scope_spans[0].spans[:]

    def request(self, spans: Sequence[Finished]) -> bytes:
        """One encoded `ExportTraceServiceRequest`.

        Its bytes after those of another request are one request with the spans of both, as protobuf merges messages.
        """
        request = type(self._empty)()
        request.CopyFrom(self._empty)
        add = request.resource_spans[0].scope_spans[0].spans.add
        for finished in spans:
            parent = finished.parent
            span = add(
                trace_id=parent[:16], span_id=os.urandom(8), parent_span_id=parent[16:24],
                trace_state=finished.tracestate.decode("ascii", "replace"), name=finished.name, kind=_INTERNAL,
                start_time_unix_nano=finished.start, end_time_unix_nano=finished.end, flags=_LOCAL | _REMOTE,
            )  # fmt: skip
            span.status.SetInParent()
            for name, value in finished.attributes.items():
                pair = span.attributes.add(key=name)
                setattr(pair.value, _FIELDS[type(value)], value)
            for link in finished.links:
                span.links.add(trace_id=link[:16], span_id=link[16:24], flags=_LOCAL | _REMOTE)
        return bytes(request.SerializeToString())

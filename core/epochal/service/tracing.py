"""The spans of a service: requests over HTTP, and an operator's reconciliations.

Separate from the server because this module decides whether there is a span at all. A request gets one only if it is
part of its caller's trace. Every publisher renews its lease every second, and probes are as frequent: root spans for
these would be most of what a collector gets, and would say nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epochal.otel import names, sdk

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class Serving:
    """The span of one request, or of none."""

    def __init__(self, span: "Span | None") -> None:
        self._span = span

    def answered(self, status: int) -> None:
        """Record the status of the answer; 500 and above are errors of the service."""
        if self._span is None:
            return
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute(names.ERROR, str(status))
            self._span.set_status(Status(StatusCode.ERROR))


_NONE = Serving(None)


@contextmanager
def serving(method: str, route: str, headers: Mapping[str, str]) -> Iterator[Serving]:
    """The span `METHOD /route` of a request that carries a trace; nothing for any other."""
    provider = sdk.provider() if "traceparent" in headers else None
    if provider is None:
        yield _NONE
        return
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
    context = TraceContextTextMapPropagator().extract(carrier)
    attributes = {"http.request.method": method, "http.route": route}
    tracer = provider.get_tracer(names.SCOPE)
    with tracer.start_as_current_span(f"{method} {route}", context, SpanKind.SERVER, attributes) as span:
        yield Serving(span)


class Look:
    """The span of one reconciliation; set `outcome` before it ends."""

    outcome = ""


@contextmanager
def looking(name: str) -> Iterator[Look]:
    """The span `reconcile NAME` of an operator's reconciliation of one object; it is a root span."""
    provider, look = sdk.provider(), Look()
    if provider is None:
        yield look
        return
    from opentelemetry.trace import Status, StatusCode

    tracer = provider.get_tracer(names.SCOPE)
    with tracer.start_as_current_span(f"{names.RECONCILE} {name}") as span:
        try:
            yield look
        finally:
            span.set_attribute(names.OUTCOME, look.outcome)
            if look.outcome == "failed":
                span.set_attribute(names.ERROR, look.outcome)
                span.set_status(Status(StatusCode.ERROR))

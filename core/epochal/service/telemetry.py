"""What every service measures and traces: its metrics, in a registry of its own, and a span for each HTTP request.

The exporter and all about HTTP are the same in every service.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from aiohttp import web
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import AnyValue
from prometheus_client import CollectorRegistry, generate_latest

from epochal.otel import names, sdk

if TYPE_CHECKING:
    from opentelemetry.trace import Span


def _dropped(_options: CallbackOptions) -> Iterable[Observation]:
    tracing = sdk.current()
    yield Observation(0 if tracing is None else tracing.dropped)


_METHODS = frozenset(("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"))


DURATION_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds: an answer from memory takes less than a millisecond, and a request may wait for minutes."""


class ServiceTelemetry:
    """Counters of events, and gauges that are read with the metrics. `service`: as in `epochal.<service>.*`."""

    def __init__(self, service: str) -> None:
        self._prometheus = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self._prometheus)
        resource = Resource({"service.name": f"epochal-{service}", "service.version": version("epochal")})
        self._provider = MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
        self.meter = self._provider.get_meter(f"epochal.{service}")
        self._requests = self.meter.create_histogram(
            "http.server.request.duration", unit="s", description="Duration of requests, waiting included",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS,
        )  # fmt: skip
        self._refused = self.meter.create_counter(
            "epochal.http.refused", unit="{refusal}", description="Connections and requests that broke a limit"
        )
        self.meter.create_observable_counter(
            names.SPANS_DROPPED, [_dropped], unit="{span}", description="Spans that were never sent"
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request was answered."""
        labels: dict[str, AnyValue] = {
            "http.request.method": method if method in _METHODS else "_OTHER",  # anyone can invent methods
            "http.route": route,
            "http.response.status_code": status,
        }
        self._requests.record(seconds, labels)

    def refused(self, reason: str) -> None:
        """A connection was cut, or a request refused, because of a limit."""
        self._refused.add(1, {"reason": reason})

    def gauge(self, name: str, unit: str, text: str, read: Callable[[], float]) -> None:
        """Show one number that has no labels."""
        self.meter.create_observable_gauge(name, [lambda _: [Observation(read())]], unit=unit, description=text)

    def count(self, name: str, unit: str, text: str, read: Callable[[], float]) -> None:
        """Show one number that has no labels and only rises."""
        self.meter.create_observable_counter(name, [lambda _: [Observation(read())]], unit=unit, description=text)

    def render(self) -> bytes:
        """The present values as Prometheus text."""
        return generate_latest(self._prometheus)

    async def serve(self, _request: web.Request) -> web.Response:
        """The answer to `GET /metrics`."""
        return web.Response(body=self.render(), headers={"Content-Type": "text/plain; version=0.0.4"})

    def close(self) -> None:
        """Stop the provider."""
        self._provider.shutdown()


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
    """The span `METHOD /route` of a request that carries a trace; nothing for any other.

    Every publisher renews its lease every second, and probes are as frequent: spans of their own for these would be
    most of what a collector gets, and would say nothing.
    """
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

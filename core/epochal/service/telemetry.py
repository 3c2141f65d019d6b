"""A service's metrics, in a registry of its own, with those that every service has.

Separate from each service's own metrics because the exporter and the metrics about HTTP are the same everywhere.
"""

from collections.abc import Callable, Iterable
from importlib.metadata import version

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import AnyValue
from prometheus_client import CollectorRegistry, generate_latest

from epochal.otel import names, sdk


def _dropped(_options: CallbackOptions) -> Iterable[Observation]:
    tracing = sdk.current()
    yield Observation(0 if tracing is None else tracing.dropped)


_METHODS = frozenset(("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"))


class ServiceTelemetry:
    """Counters of events, and gauges that are read with the metrics. `service`: as in `epochal.<service>.*`."""

    def __init__(self, service: str) -> None:
        self._prometheus = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self._prometheus)
        resource = Resource({"service.name": f"epochal-{service}", "service.version": version("epochal")})
        self._provider = MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
        self.meter = self._provider.get_meter(f"epochal.{service}")
        self._requests = self.meter.create_histogram(
            "http.server.request.duration", unit="s", description="Duration of requests, waiting included"
        )
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

        def observed(_options: CallbackOptions) -> Iterable[Observation]:
            yield Observation(read())

        self.meter.create_observable_gauge(name, [observed], unit=unit, description=text)

    def count(self, name: str, unit: str, text: str, read: Callable[[], float]) -> None:
        """Show one number that has no labels and only rises."""

        def observed(_options: CallbackOptions) -> Iterable[Observation]:
            yield Observation(read())

        self.meter.create_observable_counter(name, [observed], unit=unit, description=text)

    def render(self) -> bytes:
        """The present values as Prometheus text."""
        return generate_latest(self._prometheus)

    def close(self) -> None:
        """Stop the provider."""
        self._provider.shutdown()

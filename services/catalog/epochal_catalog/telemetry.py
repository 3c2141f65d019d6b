"""The catalog's metrics, in a registry of its own.

Apart from the service because names, units and the exporter are one concern; nothing else imports OpenTelemetry.
"""

from collections.abc import Callable, Iterable
from importlib.metadata import version

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import AnyValue
from prometheus_client import CollectorRegistry, generate_latest

from epochal_catalog.state import State
from epochal_catalog.waiting import WaitingRoom


class Telemetry:
    """Counts what happens and shows what is."""

    def __init__(self) -> None:
        self._prometheus = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self._prometheus)
        resource = Resource({"service.name": "epochal-catalog", "service.version": version("epochal")})
        self._provider = MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("epochal.catalog")
        self._requests = self._meter.create_histogram(
            "http.server.request.duration", unit="s", description="Duration of requests, waiting included"
        )
        self._lapsed = self._meter.create_counter(
            "epochal.catalog.leases.lapsed", unit="{lease}", description="Leases that were not renewed in time"
        )
        self._failed = self._meter.create_counter(
            "epochal.catalog.store.failures", unit="{write}", description="Writes that the database did not take"
        )

    def observe(self, state: State, room: WaitingRoom) -> None:
        """Show sizes of the state whenever metrics are read."""
        self._gauge("epochal.catalog.streams", "{stream}", "Declared streams", lambda: len(list(state.streams())))
        self._gauge("epochal.catalog.publishers", "{publisher}", "Registrations", lambda: len(state.registrations))
        self._gauge("epochal.catalog.waiters", "{lookup}", "Lookups that wait", lambda: len(room))
        self._gauge("epochal.catalog.revision", "{change}", "Stored changes so far", lambda: state.revision)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request was answered."""
        labels: dict[str, AnyValue] = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
        }
        self._requests.record(seconds, labels)

    def lapsed(self, count: int) -> None:
        """Leases lapsed."""
        if count:
            self._lapsed.add(count)

    def store_failed(self) -> None:
        """A write failed; nothing was changed."""
        self._failed.add(1)

    def render(self) -> bytes:
        """The Prometheus text of this moment."""
        return generate_latest(self._prometheus)

    def close(self) -> None:
        """Stop the provider."""
        self._provider.shutdown()

    def _gauge(self, name: str, unit: str, text: str, read: Callable[[], int]) -> None:
        def observed(_options: CallbackOptions) -> Iterable[Observation]:
            yield Observation(read())

        self._meter.create_observable_gauge(name, [observed], unit=unit, description=text)

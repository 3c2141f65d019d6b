"""The operator's metrics, in a registry of its own.

Apart from what is counted because names, units and the exporter are one concern.
"""

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Observation

from epochal.service.telemetry import ServiceTelemetry


class Telemetry(ServiceTelemetry):
    """Counts what happens and shows what is."""

    def __init__(self) -> None:
        super().__init__("operator")
        self._looks = self.meter.create_histogram(
            "epochal.operator.reconcile.duration", unit="s", description="Looks at one stream, by outcome"
        )
        self._events = self.meter.create_counter(
            "epochal.operator.watch.events", unit="{event}", description="Events of watches, by kind"
        )
        self._missed = self.meter.create_counter(
            "epochal.operator.watch.missed", unit="{object}", description="Changes that only a list anew has told"
        )

    def observe(
        self,
        *,
        requests: Mapping[tuple[str, str], int],
        streams: Callable[[], int],
        foreign: Callable[[], int],
        ready: Callable[[], int],
        queued: Callable[[], int],
        leading: Callable[[], bool],
    ) -> None:
        """Show these whenever metrics are read."""

        def counted(_options: CallbackOptions) -> Iterable[Observation]:
            for (method, outcome), count in list(requests.items()):
                yield Observation(count, {"http.request.method": method, "outcome": outcome})

        self.meter.create_observable_counter(
            "epochal.operator.kubernetes.requests", [counted], "{request}", "Requests to the Kubernetes API"
        )
        self.gauge("epochal.operator.streams", "{stream}", "Streams that this operator looks after", streams)
        self.gauge("epochal.operator.streams.foreign", "{stream}", "Streams that another looks after", foreign)
        self.gauge("epochal.operator.streams.ready", "{stream}", "Streams of which every segment is served", ready)
        self.gauge("epochal.operator.queue", "{stream}", "Streams that wait to be looked at", queued)
        self.gauge("epochal.operator.leading", "1", "Whether this operator acts", lambda: float(leading()))

    def looked(self, outcome: str, seconds: float) -> None:
        """A stream was looked at."""
        self._looks.record(seconds, {"outcome": outcome})

    def event(self, kind: str) -> None:
        """A watch told something."""
        self._events.add(1, {"kind": kind})

    def missed(self, kind: str, count: int) -> None:
        """A list told what no watch had."""
        if count:
            self._missed.add(count, {"kind": kind})

"""The operator's metrics, its health and readiness over HTTP, and its log as JSON lines."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Self

from aiohttp import web
from opentelemetry.metrics import CallbackOptions, Observation

from epochal.errors import EpochalError
from epochal.service import problems
from epochal.service.http import Handler, HttpServer
from epochal.service.process import ids
from epochal.service.telemetry import DURATION_BOUNDS, ServiceTelemetry
from epochal_operator.settings import OperatorSettings

_DRAIN = 0.5
"""Seconds; no answer here takes longer."""


class OperatorTelemetry(ServiceTelemetry):
    """The operator's metrics."""

    def __init__(self) -> None:
        super().__init__("operator")
        self._looks = self.meter.create_histogram(
            "epochal.operator.reconcile.duration", unit="s", description="Looks at one stream or relay, by outcome",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS,
        )  # fmt: skip
        self._events = self.meter.create_counter(
            "epochal.operator.watch.events", unit="{event}", description="Events of watches, by kind"
        )
        self._missed = self.meter.create_counter(
            "epochal.operator.watch.missed", unit="{object}", description="Changes that only a new list showed"
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
        """Register the values that are read at each scrape."""

        def counted(_options: CallbackOptions) -> Iterable[Observation]:
            for (method, outcome), count in list(requests.items()):
                yield Observation(count, {"http.request.method": method, "outcome": outcome})

        self.meter.create_observable_counter(
            "epochal.operator.kubernetes.requests", [counted], "{request}", "Requests to the Kubernetes API"
        )
        self.gauge("epochal.operator.streams", "{stream}", "Streams that this operator looks after", streams)
        self.gauge("epochal.operator.streams.foreign", "{stream}", "Streams that another looks after", foreign)
        self.gauge("epochal.operator.streams.ready", "{stream}", "Streams of which every segment is served", ready)
        self.gauge("epochal.operator.queue", "{stream}", "Streams and relays that wait to be looked at", queued)
        self.gauge("epochal.operator.leading", "1", "Whether this operator acts", lambda: float(leading()))

    def looked(self, outcome: str, seconds: float) -> None:
        """Count a reconcile of a stream or relay."""
        self._looks.record(seconds, {"outcome": outcome})

    def event(self, kind: str) -> None:
        """Count an event of a watch."""
        self._events.add(1, {"kind": kind})

    def missed(self, kind: str, count: int) -> None:
        """Count changes that a list has shown and no watch has."""
        if count:
            self._missed.add(count, {"kind": kind})


class Web:
    """Two ports while entered: one for probes, one for metrics. `healthy` and `ready` answer probes."""

    def __init__(
        self,
        settings: OperatorSettings,
        telemetry: ServiceTelemetry,
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._healthy = healthy
        self._ready = ready
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen. Raises `ConfigError`."""
        async with AsyncExitStack() as stack:
            probes = ServiceTelemetry("operator.probes")
            stack.callback(probes.close)
            routes = {"/healthz": _probe(self._healthy), "/readyz": _probe(self._ready)}
            await self._serve(stack, probes, self._settings.port, routes)
            await self._serve(stack, self._telemetry, self._settings.metrics_port, {"/metrics": self._telemetry.serve})
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _serve(
        self, stack: AsyncExitStack, telemetry: ServiceTelemetry, port: int, routes: dict[str, Handler]
    ) -> None:
        server = HttpServer(self._settings, telemetry, _explain, drain=_DRAIN)
        for path, handler in routes.items():
            server.app.router.add_get(path, handler)
        stack.push_async_callback(server.close)
        await server.start(port)


def _probe(check: Callable[[], bool]) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if check() else web.Response(status=503, text="no\n")

    return answer


def _explain(error: EpochalError) -> web.Response:
    return problems.explain(error, {})


class JsonLines(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message and, if there are any, trace ids and stack."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (found := ids()) is not None:
            line["trace_id"], line["span_id"] = found
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def write_json() -> None:
    """Make all log handlers of this process write JSON lines."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())

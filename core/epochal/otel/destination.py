"""Sends spans and metrics to the collector, by OTLP over HTTP.

Only this module knows what an answer means: what to try again, what to give up, and that a collector which takes only
traces answers metrics with 404.
"""

import logging
import math
from collections.abc import Sequence

import requests
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from epochal.otel.span_processor import Sent
from epochal.otel.spans import Encoder, Finished

_NOT_TAKEN = frozenset((404, 405, 501))
"""The statuses with which a collector answers that has no receiver for a signal."""
_AGAIN = frozenset((None, 429, 502, 503, 504))
"""No answer at all, and the statuses after which OTLP allows to send again."""

# For each failure we log one line ourselves, instead of the exporters' several.
logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL + 1)


class _Session(requests.Session):
    """Remembers the status of the last answer: exporters say only whether they have succeeded."""

    def __init__(self) -> None:
        super().__init__()
        self.status: int | None = None
        self.hooks["response"].append(self._answered)

    def _answered(self, response: requests.Response, *_: object, **__: object) -> None:
        self.status = response.status_code


class Collector:
    """Sends to the given addresses; None for what is not sent. `reader`: to be given to our `MeterProvider`.

    `timeout`: seconds for one send, retries included; None for OTEL_EXPORTER_OTLP_TIMEOUT, or 10.
    `resource`: that of `Finished` spans, which carry none.
    """

    def __init__(
        self, traces: str | None, metrics: str | None, timeout: float | None, resource: Resource | None = None
    ) -> None:
        self._address = traces or metrics or ""
        self._session = _Session()
        self._traces = None if traces is None else _Spans(session=self._session, timeout=timeout)
        self._encoder = Encoder(resource or Resource({}))
        self._metrics = None if metrics is None else _Metrics(timeout)
        # The interval is infinite: it collects only in `metrics()`, on the one thread that sends.
        self.reader = None if self._metrics is None else PeriodicExportingMetricReader(self._metrics, math.inf)

    def spans(self, spans: Sequence[ReadableSpan | Finished]) -> Sent:
        """Send spans."""
        if self._traces is None:
            return Sent(True)
        self._session.status = None
        finished = [span for span in spans if isinstance(span, Finished)]
        others = [span for span in spans if isinstance(span, ReadableSpan)]
        if finished:
            body = encode_spans(others).SerializeToString() if others else b""
            sent = self._traces.send(body + self._encoder.request(finished))
        else:
            sent = self._traces.export(others) is SpanExportResult.SUCCESS
        return Sent(True) if sent else _failed(self._address, self._session.status)

    @property
    def takes_finished(self) -> bool:
        """Whether `Finished` spans can be sent: `send` needs a part of the exporter that its API does not promise."""
        return self._traces is not None and self._traces.can_send

    def metrics(self) -> Sent:
        """Collect and send metrics; nothing once the collector has said that it takes none."""
        if self.reader is None or self._metrics is None or self._metrics.refused:
            return Sent(True)
        self._metrics.outcome = Sent(True)
        self.reader.force_flush()
        return self._metrics.outcome


class _Spans(OTLPSpanExporter):
    """An exporter that also sends spans that are already encoded."""

    @property
    def can_send(self) -> bool:
        """Whether this release of the exporter has what `send` needs."""
        return hasattr(getattr(self, "_client", None), "export")

    def send(self, body: bytes) -> bool:
        """Send one request, again where OTLP allows, within the time-out; returns whether it was taken."""
        return bool(self._client.export(body).success)


class _Metrics(MetricExporter):
    """An exporter that keeps the outcome of its last send, because its reader does not report it."""

    def __init__(self, timeout: float | None) -> None:
        self._session = _Session()
        self._inner = OTLPMetricExporter(session=self._session, timeout=timeout)
        super().__init__(self._inner._preferred_temporality, self._inner._preferred_aggregation)
        self.outcome = Sent(True)
        self.refused = False

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        """Send them."""
        self._session.status = None
        result = self._inner.export(metrics_data, timeout_millis)
        status = self._session.status
        if result is MetricExportResult.SUCCESS:
            self.outcome = Sent(True)
        elif status in _NOT_TAKEN:
            self.refused = True
        else:
            self.outcome = _failed(self._inner._endpoint, status)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing is kept here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        """End the connection."""
        self._inner.shutdown()


def _failed(address: str, status: int | None) -> Sent:
    reason = f"{address} does not answer" if status is None else f"{address} answered {status}"
    return Sent(False, reason, again=status in _AGAIN)

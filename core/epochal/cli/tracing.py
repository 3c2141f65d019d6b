"""Spans and metrics of what the command line itself publishes and processes.

All commands set up OpenTelemetry in the same way, and wait for the collector for the same short time at most.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epochal.errors import EpochalError
from epochal.otel import names, sdk

if TYPE_CHECKING:
    from opentelemetry.trace import Span

SERVICE = "epochal-cli"


@contextmanager
def telemetry(service: str = SERVICE) -> Iterator[None]:
    """Send the spans and metrics of what is done in the block, where OTEL_EXPORTER_OTLP_ENDPOINT names a collector.

    At the end this waits for the collector, for OTEL_EXPORTER_OTLP_TIMEOUT or 2 seconds at most. Raises `ConfigError`
    for variables that cannot be used.
    """
    sdk.start(service, quick=True)
    try:
        yield
    finally:
        ours = sdk.current()
        if ours is not None:
            ours.close()


class SendSpans:
    """The spans `send STREAM` of a command, one for what is sent between two acknowledgements.

    Does nothing where no one has set tracing up.
    """

    def __init__(self, stream: str) -> None:
        provider = sdk.provider()
        self._tracer = None if provider is None else provider.get_tracer(names.SCOPE)
        self._stream = stream
        self._span: Span | None = None
        self._records = 0

    @contextmanager
    def current(self) -> Iterator[None]:
        """A block whose appends belong to the open span, which begins here unless there is one."""
        if self._tracer is None:
            yield
            return
        from opentelemetry.trace import SpanKind, use_span

        span = self._span
        if span is None:
            self._records = 0
            name, attributes = names.span_name("send", self._stream), names.on_stream("send", self._stream)
            span = self._span = self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes)
        with use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    def sent(self, records: int) -> None:
        """Count records that are in flight."""
        self._records += records

    def over(self, way: str, error: EpochalError | None = None) -> None:
        """End the span: all is acknowledged, or failed with `error`. `way`: how the writer reached publishers."""
        span, self._span = self._span, None
        if span is None:
            return
        span.set_attributes({names.MESSAGES: self._records, names.WAY: way})
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            span.set_attribute(names.ERROR, error.code)
            span.set_status(Status(StatusCode.ERROR, str(error)[:200]))
        span.end()

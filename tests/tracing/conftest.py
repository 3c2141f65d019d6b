"""A tracer provider of the program, as a user brings it, for one test."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.metrics import _internal as metrics_internal
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from epochal.client import tracing


class Spans:
    """What has ended, in order."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.provider, self._exporter = provider, exporter
        self.tracer = provider.get_tracer("the program")

    def __iter__(self) -> Iterator[ReadableSpan]:
        return iter(self._exporter.get_finished_spans())

    def one(self, name: str) -> Any:
        (found,) = [span for span in self if span.name == name]
        return found

    def clear(self) -> None:
        self._exporter.clear()


@pytest.fixture
def spans() -> Iterator[Spans]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield Spans(provider, exporter)
    trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE = None, Once()


@pytest.fixture
def meters() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))
    tracing._process_duration.cache_clear()
    yield reader
    metrics_internal._METER_PROVIDER, metrics_internal._METER_PROVIDER_SET_ONCE = None, Once()
    tracing._process_duration.cache_clear()

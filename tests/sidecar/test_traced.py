"""The span `forward STREAM` of a sidecar: one an opening at a segment, within the trace of who opened the writer."""

import os

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from tests.conftest import Services
from tests.sidecar.conftest import Start
from tests.tracing.receiver import attributes, receiving

import epochal

TRACE, SPAN = int.from_bytes(os.urandom(16), "big") | 1, int.from_bytes(os.urandom(8), "big") | 1


def within(flags: int) -> NonRecordingSpan:
    return NonRecordingSpan(SpanContext(TRACE, SPAN, is_remote=False, trace_flags=TraceFlags(flags)))


async def test_an_opening_within_a_trace_is_a_span_of_it_and_one_that_is_not_sampled_is_none(
    services: Services, start: Start, client: epochal.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await services.stream(segments=2)
    async with receiving() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        await start()
        for flags in (0, 1):
            with trace.use_span(within(flags)):
                async with client.writer(stream) as writer:
                    await writer.append(flags, ["x"], key=b"a")
        found = await received.until(f"forward {stream}", 2)
    for span in found:
        assert (int.from_bytes(span.trace_id, "big"), int.from_bytes(span.parent_span_id, "big")) == (TRACE, SPAN)
        assert attributes(span)["messaging.destination.name"] == stream
        assert str(attributes(span)["epochal.publisher.address"]).startswith("tcp://")
    assert len(received.named(f"forward {stream}")) == 2

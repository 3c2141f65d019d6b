"""What services make of a trace: appends when they are durable, requests that belong to one, and lines of the log."""

import json
import logging

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from tests.patience import PATIENCE
from tests.tracing.receiver import attributes, receiving

import epochal
from epochal.local import LocalMode, LocalSettings
from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import Push
from epochal.service.process import Traced
from epochal.service.telemetry import looking, serving
from epochal_operator.telemetry import JsonLines
from epochal_publisher.segments.commits import Appends


def push(seq, trace_id, span_id, flags=1):
    ids = trace_id.to_bytes(16, "big") + span_id.to_bytes(8, "big") + bytes([flags])
    return Push(m.Data(seq, seq - 1, 5, b"", 10, 0, b"", m.Meta(trace=ids)))


def test_a_commit_has_one_span_for_each_trace_in_it(spans):
    appends = Appends.start("demo/flights")
    assert appends is not None
    others = [Push(m.Heartbeat(9)), Push(m.Data(4, 3, 5, b"", 1, 0, b"")), Push(m.Frontier(9, 8, ((5, 1),)))]
    appends.committed("s0", 2, [push(5, 1, 2), *others, push(6, 7, 8), push(7, 1, 3), push(8, 9, 9, flags=0)], 0.25)
    first, second = spans
    assert first.name == "append demo/flights"
    assert (first.parent.trace_id, first.parent.span_id) == (1, 2)
    assert [link.context.span_id for link in first.links] == [3]
    assert {
        "messaging.destination.partition.id": "s0",
        "messaging.batch.message_count": 20,
        "epochal.incarnation": 2,
        "epochal.seq.first": 5,
        "epochal.seq.last": 7,
        "epochal.appends": 2,
        "epochal.durable.seconds": 0.25,
    }.items() <= dict(first.attributes).items()
    assert first.end_time - first.start_time == 250_000_000
    assert (second.parent.trace_id, second.parent.span_id) == (7, 8)


def test_where_nothing_is_sent_a_publisher_looks_at_nothing():
    assert Appends.start("demo/flights") is None


def test_only_requests_of_a_trace_have_a_span(spans):
    with serving("GET", "/v1/streams", {}) as span:
        span.answered(500)
    assert not list(spans)
    with serving("GET", "/v1/streams", {"traceparent": f"00-{5:032x}-{6:016x}-01"}) as span:
        span.answered(503)
    made = spans.one("GET /v1/streams")
    assert (made.context.trace_id, made.parent.span_id, made.kind) == (5, 6, trace.SpanKind.SERVER)
    assert made.attributes["error.type"] == "503"


def test_an_operators_look_says_how_it_ended(spans):
    with looking("demo/flights") as look:
        look.outcome = "failed"
    made = spans.one("reconcile demo/flights")
    assert (made.attributes["epochal.outcome"], made.status.status_code) == ("failed", trace.StatusCode.ERROR)


def test_lines_of_the_log_say_their_trace(spans):
    record = logging.LogRecord("epochal", logging.INFO, "", 0, "found %d", (3,), None)
    plain = Traced("%(levelname)s %(message)s")
    assert plain.format(record) == "INFO found 3"
    with spans.tracer.start_as_current_span("work") as span:
        ids = span.get_span_context()
        assert plain.format(record) == f"INFO found 3 trace_id={ids.trace_id:032x} span_id={ids.span_id:016x}"
        told = json.loads(JsonLines().format(record))
    assert (told["trace_id"], told["message"]) == (f"{ids.trace_id:032x}", "found 3")


async def test_one_trace_leads_from_a_program_over_catalog_and_publisher(monkeypatch, spans, tmp_path):
    """The services' spans go to the receiver; those of the program, which brings its own provider, do not."""
    async with receiving() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        async with LocalMode(settings=LocalSettings(poll_interval=0.05)) as local, epochal.connect(local.url) as client:
            spec = {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}}
            document = {
                "apiVersion": "epochal.dev/v1alpha1",
                "kind": "Stream",
                "metadata": {"name": "s", "namespace": "test"},
                "spec": spec,
            }
            await client.catalog.apply(document, "test", "s")
            await client.catalog.lookup("test", "s", wait=PATIENCE)
            with spans.tracer.start_as_current_span("program") as span:
                async with client.writer("test/s") as writer:
                    await writer.append(5, [b"x", b"y"])
            made = span.get_span_context()
            (append,) = await received.until("append test/s")
            unsampled = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False).get_tracer("t")
            with unsampled.start_as_current_span("unsampled"):
                async with client.writer("test/s") as writer:
                    await writer.append(6, [b"z"])
        names = {span.name for span in received.spans}
    ids = (made.trace_id.to_bytes(16, "big"), made.span_id.to_bytes(8, "big"))
    assert (append.trace_id, append.parent_span_id) == ids
    assert attributes(append)["messaging.batch.message_count"] == 2
    assert len(received.named("append test/s")) == 1, "what was not sampled made none"
    requests = [span for span in received.spans if span.name != "append test/s"]
    assert requests, names
    assert {span.trace_id for span in requests} == {ids[0]}, "nor did what belongs to no trace"
    assert any("sessions" in name or "streams" in name for name in names), names

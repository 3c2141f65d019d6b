"""Spans that are recorded when they are over: the same on the wire as those of the SDK, which samples where it must."""

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, DEFAULT_ON, ParentBased, TraceIdRatioBased

from epochal.otel import names
from epochal.otel.spans import Encoder, Finished, by_sdk, follows_parents

RESOURCE = Resource({"service.name": "publisher", "process.pid": 7})


def trace(trace_id, span_id, flags=1):
    return trace_id.to_bytes(16, "big") + span_id.to_bytes(8, "big") + bytes([flags])


SPANS = [
    Finished("append demo/flights", trace(1, 2), b"", (), 1_000, 2_000, {"messaging.system": "epochal"}),
    Finished(
        "append demo/flüge", trace(2**127, 2**63), b"vendor=1,other=2", (trace(1, 3), trace(5, 6)), 5, 5,
        {"epochal.seq.first": 2**62, "epochal.durable.seconds": 0.25, "yes": True, "text": "", "zero": 0},
    ),
]  # fmt: skip


def recorded(sampler, spans):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler, RESOURCE, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for span in spans:
        by_sdk(provider.get_tracer(names.SCOPE), span)
    return exporter.get_finished_spans()


def without_ids(request):
    for span in request.resource_spans[0].scope_spans[0].spans:
        assert len(span.span_id) == 8
        span.ClearField("span_id")
    return request


def test_it_is_the_span_that_the_sdk_would_make():
    ours = ExportTraceServiceRequest.FromString(Encoder(RESOURCE).request(SPANS))
    assert without_ids(ours) == without_ids(encode_spans(recorded(DEFAULT_ON, SPANS)))


def test_a_request_after_another_adds_to_it():
    encoder = Encoder(RESOURCE)
    both = ExportTraceServiceRequest.FromString(encoder.request(SPANS[:1]) + encoder.request(SPANS[1:]))
    assert [part.scope_spans[0].spans[0].name for part in both.resource_spans] == [span.name for span in SPANS]


def test_no_two_have_the_same_id():
    spans = ExportTraceServiceRequest.FromString(Encoder(RESOURCE).request(SPANS * 50)).resource_spans[0]
    assert len({span.span_id for span in spans.scope_spans[0].spans}) == 100


@pytest.mark.parametrize(
    ("sampler", "follows"),
    [
        (DEFAULT_ON, True), (ALWAYS_ON, True), (ParentBased(TraceIdRatioBased(0.1)), True), (ALWAYS_OFF, False),
        (TraceIdRatioBased(0.1), False), (ParentBased(ALWAYS_ON, remote_parent_sampled=ALWAYS_OFF), False),
        (ParentBased(DEFAULT_ON, remote_parent_sampled=ALWAYS_OFF), False), (ParentBased(ALWAYS_OFF), True),
    ],
)  # fmt: skip
def test_a_sampler_that_may_decide_otherwise_is_asked(sampler, follows):
    assert follows_parents(sampler) is follows
    if follows:
        assert len(recorded(sampler, SPANS)) == 2

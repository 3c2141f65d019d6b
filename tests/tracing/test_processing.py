"""The span in which an epoch is processed: parent, links, errors, and nothing where nothing is traced."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace

import epochal
from epochal.client.subscriber.values import Data, Epoch, EpochAborted
from epochal.client.tracing import current_trace
from epochal.protocol.messages import Meta


def made_in(trace_id, span_id, flags=1):
    return trace_id.to_bytes(16, "big") + span_id.to_bytes(8, "big") + bytes([flags])


def epoch(*traces):
    batches = [
        Data(5, b"", "s0", seq, 3, b"", lambda payload: [payload], Meta(trace=trace))
        for seq, trace in enumerate(traces)
    ]
    return Epoch(5, tuple(batches), "demo/flights", (5, 7))


def current_name():
    span: Any = trace.get_current_span()
    return span.name


def links(span):
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def test_one_trace_is_the_parent_and_each_batch_is_linked_once(spans):
    with epoch(made_in(1, 2), made_in(1, 3), made_in(1, 2)).processing(), spans.tracer.start_as_current_span("work"):
        pass
    span, work = spans.one("process demo/flights"), spans.one("work")
    assert (span.context.trace_id, span.parent.span_id) == (1, 2)
    assert links(span) == [(1, 2), (1, 3)]
    assert work.parent.span_id == span.context.span_id
    assert span.kind is trace.SpanKind.CONSUMER
    assert dict(span.attributes) == {
        "messaging.system": "epochal",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "demo/flights",
        "messaging.batch.message_count": 9,
        "epochal.time": "[5, 7]",
    }


def test_several_traces_are_linked_and_the_parent_is_who_processes(spans):
    with spans.tracer.start_as_current_span("outer") as outer, epoch(made_in(1, 2), made_in(4, 3)).processing():
        pass
    span = spans.one("process demo/flights")
    assert span.parent.span_id == outer.get_span_context().span_id
    assert links(span) == [(1, 2), (4, 3)]


def test_with_one_trace_who_processes_is_linked(spans):
    with spans.tracer.start_as_current_span("outer") as outer, epoch(made_in(1, 2)).processing():
        pass
    here = outer.get_span_context()
    assert links(spans.one("process demo/flights")) == [(1, 2), (here.trace_id, here.span_id)]


@pytest.mark.parametrize(("trace_of", "parent"), [(lambda n: 7, 1), (lambda n: n, None)])
def test_links_are_bounded_and_the_rest_is_counted(spans, trace_of, parent):
    with epoch(*(made_in(trace_of(n), n) for n in range(1, 201))).processing():
        pass
    span = spans.one("process demo/flights")
    assert len(span.links) == 128
    assert span.attributes["epochal.links.left_out"] == 72
    assert (span.parent and span.parent.span_id) == parent


def test_what_was_not_sampled_is_not_sampled_here(spans):
    with epoch(made_in(1, 2, flags=0)).processing():
        told = current_trace()
    assert not list(spans)
    assert told is not None, "and whatever is published from here says so"
    assert told[0][:16] == made_in(1, 2)[:16]
    assert told[0][24] & 1 == 0


def test_an_error_is_recorded_and_goes_on(spans, meters):
    with pytest.raises(ValueError, match="broken"), epoch(made_in(1, 2)).processing():
        raise ValueError("broken")
    span = spans.one("process demo/flights")
    assert span.attributes["error.type"] == "ValueError"
    assert span.status.status_code is trace.StatusCode.ERROR
    ((metric,),) = [scope.metrics for scope in meters.get_metrics_data().resource_metrics[0].scope_metrics]
    assert (metric.name, metric.unit) == ("messaging.process.duration", "s")
    assert metric.data.data_points[0].attributes["error.type"] == "ValueError"


def test_decorated_functions_run_in_the_span_of_their_epoch(spans):
    class Handler:
        @epochal.traced
        def handle(self, epoch):
            return current_name()

        @epochal.traced
        async def handle_later(self, *, epoch):
            return current_name()

    assert Handler().handle(epoch()) == "process demo/flights"
    assert asyncio.run(Handler().handle_later(epoch=epoch())) == "process demo/flights"
    assert len(list(spans)) == 2
    spans.clear()

    @epochal.traced
    def aborted(event):
        return event.time

    assert aborted(EpochAborted(3)) == 3
    assert not list(spans)


def test_where_the_api_is_absent_all_works_and_loads_nothing():
    program = """
import sys
sys.modules["opentelemetry"] = None
import epochal
from epochal.client.tracing import current_trace
from epochal.client.subscriber.values import Epoch
with Epoch(5, (), "a/b", 5).processing():
    assert current_trace() is None
epochal.traced(lambda epoch: None)(Epoch(5, ()))
assert not [name for name in sys.modules if name.startswith("opentelemetry.")]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_a_blocking_writers_batches_are_of_its_callers_span(spans, services):
    stream = await services.stream()

    def publish():
        with epochal.connect_blocking(services.url) as client, client.writer(stream) as writer:
            with spans.tracer.start_as_current_span("publish") as span:
                writer.append(1, [b"x"])
                writer.append_nowait(1, [b"y"])
                writer.flush()
            writer.advance(2)
        return span.get_span_context()

    made = await asyncio.to_thread(publish)
    async with epochal.connect(services.url) as client, client.subscribe(stream, since="start") as sub:
        async for found in sub.epochs():
            assert isinstance(found, Epoch)
            with found.processing():
                pass
            break
    span = spans.one(f"process {stream}")
    assert (span.parent.trace_id, span.parent.span_id) == (made.trace_id, made.span_id)
    assert span.attributes["messaging.batch.message_count"] == 2

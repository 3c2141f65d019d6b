"""The spans of a Spark query, without Spark: derived ids, the same in driver and tasks, and what is sampled."""

import asyncio
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from tests.sidecar.conftest import Process

import epochal
from epochal.client.tracing import current_trace
from epochal.errors import RepeatDiffers, SidecarUnavailable
from epochal_spark.commit_channel import Handed
from epochal_spark.options import SinkOptions
from epochal_spark.tasks import TaskRun, publish_partition
from epochal_spark.tracing import Batches, Task, root_id, sending, trace_id, trace_options

QUERY, RUN = "6b1e7a52-0f0c-4a35-8a53-6d2f3c1a9e10", "0d9c8b7a-1111-4222-8333-944455556666"


def commit(batches, rows=3, greatest=7, frontier=(8,)):
    with batches.committing(rows, greatest) as span:
        batches.committed(span, frontier)
    batches.over()


def test_a_batch_is_a_trace_whose_ids_follow_from_spark(spans):
    with spans.tracer.start_as_current_span("program") as program:
        batches = Batches("demo/flights", "q")
    batches.begun(17, QUERY, RUN)
    handed = batches.handed
    commit(batches)
    root, done = spans.one("batch 17"), spans.one("commit")
    assert root.context.trace_id == trace_id(QUERY, 17) != trace_id(QUERY, 18)
    assert root.context.span_id == root_id(QUERY, RUN, 17)
    assert root.parent is None
    assert [link.context for link in root.links] == [program.get_span_context()]
    assert done.parent.span_id == root.context.span_id
    assert done.context.span_id != root.context.span_id
    told = {"messaging.batch.message_count": 3, "epochal.time.greatest": "7", "epochal.frontier": "[8]"}
    assert told.items() <= dict(done.attributes).items()
    assert told.items() <= dict(root.attributes).items()
    assert handed == Handed(f"00-{root.context.trace_id:032x}-{root.context.span_id:016x}-01")


def test_a_batch_that_runs_again_is_a_second_root_of_the_same_trace(spans):
    first, second = Batches("demo/flights", "q"), Batches("demo/flights", "q")
    first.begun(3, QUERY, RUN)
    first.close(RuntimeError("killed"))
    second.begun(3, QUERY, "another run")
    commit(second)
    failed, done = [span for span in spans if span.name == "batch 3"]
    assert failed.context.trace_id == done.context.trace_id
    assert failed.context.span_id != done.context.span_id
    assert failed.attributes["error.type"] == "RuntimeError"
    assert failed.status.status_code is trace.StatusCode.ERROR


def test_a_task_sends_within_the_batch_also_where_nothing_was_handed_over(spans):
    batches = Batches("demo/flights", "q")
    batches.begun(4, QUERY, RUN)
    task = Task(QUERY, RUN, 4, 2, 1)
    for handed in (batches.handed, None):
        with sending("demo/flights", task, handed) as span:
            told = current_trace()
            span.records = 12
        sent = spans.one("send demo/flights")
        assert (sent.context.trace_id, sent.parent.span_id) == (trace_id(QUERY, 4), root_id(QUERY, RUN, 4))
        assert told is not None
        assert told[0][16:24] == sent.context.span_id.to_bytes(8, "big")
        assert sent.kind is trace.SpanKind.PRODUCER
        assert {
            "epochal.spark.partition": 2,
            "messaging.batch.message_count": 12,
            "epochal.attempt": 1,
        }.items() <= dict(sent.attributes).items()
        spans.clear()


async def test_a_task_reports_by_which_way_it_sent(services, spans, monkeypatch):
    stream = await services.stream(segments=1)
    send = f"send {stream}"
    options = SinkOptions(stream, services.url, "t", "query", handover="unused")
    with tempfile.TemporaryDirectory(prefix="ep-") as directory:
        sidecar = await Process.start(f"ipc://{directory}/ingest.sock", services.url, Path(directory))
        try:
            async with epochal.connect(services.url) as client, client.writer(stream, writer_id="query") as holder:
                for batch, way in enumerate(("direct", "sidecar")):
                    if way == "sidecar":
                        monkeypatch.setenv("EPOCHAL_SIDECAR", sidecar.address)
                        monkeypatch.setenv("EPOCHAL_SIDECAR_TIMEOUT", "30")
                    rows = pa.RecordBatch.from_pylist([{"t": batch, "n": 1}])
                    run = TaskRun(QUERY, batch, 0, spark_run=RUN)
                    assert await asyncio.to_thread(publish_partition, iter([rows]), options, run) == (batch, 1)
                    assert spans.one(send).attributes["epochal.way"] == way
                    spans.clear()
                await holder.finish()
            monkeypatch.setenv("EPOCHAL_SIDECAR_REQUIRED", "true")
            monkeypatch.setenv("EPOCHAL_SIDECAR_TIMEOUT", "0.5")
            await sidecar.stop()
            with pytest.raises(SidecarUnavailable):
                await asyncio.to_thread(publish_partition, iter([rows]), options, run)
            assert "epochal.way" not in spans.one(send).attributes, "it never knew"
        finally:
            await sidecar.stop()


def test_an_error_of_ours_is_named_by_its_code(spans):
    with pytest.raises(RepeatDiffers), sending("demo/flights", Task(QUERY, RUN, 4, 2, 1), None):
        raise RepeatDiffers("other rows", "w", "s", 3)
    assert spans.one("send demo/flights").attributes["error.type"] == RepeatDiffers.code


def test_ratio_samplers_agree_in_driver_and_tasks(spans):
    spans.provider.sampler = ParentBased(TraceIdRatioBased(0.5))
    batches = Batches("demo/flights", "q")
    sampled = 0
    for batch in range(40):
        batches.begun(batch, QUERY, RUN)
        assert batches.handed is not None
        for handed in (batches.handed, None):
            with sending("demo/flights", Task(QUERY, RUN, batch, 0, 0), handed):
                told = current_trace()
            assert told is not None
            assert told[0][24] == int(batches.handed.traceparent[-2:], 16)
            flags = told[0][24]
        sampled += flags
        batches.over()
    assert 0 < sampled < 40
    assert len([span for span in spans if span.name.startswith("batch")]) == sampled
    assert len([span for span in spans if span.name.startswith("send")]) == 2 * sampled


def test_what_the_driver_does_not_sample_the_tasks_carry_on_unsampled(spans):
    handed = Handed(f"00-{5:032x}-{6:016x}-00", "vendor=x")
    with sending("demo/flights", Task(QUERY, RUN, 4, 2, 1), handed):
        told = current_trace()
    assert told is not None
    assert told[0][:16] == (5).to_bytes(16, "big")
    assert (told[0][24] & 1, told[1]) == (0, b"vendor=x")
    assert not list(spans)


def test_without_a_tracer_in_the_task_the_drivers_context_is_carried_on():
    handed = Handed(f"00-{5:032x}-{6:016x}-01")
    with sending("demo/flights", Task(QUERY, RUN, 4, 2, 1), handed):
        assert current_trace() == ((5).to_bytes(16, "big") + (6).to_bytes(8, "big") + b"\x01", b"")
    with sending("demo/flights", Task(QUERY, RUN, 4, 2, 1), None):
        assert current_trace() is None


def test_a_batch_job_is_a_child_of_the_span_in_its_options(spans):
    with spans.tracer.start_as_current_span("nightly") as program:
        options = trace_options()
    batches = Batches("demo/flights", "nightly", here=False)
    batches.begun_job(Handed(options["traceparent"]))
    commit(batches)
    root = spans.one("batch 0")
    assert root.parent.span_id == program.get_span_context().span_id
    assert trace_options() == {}


def test_an_unsampled_query_costs_no_span(spans):
    spans.provider.sampler = ParentBased(ALWAYS_OFF)
    batches = Batches("demo/flights", "q")
    batches.begun(1, QUERY, RUN)
    commit(batches)
    assert not list(spans)

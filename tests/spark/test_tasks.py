"""A task's part of a batch, without Spark: what is published once, and what is refused."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import epochal
from epochal.client.writer.writer import Writer
from epochal.errors import CapabilityError, RepeatDiffers
from epochal_spark import tasks
from epochal_spark.options import SinkOptions
from epochal_spark.tasks import TaskRun, publish_partition


def rows(*values: tuple[int, str, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"t": t, "k": k, "n": n} for t, k, n in values])


async def publish(options: SinkOptions, run: TaskRun, *batches: pa.RecordBatch) -> Any:
    return await asyncio.to_thread(publish_partition, iter(batches), options, run)


@pytest.fixture
def options(catalog: str, declare: Callable[..., str]) -> SinkOptions:
    return SinkOptions(declare(segments=3), catalog, "t", "query", "k", handover="unused")


@pytest.mark.rule("E6")
async def test_a_partition_that_is_published_again_is_recognised(options: SinkOptions) -> None:
    run, data = TaskRun("0123456789", 4, 0), [rows((5, "a", 1), (5, "b", 2), (6, "a", 3)), rows((6, "c", 4))]
    async with epochal.connect(options.catalog) as client, client.subscribe(options.stream) as sub:
        await sub.ready.wait()
        async with client.writer(options.stream, writer_id="query") as holder:
            assert await publish(options, run, data[0]) == (6, 3)  # it died before its second Arrow batch
            assert await publish(options, run, *data) == (6, 4)
            assert await publish(options, run, *data) == (6, 4)
            assert await publish(options, TaskRun("0123456789", 5, 0), rows((7, "a", 5))) == (7, 1)
            await holder.finish()
        told = [epoch async for epoch in sub.epochs()]
    found = {epoch.time: sorted(r["n"] for r in epoch.records()) for epoch in told if isinstance(epoch, epochal.Epoch)}
    assert len(found) == len(told)
    assert found == {5: [1, 2], 6: [3, 4], 7: [5]}


@pytest.mark.rule("E6")
async def test_a_partition_that_stopped_between_two_topics_is_recognised_and_goes_on(options: SinkOptions) -> None:
    options, run = replace(options, key=None, topic="k"), TaskRun("0123456789", 4, 0)
    data = rows((5, "b", 1), (5, "a", 2), (6, "a", 3), (5, "b", 4))
    async with (
        epochal.connect(options.catalog) as client,
        client.subscribe(options.stream, topics=[b"a"]) as one,
        client.subscribe(options.stream, topics=[b"b"]) as other,
    ):
        await one.ready.wait()
        await other.ready.wait()
        async with client.writer(options.stream, writer_id="query") as holder:
            assert await publish(options, run, data.take(pa.array([1]))) == (5, 1)  # what was out when it died
            assert await publish(options, run, data) == (6, 4)
            assert await publish(options, run, data) == (6, 4)
            await holder.finish()
        found = [
            [(e.time, [r["n"] for r in e.records()]) async for e in sub.epochs() if isinstance(e, epochal.Epoch)]
            for sub in (one, other)
        ]  # fmt: skip
    assert found == [[(5, [2]), (6, [3])], [(5, [1, 4])]]


async def test_a_task_with_a_topic_for_each_row_waits_for_acknowledgements_on_the_way(
    options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append takes more than its rows do; without that, thousands of small ones would be sent at once."""
    waits, flush = 0, Writer.flush

    async def counted(writer: Writer) -> None:
        nonlocal waits
        waits += 1
        await flush(writer)

    monkeypatch.setattr(Writer, "flush", counted)
    monkeypatch.setattr(tasks, "UNFLUSHED_BYTES", 1 << 18)
    async with epochal.connect(options.catalog) as client, client.writer(options.stream, writer_id="query"):
        data = rows(*((5, str(n), n) for n in range(4000)))
        assert await publish(replace(options, key=None, topic="k"), TaskRun("0123456789", 4, 0), data) == (5, 4000)
    assert waits > 5  # 4,000 appends are 2 MB


@pytest.mark.rule("E49")
async def test_a_partition_that_runs_again_with_other_rows_is_refused_by_name(options: SinkOptions) -> None:
    run, first = TaskRun("0123456789", 4, 1), [rows((5, "a", 1)), rows((5, "a", 2))]
    async with epochal.connect(options.catalog) as client, client.subscribe(options.stream) as sub:
        await sub.ready.wait()
        async with client.writer(options.stream, writer_id="query") as holder:
            assert await publish(options, run, *first) == (5, 2)
            for others in ([*reversed(first)], [rows((5, "a", 1)), rows((5, "a", 3))], [rows((6, "a", 1))]):
                with pytest.raises(
                    RepeatDiffers, match=r"(?s)^batch 4, partition 1, time [56]: .*sortWithinPartitions"
                ):
                    await publish(options, run, *others)
            assert await publish(options, run, *first) == (5, 2)
            await holder.finish()
        told = [epoch async for epoch in sub.epochs()]
    assert [sorted(r["n"] for r in epoch.records()) for epoch in told if isinstance(epoch, epochal.Epoch)] == [[1, 2]]


async def test_an_empty_partition_publishes_nothing(options: SinkOptions) -> None:
    assert await publish(options, TaskRun("0123456789", 0, 0), rows()) == (None, 0)


@pytest.mark.rule("S35")
async def test_a_time_below_what_the_query_holds_is_refused_with_batch_and_time(options: SinkOptions) -> None:
    async with epochal.connect(options.catalog) as client, client.writer(options.stream, writer_id="query") as holder:
        await holder.advance(9)
        with pytest.raises(CapabilityError, match=r"(?s)batch 3, partition 1.*does not reach 8") as error:
            await publish(options, TaskRun("0123456789", 3, 1), rows((8, "a", 1), (9, "a", 2)))
        assert "later than all batches before" in str(error.value)


async def test_without_the_querys_writer_nothing_is_published(options: SinkOptions) -> None:
    with pytest.raises(CapabilityError, match=r"not open.*epochal_spark\.publish"):
        await publish(options, TaskRun("0123456789", 0, 0), rows((1, "a", 1)))

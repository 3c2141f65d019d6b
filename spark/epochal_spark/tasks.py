"""One task's part of a batch: Arrow batches in, acknowledged appends out.

This is the only module that talks to publishers, and it runs without Spark. The task's writer has no capability of its
own: it writes under the query's. Its append numbers depend only on the micro-batch, so a task that runs again sends the
same numbers, and publishers recognise the appends that they have (E6 sessions).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import reduce
from typing import NamedTuple

import pyarrow as pa

import epochal
from epochal.errors import CapabilityError, EpochAbortedError, EpochalError, RepeatDiffers, TimeShapeError
from epochal.protocol.times import Time, join
from epochal_spark import tracing
from epochal_spark.commit_channel import Handed
from epochal_spark.declaration import Declared
from epochal_spark.options import SinkOptions
from epochal_spark.payload import Group, Payload, groups

UNFLUSHED_BYTES = 8 << 20
"""Bytes of appends, roughly, after which a task waits for their acknowledgements."""

APPEND_BESIDE = 512
"""About how many bytes an append takes besides its rows; they matter if many times or topics have few rows each."""

_FORBIDDEN = (CapabilityError, EpochAbortedError, TimeShapeError)
"""Errors about a time; the batch, the partition and the times are added to their text."""

_WHY_A_QUERY = (
    "A batch can publish only while the writer of epochal_spark.publish() is open, and at times that it still holds: "
    "with complete=batch those later than all batches before"
)
_WHY_IT_DIFFERS = (
    "This task ran before and has published other rows, or the same in another order: it cannot be recognised, and "
    "nothing more of it is published. A source that is read again must give the same rows in the same order; after a "
    "shuffle, sort within partitions by columns that decide the order: df.sortWithinPartitions(...)"
)
_WHY_A_JOB = (
    "A job can publish at times that the stream has not completed, and that no failed job has left aborted: publish "
    "under later ones"
)


class TaskRun(NamedTuple):
    """One run of one task: the micro-batch and the partition that it publishes.

    `spark_query` is the id that Spark keeps in a query's checkpoint; empty for a batch job, which has a writer of its
    own. `spark_run` is Spark's id of the query's present run, and `trace` the batch's trace context from the driver.
    """

    spark_query: str
    batch: int
    partition: int
    attempt: int = 0
    spark_run: str = ""
    trace: Handed | None = None

    def writer_id(self, query: str) -> str:
        """The task's writer. Spark's query id is in it because a new checkpoint counts its batches from 0 again.

        >>> TaskRun("5f0c2a7e-9d1b", 3, 0).writer_id("flights"), TaskRun("", 0, 2).writer_id("nightly/77e1")
        ('flights/5f0c2a7e/0', 'nightly/77e1/2')
        """
        return "/".join(part for part in (query, self.spark_query[:8], str(self.partition)) if part)


def publish_partition(batches: Iterator[pa.RecordBatch], options: SinkOptions, run: TaskRun) -> tuple[Time | None, int]:
    """Publish all rows; once all are acknowledged, returns the join of their times (or None) and their count."""
    try:
        return asyncio.run(_publish(batches, options, run))
    finally:
        tracing.flush_task()


async def _publish(batches: Iterator[pa.RecordBatch], options: SinkOptions, run: TaskRun) -> tuple[Time | None, int]:
    first = await _next(batches)
    if first is None:
        return None, 0
    task = tracing.Task(run.spark_query, run.spark_run, run.batch, run.partition, run.attempt)
    with tracing.sending(options.stream, task, run.trace) as sending:
        async with (
            epochal.connect(options.catalog) as client,
            client.task_writer(
                options.stream, writer_id=run.writer_id(options.query), under=options.query, group=run.batch
            ) as writer,
        ):
            sending.way = writer.way
            part = _Part(writer, Declared.of(writer.session.directory.info), options, run)
            await part.publish(first)
            async for batch in _rest(batches):
                await part.publish(batch)
            await part.flush()
        sending.records = part.count
    return part.greatest, part.count


class _Part:
    """Appends in order, and keeps the join of the times and the number of records for the commit."""

    def __init__(self, writer: epochal.Writer, declared: Declared, options: SinkOptions, run: TaskRun) -> None:
        self._writer = writer
        self._options = options
        self._run = run
        self._payload = Payload(declared, options.time)
        self._unflushed = 0
        self._unacknowledged: list[Time] = []
        self.greatest: Time | None = None
        self.count = 0

    async def publish(self, batch: pa.RecordBatch) -> None:
        """Append the rows of one Arrow batch, by time, segment and topic."""
        options = self._options
        try:
            rows = self._payload.rows(batch)
            for group in groups(batch, options.time, options.key, options.topic, self._place, rows):
                await self._append(group)
        except EpochalError as error:
            raise self._named(error) from None

    async def _append(self, group: Group) -> None:
        self.greatest = group.time if self.greatest is None else reduce(join, (self.greatest, group.time))
        if not self._unacknowledged or self._unacknowledged[-1] != group.time:
            self._unacknowledged.append(group.time)
        for rows in self._payload.chunks(group.rows):
            self._writer.append_nowait(group.time, self._payload.records(rows), key=group.key, topic=group.topic)
            self.count += rows.num_rows
            self._unflushed += rows.nbytes + APPEND_BESIDE
            if self._unflushed > UNFLUSHED_BYTES:
                await self._flush()

    async def flush(self) -> None:
        """Wait until all is acknowledged; an error names the batch and its times."""
        try:
            await self._flush()
        except EpochalError as error:
            raise self._named(error) from None

    async def _flush(self) -> None:
        await self._writer.flush()
        self._unflushed = 0
        self._unacknowledged.clear()

    def _place(self, key: bytes | None) -> str:
        return "" if key is None else self._writer.segment(key)  # without a key the writer takes segments in turn

    def _named(self, error: EpochalError) -> EpochalError:
        """The error, with batch, partition and times in its text if it is about a time."""
        differs = isinstance(error, RepeatDiffers)
        if not (differs or isinstance(error, _FORBIDDEN)):
            return error
        times = self._unacknowledged
        span = f"times {times[0]} to {times[-1]}" if len(times) > 1 else f"time {times[0]}" if times else "a time"
        where, why = f"partition {self._run.partition}, {span}: {error}. ", _WHY_A_JOB
        if self._run.spark_query:
            where, why = f"batch {self._run.batch}, {where}", _WHY_A_QUERY
        if differs:
            why = _WHY_IT_DIFFERS
        if isinstance(error, RepeatDiffers):
            return RepeatDiffers(where + why, error.writer, error.segment, error.number)
        return type(error)(where + why)


async def _next(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    """The next batch with rows.

    It is awaited in a thread, because Spark may compute for long and the writer must send heartbeats meanwhile.
    """
    while True:
        batch = await asyncio.to_thread(next, batches, None)
        if batch is None or batch.num_rows:
            return batch


async def _rest(batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    while (batch := await _next(batches)) is not None:
        yield batch

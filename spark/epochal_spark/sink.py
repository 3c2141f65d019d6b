"""The data source `epochal`: what Spark calls, in the processes in which it calls it.

Separate from `tasks`, which talks to publishers. Spark makes a new object of these classes in its planner, copies it to
its tasks and makes another one for each commit, all in different processes. So no attribute gets from `write` to
`commit`, only the messages do. What only some of these processes need is imported where it is needed: a commit is a new
process for every micro-batch, and would otherwise take longer to import than to act.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark import SparkContext, TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from epochal.errors import ConfigError, EpochalError, LocalProtocolError, UsageError
from epochal.protocol.times import Time, join
from epochal_spark.commit_channel import Committed, Handed, HeldCapability, ask_to_begin, call_off, hand_over
from epochal_spark.interpreter import check_workers
from epochal_spark.options import SinkOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """What one task published: the join of its times (None without records) and how many records."""

    partition: int
    greatest: Time | None
    records: int


def _committed(messages: "Sequence[WriterCommitMessage | None]", batch: int) -> Committed:
    """What all tasks have published together; raises `UsageError` where the message of one is missing."""
    tasks = [message for message in messages if isinstance(message, TaskCommit)]
    if len(tasks) != len(messages):
        raise UsageError(
            f"batch {batch} is committed without word of its tasks: continuous and real-time triggers cannot be "
            "used with the sink `epochal`; use processingTime or availableNow"
        )
    times = [task.greatest for task in tasks if task.greatest is not None]
    return Committed(batch, reduce(join, times) if times else None, sum(task.records for task in tasks))


def _run_id(context: TaskContext) -> str:
    """Spark's id of the query's present run: it is the job group of all its jobs."""
    return context.getLocalProperty("spark.jobGroup.id") or ""


class EpochalSink(DataSourceStreamArrowWriter):
    """Writes micro-batches of one query.

    A task that fails aborts nothing: Spark runs it again, and its appends are recognised.
    """

    def __init__(self, options: SinkOptions, trace: Handed | None = None) -> None:
        self._options = options
        self._trace = trace

    def write(self, iterator: Iterator["RecordBatch"]) -> TaskCommit:
        """Publish one partition of a batch; runs in a task."""
        from epochal_spark.tasks import TaskRun, publish_partition

        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if context is None or batch is None or query is None:
            raise LocalProtocolError("the sink `epochal` writes the micro-batches of a streaming query; this is none")
        run = TaskRun(query, int(batch), context.partitionId(), context.attemptNumber(), _run_id(context), self._trace)
        return TaskCommit(run.partition, *publish_partition(iterator, self._options, run))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch have published: have the driver's writer complete its times; runs in its own process."""
        hand_over(self._options.handover, _committed(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A batch failed, and Spark will run it again: there is nothing to do.

        What it published completes with that run, or is aborted with the query.
        """


class EpochalBatch(DataSourceArrowWriter):
    """Writes one batch job, under the capability of a process that lives as long as the job."""

    def __init__(self, options: SinkOptions, held: HeldCapability) -> None:
        self._options = options
        self._handover = held.address
        self._trace = held.trace

    def write(self, iterator: Iterator["RecordBatch"]) -> TaskCommit:
        """Publish one partition; runs in a task."""
        from epochal_spark.tasks import TaskRun, publish_partition

        context = TaskContext.get()
        if context is None:
            raise LocalProtocolError("a batch is written by Spark's tasks; this is none")
        run = TaskRun("", 0, context.partitionId(), context.attemptNumber(), trace=self._trace)
        return TaskCommit(run.partition, *publish_partition(iterator, self._options, run))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have published: have the job's writer complete the times, and leave."""
        hand_over(self._handover, _committed(messages, 0))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed: every epoch that it published to is aborted."""
        with contextlib.suppress(EpochalError):  # the holder has left: what it held is aborted without this
            call_off(self._handover)


class EpochalDataSource(DataSource):
    """`df.write.format("epochal")`; register it by `spark.dataSource.register(EpochalDataSource)`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The format's name.

        Spark calls this in the driver when the data source is registered. There it raises `ConfigError` if Spark's
        workers would run a Python in which this package cannot be imported.
        """
        context = SparkContext._active_spark_context
        if context is not None:
            check_workers(context)
        return "epochal"

    def writer(self, schema: StructType, overwrite: bool) -> EpochalBatch:
        """The sink of a batch job, whose capability is held from here on.

        Raises `ConfigError` for options or columns that cannot be used, `StreamNotFound`, `NoPublisher`,
        `StreamComplete`, before any task runs.
        """
        from epochal_spark.holder import look_up_now, start_holder
        from epochal_spark.schemas import check_schema

        if overwrite:
            raise ConfigError('a stream is never overwritten: use .mode("append")')
        options = SinkOptions.parse(self.options, streaming=False)
        check_schema(schema, options)
        check_schema(schema, options, look_up_now(options))
        job = replace(options, query=f"{options.query}/{uuid.uuid4().hex[:12]}")
        # The parent is the process from which Spark's workers are forked; it ends with the session.
        return EpochalBatch(job, start_holder(job, os.getppid()))

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> EpochalSink:  # Spark passes both by position and by these names
        """The sink of a streaming query; called before the tasks of each batch, and for each commit and abort.

        Raises `ConfigError` for options or columns that cannot be used, and why the batch may not run.
        """
        from epochal_spark.schemas import check_schema

        if overwrite:
            raise ConfigError('a stream is never overwritten: use outputMode("append"), not complete')
        options = SinkOptions.parse(self.options)
        check_schema(schema, options)
        return EpochalSink(options, ask_to_begin(options.handover))

"""The data source `epochal`: what Spark calls, in the processes in which it calls it.

Apart from `tasks`, which talks to publishers. Spark makes a new object of these classes in its planner, copies it to
its tasks and makes another one for each commit, all in different processes: nothing kept in an attribute gets from
`write` to `commit`, only the messages do.
"""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from epochal.errors import ConfigError, LocalProtocolError, UsageError
from epochal.protocol.times import Time, join
from epochal_spark.handover import Committed, hand_over
from epochal_spark.options import SinkOptions
from epochal_spark.schemas import check_schema
from epochal_spark.tasks import TaskRun, publish_partition

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """What one task published: the join of its times (None without records) and how many records."""

    partition: int
    greatest: Time | None
    records: int


class EpochalSink(DataSourceStreamArrowWriter):
    """Writes micro-batches of one query.

    A task that fails aborts nothing: Spark runs it again, and its appends are recognised.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["RecordBatch"]) -> TaskCommit:
        """Publish one partition of a batch; runs in a task."""
        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if context is None or batch is None or query is None:
            raise LocalProtocolError("the sink `epochal` writes the micro-batches of a streaming query; this is none")
        run = TaskRun(query, int(batch), context.partitionId())
        greatest, records = publish_partition(iterator, self._options, run)
        return TaskCommit(run.partition, greatest, records)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch have published: let the driver's writer say so; runs in a process of its own."""
        tasks = [message for message in messages if isinstance(message, TaskCommit)]
        if len(tasks) != len(messages):
            raise UsageError(
                f"batch {batchId} is committed without word of its tasks: continuous and real-time triggers cannot be "
                "used with the sink `epochal`; use processingTime or availableNow"
            )
        if self._options.handover is None:
            return
        times = [task.greatest for task in tasks if task.greatest is not None]
        greatest = reduce(join, times) if times else None
        hand_over(self._options.handover, Committed(batchId, greatest, sum(task.records for task in tasks)))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A batch failed, and Spark will run it again: nothing to do.

        What it published completes with that run, or is aborted with the query.
        """


class EpochalDataSource(DataSource):
    """`df.writeStream.format("epochal")`; register it by `spark.dataSource.register(EpochalDataSource)`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "epochal"

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> EpochalSink:  # Spark passes both by position and by these names
        """The sink of a streaming query. Raises `ConfigError` for options or columns that cannot be used."""
        if overwrite:
            raise ConfigError('a stream is never overwritten: use outputMode("append"), not complete')
        options = SinkOptions.parse(self.options)
        check_schema(schema, options)
        return EpochalSink(options)

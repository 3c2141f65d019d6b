"""The data source `epochal`: the classes that Spark calls, in several processes.

Spark makes a new object of these classes in its planner, copies it to its tasks and makes another one for each commit,
all in different processes. So no attribute gets from `write` to `commit`, only the messages do. Modules that only some
of these processes need are imported where they are used: a commit is a new process for every micro-batch, and would
otherwise take longer to import than to act. Publishers are called in `tasks`.

When the source is registered, it checks that the Python of Spark's workers can run it. Unless PYSPARK_PYTHON is set,
PySpark takes `python3` from the PATH. That may be another Python than the driver's, and then a task fails with an
import error that does not show the cause.
"""

import contextlib
import os
import shutil
import subprocess
import sys
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
from epochal_spark.options import SinkOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """The result of one task: the join of its times (None without records) and its number of records."""

    partition: int
    greatest: Time | None
    records: int


def _committed(messages: "Sequence[WriterCommitMessage | None]", batch: int) -> Committed:
    """The results of all tasks together; raises `UsageError` if a task's message is missing."""
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

        Its records complete with that run, or are aborted with the query.
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

        Raises `ConfigError` for options or columns that cannot be used, and the reason if the batch may not run.
        """
        from epochal_spark.schemas import check_schema

        if overwrite:
            raise ConfigError('a stream is never overwritten: use outputMode("append"), not complete')
        options = SinkOptions.parse(self.options)
        check_schema(schema, options)
        return EpochalSink(options, ask_to_begin(options.handover))


_TIMEOUT = 60.0
_TRY = "import sys, epochal_spark; print('%d.%d' % sys.version_info[:2])"

_fit: set[str] = set()
"""Interpreters that were tried and can run the sink."""


def check_workers(context: SparkContext) -> None:
    """Raise `ConfigError` if Spark's workers would run a Python that cannot run the sink."""
    python = context.pythonExec
    found = shutil.which(python)
    if found is None:
        raise _unfit(python, "there is no such program")
    if found in _fit or _is_this_one(found):
        return
    problem = _try(found)
    if problem:
        raise _unfit(python, problem)
    _fit.add(found)


def _is_this_one(found: str) -> bool:
    """Whether it is this interpreter in the same environment; a virtual environment is known by its directory."""
    return os.path.samefile(found, sys.executable) and os.path.dirname(found) == os.path.dirname(sys.executable)


def _try(python: str) -> str:
    """The reason why an interpreter cannot run the sink; empty if it can."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        tried = subprocess.run([python, "-c", _TRY], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if tried.returncode:
        last = tried.stderr.strip().splitlines() or ["it cannot import epochal_spark"]
        return last[-1]
    version = tried.stdout.strip()
    return "" if version == here else f"it is Python {version}, and the driver is Python {here}"


def _unfit(python: str, problem: str) -> ConfigError:
    return ConfigError(
        f"Spark's workers would run {python!r}, which cannot run the sink `epochal`: {problem}. Set "
        f"PYSPARK_PYTHON={sys.executable} before Spark starts (on a cluster: the same path on every node), or, where "
        "Spark runs on this machine only, call epochal_spark.register(spark) instead"
    )

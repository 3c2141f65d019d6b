"""Facts that Spark's public interface lacks: how a query ended, its next batch, a task's error; and its checkpoint.

They come from Spark's internal objects (`StreamExecution` and its contexts), and from the way Spark and Python print an
error: the driver gets the errors of a query's tasks only as text. Both may change with Spark's version.
"""

import json
import re
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from epochal import errors
from epochal.errors import EpochalError, PartitionsChanged

ENDING = frozenset({"availableNow", "once"})
"""Triggers under which a query ends by itself."""


def ended_by_itself(query: StreamingQuery, trigger: str | None) -> bool:
    """Whether a query that ended without an error has published everything that it was started for.

    False if it was stopped before. Spark reports `stop()` nowhere, but it shows in the last trigger: a trigger that was
    cut short has no recorded duration, and a run of `availableNow` ends only with a trigger that found no more data.
    """
    if trigger not in ENDING:
        return False
    context = _context(query)
    if not context.getDuration("triggerExecution").isDefined():
        return False
    return trigger == "once" or not context.isCurrentBatchConstructed()


def planned(query: StreamingQuery) -> tuple[int, int]:
    """The batch whose tasks are about to run, and its number of partitions.

    Call it while Spark makes the sink's writer: then the batch is planned, and its tasks have not started.
    """
    context = _context(query)
    # Spark has executed this plan before it makes the writer, so nothing runs here: only the size is read.
    rows = context.executionPlan().executedPlan().query().execute()
    return int(context.batchId()), max(1, int(rows.getNumPartitions()))  # without rows Spark makes one empty partition


def _context(query: StreamingQuery) -> Any:
    jvm_query: Any = query._jsq
    return jvm_query.streamingQuery().getLatestExecutionContext()


_RAISED = re.compile(
    r"^(?:\S.*?: )?epochal\.errors\.(\w+): (.*?)(?=\s+SQLSTATE: |\n\s*\n|\n\s+at |\n=== |\Z)", re.MULTILINE | re.DOTALL
)
"""The last line of a Python traceback; its message can have several lines, and Spark's own text follows."""
_BECAME = re.compile(
    r"^(?:The above exception was the direct cause|During handling of the above exception)\b", re.MULTILINE
)
"""Python prints this between an exception and the one raised from it; only the last exception was raised."""


def ours(error: PySparkException) -> EpochalError | None:
    """The Epochal error that made a query fail, with its class and its whole message; None for another cause."""
    found = _RAISED.search(_BECAME.split(str(error))[-1])
    if found is None:
        return None
    kind: Any = getattr(errors, found[1], None)
    if not (isinstance(kind, type) and issubclass(kind, EpochalError)):
        return None
    return kind(found[2].strip())


FOLDER = "epochal"
"""The folder in the checkpoint, beside Spark's own `offsets` and `commits`."""

_BEGUN = re.compile(r"batch-(\d+)-partitions-(\d+)")


class QueryCheckpoint:
    """One checkpoint directory, in the driver: it is read, and the number of partitions of each batch is added.

    It may be anywhere (a local directory, HDFS, an object store): it is reached through Hadoop's file systems in the
    driver's JVM, as Spark does.

    A task's appends are numbered by micro-batch and partition, so that publishers recognise a task that runs again.
    That works only if the batch is divided into the same partitions. So their number is recorded before the first task
    starts, and compared when Spark runs a begun batch again after a restart. The record is the name of an empty file:
    a crash could tear the content of a file, but its name is there or not.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._path = jvm.org.apache.hadoop.fs.Path
        self._root = self._path(location)
        self._files = self._root.getFileSystem(session.sessionState().newHadoopConf())
        self._utf_8 = jvm.java.nio.charset.StandardCharsets.UTF_8
        self._io = jvm.org.apache.commons.io.IOUtils

    def query_id(self) -> str | None:
        """The id that Spark gave the query; None for a checkpoint in which no query has started yet."""
        path = self._path(self._root, "metadata")
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(json.loads(self._io.toString(stream, self._utf_8))["id"])
        finally:
            stream.close()

    def begin(self, query: str, batch: int, partitions: int) -> None:
        """Record that `batch` begins with this number of partitions, before any of its tasks runs.

        Raises `PartitionsChanged` if it was begun before with another number.
        """
        folder = self._path(self._root, FOLDER)
        found = {}
        if self._files.exists(folder):
            for status in self._files.listStatus(folder):
                match = _BEGUN.fullmatch(status.getPath().getName())
                if match is not None:
                    found[status.getPath()] = (int(match[1]), int(match[2]))
        for begun, before in found.values():
            if begun == batch and before != partitions:
                raise _changed(query, batch, before, partitions)
        if (batch, partitions) not in found.values():
            self._files.mkdirs(folder)
            self._files.createNewFile(self._path(folder, f"batch-{batch}-partitions-{partitions}"))
        for path, (begun, _) in found.items():
            if begun < batch:  # that batch has committed, because only then does Spark begin the next
                self._files.delete(path, False)


def _changed(query: str, batch: int, before: int, now: int) -> PartitionsChanged:
    return PartitionsChanged(
        f"batch {batch} of query {query!r} was begun with {_count(before)} and has not committed; now Spark would run "
        f"it again with {_count(now)}. Rows that are published already would not be recognised among those: some would "
        f"be published twice, others never. Start the query again with what divided the batch into {before}: as many "
        "cores (the master, e.g. local[4], or the executors) and the same spark.default.parallelism, "
        "spark.sql.shuffle.partitions and spark.sql.files settings. Once the batch has committed, these may change",
        query=query, batch=batch, before=before, now=now,
    )  # fmt: skip


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"

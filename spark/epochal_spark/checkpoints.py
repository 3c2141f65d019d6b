"""Reads a query's checkpoint, and adds one thing to it: with how many partitions a batch was begun.

Separate from `publication` because this is the only module that reads and writes Spark's checkpoint, wherever it is
(a local directory, HDFS, an object store): through Hadoop's file systems in the driver's JVM, as Spark does.

A task's appends are numbered by micro-batch and partition, so that a task that runs again is recognised. That holds
only if the batch is divided into the same partitions. So their number is recorded before the first task starts, and
compared when Spark runs a begun batch again after a restart. It is the name of an empty file: a file is there or not,
while its contents could be torn by a crash.
"""

import json
import re
from typing import Any

from pyspark.sql import SparkSession

from epochal.errors import PartitionsChanged

FOLDER = "epochal"
"""Within the checkpoint, beside Spark's own `offsets` and `commits`."""

_BEGUN = re.compile(r"batch-(\d+)-partitions-(\d+)")


class QueryCheckpoint:
    """One checkpoint directory, in the driver."""

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
        """Record that `batch` begins with so many partitions, before any of its tasks runs.

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
            if begun < batch:  # that batch has committed: only then does Spark begin the next
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

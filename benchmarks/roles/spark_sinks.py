"""A Spark session with one streaming query a sink: gives each, when it is its turn, a file of rows, as one micro-batch.

Separate from `ours` because it needs Spark. The sinks differ in what becomes of the rows alone: `noop` is Spark's own,
`counts` the least that a Python sink of Arrow batches can do.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming import StreamingQuery

import epochal_spark
from roles.common import say

SCHEMA = "t bigint, n bigint, speed double, name string"


@dataclass(frozen=True)
class Count(WriterCommitMessage):
    """How many rows a task was given."""

    rows: int


class CountingWriter(DataSourceStreamArrowWriter):
    """Counts rows, and keeps nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Count:
        """One partition of a micro-batch."""
        return Count(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is to be said."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is to be undone."""


class CountingSource(DataSource):
    """`df.writeStream.format("counts")`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "counts"

    def streamWriter(self, schema: Any, overwrite: bool) -> CountingWriter:
        """The sink of a query."""
        return CountingWriter()


@dataclass(frozen=True)
class Sink:
    """A running query and the directory that it reads."""

    query: StreamingQuery
    files: Path

    def turn(self, time: int, table: pa.Table) -> float:
        """Seconds of `addBatch` for these rows, all at `time`."""
        rows = table.set_column(0, "t", pa.array([time] * table.num_rows, pa.int64()))
        hidden = self.files / f".{time}.parquet"
        pq.write_table(rows, hidden)
        hidden.rename(self.files / f"{time}.parquet")
        self.query.processAllAvailable()
        progress: Any = [told for told in self.query.recentProgress if told["numInputRows"]][-1]
        assert progress["numInputRows"] == table.num_rows, progress
        return float(progress["durationMs"]["addBatch"]) / 1000


def serve(catalog: str, sinks: str, rows: int) -> None:
    """Start `sinks`, by comma: `noop`, `counts`, or a stream's name, to which rows are published.

    Each number on standard input is a sink's place in it; tells the seconds of its `addBatch`.
    """
    spark = epochal_spark.session("bench", "local[1]", {"spark.sql.streaming.pollingDelay": "200ms"})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(CountingSource)
    say(started="spark")
    table = pa.table({
        "t": pa.array([0] * rows, pa.int64()),
        "n": pa.array(range(rows), pa.int64()),
        "speed": pa.array([number * 0.25 for number in range(rows)], pa.float64()),
        "name": pa.array([f"flight {number % 5000}" for number in range(rows)]),
    })  # fmt: skip
    with ExitStack() as held:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory()))
        started = []
        for number, name in enumerate(sinks.split(",")):
            started.append(held.enter_context(_started(spark, directory / str(number), name, catalog)))
            say(started=name)
        for time, line in enumerate(sys.stdin):
            say(seconds=started[int(line)].turn(time, table))


@contextmanager
def _started(spark: SparkSession, directory: Path, name: str, catalog: str) -> Iterator[Sink]:
    files, checkpoint = directory / "files", str(directory / "checkpoint")
    files.mkdir(parents=True)
    rows = spark.readStream.schema(SCHEMA).parquet(str(files))
    if name in ("noop", "counts"):
        query = rows.writeStream.format(name).option("checkpointLocation", checkpoint).start()
        try:
            yield Sink(query, files)
        finally:
            query.stop()
        return
    with epochal_spark.publish(rows, stream=name, time="t", checkpoint=checkpoint, catalog=catalog) as publication:
        yield Sink(publication.query, files)
        publication.query.stop()

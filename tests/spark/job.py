"""A Spark job that the tests start as a process, to be killed at the worst moment or to fail on purpose.

Reads Parquet files with the columns t, n and part. `--fault commit`: die when the first commit is handed over, before
the writer acts. `stall`: the task with part 1 waits for ever, so its batch stays half published. `flaky`: each task
fails once, after its rows were published; `sink`: the same, within the sink. `--cores`: as many, and Spark divides the
files among them; else one task a file. `--per-batch`: so many files a micro-batch. `--fresh-workers`: Spark forks a
worker for each task.
"""

import argparse
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochal_spark
from epochal_spark import EpochalDataSource, sessions
from epochal_spark.capability import CapabilityMoves
from epochal_spark.commit_channel import Committed


async def die(_: Any, commit: Committed) -> None:
    """Stands for the driver's answer to a commit."""
    print("commit", commit.batch, commit.greatest, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def stall(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield part 0, and wait at part 1 until Spark is gone."""
    parent = os.getppid()
    for batch in batches:
        while 1 in batch["part"].to_pylist() and os.getppid() == parent:
            time.sleep(0.5)
        yield batch


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser()
    for name in ("catalog", "stream", "input", "checkpoint", "fault"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--batch", action="store_true")
    parser.add_argument("--cores", type=int, default=0)
    parser.add_argument("--per-batch", type=int, default=0)
    parser.add_argument("--fresh-workers", action="store_true")
    options = parser.parse_args()
    apart = {} if options.cores else {"spark.sql.files.openCostInBytes": "128MB"}  # one task a file
    if options.fresh_workers:
        apart["spark.python.worker.reuse"] = "false"
    spark = epochal_spark.session("job", f"local[{options.cores or 2},2]", apart)
    source = spark.read if options.batch else spark.readStream
    if options.per_batch:
        source = source.option("maxFilesPerTrigger", options.per_batch)
    rows = source.schema("t bigint, n bigint, part int").parquet(options.input)
    if options.fault == "commit":
        CapabilityMoves.committed = die  # type: ignore[method-assign, assignment]
    if options.fault == "stall":
        rows = rows.mapInArrow(stall, rows.schema)
    if options.fault == "flaky":
        rows = rows.mapInArrow(Flaky(Path(options.checkpoint)), rows.schema)
    if options.fault == "sink":
        folder = Path(options.checkpoint).parent
        vars(sessions)["EpochalDataSource"] = type("Failing", (Failing,), {"folder": folder})
    if options.batch:
        where = {"stream": options.stream, "catalog": options.catalog, "time": "t", "finish": "true"}
        rows.write.format("epochal").options(**where).mode("append").save()
        spark.stop()
        return
    with epochal_spark.publish(
        rows, stream=options.stream, time="t", query="job", catalog=options.catalog, checkpoint=options.checkpoint,
        trigger={"availableNow": True}, finish=True,
    ) as running:  # fmt: skip
        running.wait()
    spark.stop()


class Failing(EpochalDataSource):
    """Tasks of a query fail once within the sink, when all their rows are published."""

    folder: Path

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # as Spark names it
        made: Any = super().streamWriter(schema, overwrite)
        made.write = partial(self._write, made.write)
        return made

    def _write(self, write: Callable[[Iterator[pa.RecordBatch]], Any], rows: Iterator[pa.RecordBatch]) -> Any:
        return write(iter(Flaky(self.folder / "checkpoint")(rows)))


class Flaky:
    """Fails at the end of a part's rows, once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield all rows, then fail the first time."""
        part = None
        for batch in batches:
            part = batch["part"][0].as_py()
            yield batch
        marker = self._folder.parent / f"failed-{part}"
        if part is not None and not marker.exists():
            marker.touch()
            raise RuntimeError(f"part {part} fails on purpose")


if __name__ == "__main__":
    main()

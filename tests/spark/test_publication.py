"""Streaming queries into a real stream: what subscribers get, what commits complete, and what is refused."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.frontiers import reaches
from tests.patience import PATIENCE

import epochal
import epochal_spark
from epochal.errors import CapabilityError, ConfigError, SchemaMismatch, StreamNotFound, UsageError
from epochal_spark.capability import CapabilityMoves
from epochal_spark.commit_channel import Committed
from epochal_spark.options import Complete
from epochal_spark.publication import _Holder

pytestmark = [
    pytest.mark.java,
    # PySpark closes its sockets and the JVM's pipes when they are collected, wherever that may be.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SCHEMA = "t bigint, k string, n bigint"
NOW = {"availableNow": True}


class Source:
    """Files that become one micro-batch each, in the order in which they were written."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._count = spark, folder, 0

    def write(self, *rows: tuple[int, str | None, int]) -> None:
        schema = pa.schema([("t", pa.int64()), ("k", pa.string()), ("n", pa.int64())])
        table = pa.Table.from_pylist([{"t": t, "k": k, "n": n} for t, k, n in rows], schema=schema)
        self._count += 1
        path = self._folder / f"{self._count:03}.parquet"
        pq.write_table(table, path)
        os.utime(path, (self._count, self._count))

    @property
    def checkpoint(self) -> str:
        return str(self._folder.parent / "checkpoint")

    def read(self) -> DataFrame:
        return self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self._folder))


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    folder = tmp_path / "input"
    folder.mkdir()
    return Source(spark, folder)


def run(source: Source, df: DataFrame | None = None, **options: Any) -> None:
    options = {"time": "t", "checkpoint": source.checkpoint, "trigger": NOW, "finish": True, **options}
    with epochal_spark.publish(source.read() if df is None else df, **options) as publication:
        publication.wait()


async def epochs(sub: epochal.Subscription) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    async with asyncio.timeout(PATIENCE):
        async for epoch in sub.epochs():
            assert isinstance(epoch, epochal.Epoch)
            found[epoch.time] = sorted(record["n"] for record in epoch.records())
    return found


async def test_a_subscriber_gets_every_epoch_of_every_batch_once(
    source: Source, catalog: str, declare: Callable[..., str]
) -> None:
    stream = declare(segments=3)
    source.write((1, "a", 1), (2, "b", 2), (1, "c", 3))
    source.write()
    source.write((3, "a", 4), (3, None, 5))
    source.write((5, "d", 6), (4, "a", 7))
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        await asyncio.to_thread(run, source, stream=stream, key="k", catalog=catalog, finish=False)
        await reaches(sub, 6)
        source.write((9, "a", 8))
        await asyncio.to_thread(run, source, stream=stream, key="k", catalog=catalog)
        assert await epochs(sub) == {1: [1, 3], 2: [2], 3: [4, 5], 4: [7], 5: [6], 9: [8]}


@pytest.mark.rule("E6")
async def test_a_batch_that_runs_again_publishes_the_rows_of_each_topic_once(
    source: Source, catalog: str, declare: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = declare(segments=3)
    source.write((1, "JFK", 1), (1, "LGA", 2), (1, None, 3), (1, "JFK", 4), (2, "JFK", 5))
    source.write((3, "LGA", 6), (4, "JFK", 7))
    where: dict[str, Any] = {"stream": stream, "key": "n", "topic": "k", "catalog": catalog}

    async def fail(_: CapabilityMoves, commit: Committed) -> None:
        raise CapabilityError(f"batch {commit.batch} fails on purpose")

    async with (
        epochal.connect(catalog) as client,
        client.subscribe(stream) as everything,
        client.subscribe(stream, topics=[b"JFK"]) as one,
    ):
        await everything.ready.wait()
        await one.ready.wait()
        with monkeypatch.context() as broken:
            broken.setattr(CapabilityMoves, "committed", fail)
            with pytest.raises(CapabilityError, match="batch 0 fails on purpose"):
                await asyncio.to_thread(run, source, **where)
        await asyncio.to_thread(run, source, **where)
        assert await epochs(everything) == {1: [1, 2, 3, 4], 2: [5], 3: [6], 4: [7]}
        assert await epochs(one) == {1: [1, 4], 2: [5], 4: [7]}


async def test_a_topic_that_is_too_long_fails_the_query_by_its_column(
    source: Source, catalog: str, declare: Callable[..., str]
) -> None:
    source.write((1, "x" * 1025, 1))
    with pytest.raises(
        UsageError, match=r"^the topic column 'k' holds a topic of 1,025 bytes, which begins with 'x{60}';"
    ):
        await asyncio.to_thread(run, source, stream=declare(), topic="k", catalog=catalog)


async def test_times_of_a_product_order_are_complete_up_to_their_join(
    source: Source, catalog: str, declare: Callable[..., str]
) -> None:
    stream = declare(shape="(int, int)")
    source.write((1, "0", 1), (0, "2", 2))
    source.write((2, "0", 3))
    df = source.read().select(f.struct("t", f.col("k").cast("int").alias("u")).alias("at"), "n")
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        await asyncio.to_thread(run, source, df, stream=stream, time="at", catalog=catalog, finish=False)
        await reaches(sub, (0, 3), (3, 0))
        async with client.writer(stream, writer_id=f"spark/{stream}") as writer:
            await writer.finish()
        assert await epochs(sub) == {(0, 2): [2], (1, 0): [1], (2, 0): [3]}


async def test_with_complete_never_the_driver_says_what_is_complete(
    source: Source, catalog: str, declare: Callable[..., str]
) -> None:
    stream = declare()
    source.write((5, "a", 1))
    source.write((4, "a", 2))

    def publish() -> None:
        with epochal_spark.publish(
            source.read(),
            stream=stream,
            time="t",
            catalog=catalog,
            complete="never",
            trigger=NOW,
            finish=True,
            checkpoint=source.checkpoint,
        ) as publication:
            assert publication.wait(PATIENCE)
            assert publication.held == (0,)
            publication.advance(5)
            assert publication.held == (5,)

    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        await asyncio.to_thread(publish)
        assert await epochs(sub) == {4: [2], 5: [1]}


async def test_a_time_below_what_is_held_fails_the_query_and_names_batch_and_time(
    source: Source, catalog: str, declare: Callable[..., str]
) -> None:
    stream = declare()
    source.write((5, "a", 1))
    source.write((4, "a", 2))
    with pytest.raises(CapabilityError, match=r"^batch 1, partition 0.*does not reach 4.*all batches before$"):
        await asyncio.to_thread(run, source, stream=stream, catalog=catalog)
    async with epochal.connect(catalog) as client, client.writer(stream, writer_id=f"spark/{stream}") as writer:
        assert writer.held == (6,)  # what was committed stays, and nothing was aborted or finished


async def test_what_cannot_be_published_is_refused_before_it_runs(
    source: Source, spark: SparkSession, catalog: str, declare: Callable[..., str]
) -> None:
    stream, df = declare(), source.read()

    def refused(error: type[Exception], match: str, frame: DataFrame = df, **options: Any) -> None:
        with pytest.raises(error, match=match):
            run(source, frame, **{"stream": stream, "catalog": catalog, **options})

    def refuse_all() -> None:
        refused(ConfigError, "continuous", trigger={"continuous": "1 second"})
        refused(ConfigError, "realTime", trigger={"realTime": "5 seconds"})
        refused(ConfigError, "ends by itself", trigger={"processingTime": "1 second"})
        refused(ConfigError, "batch or never", complete="hourly")
        refused(ConfigError, "is no column", time="hour")
        refused(ConfigError, "cast it", time="k")
        refused(ConfigError, "timestamp", df.withColumn("x", f.current_timestamp()))
        refused(UsageError, "streaming DataFrame", spark.range(1))
        refused(StreamNotFound, "nobody", stream="test/nobody", wait=0)
        refused(SchemaMismatch, "encoding", stream=declare(encoding="bytes"))
        refused(ConfigError, "have the shape", stream=declare(shape="(int, int)"))

    await asyncio.to_thread(refuse_all)


def test_the_plain_data_source_refuses_what_it_cannot_do(
    source: Source, spark: SparkSession, catalog: str, declare: Callable[..., str]
) -> None:
    df = source.read()

    def start(frame: DataFrame, mode: str, *, trigger: dict[str, Any], **options: str) -> None:
        writer = frame.writeStream.format("epochal").outputMode(mode).options(**options)
        query = writer.option("checkpointLocation", source.checkpoint).trigger(**trigger).start()
        try:
            query.awaitTermination(60)
        finally:
            query.stop()

    plain = {"stream": declare(), "catalog": catalog, "time": "t"}
    held = {**plain, "query": "q", "handover": "127.0.0.1:1/x"}
    counted = df.groupBy("t").count()

    source.write((1, "a", 1))
    with pytest.raises(PySparkException, match=r"query: is missing; start the query by epochal_spark\.publish"):
        start(df, "append", trigger=NOW, **plain)
    with pytest.raises(PySparkException, match="never overwritten"):
        start(counted, "complete", trigger=NOW, **held)
    with pytest.raises(PySparkException, match="does not support Update mode"):
        start(counted, "update", trigger=NOW, **held)
    # Under this trigger Spark would show a query as running that never writes, so it must not even start.
    rate = spark.readStream.format("rate").load().select(f.col("value").alias("t"), "timestamp")
    with pytest.raises(PySparkException, match="continuous and real-time ones cannot be used"):
        start(rate, "append", trigger={"continuous": "1 second"}, **plain)
    with pytest.raises(PySparkException, match="REAL_TIME_MODE"):
        start(rate, "append", trigger={"realTime": "5 seconds"}, **plain)


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("by", [Interrupted, CapabilityError])
def test_a_writer_that_could_not_be_opened_is_gone_at_once(
    catalog: str, declare: Callable[..., str], by: type[BaseException]
) -> None:
    interrupts = 0

    def interrupt(*_: object) -> None:
        nonlocal interrupts
        interrupts += 1
        raise Interrupted

    async def before_opening(*_: object) -> None:
        if by is CapabilityError:
            raise CapabilityError("refused")
        signal.setitimer(signal.ITIMER_REAL, 0.1, PATIENCE)  # the second one is for a thread that goes on
        await asyncio.Event().wait()

    stream = declare()
    holder = _Holder(stream, "q", catalog, Complete.BATCH, 30.0)
    holder.before_opening = before_opening
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(by), holder:
            raise AssertionError("it was opened")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert holder.ended
    assert interrupts <= 1, "it ended by the first"

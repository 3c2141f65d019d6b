"""Queries that are stopped, started twice, or started from another checkpoint: nothing is promised, nothing doubled."""

import asyncio
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.frontiers import reaches
from tests.patience import PATIENCE

import epochal
import epochal_spark
from epochal.errors import CapabilityError, PartitionsChanged, QueryIsNew, QueryRunning, RepeatDiffers, WriterFenced
from epochal_spark.capability import CapabilityMoves
from epochal_spark.commit_channel import Committed
from epochal_spark.earlier_runs import StartRequest, check

pytestmark = [
    pytest.mark.java,
    # PySpark closes its sockets and the JVM's pipes when they are collected, wherever that may be.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

NOW = {"availableNow": True}
ROWS = 60
"""Rows of one part."""


class Parts:
    """Files of `ROWS` rows each, with the columns t, n and part."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.checkpoint = str(folder.parent / "checkpoint")

    def write(self, part: int, time: int = 5) -> None:
        rows = [{"t": time, "n": part * ROWS + at, "part": part} for at in range(ROWS)]
        schema = pa.schema([("t", pa.int64()), ("n", pa.int64()), ("part", pa.int32())])
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), self.folder / f"{part:03}.parquet")

    def read(self) -> DataFrame:
        return self.spark.readStream.schema("t bigint, n bigint, part int").parquet(str(self.folder))


@pytest.fixture
def parts(spark: SparkSession, tmp_path: Path) -> Iterator[Parts]:
    folder = tmp_path / "input"
    folder.mkdir()
    spark.conf.set("spark.sql.files.openCostInBytes", "128MB")  # one task a file
    yield Parts(spark, folder)
    spark.conf.unset("spark.sql.files.openCostInBytes")


class Stalls:
    """Yields part 0, and part 1 only once it may."""

    def __init__(self, gate: Path) -> None:
        self._gate = str(gate)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Wait at part 1."""
        for batch in batches:
            while 1 in batch["part"].to_pylist() and not Path(self._gate).exists():
                time.sleep(0.05)
            yield batch


def run(parts: Parts, df: DataFrame | None = None, **options: Any) -> None:
    """Publish all that is there."""
    options = {"time": "t", "checkpoint": parts.checkpoint, "trigger": NOW, **options}
    with epochal_spark.publish(parts.read() if df is None else df, **options) as publication:
        assert publication.wait(PATIENCE * 2)


async def numbers(sub: epochal.Subscription) -> dict[Any, list[int]]:
    """The rows of each epoch until the stream is complete."""
    found: dict[Any, list[int]] = {}
    async with asyncio.timeout(PATIENCE * 2):
        async for epoch in sub.epochs():
            assert isinstance(epoch, epochal.Epoch)
            found[epoch.time] = sorted(record["n"] for record in epoch.records())
    return found


async def first_data(watch: epochal.Subscription) -> None:
    async with asyncio.timeout(PATIENCE * 2):
        async for event in watch.events():
            if isinstance(event, epochal.Data):
                return


class Running:
    """A query that publishes in a thread, until it is told to end or ends by itself."""

    def __init__(self, parts: Parts, df: DataFrame | None = None, **options: Any) -> None:
        self.publication: epochal_spark.Publication
        self._begun, self._end = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        options = {"time": "t", "checkpoint": parts.checkpoint, **options}
        frame = parts.read() if df is None else df

        def work() -> None:
            try:
                with epochal_spark.publish(frame, **options) as self.publication:
                    self._begun.set()
                    self._end.wait()
                    self.publication.query.stop()
            except BaseException as error:
                self._error = error
            finally:
                self._begun.set()

        self._thread = threading.Thread(target=work, daemon=True)

    def __enter__(self) -> "Running":
        self._thread.start()
        assert self._begun.wait(PATIENCE * 2)
        return self

    def _join(self) -> None:
        self._end.set()
        self._thread.join(PATIENCE * 2)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        """Stop the query within its block; raises what the block raised."""
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._join()
        if kind is None and self._error is not None:
            raise self._error


@pytest.mark.rule("E1")
async def test_a_stopped_query_completes_and_finishes_nothing(
    parts: Parts, catalog: str, declare: Callable[..., str], tmp_path: Path
) -> None:
    stream, gate = declare(), tmp_path / "gate"
    parts.write(0)
    parts.write(1)
    stalling = parts.read().mapInArrow(Stalls(gate), "t bigint, n bigint, part int")
    where: dict[str, Any] = {"stream": stream, "catalog": catalog, "query": "stops"}
    async with (
        epochal.connect(catalog) as client,
        client.subscribe(stream) as sub,
        client.subscribe(stream, partial=True) as watch,
    ):
        await sub.ready.wait()
        await watch.ready.wait()
        async with client.writer(stream, "other") as other:  # keeps the stream's time from being parked with the query
            query = await asyncio.to_thread(Running(parts, stalling, trigger=NOW, finish=True, **where).__enter__)
            await first_data(watch)
            await asyncio.to_thread(query.stop)
            await other.finish()
        assert sub.frontier() == (0,)
        gate.touch()
        await asyncio.to_thread(run, parts, finish=True, **where)
        assert await numbers(sub) == {5: list(range(2 * ROWS))}


async def test_two_streams_take_rows_from_one_session(
    parts: Parts, catalog: str, declare: Callable[..., str], tmp_path: Path
) -> None:
    streams = [declare(), declare()]
    parts.write(0)
    async with epochal.connect(catalog) as client:
        subs = [client.subscribe(stream) for stream in streams]
        async with subs[0], subs[1]:
            for sub in subs:
                await sub.ready.wait()

            def both() -> None:
                where: list[dict[str, Any]] = [
                    {"stream": s, "catalog": catalog, "checkpoint": str(tmp_path / str(i))}
                    for i, s in enumerate(streams)
                ]
                with Running(parts, trigger={"processingTime": "0 seconds"}, **where[0]) as first:
                    run(parts, finish=True, **where[1])
                    first.publication.query.processAllAvailable()

            await asyncio.to_thread(both)
            assert await numbers(subs[1]) == {5: list(range(ROWS))}
            await reaches(subs[0], 6)


@pytest.mark.rule("E6")
async def test_a_query_that_runs_is_not_fenced_by_another_of_its_name_unless_it_is_to_be(
    parts: Parts, catalog: str, declare: Callable[..., str], tmp_path: Path
) -> None:
    stream = declare()
    where: dict[str, Any] = {"stream": stream, "catalog": catalog, "query": "healthy"}
    parts.write(0)

    def twice() -> None:
        with Running(parts, **where) as first:
            first.publication.query.processAllAvailable()
            with pytest.raises(QueryRunning, match=r"query 'healthy'.*take_over=True") as refused:
                run(parts, checkpoint=str(tmp_path / "another"), **where)
            assert (refused.value.stream, refused.value.query) == (stream, "healthy")
            parts.write(1, 6)
            first.publication.query.processAllAvailable()
            assert first.publication.held == (7,)
            parts.write(2, 7)
            run(parts, take_over=True, finish=True, **where)
            with pytest.raises(WriterFenced, match="taken over"):
                first.stop()

    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        await asyncio.to_thread(twice)
        assert await numbers(sub) == {5 + part: list(range(part * ROWS, (part + 1) * ROWS)) for part in range(3)}


async def test_a_writer_of_another_program_is_distinguished_from_one_that_is_gone_by_its_heartbeats(
    catalog: str, declare: Callable[..., str]
) -> None:
    stream = declare(timeout="60s")
    asked = StartRequest(stream, "q", "/new", None, take_over=False, new_checkpoint=False, left=None)
    async with epochal.connect(catalog) as client:
        info = await client.catalog.lookup(*stream.split("/"))
        await check(client, info, asked)
        async with client.capability_writer(stream, "q") as other:
            await until(lambda: listed(client, stream, "q"))
            with pytest.raises(QueryRunning, match=r"'q' publishes to .* already"):
                await check(client, info, asked)
            await check(client, info, asked._replace(take_over=True))
            await check(client, info, asked._replace(left=other.session.machine.session))
            await other.advance(4)
            other.detach()  # as if its program was killed
        await check(client, info, asked)
        assert await listed(client, stream, "q")  # within the time-out its capability is there all the same


async def listed(client: epochal.Client, stream: str, writer: str) -> bool:
    return writer in (await client.catalog.get(*stream.split("/"))).writers


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE * 2):
        while not await true():  # noqa: ASYNC110  # reported by publishers in time
            await asyncio.sleep(0.05)


async def test_a_lost_checkpoint_publishes_nothing_twice(
    parts: Parts, catalog: str, declare: Callable[..., str]
) -> None:
    stream = declare()
    where: dict[str, Any] = {"stream": stream, "catalog": catalog, "query": "hourly", "complete": "never"}
    parts.write(0)
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        await asyncio.to_thread(run, parts, **where)
        shutil.rmtree(parts.checkpoint)
        with pytest.raises(QueryIsNew, match=r"(?s)'hourly'.*last batch seen is 0\..*another name") as refused:
            await asyncio.to_thread(run, parts, **where)
        assert (refused.value.query, refused.value.checkpoint, refused.value.batch) == ("hourly", parts.checkpoint, 0)
        (parts.folder / "000.parquet").unlink()
        parts.write(1, 6)
        await asyncio.to_thread(run, parts, new_checkpoint=True, **where)
        parts.write(2, 7)
        await asyncio.to_thread(run, parts, finish=True, **where)  # the stream knows this checkpoint now
        assert await numbers(sub) == {5 + part: list(range(part * ROWS, (part + 1) * ROWS)) for part in range(3)}


async def fail(_: CapabilityMoves, commit: Committed) -> None:
    """Stands for what a commit makes the writer say."""
    raise CapabilityError(f"batch {commit.batch} fails on purpose")


@pytest.mark.rule("E6")
async def test_a_begun_batch_does_not_run_again_with_other_partitions(
    parts: Parts, spark: SparkSession, catalog: str, declare: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = declare()
    where: dict[str, Any] = {"stream": stream, "catalog": catalog, "query": "cores"}
    for part in range(2):
        parts.write(part)

    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        with monkeypatch.context() as broken:
            broken.setattr(CapabilityMoves, "committed", fail)
            with pytest.raises(CapabilityError, match=r"^batch 0 fails on purpose$"):
                await asyncio.to_thread(run, parts, **where)
        spark.conf.unset("spark.sql.files.openCostInBytes")
        spark.conf.set("spark.sql.files.maxPartitionNum", "1")  # stands for fewer cores: both files in one partition
        with pytest.raises(
            PartitionsChanged, match=r"batch 0 .* begun with 2 partitions.*with 1 partition\."
        ) as refused:
            await asyncio.to_thread(run, parts, **where)
        assert (refused.value.batch, refused.value.before, refused.value.now) == (0, 2, 1)
        spark.conf.unset("spark.sql.files.maxPartitionNum")
        spark.conf.set("spark.sql.files.openCostInBytes", "128MB")
        await asyncio.to_thread(run, parts, **where)
        spark.conf.unset("spark.sql.files.openCostInBytes")
        for part in (2, 3):
            parts.write(part, 6)
        spark.conf.set("spark.sql.files.maxPartitionNum", "1")  # another batch may be divided as it likes
        await asyncio.to_thread(run, parts, finish=True, **where)
        spark.conf.unset("spark.sql.files.maxPartitionNum")
        assert await numbers(sub) == {5: list(range(2 * ROWS)), 6: list(range(2 * ROWS, 4 * ROWS))}


class Turned:
    """The rows of each part, the last one first."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn each batch round."""
        for batch in batches:
            yield batch.take(pa.array(range(batch.num_rows - 1, -1, -1)))


@pytest.mark.long
@pytest.mark.rule("E49")
async def test_rows_that_come_again_in_another_order_fail_the_query_by_name_and_double_nothing(
    parts: Parts, catalog: str, declare: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = declare()
    where: dict[str, Any] = {"stream": stream, "catalog": catalog, "query": "turned"}
    parts.write(0)
    turned = parts.read().mapInArrow(Turned(), "t bigint, n bigint, part int")
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        with monkeypatch.context() as broken:
            broken.setattr(CapabilityMoves, "committed", fail)
            with pytest.raises(CapabilityError, match=r"^batch 0 fails on purpose$"):
                await asyncio.to_thread(run, parts, **where)
        with pytest.raises(
            RepeatDiffers, match=r"^batch 0, partition 0, time 5: append 0 of writer 'turned/.*\.\.\.\)$"
        ):
            await asyncio.to_thread(run, parts, turned, **where)
        await asyncio.to_thread(run, parts, finish=True, **where)
        assert await numbers(sub) == {5: list(range(ROWS))}

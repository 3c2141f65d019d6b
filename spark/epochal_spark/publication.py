"""`epochal_spark.publish`: a streaming query whose capability is held by a writer in the driver's process.

The sink's parts run in Spark's processes; for a query, only the writer here completes times. It has a thread and an
event loop of its own, so that it sends heartbeats to the publishers whatever the driver's program does.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import epochal
from epochal.catalog_api.answers import StreamInfo
from epochal.client.catalog.url import catalog_url
from epochal.errors import ConfigError, EpochalError, Unavailable, UsageError, WriterFenced
from epochal.protocol.times import Time
from epochal.resources.names import parse_stream_name
from epochal_spark import earlier_runs
from epochal_spark.capability import CapabilityMoves
from epochal_spark.commit_channel import Committed, Handed, HandoverServer
from epochal_spark.declaration import Declared
from epochal_spark.earlier_runs import StartRequest
from epochal_spark.options import Complete, SinkOptions
from epochal_spark.schemas import check_schema
from epochal_spark.sessions import register
from epochal_spark.spark_internals import ENDING, QueryCheckpoint, ended_by_itself, ours, planned
from epochal_spark.tracing import Batches

T = TypeVar("T")

_TRIGGERS = frozenset({"processingTime", "once", "availableNow"})

START_TIMEOUT = 60.0
"""Seconds that the first batch waits for `start()` to return Spark's handle of the query."""


class Publication:
    """A running query that publishes; made by `publish()`."""

    def __init__(self, query: StreamingQuery, holder: "_Holder") -> None:
        self.query = query
        """Spark's handle."""
        self._holder = holder

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the query has ended by itself or was stopped; False if `timeout` seconds pass before.

        Raises the query's error: an `EpochalError` if one was the cause, else Spark's.
        """
        with self._holder.named_failures():
            if timeout is None:
                self.query.awaitTermination()
                return True
            return bool(self.query.awaitTermination(timeout))  # type: ignore[arg-type]  # annotated as int; Spark takes a float

    def advance(self, time: Time) -> None:
        """Say that everything before `time` has been published; for `complete="never"`.

        Raises `CapabilityError` for a move back.
        """
        self._holder.call(self._holder.advance(time))

    @property
    def held(self) -> tuple[Time, ...]:
        """The held times: the query's batches can publish at any time at or after one of these."""
        return self._holder.held


@contextlib.contextmanager
def publish(
    df: DataFrame,
    *,
    stream: str,
    time: str,
    checkpoint: str,
    key: str | None = None,
    topic: str | None = None,
    query: str | None = None,
    catalog: str | None = None,
    complete: str = "batch",
    trigger: Mapping[str, Any] | None = None,
    finish: bool = False,
    take_over: bool = False,
    new_checkpoint: bool = False,
    wait: float = 30.0,
) -> Iterator[Publication]:
    """Publish a streaming DataFrame's rows to `stream`, each micro-batch exactly once, while the block runs.

    `time`: the column of the epoch's time, an integer or a struct of integers as the stream declares. `key`: the column
    that keeps records in order. `topic`: the column, of text or binary, with the topic by which subscribers choose
    records.
    `query`: the writer id, `spark/<stream>` unless given; two queries on one stream need different ones. `complete`:
    "batch" (a commit completes every time up to the batch's greatest, so later batches must hold later times) or
    "never" (see `Publication.advance`).
    `checkpoint`: where Spark keeps its progress; with it, and the same `query`, a query that was killed goes on where
    it was if it is back within the stream's `progress.writerTimeout`.
    `trigger`: arguments of Spark's `trigger()`; continuous and real-time ones are refused. `wait`: seconds for the
    stream and its publishers to be there.
    `finish`: finish the stream once the query has ended by itself, which only triggers `availableNow` and `once` do.
    `take_over`: fence a running query of this name. `new_checkpoint`: publish although the stream has rows of this
    query from another checkpoint.

    At its end the block waits for the query; an exception in the block stops it. If the query ended by itself, the
    writer closes or finishes. If it failed or was stopped, the writer neither completes nor aborts what the last batch
    may have published: a restart completes it, else it is aborted after `progress.writerTimeout`.

    Raises `ConfigError` for wrong options or columns, `StreamNotFound`, `NoPublisher`, `StreamComplete`,
    `QueryRunning`, `QueryIsNew`, before anything runs; then what the query fails with, `PartitionsChanged` and
    `WriterFenced` among others.
    """
    kind = _check_query(df, trigger or {}, finish=finish)
    name = query or f"spark/{stream}"
    kept = QueryCheckpoint(df.sparkSession, checkpoint)
    holder = _Holder(stream, name, catalog_url(catalog), Complete(_known(complete)), wait)
    options = SinkOptions(
        stream=stream, catalog=holder.catalog, time=time, query=name, key=key, topic=topic, complete=holder.complete
    )  # fmt: skip
    with _THIS_PROGRAM.runs(holder, take_over=take_over) as before:
        request = StartRequest(stream, name, checkpoint, kept.query_id(), take_over, new_checkpoint, before.left)
        holder.before_opening = partial(_check_and_replace, df.schema, options, request, before.other)
        with holder:
            register(df.sparkSession)
            settings = replace(options, handover=holder.address).to_spark()
            writer = df.writeStream.format("epochal").options(**settings).outputMode("append").queryName(name)
            writer = writer.option("checkpointLocation", checkpoint)
            if trigger:
                writer = writer.trigger(**trigger)
            try:
                running = holder.started(writer.start(), kept)
                with holder.named_failures():
                    yield Publication(running, holder)
                    running.awaitTermination()
            finally:
                holder.stop_query()
            if ended_by_itself(running, kind):
                holder.leave(finish=finish)
            else:
                holder.detach()


async def _check_and_replace(
    schema: StructType,
    options: SinkOptions,
    request: StartRequest,
    other: "_Holder | None",
    client: epochal.Client,
    info: StreamInfo,
) -> None:
    """Raise for a query that cannot be published; if it can, stop the query that it takes over in this program."""
    check_schema(schema, options, Declared.of(info))
    await earlier_runs.check(client, info, request)
    if other is not None:
        await asyncio.to_thread(other.give_way)


def _known(complete: str) -> str:
    if complete not in list(Complete):
        raise ConfigError(f"complete is batch or never, not {complete!r}")
    return complete


def _check_query(df: DataFrame, trigger: Mapping[str, Any], *, finish: bool) -> str | None:
    """The trigger's kind; raises for a query that cannot be published."""
    if not df.isStreaming:
        raise UsageError("publish() takes a streaming DataFrame (spark.readStream ...)")
    wrong = sorted(trigger.keys() - _TRIGGERS)
    if wrong:
        raise ConfigError(f"the trigger {', '.join(wrong)} cannot be used: use processingTime, once or availableNow")
    kind = next((name for name, value in trigger.items() if value), None)
    if finish and kind not in ENDING:
        raise ConfigError(
            "finish=True finishes the stream when the query ends by itself, which it does only with "
            'trigger={"availableNow": True} or {"once": True}'
        )
    return kind


class _Before(NamedTuple):
    """What this program knows about a starting query: the last session that it left, and the run to take over."""

    left: int | None
    other: "_Holder | None"


class _ThisProgram:
    """The queries that publish from this program: a second one of the same name is refused, or takes over at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str, str], _Holder] = {}
        self._left: dict[tuple[str, str, str], int] = {}
        """The last session left, by query. While it is the writer's newest, no other program uses the capability."""

    @contextlib.contextmanager
    def runs(self, holder: "_Holder", *, take_over: bool) -> Iterator[_Before]:
        """Count `holder` as running in the block. Raises `QueryRunning` if another runs and must not be taken over."""
        key = (holder.catalog, holder.stream, holder.query)
        with self._lock:
            other = self._running.get(key)
            if other is not None and not take_over:
                raise earlier_runs.running(holder.stream, holder.query, "from this program")
            self._running[key] = holder
        try:
            yield _Before(self._left.get(key), other)
        finally:
            with self._lock:
                if holder.session is not None:
                    self._left[key] = holder.session
                if self._running.get(key) is holder:
                    if other is not None and not other.ended:  # this one did not begin, and the other still runs
                        self._running[key] = other
                    else:
                        del self._running[key]


_THIS_PROGRAM = _ThisProgram()


class _Holder:
    """The writer that holds the query's capability, in a thread of its own while entered."""

    def __init__(self, stream: str, query: str, catalog: str, complete: Complete, wait: float) -> None:
        self.stream = stream
        self.query = query
        self.catalog = catalog
        self.complete = complete
        self._wait = wait
        self._batches = Batches(stream, query)
        self._opened: Future[None] = Future()
        self._how: _Leaving | None = None
        """How to leave, once that is decided."""
        self._leaving: asyncio.Event
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._holding: CapabilityMoves
        self._thread = threading.Thread(target=self._run, name=f"epochal {query}", daemon=True)
        self._error: BaseException | None = None
        self._refusal: EpochalError | None = None
        """The reason why a batch was not begun or not committed."""
        self._running: Future[tuple[StreamingQuery, QueryCheckpoint]] = Future()
        self._begun_batch: tuple[int, int] | None = None
        """The last batch that was begun, and its number of partitions."""
        self._gave_way = False
        self.address = ""
        self.session: int | None = None
        self.before_opening: Callable[[epochal.Client, StreamInfo], Awaitable[None]]
        """Raises an error if the writer may not open: opening would fence the query's earlier writer (E6 sessions)."""

    # ---- the driver's side ----

    def __enter__(self) -> "_Holder":
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self._end(_Leaving.DETACH)  # interrupted: what is being opened is given up
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(_Leaving.DETACH)
        self._batches.close(self._refusal or error)

    def started(self, query: StreamingQuery, kept: QueryCheckpoint) -> StreamingQuery:
        """Spark has started the query; its first batch waits for this call."""
        self._running.set_result((query, kept))
        return query

    def leave(self, *, finish: bool) -> None:
        """Leave with a promise: no more data ever (`finish`), or all data so far (else). Raises what failed."""
        self._end(_Leaving.FINISH if finish else _Leaving.CLOSE)
        if self._error is not None:
            raise self._error

    def detach(self) -> None:
        """Leave without a promise about the last batch. Raises `WriterFenced` where another run has taken over."""
        self._end(_Leaving.DETACH)
        if self._gave_way:
            raise self._fenced()

    def give_way(self) -> None:
        """Another run in this program takes over: stop the query, so that Spark can start the other one."""
        self._gave_way = True
        self.stop_query()

    def stop_query(self) -> None:
        """Stop the query, if Spark has started it and it still runs."""
        if self._running.done() and (query := self._running.result()[0]).isActive:
            query.stop()

    @contextlib.contextmanager
    def named_failures(self) -> Iterator[None]:
        """If an `EpochalError` made the query fail, raise that instead of Spark's exception with its text."""
        try:
            yield
        except PySparkException as error:
            cause = self._refusal or ours(error)
            if cause is None:
                raise
            raise cause from error

    def call(self, what: Coroutine[None, None, T]) -> T:
        """Run `what` in the writer's loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    @property
    def held(self) -> tuple[Time, ...]:
        """The times that the writer holds."""
        return self._holding.writer.held

    @property
    def ended(self) -> bool:
        """Whether its thread, and so its writer, is gone."""
        return not self._thread.is_alive()

    def _end(self, how: "_Leaving") -> None:
        self._how = self._how or how
        if self._task is not None:  # else the thread will see `_how` as it begins
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._leave)
        self._thread.join()

    def _fenced(self) -> WriterFenced:
        return WriterFenced(f"query {self.query!r} was taken over by another run of it in this program")

    # ---- the writer's side ----

    def _run(self) -> None:
        try:
            asyncio.run(self._hold())
        except BaseException as error:
            self._error = error
            if not self._opened.done():
                self._opened.set_exception(error)

    def _leave(self) -> None:
        if self._opened.done():
            self._leaving.set()
        elif self._task is not None:
            self._task.cancel()

    async def _hold(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leaving = asyncio.Event()
        self._task = asyncio.current_task()
        if self._how is not None:
            self._leave()
        async with epochal.connect(self.catalog) as client:
            info = await client.catalog.lookup(*parse_stream_name(self.stream), wait=self._wait)
            await self.before_opening(client, info)
            async with client.capability_writer(
                self.stream, writer_id=self.query, direct=True, wait=self._wait
            ) as writer:
                self._holding = CapabilityMoves(writer, Declared.of(info).shape, self.complete)
                await self._hold_while_running(writer)

    async def _hold_while_running(self, writer: epochal.Writer) -> None:
        server = HandoverServer(self._committed, on_begin=self._begun)
        self.address = await server.start()
        self._opened.set_result(None)
        try:
            await self._leaving.wait()
        finally:
            self.session = writer.session_number
            await server.close()
        match self._how:
            case _Leaving.DETACH:
                writer.detach()
            case _Leaving.FINISH:
                await writer.finish()
            case _Leaving.CLOSE:
                await writer.close()

    async def _begun(self) -> Handed | None:
        """Refuse a batch if its rows could not be recognised as repeats, or if its capability is lost."""
        with self._noting_refusals():
            if self._gave_way:
                raise self._fenced()
            await self._holding.writer.flush()  # raises if the session is over
            await asyncio.to_thread(self._check_partitions)
        return self._batches.handed

    def _check_partitions(self) -> None:
        """Record a new batch. Spark plans a batch again for its commit or abort; then nothing changes."""
        try:
            query, kept = self._running.result(START_TIMEOUT)
        except TimeoutError:
            raise Unavailable(f"Spark's start() has not returned the query within {START_TIMEOUT:g} s") from None
        try:
            batch = planned(query)
            if batch != self._begun_batch:
                kept.begin(self.query, *batch)
                self._begun_batch = batch
                self._batches.begun(batch[0], str(query.id), str(query.runId))
        except Py4JError as error:
            raise UsageError(f"Spark does not say how the batch is divided, or cannot note it: {error}") from error

    async def _committed(self, batch: Committed) -> None:
        with self._noting_refusals(), self._batches.committing(batch.records, batch.greatest) as span:
            await self._holding.committed(batch)
            self._batches.committed(span, self.held)
        self._batches.over()

    @contextlib.contextmanager
    def _noting_refusals(self) -> Iterator[None]:
        try:
            yield
        except EpochalError as error:
            self._refusal = error
            raise

    async def advance(self, time: Time) -> None:
        """Move everything held to `time`."""
        await self._holding.advance(time)


class _Leaving(Enum):
    """How the writer leaves the stream."""

    DETACH = auto()
    """Without a promise: publishers keep what it holds for a restart until the stream's time-out."""
    CLOSE = auto()
    FINISH = auto()

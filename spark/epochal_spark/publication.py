"""`epochal_spark.publish`: a streaming query whose capability is held by a writer in the driver's process.

Apart from the sink, whose parts run in Spark's processes: here is the only place that says which times are complete.
The writer lives in a thread with an event loop of its own, so that it is heard by the publishers whatever the driver's
program does.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import epochal
from epochal.client.catalog import catalog_url
from epochal.errors import ConfigError, UsageError
from epochal.protocol.times import Time
from epochal_spark.declared import Declared, look_up
from epochal_spark.handover import HandoverServer
from epochal_spark.holding import Holding
from epochal_spark.options import Complete, SinkOptions
from epochal_spark.schemas import check_schema
from epochal_spark.sessions import register

T = TypeVar("T")

_TRIGGERS = frozenset({"processingTime", "once", "availableNow"})


class Publication:
    """A running query that publishes; made by `publish()`."""

    def __init__(self, query: StreamingQuery, holder: "_Holder") -> None:
        self.query = query
        """Spark's handle."""
        self._holder = holder

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the query has ended by itself; False if `timeout` seconds pass before.

        Raises what the query failed with.
        """
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
        """What the query holds: its batches can publish at any time that one of these reaches."""
        return self._holder.held


@contextlib.contextmanager
def publish(
    df: DataFrame,
    *,
    stream: str,
    time: str,
    checkpoint: str,
    key: str | None = None,
    query: str = "spark",
    catalog: str | None = None,
    complete: str = "batch",
    trigger: Mapping[str, Any] | None = None,
    finish: bool = True,
    wait: float = 30.0,
) -> Iterator[Publication]:
    """Publish a streaming DataFrame's rows to `stream`, each micro-batch exactly once, while the block runs.

    `time`: the column of the epoch's time, an integer or a struct of integers as the stream declares. `key`: the column
    that keeps records in order.
    `query`: the writer id; two queries on one stream need different ones. `complete`: "batch" (a commit completes every
    time up to the batch's greatest, so later batches must hold later times) or "never" (see `Publication.advance`).
    `checkpoint`: where Spark keeps its progress; with it, and the same `query`, a query that was killed goes on where
    it was if it is back within the stream's `progress.writerTimeout`.
    `wait`: seconds for the stream and its publishers to be there. `trigger`: arguments of Spark's
    `trigger()`; continuous and real-time ones are refused.

    The block waits for the query unless it was told to end before. If it ended by itself, the stream is finished
    (`finish=False`: the writer closes and another query may go on). If it failed or was stopped, nothing is said about
    what its last batch may have published: a restart completes it, else it is aborted after `progress.writerTimeout`.

    Raises `ConfigError` for wrong options or columns, `StreamNotFound`, `NoPublisher`, `StreamComplete`, before
    anything runs.
    """
    _check_query(df, trigger or {})
    holder = _Holder(stream, query, catalog_url(catalog), Complete(_known(complete)), wait)
    with holder:
        options = SinkOptions(
            stream=stream, catalog=holder.catalog, time=time, query=query, key=key, complete=holder.complete,
            handover=holder.address,
        )  # fmt: skip
        check_schema(df.schema, options, holder.declared)
        register(df.sparkSession)
        writer = df.writeStream.format("epochal").options(**options.to_spark()).outputMode("append").queryName(query)
        writer = writer.option("checkpointLocation", checkpoint)
        if trigger:
            writer = writer.trigger(**trigger)
        running = writer.start()
        try:
            yield Publication(running, holder)
            running.awaitTermination()
        finally:
            if running.isActive:
                running.stop()
        holder.leave(finish)


def _known(complete: str) -> str:
    if complete not in list(Complete):
        raise ConfigError(f"complete is batch or never, not {complete!r}")
    return complete


def _check_query(df: DataFrame, trigger: Mapping[str, Any]) -> None:
    if not df.isStreaming:
        raise UsageError("publish() takes a streaming DataFrame (spark.readStream ...)")
    wrong = sorted(trigger.keys() - _TRIGGERS)
    if wrong:
        raise ConfigError(f"the trigger {', '.join(wrong)} cannot be used: use processingTime, once or availableNow")


class _Holder:
    """The writer that holds the query's capability, in a thread of its own while entered."""

    def __init__(self, stream: str, query: str, catalog: str, complete: Complete, wait: float) -> None:
        self.catalog, self.complete = catalog, complete
        self._stream, self._query, self._wait = stream, query, wait
        self._opened: Future[None] = Future()
        self._leaving: asyncio.Future[bool | None]
        self._loop: asyncio.AbstractEventLoop
        self._holding: Holding
        self._thread = threading.Thread(target=self._run, name=f"epochal {query}", daemon=True)
        self._error: BaseException | None = None
        self.address = ""
        self.declared: Declared

    # ---- the driver's side ----

    def __enter__(self) -> "_Holder":
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self._thread.join()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end(None)

    def leave(self, finish: bool) -> None:
        """Leave with a promise: no more ever (`finish`), or whole so far. Raises what failed."""
        self._end(finish)
        if self._error is not None:
            raise self._error

    def call(self, what: Coroutine[None, None, T]) -> T:
        """Run `what` in the writer's loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    @property
    def held(self) -> tuple[Time, ...]:
        """What the writer holds."""
        return self._holding.writer.held

    def _end(self, how: bool | None) -> None:
        def say() -> None:
            if not self._leaving.done():
                self._leaving.set_result(how)

        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(say)
        self._thread.join()

    # ---- the writer's side ----

    def _run(self) -> None:
        try:
            asyncio.run(self._hold())
        except BaseException as error:
            self._error = error
            if not self._opened.done():
                self._opened.set_exception(error)

    async def _hold(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leaving = self._loop.create_future()
        async with epochal.connect(self.catalog) as client:
            self.declared = await look_up(client.catalog, self._stream, self._wait)
            async with client.writer(self._stream, writer_id=self._query, shared=True, wait=self._wait) as writer:
                self._holding = Holding(writer, self.declared.shape, self.complete)
                await self._hold_while_running(writer)

    async def _hold_while_running(self, writer: epochal.Writer) -> None:
        server = HandoverServer(self._holding.committed)
        self.address = await server.start()
        self._opened.set_result(None)
        try:
            how = await self._leaving
        finally:
            await server.close()
        match how:
            case None:
                writer.detach()
            case True:
                await writer.finish()
            case False:
                await writer.close()

    async def advance(self, time: Time) -> None:
        """Move everything held to `time`."""
        await self._holding.advance(time)

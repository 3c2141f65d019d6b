"""`epochal.connect(...)`: one catalog, one ZeroMQ context, any number of writers and subscriptions.

A client outlives its writers and subscriptions: it keeps the catalog's connections and the ZeroMQ context that they
share.
"""

import asyncio
import functools
import os
import socket
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, Self

import zmq

from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import Directory, Reach
from epochal.client.catalog.relay_choice import Via
from epochal.client.options import Expected, SchemaLike, read_schema
from epochal.client.subscriber.subscriber import StartFrom, Subscription
from epochal.client.writer.session import WriterOptions
from epochal.client.writer.writer import Writer
from epochal.errors import UsageError
from epochal.protocol.messages import MAX_ID, is_id
from epochal.protocol.subscriber.follower import FollowerSettings
from epochal.protocol.time_codec import TimeCodec
from epochal.transport.memory import CLIENT_KEEPS, keep_freed_memory
from epochal.transport.shutdown import to_the_end
from epochal.transport.sockets import check_libzmq

DEFAULT_WAIT = 30.0
"""Seconds that opening a writer or a subscription waits for the stream and its publishers (S27)."""

MAX_SOCKETS = 16_384
"""Sockets of one client: a subscription takes four a segment (two, and what watches them); zmq's own limit is 1023."""


@functools.cache
def _keep_freed_memory() -> None:
    """Set it once, however many clients a process opens."""
    keep_freed_memory(CLIENT_KEEPS)


class Client:
    """A connection to one catalog; made by `connect`, used as an async context manager."""

    def __init__(
        self,
        url: str | None = None,
        *,
        patience: float = 30.0,
        on_unreachable: Callable[[str], None] | None = None,
        reach: Reach | None = None,
    ) -> None:
        check_libzmq()
        _keep_freed_memory()
        self.catalog = CatalogClient(url, patience=patience, on_unreachable=on_unreachable)
        # Calls in the background are tried once, and retried by their own loop; an unreachable catalog is not reported
        # then.
        self._background = CatalogClient(self.catalog.url, patience=0.0)
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._reach = reach
        self._made = weakref.WeakSet[Writer | Subscription]()

    async def __aenter__(self) -> Self:
        """Nothing is connected before it is needed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all connections; what is still open is left as `close` says."""
        await self.close()

    async def close(self) -> None:
        """Leave what is still open, end the calls to the catalog and stop the sockets' threads, also when cancelled.

        A writer that is still open is left as by an exception: what it appended at and holds is aborted (E4).
        """
        try:
            await to_the_end(self._end_calls())
        finally:
            self._context.destroy(linger=0)

    async def _end_calls(self) -> None:
        await asyncio.gather(*(made._abandon() for made in list(self._made)))
        await self._background.close()
        await self.catalog.close()

    def writer(
        self,
        stream: str,
        writer_id: str | None = None,
        *,
        linger: float = 0.0,
        max_batch: int = 1024,
        clock: bool = False,
        direct: bool = False,
        time_codec: TimeCodec[Any] | None = None,
        encoding: str | None = None,
        schema: SchemaLike | None = None,
        validate: bool = True,
        on_error: Literal["abort", "detach"] = "abort",
        wait: float = DEFAULT_WAIT,
    ) -> Writer:
        """A writer of `stream` ("namespace/name"); open it with `async with`.

        A stable `writer_id` lets a restarted writer go on, and fences the one before (E6 sessions); without one the
        writer is anonymous and never resumes. `linger` (seconds) and `max_batch` (records) gather single records into
        batches. With `clock` each batch carries the time by this machine's wall clock (`Data.published`). Where
        EPOCHAL_SIDECAR names a sidecar that answers, publishers are reached through it (see `Writer.way`); `direct`
        never does so. `encoding` and `schema` (a mapping as in the manifest, a `Schema` or a `pyarrow.Schema`), if
        given, must be the declared ones, else opening raises `SchemaMismatch` (S28). Where the stream declares fields,
        an append of other records raises `RecordTypeError`; `validate=False` leaves this check out, which costs about
        twice as much as encoding as msgpack. Raises `ConfigError` for a `schema` that is not valid.

        A writer whose block ends by an exception aborts what it had begun (E4). With `on_error="detach"` it goes away
        as by `Writer.detach` instead, also where closing fails and where the client is closed around it: publishers
        keep its place and its epochs for the next session of `writer_id`, which it needs, for `progress.writerTimeout`,
        or with `progress.whenLost: hold` until that session comes. For programs that are started again and go on after
        `Writer.resume_from`.
        """
        if on_error not in ("abort", "detach"):
            raise UsageError(f'on_error is "abort" or "detach", not {on_error!r:.50}')
        if on_error == "detach" and writer_id is None:
            raise UsageError(
                'on_error="detach" leaves what was begun to the next session of the writer: give a writer_id'
            )
        options = WriterOptions(
            linger=linger, max_batch=max_batch, clock=clock, direct=direct, named=writer_id is not None,
            expected=Expected(None, encoding, read_schema(schema)), validate=validate, detaches=on_error == "detach",
        )  # fmt: skip
        return self._make_writer(stream, writer_id, options, wait, time_codec)

    def capability_writer(
        self, stream: str, writer_id: str, *, direct: bool = False, wait: float = DEFAULT_WAIT
    ) -> Writer:
        """A writer that holds the capability under which task writers append; see `task_writer`.

        For work that is divided into tasks, as Spark divides a batch: this writer stays open while the tasks run, says
        which times are complete, and aborts nothing when a task is lost. It can append as well. Parameters as of
        `writer`.
        """
        options = WriterOptions(shared=True, direct=direct, named=True)
        return self._make_writer(stream, writer_id, options, wait)

    def task_writer(
        self,
        stream: str,
        writer_id: str,
        *,
        under: str,
        group: int | None = None,
        direct: bool = False,
        wait: float = DEFAULT_WAIT,
    ) -> Writer:
        """A writer for one task: it appends under the capability of the writer `under`, and holds none itself.

        `under` is the id of a `capability_writer` that is open. The loss of a task writer aborts nothing. `group` (such
        as the number of a micro-batch) numbers its appends from the start of that group: a task that runs again, with
        the same `writer_id` and group, and appends the same records in the same order, repeats its numbers, and
        publishers recognise what they have (E6 sessions). Other parameters as of `writer`.
        """
        options = WriterOptions(under=under, group=group, direct=direct, named=True)
        return self._make_writer(stream, writer_id, options, wait)

    def _make_writer(
        self,
        stream: str,
        writer_id: str | None,
        options: WriterOptions,
        wait: float,
        time_codec: TimeCodec[Any] | None = None,
    ) -> Writer:
        if writer_id is not None:
            _check_id("writer_id", writer_id)
        directory = Directory(self.catalog, stream, wait=wait, reach=self._reach)
        writer = Writer(self._context, directory, writer_id, options, time_codec=time_codec)
        self._made.add(writer)
        return writer

    def subscribe(
        self,
        stream: str,
        *,
        since: StartFrom = None,
        topics: Iterable[bytes] | None = None,
        reject: Iterable[bytes] = (),
        partial: bool = False,
        time_codec: TimeCodec[Any] | None = None,
        time_shape: str | None = None,
        encoding: str | None = None,
        schema: SchemaLike | None = None,
        max_buffer_bytes: int = 256 * 2**20,
        subscriber: str | None = None,
        push: bool = True,
        poll: float | None = None,
        via: Via | str = "auto",
        wait: float = DEFAULT_WAIT,
        settings: FollowerSettings | None = None,
    ) -> Subscription:
        """A subscription to `stream` ("namespace/name"); open it with `async with`.

        `since` is None (from now on), a `Cursor`, or a text, for whole epochs of the history and then live ones:
        "start" (all that is retained), "time:T" (epochs not <= T), "frontier:[T, ...]" (epochs at or after one of
        these), "seq:N" (epochs begun after event N of a stream of one segment) or 'cut:{"SEGMENT": N, ...}' (after an
        event in each); T is JSON, such as 5 or [3, 1]. What is no longer retained raises `HistoryTruncated` when it is
        read; a `since` that is not valid raises `UsageError` (E20). `topics` and `reject` are topic prefixes, the
        longest wins; they are applied here, at the receiver. `partial` delivers epochs that were under way at the join
        as well, by `events()` only (S15b). `time_shape`, `encoding` and `schema` (a mapping as in the manifest, a
        `Schema` or a `pyarrow.Schema`), if given, must be the declared ones, else `SchemaMismatch` before anything is
        connected (S28). Raises `ConfigError` for a `schema` that is not valid. `subscriber` is the reader's name in the
        catalog, for people; it is announced there in the background. It is `<host>/<process id>` unless given. Without
        `push`, events are pulled every `poll` seconds (1 unless given) and never pushed (Q7); `Subscription.push`
        changes that. `via` says which way events come: "auto" (through a relay where one is ready, else straight from
        the publishers), "direct", "relay" (never from the publishers: opening waits for a relay, then raises
        `NoPublisher`) or "relay:NAME"; or a `Via`. `Subscription.via` is what each segment has taken.
        """
        if subscriber is not None:
            _check_id("subscriber", subscriber)
        name = subscriber or f"{socket.gethostname()}/{os.getpid()}"[-MAX_ID:]
        subscription = Subscription(
            self._context, Directory(self.catalog, stream, wait=wait, reach=self._reach), self.catalog.relays,
            since=since, topics=topics, reject=reject, partial=partial, time_codec=time_codec,
            expected=Expected(time_shape, encoding, read_schema(schema)),
            max_buffer_bytes=max_buffer_bytes, settings=settings, push=push, poll=poll, via=via,
            announce=(self._background, name),
        )  # fmt: skip
        self._made.add(subscription)
        return subscription


def _check_id(parameter: str, given: str) -> None:
    if not is_id(given):
        raise UsageError(f"{parameter}= is 1 to {MAX_ID} printable characters, not {given[:MAX_ID]!r} ({len(given)})")


def connect(
    url: str | None = None,
    *,
    patience: float = 30.0,
    on_unreachable: Callable[[str], None] | None = None,
    reach: Reach | None = None,
) -> Client:
    """A client of the catalog at `url`, else of EPOCHAL_CATALOG, else in a pod of the cluster's, else of the local one.

    `patience`: seconds to go on trying while no catalog answers; `on_unreachable` is called with the reason when that
    begins. `reach` turns a publisher's address, as the catalog gives it, into one that works from here.
    """
    return Client(url, patience=patience, on_unreachable=on_unreachable, reach=reach)

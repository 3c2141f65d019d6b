"""Group commits: the machines' decisions go to the disk, and their effects are carried out once they are there (E9).

A segment has one commit at a time. Decisions made meanwhile wait for the next one, which puts them all on disk at once.
`store` knows what a commit writes; the process carries out the effects.

Sources: rules E9, E10, E12.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import NamedTuple, Self

from epochal.errors import EpochalError, LogError, LogFailed, LogFull, Superseded
from epochal.otel import names, sdk
from epochal.otel.spans import Finished
from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import Log, Push
from epochal.protocol.publisher.effects import PublisherEffect as Effect
from epochal.protocol.times import Time
from epochal_publisher.segments.segment import HostedSegment
from epochal_publisher.segments.store import Commit, SegmentStore, SegmentStores

logger = logging.getLogger("epochal.publisher")


class Durable(NamedTuple):
    """Effects that may be carried out, because no crash can undo them any more."""

    effects: Sequence[Effect]
    lower: tuple[Time, ...]
    """The lower frontier after them."""
    began: float | None
    """When they were sent to the disk, in seconds of the process's clock; None if they were not."""


class CommitPipeline:
    """The commits of all segments of a process, on the threads of `stores`.

    - `retry`: seconds until a commit for which the disk had no space is tried again.
    - `over`: the reason why this process ends; nothing is written after that. A failed disk sets it.
    - `on_written`: called when a commit is on disk, with its seconds, or with None for housekeeping.
    """

    def __init__(
        self,
        stores: SegmentStores,
        retry: float,
        over: "asyncio.Future[EpochalError]",
        on_written: Callable[[float | None], object],
    ) -> None:
        self._stores = stores
        self._retry = retry
        self._over = over
        self._on_written = on_written
        self._disk_did_something = asyncio.Event()

    async def begin(self, store: SegmentStore) -> None:
        """Write to the log that this incarnation begins. While the disk is full, the existing log is served.

        Raises `LogError`, `Superseded`.
        """
        commit = store.commit
        assert commit is not None
        try:
            await self._stores.write(commit.run)
        except LogFull as error:
            self._wait_for_space(store, commit, error)
        else:
            commit.done = True  # the first flush carries out its effects

    def durable(self, served: HostedSegment, store: SegmentStore) -> Iterator[Durable]:
        """The effects that may be carried out now, in order; those that must be on disk first are sent there.

        Carry out each result before you ask for the next one, so that the machine's reaction to it is taken too.
        """
        publisher = served.publisher
        if not store.begun:
            store.begin(publisher.incarnation, publisher)
            assert store.commit is not None
            self._write(store, store.commit)
        commit = store.commit
        if commit is not None:
            if not commit.done:
                return
            store.commit = None
            publisher.history.archive(*store.log.start)
            lower = served.published_lower if commit.lower is None else commit.lower
            yield Durable(commit.effects, lower, commit.began)
        effects = publisher.take()
        if effects and type(effects[-1]) is Log:  # always the last effect, if something must be written first
            self._write(store, store.prepare(publisher, effects[:-1], effects[-1]))
        elif effects:  # nothing to write, and no commit is open, so these effects overtake none
            yield Durable(effects, tuple(publisher.progress.lower.frontier), None)

    def sweep(self, served: HostedSegment, now: float) -> None:
        """Let the log do its housekeeping, if no commit is open."""
        store = served.store
        if store is not None and store.begun and store.commit is None:
            commit = store.sweep(served.publisher, now)
            if commit is not None:
                self._write(store, commit)

    async def settle(self, stores: Iterable[SegmentStore], patience: float) -> None:
        """Wait until everything decided is on disk, for at most `patience` seconds."""
        waiting = list(stores)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while any(store.commit is not None for store in waiting) and not self._over.done():
                    self._disk_did_something.clear()
                    await self._disk_did_something.wait()

    def _write(self, store: SegmentStore, commit: Commit) -> None:
        if not self._over.done() and not self._stores.closed:
            commit.began = monotonic()
            self._stores.write(commit.run).add_done_callback(lambda future: self._written(store, commit, future))

    def _written(self, store: SegmentStore, commit: Commit, future: "asyncio.Future[None]") -> None:
        self._disk_did_something.set()
        if future.cancelled() or self._over.done():
            return
        error = future.exception()
        if isinstance(error, LogFull):
            self._wait_for_space(store, commit, error)
            return
        if error is not None:
            self._over.set_result(error if isinstance(error, LogError | Superseded) else LogFailed(f"{error!r}"))
            return
        if store.full is not None:
            logger.info("there is space again; going on")
            store.full = None
        commit.done = True
        self._on_written(None if commit.lower is None else monotonic() - commit.began)

    def _wait_for_space(self, store: SegmentStore, commit: Commit, error: LogFull) -> None:
        """Try again later. Meanwhile readers are served up to the last durable event (E9)."""
        if store.full is None:
            logger.warning("appends wait, and none is acknowledged, until there is space again: %s", error)
        store.no_space(commit, error)
        asyncio.get_running_loop().call_later(self._retry, self._write, store, commit)


class Appends:
    """The spans `append STREAM`: for each group commit, one for each sampled trace in it.

    Made when the commit is durable and carried out; not used without tracing.
    """

    def __init__(self, record: Callable[[Finished], None], stream: str) -> None:
        self._record = record
        self._name = names.span_name("append", stream)
        self._on_stream = names.on_stream("append", stream)

    @classmethod
    def start(cls, stream: str) -> Self | None:
        """None if this process sends no traces."""
        record = sdk.finished()
        return None if record is None else cls(record, stream)

    def committed(self, segment: str, incarnation: int, effects: Sequence[Effect], seconds: float) -> None:
        """`effects` are durable, `seconds` after they were sent to the disk."""
        traces: dict[bytes, list[m.Data]] = {}
        for effect in effects:
            if type(effect) is not Push or type(effect.message) is not m.Data:
                continue
            meta = effect.message.meta
            if meta is not None and meta.trace is not None and meta.trace[24] & 1:
                traces.setdefault(meta.trace[:16], []).append(effect.message)
        if traces:
            end = time.time_ns()
            for batches in traces.values():
                self._span(segment, incarnation, batches, end, seconds)

    def _span(self, segment: str, incarnation: int, batches: Sequence[m.Data], end: int, seconds: float) -> None:
        """The parent is the first batch's span; the others of the trace are linked, as many as may be."""
        spans = dict.fromkeys(batch.meta.trace for batch in batches if batch.meta is not None and batch.meta.trace)
        first, *others = spans
        attributes = self._on_stream | {
            names.PARTITION: segment, names.INCARNATION: incarnation, names.FIRST: batches[0].seq,
            names.LAST: batches[-1].seq, names.APPENDS: len(batches),
            names.MESSAGES: sum(batch.records for batch in batches), names.DURABLE: seconds,
        }  # fmt: skip
        if len(others) > names.MAX_LINKS:
            attributes[names.LINKS_LEFT_OUT] = len(others) - names.MAX_LINKS
        links = tuple(others[: names.MAX_LINKS])
        meta = batches[0].meta
        tracestate = b"" if meta is None else meta.tracestate
        start = end - int(seconds * 1e9)
        self._record(Finished(self._name, first, tracestate, links, start, end, attributes))

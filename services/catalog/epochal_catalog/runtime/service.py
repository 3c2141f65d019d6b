"""The running catalog: each write is decided, then stored, then committed to memory.

Reads use memory only. Every route writes through here, so this order holds for all clients.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from epochal.catalog_api.answers import Renewal
from epochal.errors import EpochalError, NoPublisher, StreamNotFound
from epochal.service.errors import Overloaded, ShuttingDown
from epochal_catalog.domain.decisions import Decision, Rules, least, numbered
from epochal_catalog.domain.kinds import KINDS, publishers, streams
from epochal_catalog.domain.kinds.publishers import Renewing
from epochal_catalog.domain.kinds.streams import ExpectedStream
from epochal_catalog.domain.records import InMemory, StateChange
from epochal_catalog.domain.registrations import SegmentsReported
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS, StreamEntry
from epochal_catalog.errors import StoreFailed, StoreUnavailable
from epochal_catalog.runtime.lookups import LookupCache, LookupWaiters
from epochal_catalog.runtime.settings import CatalogSettings
from epochal_catalog.runtime.telemetry import CatalogTelemetry
from epochal_catalog.runtime.watchers import Watchers
from epochal_catalog.storage.store import CatalogStore

A = TypeVar("A")
_log = logging.getLogger("epochal.catalog")

_TOGETHER = 100
"""Most renewals in one transaction, so that other writes get their turn between two transactions."""
_CHECK_EVERY = 1.0
"""Seconds between two checks whether the database takes writes."""
_PATIENCE = 3.0
"""Seconds that the database may take before the catalog counts as not ready: readiness shows a fault within 5 s."""


@dataclass(slots=True, eq=False)
class _Write(Generic[A]):
    """A write that waits for its turn.

    `decision` is None when it is decided only then, so that it needs no versions. `renews` is the token of a renewal.
    """

    decide: Callable[[Rules], Decision[A]]
    done: "asyncio.Future[A]"
    decision: Decision[A] | None = None
    renews: int | None = None

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless the caller has gone away."""
        if not self.done.done():
            self.done.set_exception(error)


class Catalog:
    """State, store and waiting lookups together.

    A write is decided when it comes, a renewal at its turn. One task stores them, one after the other: each must hold
    on the state that all earlier ones left, or is decided again, and is committed to memory once the store has written
    it. A write goes on if its caller goes away. `clock` is monotonic seconds. `wall` is seconds since 1970: no token or
    session number given out is lower, so that numbers are new even after a lost database (E12 fencing).
    """

    def __init__(
        self,
        settings: CatalogSettings,
        store: CatalogStore,
        telemetry: CatalogTelemetry,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.state = CatalogState(KINDS, settings)
        self.room = LookupWaiters(settings.max_waiters)
        self.watchers = Watchers(self.state.history, settings.max_watchers, settings.watch_queue, telemetry.watcher_cut)
        self.lookups = LookupCache()
        self.telemetry = telemetry
        self.broken = asyncio.Event()
        """Set when memory and disk may differ; then the process must end, and the next one reads the disk again."""
        self._started = self._store_ok = False
        self._store_trouble = ""
        self._asking: list[float] = []
        self._store = store
        self._clock = clock
        self._wall = wall
        self._pending: asyncio.Queue[_Write[Any]] = asyncio.Queue(settings.max_pending)
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def start(self) -> None:
        """Load the stored state and start. Raises what `CatalogStore.open` raises."""
        self.state.load(await self._store.open(), self._clock())
        self.state.identity = self._store.identity
        self._tasks = [
            asyncio.create_task(self._write_all(), name="catalog-writes"),
            asyncio.create_task(self._sweep_all(), name="catalog-leases"),
            asyncio.create_task(self._check_store(), name="catalog-store"),
        ]
        self.telemetry.observe(self.state, self.room, self.watchers, self.now)
        self._started = self._store_ok = True

    @property
    def ready(self) -> bool:
        """Whether it takes writes: it has started, is not stopping, and the database writes without a long delay."""
        waits = any(time.monotonic() - since > _PATIENCE for since in self._asking)
        return self._started and self._store_ok and not waits and not self._closed

    def now(self) -> float:
        """The time by the catalog's clock, in monotonic seconds."""
        return self._clock()

    def _rules(self) -> Rules:
        return Rules(self.state, least(self._wall()))

    def drain(self) -> None:
        """Refuse new writes, refuse waiting lookups with `ShuttingDown`, and end all watches."""
        self._closed = True
        self.room.close()
        self.watchers.close()

    async def close(self) -> None:
        """Finish the writes in the queue, then close the store."""
        self.drain()
        if self._tasks:
            await self._pending.join()  # this ends: after `drain`, nothing is added to the queue
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._store.close()

    async def submit(self, decide: Callable[[Rules], Decision[A]]) -> A:
        """Decide, write and commit to memory; returns the decision's answer once the changes are on disk.

        It is decided at once, on what all finished writes left. What is not stored is committed then, and waits for
        nothing. All else waits for its turn, and is decided again there if anything that it read has changed.

        Raises what `decide` raises, `StoreUnavailable`, `Overloaded`, `ShuttingDown`; nothing has changed then.
        """
        self._refuse_when_closed()
        decision = self._rules().decide(decide)
        if not decision.stored:
            self._commit(decision.changes)
            return decision.answer()
        done: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._queue(_Write(decide, done, decision))
        return await done

    async def renew(self, renewal: Renewing) -> Renewal:
        """Renew a lease, with what its publisher reports.

        What may be lost is taken at once, so it counts even when the database takes no writes. The rest is decided at
        its turn: renewals that wait one after the other share a transaction, and its fsync.
        """
        [done] = self._begin_renewals([renewal])
        return await done

    async def renew_together(self, renewals: Sequence[Renewing]) -> list[Renewal | EpochalError]:
        """As `renew`, for several independent leases; for a refused one the result has its error."""
        answers = await asyncio.gather(*self._begin_renewals(renewals), return_exceptions=True)
        for answer in answers:
            if not isinstance(answer, Renewal | EpochalError):
                raise answer  # a bug here: it is logged, and the caller renews each lease alone
        return [answer for answer in answers if isinstance(answer, Renewal | EpochalError)]

    def _begin_renewals(self, renewals: Sequence[Renewing]) -> "list[asyncio.Future[Renewal]]":
        reports: list[SegmentsReported] = []
        loop = asyncio.get_running_loop()
        waits: list[asyncio.Future[Renewal]] = [loop.create_future() for _ in renewals]
        for renewal, done in zip(renewals, waits, strict=True):
            try:
                self._refuse_when_closed()
                report = publishers.report(self.state, renewal)
                if report.reports:
                    reports.append(report)
                self._queue(_Write(partial(publishers.renew, asked=renewal), done, renews=renewal.token))
            except Exception as error:
                done.set_exception(error)
        if reports:
            self._commit(reports)
        return waits

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ShuttingDown("the catalog is stopping; send this again in a moment")

    def _queue(self, write: "_Write[Any]") -> None:
        try:
            self._pending.put_nowait(write)
        except asyncio.QueueFull:
            raise Overloaded("too many writes are waiting for the database; send this again later") from None

    async def lookup(self, namespace: str, name: str, expected: ExpectedStream, wait: float) -> StreamEntry:
        """The stream once every open segment has a live publisher, waiting up to `wait` seconds (S27).

        Raises `SchemaMismatch` as soon as the stream is known (S28); after the wait `StreamNotFound` or `NoPublisher`.
        """
        entry = self._find(namespace, name, expected)
        if isinstance(entry, StreamEntry):
            return entry
        try:
            async with asyncio.timeout(wait):
                while not isinstance(entry, StreamEntry):
                    # No other task runs between the look and the wait, so no change is missed.
                    await self.room.wait(f"{namespace}/{name}")
                    entry = self._find(namespace, name, expected)
        except TimeoutError:
            entry = self._find(namespace, name, expected)
        if isinstance(entry, StreamEntry):
            return entry
        raise entry

    async def await_another(self, namespace: str, name: str, segment: str, token: int, wait: float) -> StreamEntry:
        """The stream once the segment has a live publisher with another token, or after `wait` seconds (S27).

        Returns at once if half of the places for waiting are taken: the other half is for lookups of clients that have
        no address yet. Raises `StreamNotFound` as soon as there is no such stream.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while True:
                    entry = self.state[STREAMS].stream(namespace, name)
                    known = entry.segments.get(segment)
                    if known is None or (known.token != token and self.state.leases.live(known.token)):
                        return entry
                    if self.room.half_full:
                        return entry
                    await self.room.wait(entry.qualified)
        return self.state[STREAMS].stream(namespace, name)

    def _find(self, namespace: str, name: str, expected: ExpectedStream) -> StreamEntry | StreamNotFound | NoPublisher:
        try:
            entry = streams.lookup(self.state, namespace, name, expected)
        except StreamNotFound as error:
            return error
        if self.state.served(entry):
            return entry
        missing = [segment.id for segment in entry.open_segments() if not self.state.leases.live(segment.token)]
        return NoPublisher(
            f"the stream {entry.qualified} has no publisher for segment {', '.join(missing)} at present; ask again,"
            " with ?wait=SECONDS to be answered when there is one"
        )

    async def _write_all(self) -> None:
        held: list[_Write[Any]] = []
        while True:
            first = held.pop() if held else await self._pending.get()
            writes = [first] if first.renews is None else self._joined(first, held)
            await self._write(writes)
            for _ in writes:
                self._pending.task_done()

    def _joined(self, first: "_Write[Any]", held: "list[_Write[Any]]") -> "list[_Write[Any]]":
        """A renewal and those right after it in the queue. The first write that cannot join goes into `held`."""
        together = {first.renews: first}
        while len(together) < _TOGETHER and not self._pending.empty():
            following = self._pending.get_nowait()
            # the second renewal of a token must be decided on the state after the first one
            if following.renews is None or following.renews in together:
                held.append(following)
                break
            together[following.renews] = following
        return list(together.values())

    async def _write(self, writes: "Sequence[_Write[Any]]") -> None:
        """Write several decisions that are independent of each other in one transaction."""
        rules = self._rules()
        settled: list[tuple[_Write[Any], Decision[Any]]] = []
        for write in writes:
            try:
                settled.append((write, self._settled(write, rules)))
            except Exception as error:
                write.fail(error)
        try:
            await self._write_changes([change for _, decision in settled for change in decision.changes])
            for write, decision in settled:
                if not write.done.done():
                    write.done.set_result(decision.answer())
        except Exception as error:
            for write, _ in settled:
                write.fail(error)

    def _settled(self, write: "_Write[A]", rules: Rules) -> Decision[A]:
        """The decision as it holds now: made again if anything that it read has changed while it waited.

        Once is enough. Versions are compared here, in the task that does all writes, and from here to the hand-over to
        the database no other task runs. While the database writes, only what is not stored can change; that is as if it
        had changed after this write.
        """
        if write.decision is not None and self.state.holds(write.decision.reads):
            return write.decision
        return write.decide(rules)

    async def _write_changes(self, changes: Sequence[StateChange]) -> None:
        changes = numbered(self.state, least(self._wall()), changes)
        in_memory = [change for change in changes if isinstance(change, InMemory)]
        if len(in_memory) < len(changes):
            try:
                await self._store_all(changes)
            except StoreFailed:
                raise
            except StoreUnavailable:
                self._commit(in_memory)  # a client that renews is alive, even when the disk takes no writes
                raise
        self._commit(changes)

    def _commit(self, changes: Sequence[StateChange]) -> None:
        newest = self.state.history.newest
        try:
            touched = self.state.commit(changes, self._clock())
        except Exception:
            self._break("memory did not take over what was written")
            raise
        for name in touched:
            self.room.wake(name)
        if self.state.history.newest != newest:
            self.watchers.notify()

    async def _store_all(self, changes: Sequence[StateChange]) -> None:
        if not self._store_ok:  # each write would wait for its whole timeout, and later ones in the queue even longer
            raise StoreUnavailable(f"{self._store_trouble}; send this again in a moment")
        await self._ask_store(self._store.write(changes))

    async def _ask_store(self, work: Awaitable[None]) -> None:
        began = time.monotonic()
        self._asking.append(began)
        try:
            await work
        except StoreUnavailable as error:
            self._store_ok = False
            self._store_trouble = str(error)
            self.telemetry.store_failed()
            if isinstance(error, StoreFailed):
                self._break(str(error))
            raise
        finally:
            self._asking.remove(began)
        self._store_ok = True

    async def _check_store(self) -> None:
        """Check regularly whether the database takes writes: readiness must show a fault even without requests."""
        while not self.broken.is_set():
            await asyncio.sleep(_CHECK_EVERY)
            if not self._asking:
                with suppress(StoreUnavailable):
                    await self._ask_store(self._store.check(writing=not self._store_ok))

    def _break(self, reason: str) -> None:
        _log.critical("stopping: %s", reason)
        self.drain()
        self.broken.set()

    async def _sweep_all(self) -> None:
        period = min(0.25, self.settings.lease_ttl / 10)
        while True:
            await asyncio.sleep(period)
            now = self._clock()
            self.telemetry.lapsed(self.state.sweep(now, stall=period + 1.0))
            with suppress(StoreUnavailable, Overloaded, ShuttingDown):  # the next sweep tries again
                if self._store_ok:
                    await self.submit(self._tidy)

    def _tidy(self, rules: Rules) -> Decision[None]:
        return rules.tidy(self.settings.forget_after, self._clock()) or Decision((), lambda: None)

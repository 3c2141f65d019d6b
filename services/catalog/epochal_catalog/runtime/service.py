"""The running catalog: one write at a time, first decided, then stored, then committed to memory.

Reads use memory only. Every route writes through here, so this order holds for all clients.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from epochal.catalog_api.answers import Renewal
from epochal.errors import EpochalError, NoPublisher, StreamNotFound
from epochal.service.errors import Overloaded, ShuttingDown
from epochal_catalog.domain.decisions import Decision, Rules, least
from epochal_catalog.domain.kinds import KINDS, publishers, streams
from epochal_catalog.domain.kinds.publishers import RenewalDecision, Renewing
from epochal_catalog.domain.kinds.streams import ExpectedStream
from epochal_catalog.domain.records import InMemory, StateChange
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
_Decide = Callable[[Rules], Decision[Any]]
_Write: TypeAlias = _Decide | Renewing
_Pending: TypeAlias = tuple[_Write, "asyncio.Future[Any]"]

_TOGETHER = 100
"""Most renewals in one transaction, so that other writes get their turn between two transactions."""
_CHECK_EVERY = 1.0
"""Seconds between two checks whether the database takes writes."""
_PATIENCE = 3.0
"""Seconds that the database may take before the catalog counts as not ready: readiness shows a fault within 5 s."""

_STOPPING = "the catalog is stopping; send this again in a moment"


class Catalog:
    """State, store and waiting lookups together.

    One task does every write: it decides on the state after all earlier writes, has the store write, and then commits
    to memory. A write goes on if its caller goes away. `clock` is monotonic seconds. `wall` is seconds since 1970:
    no token or session number given out is lower, so that numbers are new even after a lost database (E12 fencing).
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
        self._pending: asyncio.Queue[_Pending] = asyncio.Queue(settings.max_pending)
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

        Raises what `decide` raises, `StoreUnavailable`, `Overloaded`, `ShuttingDown`; nothing has changed then.
        """
        done: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        return await self._queued(decide, done)

    async def renew(self, renewal: Renewing) -> Renewal:
        """As `submit`, for a renewal: renewals that wait one after the other share a transaction, and its fsync.

        What may be lost of it is taken before it waits, so it counts even when the database takes no writes.
        """
        self._report(renewal)
        return await self._queued(renewal, asyncio.get_running_loop().create_future())

    async def renew_together(self, renewals: Sequence[Renewing]) -> list[Renewal | EpochalError]:
        """As `renew`, for several independent leases; for a refused one the result has its error."""
        waits = [asyncio.get_running_loop().create_future() for _ in renewals]
        for renewal, done in zip(renewals, waits, strict=True):
            try:
                self._report(renewal)
                self._queue(renewal, done)
            except EpochalError as error:
                done.set_exception(error)
        answers: list[Renewal | BaseException] = await asyncio.gather(*waits, return_exceptions=True)
        for answer in answers:
            if not isinstance(answer, Renewal | EpochalError):
                raise answer  # a bug here: it is logged, and the caller renews each lease alone
        return [answer for answer in answers if isinstance(answer, Renewal | EpochalError)]

    def _report(self, renewal: Renewing) -> None:
        if self._closed:
            raise ShuttingDown(_STOPPING)
        self._commit([publishers.report(self.state, renewal)])

    async def _queued(self, write: _Write, done: "asyncio.Future[A]") -> A:
        self._queue(write, done)
        return await done

    def _queue(self, write: _Write, done: "asyncio.Future[Any]") -> None:
        if self._closed:
            raise ShuttingDown(_STOPPING)
        try:
            self._pending.put_nowait((write, done))
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
        held: list[_Pending] = []
        while True:
            write, done = held.pop() if held else await self._pending.get()
            if isinstance(write, Renewing):
                count = await self._renew_all(write, done, held)
            else:
                count = 1
                await self._answer(write, [done], lambda answer: [answer])
            for _ in range(count):
                self._pending.task_done()

    async def _renew_all(self, renewal: Renewing, done: "asyncio.Future[Any]", held: list[_Pending]) -> int:
        """Do a renewal together with the renewals that directly follow it in the queue; returns how many were done.

        The first write that cannot join goes into `held`.
        """
        together: dict[int, tuple[Renewing, asyncio.Future[Any]]] = {renewal.token: (renewal, done)}
        while len(together) < _TOGETHER and not self._pending.empty():
            following, waiting = self._pending.get_nowait()
            # the second renewal of a token must be decided on the state after the first one
            if not isinstance(following, Renewing) or following.token in together:
                held.append((following, waiting))
                break
            together[following.token] = (following, waiting)
        renewals: list[RenewalDecision] = []
        waits: list[asyncio.Future[Any]] = []
        for renewing, waiting in together.values():
            try:
                renewals.append(publishers.renewal(self.state, renewing))
                waits.append(waiting)
            except Exception as error:
                _fail([waiting], error)
        if renewals:
            await self._answer(lambda rules: publishers.renew_together(rules, renewals), waits, lambda answers: answers)
        return len(together)

    async def _answer(
        self, decide: _Decide, waits: Sequence["asyncio.Future[Any]"], each: Callable[[Any], Sequence[Any]]
    ) -> None:
        try:
            for done, result in zip(waits, each(await self._write_one(decide)), strict=True):
                if not done.done():
                    done.set_result(result)
        except Exception as error:
            _fail(waits, error)

    async def _write_one(self, decide: Callable[[Rules], Decision[A]]) -> A:
        decision = decide(self._rules())
        in_memory = [change for change in decision.changes if isinstance(change, InMemory)]
        if len(in_memory) < len(decision.changes):
            try:
                await self._store_all(decision.changes)
            except StoreFailed:
                raise
            except StoreUnavailable:
                self._commit(in_memory)  # a client that renews is alive, even when the disk takes no writes
                raise
        self._commit(decision.changes)
        return decision.answer()

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
            # decided again when its turn in the queue comes; when it fails, the next sweep tries again
            with suppress(StoreUnavailable, Overloaded, ShuttingDown):
                if self._store_ok and self._tidy(self._rules()) is not None:
                    await self.submit(lambda rules: self._tidy(rules) or Decision((), lambda: None))

    def _tidy(self, rules: Rules) -> Decision[None] | None:
        return rules.tidy(self.settings.forget_after, self._clock())


def _fail(waits: Sequence["asyncio.Future[Any]"], error: Exception) -> None:
    for done in waits:
        if not done.done():
            done.set_exception(error)

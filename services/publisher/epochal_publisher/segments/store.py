"""One segment's log on disk as its publisher uses it: restored at the start, written by group commits, read back.

The process knows sockets but no files, and `epochal.logfiles` knows files but no machines or policies; this module
joins them. Callers are on the event loop; everything that blocks runs on threads.

Sources: rules E9, E10, E12, E13.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Self, TypeVar

from epochal.catalog_api.answers import StreamInfo
from epochal.catalog_api.requests import DISK_FULL, DISK_FULL_SECONDS
from epochal.errors import (
    ConfigError,
    CorruptLog,
    HistoryTruncated,
    LocalProtocolError,
    LogError,
    LogFailed,
    LogFull,
    LogMismatch,
    LogTaken,
)
from epochal.logfiles import LogSettings, SegmentLog
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.log.file_format import Damaged, LogCheckpoint, with_incarnation
from epochal.protocol.log.frames import decode_entry, entries, entry, packed, wanted_entries
from epochal.protocol.log.history import SegmentState, apply
from epochal.protocol.publisher.effects import FindBeginning, FindState, Log, Push, ReadLog
from epochal.protocol.publisher.effects import PublisherEffect as Effect
from epochal.protocol.publisher.journal import Restored, Restoring, encode_notes
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SOME_BYTES
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.wire import Frames
from epochal.service.filesystems import objection
from epochal_publisher.settings import Settings

logger = logging.getLogger("epochal.publisher")
T = TypeVar("T")

STATE_EVERY = 1024
"""The state is remembered after this many events, so that opening a reader replays no more than these."""
READ_BYTES = 2**20
"""Bytes of events read at once when only their times are needed."""
SCAN_BYTES = 8 * 2**20
"""About how many bytes are read for one filtered chunk, even if little of it is wanted."""
HOUSEKEEPING = 10.0
"""Seconds between checks for log files that are too old."""
MOST_SHOWN = 10
"""The most times that one log message names."""
QUIET = 1.0
"""Seconds without a commit after which the log says that its last one is on disk (`SegmentLog.vouch`)."""


@dataclass(slots=True)
class Commit:
    """One take of the publisher's effects, on its way to the disk. `steps`: the disk work still to do, in order."""

    effects: Sequence[Effect]
    lower: tuple[Time, ...] | None
    """The lower frontier after it; None if nothing was taken."""
    steps: deque[Callable[[], object]] = field(default_factory=deque)
    done: bool = False
    began: float = 0.0
    """When it was last sent to the disk, in seconds of the process's clock."""

    def run(self) -> None:
        """Do the steps that are left. After `LogFull`, the next run goes on with the step that failed."""
        while self.steps:
            self.steps[0]()
            self.steps.popleft()


class SegmentStore:
    """The log of one segment. `commit` is the one on its way to the disk, None if there is none."""

    def __init__(self, log: SegmentLog, settings: Settings, *, always_sync: bool) -> None:
        self.log = log
        self._settings = settings
        self._always_sync = always_sync
        self.commit: Commit | None = None
        self.begun = False
        """Whether `begin` was called. A publisher whose log is gone must first learn its initial state."""
        self.full: LogFull | None = None
        """Why nothing can be written now: the disk is full."""
        self.full_since = 0.0
        """Since when the disk has been full, in seconds of the process's clock."""
        self._may_lack = log.may_lack(relaxed=not always_sync)
        self.restored = self._restore()
        """The publisher's state at the end of the log; None for a new one."""
        self._since_state = 0
        self._unsynced = self._may_roll = True
        self._vouched = False
        self._swept = self._synced = self._written = monotonic()

    # ---- the start ----

    def _restore(self) -> Restored | None:
        found = self.log.recovered
        if found is None:
            return None
        restoring = Restoring.after(found.checkpoint.state, found.checkpoint.machine, found.checkpoint.quiet_since)
        try:
            for frame in found.frames:
                restoring.entry(map(decode_entry, entries(frame.events)), frame.notes)
        except (OSError, Damaged) as error:  # the frames are read a second time here
            raise LogFailed(f"the log cannot be read: {error}") from error
        self.log.forget_recovered()
        return restoring.end()

    def check(self, segment: str, published: Sequence[Time] | None) -> None:
        """Raise `LogMismatch` for a log that ends before `published`, the lower frontier published so far.

        Everything published was on disk first. So such a log is an older copy, or it is from before the stream was kept
        only in memory for a while. New events in it would get numbers of events that readers already have (E17).
        """
        if self.restored is None or published is None:
            return
        lower = self.restored.state.lower
        if not Antichain(published).reaches_all(lower):
            raise LogMismatch(
                f"the log of segment {segment} ends at {list(lower)!r}, and readers were sent {list(published)!r}: it "
                "is an older copy, or storage was switched off for a while; delete the stream and publish it again, or "
                "move the log's directory away to go on without what it holds"
            )

    def begin(self, incarnation: int, publisher: SegmentPublisher) -> None:
        """Make the first `commit`, which writes to the log that the incarnation begins.

        If the log may lack acknowledged appends, the commit also aborts the open epochs (E11 horizon).
        """
        self.begun = True
        checkpoint, relaxed = _checkpoint(publisher), not self._always_sync
        publisher.history.incarnations = list(with_incarnation(self.log.incarnations, incarnation, publisher.seq + 1))
        publisher.history.archive(*self.log.start)
        lost = publisher.doubt() if self._may_lack else ()
        if not lost:
            self.commit = Commit((), None, deque([lambda: self.log.begin(incarnation, checkpoint, relaxed=relaxed)]))
            return
        logger.warning(
            "segment %s: the machine has started again, and may have taken acknowledged appends with it that were not "
            "synced yet; the epochs that were open are aborted: %s", publisher.segment, _some(lost),
        )  # fmt: skip
        *effects, entry = publisher.take()
        assert isinstance(entry, Log)
        events, buffers = _of(effects)
        notes = encode_notes(entry.notes)
        # In one frame with the start, so that no incarnation begins in the log without the aborts that it needs.
        self.commit = Commit(effects, None, deque([
            lambda: self.log.begin(incarnation, checkpoint, notes, count=events, events=buffers, relaxed=relaxed)
        ]))  # fmt: skip

    # ---- commits ----

    def prepare(self, publisher: SegmentPublisher, effects: Sequence[Effect], entry: Log) -> Commit:
        """The commit of the effects that were just taken. Nothing else may be taken before it is done."""
        events, buffers = _of(effects)
        notes, now = encode_notes(entry.notes), monotonic()
        # Also sync if the last frame says that all before it is on disk. If this commit was lost without a sync, the
        # log would end with that frame, which would say that nothing is missing (E11 horizon).
        sync = entry.secure or self._always_sync or self._vouched
        sync = sync or now - self._synced >= self._settings.sync_interval
        if sync:
            self._synced = now
        self._written = now
        self._vouched = False
        commit = self.commit = Commit(effects, tuple(publisher.progress.lower.frontier))
        commit.steps.append(lambda: self.log.write(events, buffers, notes))
        commit.steps.append(self._sync if sync else self._rely_on_the_kernel)
        self._since_state += events
        if self._since_state >= STATE_EVERY:
            self._since_state = 0
            state = publisher.state()
            commit.steps.append(lambda: self.log.keep_state(state))
        if self._may_roll and self.log.roll_due:
            checkpoint = _checkpoint(publisher)
            commit.steps.append(lambda: self._roll(checkpoint))
        return commit

    def no_space(self, commit: Commit, error: LogFull) -> None:
        """The disk is full: remove files that are too old before the commit is tried again."""
        if self.full is None:
            self.full_since = monotonic()
        self.full = error
        if not commit.steps or commit.steps[0] != self.log.retain:
            commit.steps.appendleft(self.log.retain)

    def sweep(self, publisher: SegmentPublisher, now: float) -> Commit | None:
        """A commit without events, if one is due at `now`: to sync, to vouch for the log's end, to remove old files."""
        steps: deque[Callable[[], object]] = deque()
        if self._unsynced and now - self._synced >= self._settings.sync_interval:
            self._synced = now
            steps.append(self._sync)
        elif not self._vouched and not self._unsynced and now - self._written >= QUIET:
            self._vouched = True
            steps.append(self._vouch)
        if now - self._swept >= HOUSEKEEPING:
            self._swept = now
            if self._may_roll and self.log.roll_due and self.log.last == publisher.seq > self.log.first:
                checkpoint = _checkpoint(publisher)  # a quiet log must end its files too, or none becomes too old
                steps.append(lambda: self._roll(checkpoint))
            steps.append(self.log.retain)
        if not steps:
            return None
        self.commit = Commit((), None, steps)
        return self.commit

    def _sync(self) -> None:
        self.log.sync()
        self._unsynced = False

    def _vouch(self) -> None:
        with suppress(LogFull):  # it matters only if the log is damaged, and nothing waits for it
            self.log.vouch()

    def _rely_on_the_kernel(self) -> None:
        # The kernel has the bytes, so the end of this process loses nothing; a crash of the machine may (E11 horizon).
        self.log.mark_durable(self.log.last)
        self._unsynced = True

    def _roll(self, checkpoint: LogCheckpoint) -> None:
        try:
            self.log.roll(checkpoint)
        except LogFull:
            return  # the present file is used further, and the next commit tries again
        except LocalProtocolError as error:
            self._may_roll = False
            logger.error("no log file can begin with the present state, the last one goes on: %s", error)
            return
        self.log.retain()

    @property
    def full_counters(self) -> dict[str, float]:
        """The counters about a full disk, for reports to the catalog."""
        full = self.full
        seconds = 0.0 if full is None else monotonic() - self.full_since
        return {DISK_FULL: 0 if full is None else full.number, DISK_FULL_SECONDS: seconds}

    # ---- reading, on any thread ----

    def answer(
        self, ask: FindState | FindBeginning | ReadLog, last: int
    ) -> SegmentState | tuple[list[Frames], int] | None:
        """The answer from disk to a server's request, with no event after `last`.

        Raises `HistoryTruncated`, `CorruptLog`.
        """
        match ask:
            case FindState():
                return self.state_at(ask)
            case FindBeginning():
                return self.beginning(ask)
            case ReadLog():
                return self.chunk(ask, last)

    def state_at(self, ask: FindState) -> SegmentState:
        """The state after the event that a reader asks for. Raises `HistoryTruncated`, `CorruptLog`."""
        opening = self.log.opening(ask.seq)
        progress = opening.state.progress()
        for batch in opening.batches:
            for data in batch.data:
                for raw in entries(data):
                    apply(progress, decode_entry(raw))
        return SegmentState.of(ask.seq, progress)

    def beginning(self, ask: FindBeginning) -> SegmentState:
        """The state before all wanted events: found by bisection of the known states, then in the events after it.

        Raises `HistoryTruncated`, `CorruptLog`.
        """
        state = self.log.newest_state(ask.wanted.untouched)
        over = not ask.wanted.untouched(state)
        while not over:
            try:
                events = self.events(state.seq, STATE_EVERY, READ_BYTES)
            except CorruptLog:
                break  # the reader gets the error when it reads on
            state, over = ask.wanted.pass_over(state, events)
            over = over or not events
        return state

    def events(self, after: int, max_events: int, max_bytes: int) -> list[m.Event]:
        """The next durable events after a position, decoded; at least one if any. Raises as `SegmentLog.read` does."""
        batch = self.log.read(after, max_events, max_bytes)
        return [] if batch is None else [decode_entry(raw) for data in batch.data for raw in entries(data)]

    def chunk(self, ask: ReadLog, last: int) -> tuple[list[Frames], int] | None:
        """A reader's next chunk as it is sent, and its last event; None if the next event is not durable yet.

        It ends at `last`, because later events may be on disk before they are carried out. Raises `HistoryTruncated`,
        `CorruptLog`.
        """
        if ask.topics is not None:
            return self._filtered_chunk(ask, ask.topics, last)
        batch = self.log.read(ask.after, min(ask.max_events, last - ask.after), ask.max_bytes)
        if batch is None:
            return None
        return packed(m.Chunk(ask.request, batch.count, False), batch.data), batch.last

    def _filtered_chunk(self, ask: ReadLog, topics: TopicFilter, last: int) -> tuple[list[Frames], int] | None:
        """A chunk of some topics: reads until there is something to send, or `SCAN_BYTES` were read."""
        chosen, size, scanned, upto = list[memoryview](), 0, 0, ask.after
        while upto < last and size < SOME_BYTES and scanned < SCAN_BYTES:
            try:
                batch = self.log.read(upto, min(ask.max_events, last - upto), ask.max_bytes)
            except (CorruptLog, HistoryTruncated):
                if upto > ask.after:
                    break  # the events before it can be sent
                raise
            if batch is None:
                break
            for data in batch.data:
                found = list(wanted_entries(data, topics))
                chosen += found
                size += sum(map(len, found))
                scanned += len(data)
            upto = batch.last
        if upto == ask.after:
            return None
        return packed(m.Chunk(ask.request, len(chosen), False, upto), chosen), upto


def _of(effects: Sequence[Effect]) -> tuple[int, list[bytes]]:
    """The number of events among the effects, and their log entries."""
    events = [e.message for e in effects if type(e) is Push and type(e.message) is not m.Heartbeat]
    return len(events), [part for event in events for part in entry(event)]  # type: ignore[arg-type]  # no heartbeats


def _some(times: Sequence[Time]) -> str:
    """Some of the times, for a log message."""
    shown = ", ".join(map(repr, times[:MOST_SHOWN]))
    return shown if len(times) <= MOST_SHOWN else f"{shown}, and {len(times) - MOST_SHOWN} more"


def _checkpoint(publisher: SegmentPublisher) -> LogCheckpoint:
    return LogCheckpoint(publisher.state(), encode_notes(publisher.checkpoint()), publisher.quiet_since)


class SegmentStores:
    """The logs of one process, locked while this is entered. A stream that is kept in memory has none."""

    def __init__(self, settings: Settings, stream: StreamInfo, instance: str) -> None:
        self._settings = settings
        self._stream = stream
        self._instance = instance
        self.policy = stream.declared().spec.history.policy
        self._stores: dict[str, SegmentStore] = {}
        self.closed = False
        self._writing = ThreadPoolExecutor(min(len(settings.segments), 4), "log")
        self._reading = ThreadPoolExecutor(2, "history")
        self._encoding = ThreadPoolExecutor(1, "encoding")

    async def __aenter__(self) -> Self:
        """Recover every log. Waits while another process has one (E12 fencing). Raises `LogError`, `ConfigError`."""
        if self.policy == "memory":
            return self
        opening: list[asyncio.Future[None]] = []
        try:
            await self.write(self._check_directory)
            opening += [asyncio.ensure_future(self._open_when_free(segment)) for segment in self._settings.segments]
            await asyncio.gather(*opening)
        except BaseException:
            for each in opening:
                each.cancel()
            await self.__aexit__()
            raise
        return self

    def _check_directory(self) -> None:
        """Refuse a file system that could lose acknowledged appends, or let two processes own a log (E12 fencing)."""
        data = self._settings.data
        if data is None:
            detail = f"{self._settings.stream} keeps its history on disk (spec.history.storage)"
            raise ConfigError(f"{detail}: name the directory with --data or EPOCHAL_PUBLISHER_DATA")
        try:
            data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the data directory {data} cannot be made: {error.strerror}") from None
        problem = objection(
            data, trusted=self._settings.trust_file_system, setting="EPOCHAL_PUBLISHER_TRUST_FILE_SYSTEM",
            danger="a log can lose what was acknowledged, or be written by two",
        )  # fmt: skip
        if problem is not None:
            raise ConfigError(problem)

    async def _open_when_free(self, segment: str) -> None:
        warned = False
        while segment not in self._stores:
            try:
                await self.write(lambda: self._open(segment))
            except (LogTaken, LogFull) as error:
                if not warned:
                    awaited = "it to end" if isinstance(error, LogTaken) else "space"
                    logger.warning("%s; waiting for %s", error, awaited)
                warned = True
                await asyncio.sleep(self._settings.log_retry)

    async def __aexit__(self, *_: object) -> None:
        """Close the logs after the work under way. Waits for a disk that hangs, for at most the drain time-out.

        Raises `LogError`.
        """
        self.closed = True
        closed = asyncio.get_running_loop().create_future()
        # A daemon thread, so that the process can end without it: each step may hang on the disk.
        Thread(target=self._close, args=(closed,), name="closing", daemon=True).start()
        try:
            async with asyncio.timeout(self._settings.drain_timeout):
                await closed
        except TimeoutError:
            logger.error("the disk has not answered for %g s; not waiting for it", self._settings.drain_timeout)

    def _close(self, closed: "asyncio.Future[None]") -> None:
        for pool in (self._writing, self._reading, self._encoding):
            pool.shutdown(wait=True)
        failed: Exception | None = None
        for store in self._stores.values():
            try:
                store.log.close()
            except LogError as error:
                failed = error

        def notify() -> None:
            if closed.done():
                return
            if failed is None:
                closed.set_result(None)
            else:
                closed.set_exception(failed)

        with suppress(RuntimeError):  # the loop has ended, so nothing waits any more
            closed.get_loop().call_soon_threadsafe(notify)

    def _open(self, segment: str) -> None:
        """Make the store of a segment; on a thread."""
        retention = self._stream.declared().spec.history.retention
        file_bytes = min(self._settings.log_file_bytes, max(retention.bytes // 8, 64 * 1024))
        limits = LogSettings(
            file_bytes=file_bytes,
            file_age=max(retention.time_seconds / 8, 1.0),
            max_bytes=retention.bytes + file_bytes,  # whole files go, and an epoch may be as large as the retention
            max_age=retention.time_seconds,
        )
        assert self._settings.data is not None
        path = log_directory(self._settings.data, self._stream.uid, segment)
        log = SegmentLog.open(path, self._stream.uid, segment, instance=self._instance, settings=limits)
        found = log.recovered
        if found is not None:
            logger.info("the log in %s continues after event %d of incarnation %d", path, log.last, log.incarnation)
            if found.torn:
                detail = "%d bytes at its end form no whole entry and are cut off: a crash interrupted their writing"
                logger.warning("%s: " + detail + ", or the disk has damaged them", path, found.torn)
        try:
            log.retain()  # what is too old may be what fills a full disk
            self._stores[segment] = SegmentStore(log, self._settings, always_sync=self.policy == "batch")
        except BaseException:
            log.close()
            raise

    def of(self, segment: str) -> SegmentStore | None:
        """The store of a segment; None for a stream without storage."""
        return self._stores.get(segment)

    @property
    def incarnations(self) -> dict[str, int]:
        """Segment -> the last incarnation of its log."""
        return {segment: store.log.incarnation for segment, store in self._stores.items()}

    def write(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a commit, or work that comes before it, on a thread."""
        return asyncio.get_running_loop().run_in_executor(self._writing, work)

    def read(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a reader's request on a thread."""
        return asyncio.get_running_loop().run_in_executor(self._reading, work)

    def encode(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Encode events on a thread that does nothing else, so that encoding does not delay the reading of files."""
        return asyncio.get_running_loop().run_in_executor(self._encoding, work)


def log_directory(data: Path, uid: str, segment: str) -> Path:
    """Where a segment's log is."""
    return data / uid / segment

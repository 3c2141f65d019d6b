"""One segment's log: opened and recovered, appended to, rolled, cut from the front, and read.

A publisher works with sequence numbers and checkpoints here; files and offsets are in the other modules.

Sources: rules E9, E10, E12, E13, Q2, Q3; docs/log.md.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from epochal.errors import CorruptLog, LocalProtocolError, LogFailed, LogFull, Superseded
from epochal.logfiles.disk import (
    NO_SPACE,
    Disk,
    OSDisk,
    boot_id,
    make_directory,
    put_in_place,
    steady_clock,
    wall_clock,
)
from epochal.logfiles.files import LogFile, TailFile
from epochal.logfiles.log_reader import LogBatch
from epochal.logfiles.owner import LogOwner
from epochal.logfiles.recovery import Recovery, recover_log
from epochal.logfiles.retained_files import Retained
from epochal.protocol.log.file_format import Incarnations, LogCheckpoint, with_incarnation
from epochal.protocol.log.history import Lull, SegmentState

_REPLAY_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class LogSettings:
    """When log files are ended, and when they are removed; sizes in bytes, ages in seconds."""

    file_bytes: int = 64 * 2**20
    """Large enough that ending a file costs nothing, small enough to be read twice when the log is opened."""
    file_age: float = 3600.0
    """Retention works on whole files, so a quiet log must end files too."""
    max_bytes: int = 2**30
    max_age: float = 7 * 24 * 3600.0


DEFAULTS: Final = LogSettings()
OS_DISK: Final = OSDisk()


@dataclass(frozen=True, slots=True)
class LogOpening:
    """How to compute the state just after an event: begin with `state`, and apply the events of `batches` to it."""

    state: SegmentState
    batches: tuple[LogBatch, ...]


class SegmentLog:
    """The log of one segment, in a directory of its own.

    One thread writes (`begin`, `write`, `sync`, `vouch`, `keep_state`, `roll`, `retain`, `close`); any thread may
    call `read`, `opening` and the properties beside it.

    After `LogFailed` every further call that writes raises `LogFailed`; reading goes on. Units: bytes, milliseconds
    since 1970 for times of day, sequence numbers for positions (a position is the seq of the last event before it).
    """

    def __init__(
        self,
        directory: Path,
        identity: tuple[str, str],
        owner: LogOwner,
        settings: LogSettings,
        disk: Disk,
        clock: Callable[[], int],
        steady: Callable[[], int],
        boot: str | None,
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._owner = owner
        self._settings = settings
        self._disk = disk
        self._clock = clock
        self._steady = steady
        self._ahead = clock() - steady()
        self._boot = boot
        self._last_owner = owner.last()
        self._tail: TailFile | None = None
        self._incarnations: Incarnations = ()
        self._recovered: Recovery | None = None
        self._failed: str | None = None
        self._begun = self._closed = False
        self._claimed = 0
        """The incarnation that was claimed but could not begin because the disk was full; else 0."""
        found = recover_log(disk, directory, *identity)
        if found is not None:
            self._tail = found.tail
            self._incarnations = found.incarnations
            self._recovered = found.recovery
        self._retained = Retained(disk, () if found is None else (*found.sealed, found.tail.file))
        self._durable = self.last

    @classmethod
    def open(
        cls,
        directory: Path,
        stream: str,
        segment: str,
        *,
        instance: str,
        settings: LogSettings = DEFAULTS,
        disk: Disk = OS_DISK,
        clock: Callable[[], int] = wall_clock,
        steady: Callable[[], int] = steady_clock,
        boot: Callable[[], str | None] = boot_id,
    ) -> Self:
        """Own the log in `directory` (made if it is not there) and recover it; `begin` must follow.

        `stream` is the stream's uid; `instance` names this process in the errors of others that find the log taken. In
        old files the header and the footer are checked, in the last one every byte. A torn tail is cut off, and the cut
        is on disk when this returns.

        Raises `LogTaken`, `CorruptLog` (damage that no crash can explain; nothing is changed), `LogMismatch`,
        `LogFull` for a directory that cannot be made, `LogFailed`.
        """
        try:
            make_directory(disk, directory)
            owner = LogOwner(directory, instance, disk)
            try:
                return cls(directory, (stream, segment), owner, settings, disk, clock, steady, boot())
            except BaseException:
                owner.leave()
                raise
        except OSError as error:
            words = f"{directory} cannot be opened: {error}"
            raise (LogFull(words, error.errno) if error.errno in NO_SPACE else LogFailed(words)) from error

    @property
    def recovered(self) -> Recovery | None:
        """What recovery found, until `begin` or `forget_recovered`; None for a new log."""
        return self._recovered

    def forget_recovered(self) -> None:
        """Drop the findings of recovery from memory."""
        self._recovered = None

    def may_lack(self, *, relaxed: bool) -> bool:
        """Whether acknowledged events after `last` may be missing, because the machine died (E11 horizon).

        True if three things hold: the last owner acknowledged appends before they were synced, the end of the log does
        not say that all before it is on disk, and the machine has restarted since, or may have. Call it before `begin`.
        Without a record of the last owner's durability, it is taken to have been as `relaxed` as this one.
        """
        found, owner = self._recovered, self._last_owner
        if found is None or found.vouched or not (relaxed if owner.relaxed is None else owner.relaxed):
            return False
        return owner.boot is None or owner.boot != self._boot

    @property
    def incarnation(self) -> int:
        """The highest incarnation that ever owned this log, 0 for a new one (E12 fencing)."""
        return max(self._owner.incarnation(), *(number for number, _ in self._incarnations), 0)

    @property
    def incarnations(self) -> Incarnations:
        """(incarnation, its first seq), oldest first: the positions that older cursors go back to (E10 durability).

        If several begin at the same seq, only the first and the last of them are kept.
        """
        return self._incarnations

    @property
    def first(self) -> int:
        """The position before the first retained event: `read` works from here on; -1 for a whole log."""
        return self._retained.first

    @property
    def start(self) -> tuple[int, Lull | None]:
        """`first`, and the lull that ends there (E13 retention); None for the lull if the header is unreadable."""
        return self._retained.start

    @property
    def last(self) -> int:
        """The seq of the last event written, durable or not; -1 before any."""
        return self._retained.last

    @property
    def durable(self) -> int:
        """The seq of the last event that `read` serves (E9)."""
        return self._durable

    @property
    def size(self) -> int:
        """Bytes of all log files together."""
        return self._retained.size

    @property
    def roll_due(self) -> bool:
        """Whether the last file has reached its size or age, so that `roll` should follow.

        Only frames count, and a file is never ended before they take four times the bytes of its header and checkpoint.
        """
        file, settings = self._open_tail().file, self._settings
        return (
            file.end - file.start >= max(settings.file_bytes, 4 * file.start)
            or self._clock() - file.created >= settings.file_age * 1000
        )

    def begin(
        self,
        incarnation: int,
        checkpoint: LogCheckpoint,
        notes: bytes = b"",
        *,
        count: int = 0,
        events: Sequence[bytes] = (),
        relaxed: bool = False,
    ) -> None:
        """Start an incarnation, durably: the owner's file, then a frame that says so, with its first events if any.

        `checkpoint` is the state at `last`; it is stored only if a first file has to be made. The frame's notes are
        the incarnation as msgpack, then `notes`. `relaxed` says that this incarnation will acknowledge what is not
        synced.

        Raises `Superseded` unless `incarnation` is higher than any before (E12 fencing); `LogFull`, after which the
        same call can be repeated; `LogFailed`.
        """
        with self._guarded():
            if incarnation == self._claimed:  # the disk was full then
                self._owner.check()
            elif incarnation <= self.incarnation:
                raise Superseded(f"incarnation {incarnation} is not above {self.incarnation}, the last one here")
            else:
                self._owner.claim(incarnation)
                self._claimed = incarnation
            tail, first = self._tail or self._start_file(checkpoint), self.last + 1
            tail.append(count, events, notes, self._clock(), begins=incarnation)
            tail.sync()
            self._begun = True
            self._claimed = 0
            self._incarnations = with_incarnation(self._incarnations, incarnation, first)
            self._durable = self.last
            self._recovered = None
            self._owner.note_boot(self._boot, relaxed=relaxed)

    def write(self, count: int, events: Sequence[bytes], notes: bytes = b"") -> int:
        """Append one frame, which is one group commit: `count` events after `last`, and the publisher's `notes`.

        `events` are buffers whose concatenation is `count` entries (see `frames.entry`); nothing is copied. Returns the
        seq of the last event. Nothing is durable, or served, before `sync`.

        Raises `LogFull`, with nothing written: the same call can be repeated; `LogFailed`; `Superseded` when another
        process owns the log now (E12 fencing); `LocalProtocolError` for a frame over 64 MiB.
        """
        with self._guarded():
            tail = self._open_tail()
            self._owner.check()
            tail.append(count, events, notes, self._clock())
            return self.last

    def sync(self) -> int:
        """Put everything written so far on disk (fdatasync), let it be served, and return `durable`.

        Raises `LogFailed`. A failed sync is never tried again.
        """
        with self._guarded():
            self._open_tail().sync()
            self._durable = self.last
            return self._durable

    def vouch(self) -> None:
        """Record in the log that its last frame is on disk. Otherwise damage to that frame looks like a torn write.

        Each frame records this for the frames before it, so call this when nothing has been written for a moment. Does
        nothing if the log already says so, or if some frame is not synced. Raises `LogFull`, with the log as it was;
        `LogFailed`; `Superseded`.
        """
        with self._guarded():
            tail = self._open_tail()
            self._owner.check()
            tail.vouch(self._clock())

    def mark_durable(self, seq: int) -> None:
        """Let `read` serve up to `seq` without `sync`: for durability policies that do not wait for the disk."""
        if seq > self.last:
            raise LocalProtocolError(f"event {seq} is not written; the last one is {self.last}")
        self._durable = max(self._durable, seq)

    def keep_state(self, state: SegmentState) -> None:
        """Remember the state at an event of the last file, so that `opening` has less to replay.

        Call it about every 1,024 events or 4 MiB. States are kept with the index; losing them with it does no harm.
        """
        self._open_tail().keep_state(state)

    def roll(self, checkpoint: LogCheckpoint) -> None:
        """End the last file and begin a new one with `checkpoint`, the state at `last`.

        A last file without events is replaced instead. Raises `LogFull`, with the last file as it was and still in
        use; `LogFailed`.
        """
        if checkpoint.state.seq != self.last:
            raise LocalProtocolError(f"a checkpoint at {checkpoint.state.seq}; the last event is {self.last}")
        with self._guarded():
            tail = self._open_tail()
            self._owner.check()
            tail.sync()
            self._durable = self.last
            self._start_file(checkpoint)

    def retain(self) -> int:
        """Remove whole files, oldest first, that are over the limits of the settings; never the last one.

        A clock that is set forward makes no file old: since the log was opened, ages grow by the elapsed time at most,
        whatever the time of day says.

        Returns how many files were removed. A reader inside a removed file can still finish it. Raises `LogFailed`.
        """
        removed = 0
        with self._guarded():
            while (file := self._outdated()) is not None:
                self._retained.forget_oldest()
                if file.index_path.exists():
                    self._disk.remove(file.index_path)
                self._disk.remove(file.path)
                self._disk.sync_directory(self._directory)  # before the next, so that a crash leaves no hole
                removed += 1
        return removed

    def read(self, after: int, max_events: int, max_bytes: int) -> LogBatch | None:
        """The next events strictly after position `after`: at least one if there is any, within the given sizes.

        None when there is none yet. Only durable events are served (E9), and each byte has passed its checksum. To read
        on where the last answer ended costs no search.

        Raises `HistoryTruncated` when event `after` + 1 is gone (Q2), `CorruptLog` when it is damaged: its `behind` is
        the position after the damage, from which to read on.
        """
        if after >= self._durable:
            return None
        return self._retained.read(after, max_events, max_bytes, self._durable)

    def opening(self, seq: int) -> LogOpening:
        """How to compute the state just after event `seq`, for `first <= seq <= durable`.

        Raises `HistoryTruncated`; `CorruptLog` if there is damage between the last known state and the event: its
        `behind` is then the first position whose state is known again.
        """
        if seq > self._durable:
            raise LocalProtocolError(f"event {seq} is ahead of this log, which is at {self._durable}")
        state = self._retained.state(seq)
        batches, at = list[LogBatch](), state.seq
        try:
            while at < seq and (batch := self.read(at, seq - at, _REPLAY_BYTES)) is not None:
                batches.append(batch)
                at = batch.last
        except CorruptLog as damage:
            behind = None if damage.behind is None else self._retained.next_state(damage.behind)
            where = "" if behind is None else f"; history can be asked for from position {behind} on"
            reason = f"the state at event {seq} cannot be known{where}"
            raise CorruptLog(damage.path, damage.first, damage.last, reason, behind) from None
        return LogOpening(state, tuple(batches))

    def newest_state(self, holds: Callable[[SegmentState], bool]) -> SegmentState:
        """The last known state for which `holds` is true; it must be true up to some event of the log, then false.

        The state is at most 1,024 events before that event if `keep_state` was called that often, else at most a file.
        If `holds` is true for no known state, the answer is the state where the log begins. Bisects the files, which
        reads some headers and one index. For a damaged header, `holds` counts as false.

        Raises `HistoryTruncated`, `CorruptLog`.
        """
        return self._retained.newest_state(lambda state: state.seq <= self._durable and holds(state))

    def close(self) -> None:
        """Sync and end the last file unless the log has failed, and release the log; closing again does nothing.

        The footer says that all before it is on disk, as `vouch` does, until the file is used again.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._begun and self._failed is None:
                self.sync()
                self._end_file()
        finally:
            self._retained.close()
            if self._tail is not None:
                self._tail.close()
            self._owner.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- writing ----

    def _open_tail(self) -> TailFile:
        if self._tail is None or not self._begun:
            raise LocalProtocolError("an incarnation must begin before anything is written")
        return self._tail

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let any disk error other than a lack of space end all writing."""
        if self._failed is not None:
            raise LogFailed(self._failed)
        try:
            yield
        except OSError as error:
            self._failed = f"{self._directory}: {error}; nothing more is written until the log is opened again"
            raise LogFailed(self._failed) from error

    def _end_file(self) -> None:
        with suppress(LogFull, Superseded), self._guarded():
            self._owner.check()
            self._open_tail().end()

    def _start_file(self, checkpoint: LogCheckpoint) -> TailFile:
        """Begin a file after the last one, or replace that one if it has no events; on `LogFull` nothing changes."""
        old = self._tail
        new = TailFile.prepare(
            self._disk, self._directory, self._identity, checkpoint, self._incarnations, self._clock()
        )
        replaces = old is not None and old.is_empty
        try:
            if old is not None and not replaces:
                old.seal()
        except LogFull:
            new.abandon()
            raise
        put_in_place(self._disk, new.file.path)
        self._retained.add(new.file, in_place=replaces)
        self._tail = new
        if old is not None:
            old.close()
        return new

    def _outdated(self) -> LogFile | None:
        """The oldest file, if it exceeds the limits of the settings."""
        oldest, settings = self._retained.oldest(), self._settings
        if oldest is None:
            return None
        now = min(self._clock(), self._steady() + self._ahead)
        too_old = oldest.newest < now - settings.max_age * 1000
        return oldest if too_old or self.size > settings.max_bytes else None

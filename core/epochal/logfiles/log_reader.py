"""Reads a log from a position on: frame by frame, file by file, with each byte checked before it is returned.

A reader has a descriptor of its own. All it needs from the log is which file holds an event.

Sources: rules Q2, Q3; docs/log.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

from epochal.errors import CorruptLog, HistoryTruncated
from epochal.logfiles.disk import Disk
from epochal.logfiles.files import LogFile, read_header
from epochal.protocol.log.file_format import Damaged, Index, LogCheckpoint
from epochal.protocol.log.frames import FRAME_HEAD, Frame, cut, is_sound, read_head, scan

CHUNK = 256 * 1024
"""Bytes read at once where frames are small."""
APART = 64 * 1024
"""A frame body of at least this many bytes is read by itself, which saves a copy."""


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Events `first` to `last`, in order and without holes, as log entries (see `frames.entries`)."""

    first: int
    last: int
    data: tuple[memoryview, ...]
    """Whole entries, joined; an entry never spans two of these."""

    @property
    def count(self) -> int:
        """The number of events."""
        return self.last - self.first + 1


class FileReader:
    """The frames of one file from `offset` on, where the frame whose first event is `base` begins."""

    def __init__(self, disk: Disk, file: LogFile, offset: int, base: int) -> None:
        self.file = file
        self._disk = disk
        self._offset = offset
        self._base = base
        self._chunk = b""
        self._chunk_at = offset
        self._ahead = CHUNK
        try:
            self._descriptor = disk.open(file.path)
        except FileNotFoundError:
            raise HistoryTruncated(f"events from {file.base} to {file.last} are gone") from None

    def frame(self, seq: int) -> Frame | None:
        """The next sound frame with event `seq` or a later one; None at the end of what is written.

        Damage that lies before `seq` is skipped. Raises `CorruptLog` for damage that holds, or may hold, a later event.
        """
        while self._offset < self.file.end:
            frame = self._read() or self._skip_damage(seq)
            if frame is None:
                continue
            self._offset = frame.end
            self._base = frame.head.last + 1
            if frame.head.last >= seq:
                return frame
        return None

    def checkpoint(self) -> LogCheckpoint:
        """The checkpoint in the file's header: the state before its first event. Raises `CorruptLog`."""
        return read_header(self._disk, self._descriptor, self.file.path).checkpoint

    def close(self) -> None:
        """Close the descriptor."""
        self._disk.close(self._descriptor)

    def _read(self) -> Frame | None:
        """The frame at the offset; None if it is bad."""
        at, file = self._offset, self.file
        head = read_head(self._bytes(at, FRAME_HEAD, self._ahead), 0, file.seed)
        if head is None or head.base != self._base or at + head.size > file.end:
            return None
        size = head.body
        # A large body is read by itself, so that it can be checked and passed on without a copy.
        self._ahead = CHUNK if size < APART else FRAME_HEAD
        body = self._bytes(at + FRAME_HEAD, size, size)
        return Frame(head, at, body) if is_sound(head, body, file.seed) else None

    def _bytes(self, at: int, size: int, ahead: int) -> bytes:
        """`size` bytes of the file at `at`. A read from disk takes up to `ahead` bytes, kept for later."""
        begin = at - self._chunk_at
        if not 0 <= begin <= len(self._chunk) - size:
            self._chunk = self._from_disk(at, min(max(size, ahead), self.file.end - at))
            self._chunk_at, begin = at, 0
        if begin == 0 and len(self._chunk) == size:
            return self._chunk
        return self._chunk[begin : begin + size]

    def _from_disk(self, at: int, size: int) -> bytes:
        try:
            return self._disk.read(self._descriptor, size, at)
        except OSError as error:
            raise CorruptLog(self.file.path, at, at + size, str(error.strerror), self._next_file()) from error

    def _next_file(self) -> int | None:
        """The position where the next file begins; None if there is no next file."""
        return self.file.last if self.file.sealed else None

    def _skip_damage(self, seq: int) -> Frame | None:
        """Read the frame at the offset again. Skips damage before `seq`; raises `CorruptLog` for other damage."""
        end = self.file.end
        data = self._from_disk(0, end)
        data += bytes(end - len(data))  # a file that was cut is damaged up to where it ended
        found = next(scan(data, self._offset, end, self.file.seed, self._base))
        if isinstance(found, Frame):
            return found
        behind = self._next_file() if found.behind is None else found.behind
        if behind is None or behind >= seq:
            raise CorruptLog(self.file.path, *found[:2], f"events from {self._base} on cannot be read", behind)
        self._offset = found.last
        self._base = behind + 1
        return None


class LogCursor:
    """A place in the log, just after event `at`, from which to read on without a search.

    `locate` returns the file that holds an event, and its index. It raises `HistoryTruncated` if the event is gone.
    """

    def __init__(self, disk: Disk, locate: Callable[[int], tuple[LogFile, Index]], at: int) -> None:
        self.at = at
        self._disk = disk
        self._locate = locate
        self._reader: FileReader | None = None
        self._rest = memoryview(b"")
        """The entries of the last frame that are still to be returned: events `at` + 1 to `_rest_last`."""
        self._rest_last = at

    def take(self, max_events: int, max_bytes: int, until: int) -> LogBatch:
        """The next events, at least one, up to event `until`, which must exist and come after `at`.

        Raises `HistoryTruncated`, `CorruptLog`, but only if there is no event to return before the error.
        """
        first, parts, room = self.at + 1, list[memoryview](), max_bytes
        until = min(until, self.at + max_events)
        while self.at < until:
            try:
                size, count = self._next(until - self.at, room, alone=not parts)
            except (CorruptLog, HistoryTruncated):
                if parts:
                    break
                raise
            if not count:
                break
            parts.append(self._rest[:size])
            self._rest = self._rest[size:]
            self.at += count
            room -= size
        return LogBatch(first, self.at, tuple(parts))

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _next(self, max_events: int, max_bytes: int, *, alone: bool) -> tuple[int, int]:
        """(bytes, events) to take from the rest of the frame: all if it fits, else a part, but only in an empty batch.

        `alone`: the batch is empty so far.
        """
        if not self._rest:
            self._load()
        there = self._rest_last - self.at
        if there <= max_events and len(self._rest) <= max_bytes:
            return len(self._rest), there
        if not alone:  # a shorter answer is also right, and saves cutting the frame into entries
            return 0, 0
        size, count = self._cut(self._rest, max_events, max_bytes)
        return (size, count) if count else self._cut(self._rest, 1, len(self._rest))

    def _load(self) -> None:
        """Load the frame that holds the next event, and drop its entries before that event."""
        frame = self._frame()
        self._rest = frame.events
        self._rest_last = frame.head.last
        passed = self.at + 1 - frame.head.base
        if passed:
            size, _ = self._cut(self._rest, passed, len(self._rest))
            self._rest = self._rest[size:]

    def _frame(self) -> Frame:
        while True:
            if self._reader is None:
                file, index = self._locate(self.at + 1)
                point = index.before(self.at + 1)
                start = (file.start, file.base) if point is None else (point.offset, point.seq)
                self._reader = FileReader(self._disk, file, *start)
            frame = self._reader.frame(self.at + 1)
            if frame is not None:
                return frame
            file = self._reader.file
            self.close()
            if self.at < file.last:
                raise CorruptLog(file.path, reason=f"it has no event {self.at + 1}", behind=file.last)

    def _cut(self, data: memoryview, max_events: int, max_bytes: int) -> tuple[int, int]:
        try:
            return cut(data, max_events, max_bytes)
        except Damaged as damage:  # the checksum is correct, so the bytes were written like this
            path = None if self._reader is None else self._reader.file.path
            raise CorruptLog(path, reason=str(damage)) from None

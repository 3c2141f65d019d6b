"""The files of a log directory: a description of each, and the last one, open for writing.

Paths, offsets and checksums are handled here; `log` uses sequence numbers only.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from epochal.errors import CorruptLog, LogFull
from epochal.logfiles.disk import Disk, FileBytes, aside, put_in_place, write_aside, write_or_undo
from epochal.protocol.log.file_format import (
    FOOTER_BYTES,
    HEAD_BYTES,
    Damaged,
    FileHeader,
    Footer,
    Incarnations,
    Index,
    LogCheckpoint,
    Point,
    decode_footer,
    decode_header,
    decode_index,
    encode_footer,
    encode_header,
    encode_index,
    header_length,
)
from epochal.protocol.log.frames import Damage, Frame, frame_parts, scan
from epochal.protocol.log.history import SegmentState

SALT_BYTES = 8
NO_FOOTER = "the footer is missing or damaged: perhaps the file was cut"


@dataclass(slots=True, eq=False)
class LogFile:
    """What readers need to know of one file. In the last file, each written frame moves `end`, `last` and `newest`."""

    path: Path
    seed: int
    base: int
    """The seq of the first event."""
    start: int
    """Bytes of the header."""
    created: int
    """Milliseconds since 1970."""
    end: int
    """Bytes of the header and the frames."""
    last: int
    """The seq of the last event; `base` - 1 while there is none."""
    newest: int
    """Milliseconds since 1970 of the last frame."""
    sealed: bool
    index: Index | None = None
    """The index while the file is still written; later it is in a file beside it."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.end + FOOTER_BYTES * self.sealed

    @property
    def index_path(self) -> Path:
        """The path of the index, once the file is sealed."""
        return self.path.with_suffix(".index")


def log_path(directory: Path, base: int) -> Path:
    """The path of the log file whose first event is `base`; names sort in the order of the events."""
    return directory / f"{base:020d}.log"


def log_paths(directory: Path) -> list[Path]:
    """The log files of a directory, oldest first."""
    return sorted(path for path in directory.glob("*.log") if len(path.stem) == 20 and path.stem.isdecimal())


def read_header(disk: Disk, descriptor: int, path: Path) -> FileHeader:
    """The header of an open file. Raises `CorruptLog`, `LogMismatch`."""
    try:
        start = disk.read(descriptor, HEAD_BYTES, 0)
        header = decode_header(disk.read(descriptor, header_length(start), 0))
        if path.stem != f"{header.base:020d}":
            raise Damaged(f"it begins with event {header.base}, not with that of its name")
        return header
    except Damaged as damage:
        raise CorruptLog(path, 0, disk.size(descriptor), str(damage)) from None


def read_sealed(disk: Disk, path: Path) -> tuple[LogFile, FileHeader]:
    """A sealed file by its header and footer. Raises `CorruptLog` if either is missing or damaged."""
    descriptor = disk.open(path)
    try:
        header = read_header(disk, descriptor, path)
        size = disk.size(descriptor)
        end = disk.read(descriptor, FOOTER_BYTES, max(size - FOOTER_BYTES, 0))
    finally:
        disk.close(descriptor)
    footer = decode_footer(end, header.seed, size)
    if footer is None:
        where = max(size - FOOTER_BYTES, header.length)
        raise CorruptLog(path, where, max(size, where + 1), NO_FOOTER)
    file = LogFile(
        path, header.seed, header.base, header.length, header.created, footer.length, footer.last, footer.newest, True
    )
    return file, header


def read_whole(disk: Disk, path: Path) -> bytes:
    """All bytes of a file."""
    descriptor = disk.open(path)
    try:
        return disk.read(descriptor, disk.size(descriptor), 0)
    finally:
        disk.close(descriptor)


def read_index(disk: Disk, file: LogFile) -> Index:
    """The index of a sealed file; if it is lost, damaged or old, it is made again from the frames.

    Raises `FileNotFoundError` for a file that was removed. For one that cannot be read it is an empty index: a reader
    of the file then gets the error, with the offset.
    """
    try:
        index = decode_index(read_whole(disk, file.index_path), file.seed, file.end)
    except OSError:
        index = None
    if index is not None:
        return index
    descriptor = disk.open(file.path)
    try:
        data = FileBytes(disk, descriptor)
        return index_of(scan(data, file.start, min(file.end, len(data)), file.seed, file.base))
    except OSError:
        return Index()
    finally:
        disk.close(descriptor)


def index_of(found: Iterable[Frame | Damage]) -> Index:
    """An index of the sound frames in `found`."""
    index = Index()
    for frame in found:
        if isinstance(frame, Frame):
            index.add(Point(frame.head.base, frame.offset, frame.head.milliseconds))
    return index


class TailFile:
    """The last file of a log, open for writing at its end. Every call may raise `OSError`."""

    def __init__(self, disk: Disk, descriptor: int, file: LogFile, index: Index, frames: int) -> None:
        self.file = file
        file.index = self._index = index
        self._disk = disk
        self._descriptor = descriptor
        self._frames = frames
        self._synced = file.end
        self._vouched = False

    @classmethod
    def prepare(
        cls, disk: Disk, directory: Path, identity: tuple[str, str], checkpoint: LogCheckpoint,
        incarnations: Incarnations, now: int,
    ) -> Self:  # fmt: skip
        """A new file, on disk under a temporary name until `put_in_place` renames it. Raises `LogFull`."""
        data = encode_header(*identity, checkpoint, incarnations, created=now, salt=os.urandom(SALT_BYTES))
        header = decode_header(data)
        path = log_path(directory, header.base)
        file = LogFile(
            path, header.seed, header.base, header.length, now, header.length, header.base - 1, now, sealed=False
        )
        return cls(disk, write_aside(disk, path, [data]), file, Index(states=[checkpoint.state]), 0)

    @property
    def is_empty(self) -> bool:
        """Whether it holds no events; it may hold notes."""
        return self.file.last < self.file.base

    def append(self, count: int, events: Sequence[bytes], notes: bytes, now: int, begins: int | None = None) -> None:
        """Write one frame. Raises `LogFull`, with the file as it was."""
        file = self.file
        now = max(now, file.newest)  # a clock that is set back must not make a file look older than it is
        parts = frame_parts(
            file.seed, file.last + 1, count, events, notes, milliseconds=now, synced=self._synced, begins=begins
        )
        write_or_undo(self._disk, self._descriptor, parts, file.end)
        self._index.add(Point(file.last + 1, file.end, now))
        self._frames += 1
        self._vouched = False
        file.newest = now
        file.end += sum(map(len, parts))
        file.last += count

    def sync(self) -> None:
        """Put all that was written on disk."""
        if self._synced < self.file.end:
            self._disk.sync(self._descriptor)
            self._synced = self.file.end

    def vouch(self, now: int) -> None:
        """Write an empty frame, which says that all frames before it are on disk. Raises `LogFull`.

        Does nothing if some frame is not on disk yet, or if the last frame already says so.
        """
        if self._vouched or self._synced < self.file.end:
            return
        self.append(0, (), b"", now)
        self.sync()
        self._vouched = True

    def seal(self) -> None:
        """End the file, and write its index. Raises `LogFull`, with the file as it was."""
        self.end()
        self._keep_index()

    def end(self) -> None:
        """Write the footer; `sync` must have put all frames on disk. Raises `LogFull`, with the file as it was."""
        file = self.file
        footer = encode_footer(Footer(self._frames, file.last, file.newest, file.end), file.seed)
        write_or_undo(self._disk, self._descriptor, [footer], file.end)
        self._disk.sync(self._descriptor)
        file.sealed = True

    def keep_state(self, state: SegmentState) -> None:
        """Add a state to the index."""
        self._index.states.append(state)

    def abandon(self) -> None:
        """Remove a file that was prepared but not put in place."""
        self.close()
        self._disk.remove(aside(self.file.path))

    def close(self) -> None:
        """Close the descriptor."""
        self._disk.close(self._descriptor)

    def _keep_index(self) -> None:
        """Write the index beside the file; without it, reading begins with a scan."""
        file = self.file
        with suppress(OSError, LogFull):
            data = encode_index(self._index, file.seed, file.end)
            self._disk.close(write_aside(self._disk, file.index_path, [data]))
            put_in_place(self._disk, file.index_path)
        file.index = None

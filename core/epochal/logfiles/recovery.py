"""Opens an existing log: keeps what is sound, cuts off what a crash has torn, and refuses to touch damage.

This happens once, before anything else, and alone decides whether an acknowledged event is still there afterwards.
Whether an end is torn is decided in `frames.recover`.

Sources: rules E10, E12; docs/log.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from epochal.errors import CorruptLog, LogMismatch
from epochal.logfiles.disk import Disk, FileBytes
from epochal.logfiles.files import LogFile, TailFile, log_paths, read_sealed
from epochal.protocol.log.file_format import (
    HEAD_BYTES,
    Damaged,
    FileHeader,
    Incarnations,
    Index,
    LogCheckpoint,
    Point,
    decode_header,
    header_length,
    with_incarnation,
)
from epochal.protocol.log.frames import Damage, Frame, SoundFrames, Tail, recover

ASIDE: Final = "nothing was changed; bring the file back from a copy of the volume, see docs/log.md"
"""What to do about a damaged last file, for the error's reader."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The findings when an existing log was opened."""

    checkpoint: LogCheckpoint
    """The state just before the first frame of the last file."""
    frames: SoundFrames
    """Every frame after it, to be replayed, with its events and notes. Each iteration reads them from the file."""
    torn: int
    """Bytes at the end that were never synced and are cut off; 0 after an orderly end."""
    vouched: bool
    """Whether the log ends with a footer or an empty frame that says that all before it was on disk."""


@dataclass(frozen=True, slots=True)
class Found:
    """A log after recovery."""

    sealed: tuple[LogFile, ...]
    tail: TailFile
    incarnations: Incarnations
    recovery: Recovery


def recover_log(disk: Disk, directory: Path, stream: str, segment: str) -> Found | None:
    """The log in `directory`; None if there is none. Everything in it is on disk when this returns.

    Raises `CorruptLog`, in which case only files that were never part of the log are removed; `LogMismatch`; `OSError`.
    """
    paths = _whole_files(disk, directory)
    if not paths:
        return None
    headers, sealed = [], []
    for path in paths[:-1]:
        file, header = read_sealed(disk, path)
        headers.append(header)
        sealed.append(file)
    descriptor = disk.open(paths[-1], writing=True)
    try:
        header, kept, seen = _examine(disk, descriptor, paths[-1])
        _agree([*headers, header], sealed, paths, (stream, segment))
        tail = _mend(disk, descriptor, paths[-1], header, kept, seen)
        disk.sync_directory(directory)
    except BaseException:
        disk.close(descriptor)
        raise
    recovery = Recovery(header.checkpoint, kept.frames, kept.torn, vouched=kept.sealed or seen.vouched)
    return Found(tuple(sealed), tail, seen.incarnations, recovery)


class _Seen:
    """Facts gathered while the frames of the last file are read."""

    def __init__(self, header: FileHeader) -> None:
        self.index = Index()
        self.incarnations = header.incarnations
        self.last = header.base - 1
        self.newest = header.created
        self.vouched = False
        """Whether the last frame is empty and says that all before it is on disk (`TailFile.vouch`)."""

    def add(self, frame: Frame) -> None:
        self.vouched = frame.head.body == 0 and frame.head.synced == frame.offset
        self.index.add(Point(frame.head.base, frame.offset, frame.head.milliseconds))
        self.last = frame.head.last
        self.newest = frame.head.milliseconds
        if frame.incarnation is not None:
            self.incarnations = with_incarnation(self.incarnations, frame.incarnation, frame.head.base)


def _whole_files(disk: Disk, directory: Path) -> list[Path]:
    """The log files. Removes unfinished files, which have temporary names, and indexes without a log file.

    A file is synced before it gets its own name, so a file that is too short under that name was cut later.
    """
    paths = log_paths(directory)
    unfinished = sorted(directory.glob("*.tmp"))
    kept = {path.stem for path in paths}
    unfinished.extend(path for path in directory.glob("*.index") if path.stem not in kept)
    for path in unfinished:
        disk.remove(path)
    if unfinished:
        disk.sync_directory(directory)
    return paths


def _examine(disk: Disk, descriptor: int, path: Path) -> tuple[FileHeader, Tail, _Seen]:
    """The last file's header, the part of the file to keep, and the facts gathered while reading it."""
    data = FileBytes(disk, descriptor)
    try:
        header = decode_header(data[: header_length(data[:HEAD_BYTES])])
    except Damaged as damage:
        raise CorruptLog(path, 0, len(data), f"{damage}; {ASIDE}") from None
    seen = _Seen(header)
    kept = recover(data, header, seen.add)
    if isinstance(kept, Damage):
        raise CorruptLog(path, kept.first, kept.last, f"it was on disk once, and sound; {ASIDE}", kept.behind)
    return header, kept, seen


def _agree(
    headers: Sequence[FileHeader], sealed: Sequence[LogFile], paths: Sequence[Path], identity: tuple[str, str]
) -> None:
    """Check that the files are those of this segment, and that none is missing between them."""
    for header, path in zip(headers, paths, strict=True):
        if (header.stream, header.segment) != identity:
            raise LogMismatch(f"{path} is of stream {header.stream}, segment {header.segment}, not of {identity}")
        if path.stem != f"{header.base:020d}":
            raise CorruptLog(path, reason=f"it begins with event {header.base}, not with that of its name")
    for file, following, path in zip(sealed, headers[1:], paths[1:], strict=True):
        if following.base != file.last + 1:
            raise CorruptLog(path, reason=f"it begins with event {following.base}; {file.last + 1} would be next")


def _mend(disk: Disk, descriptor: int, path: Path, header: FileHeader, kept: Tail, seen: _Seen) -> TailFile:
    """Cut off the torn end, and put the rest on disk before anything is written after it."""
    if kept.torn or kept.sealed:  # sealed: the crash came before the next file got its name
        disk.truncate(descriptor, kept.end)
    disk.sync(descriptor)
    file = LogFile(
        path=path,
        seed=header.seed,
        base=header.base,
        start=header.length,
        created=header.created,
        end=kept.end,
        last=seen.last,
        newest=seen.newest,
        sealed=False,
    )
    tail = TailFile(disk, descriptor, file, seen.index, len(kept.frames))
    tail.keep_state(header.checkpoint.state)
    return tail

"""Inspects a log that may be in use, without owning it and without changing a byte.

Unlike recovery, which prepares for writing, a survey reports all problems, not only the first. It does not count an
unfinished end as damage: that may be the next frame, half written.

Sources: docs/log.md.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from epochal.errors import CorruptLog, LogError
from epochal.logfiles.disk import Disk, FileBytes, OSDisk
from epochal.logfiles.files import NO_FOOTER, LogFile, log_paths, read_header, read_sealed, read_whole
from epochal.logfiles.owner import INCARNATION
from epochal.protocol.log.file_format import (
    FOOTER_BYTES,
    Damaged,
    FileHeader,
    Footer,
    Incarnations,
    decode_header,
    decode_index,
    encode_footer,
    with_incarnation,
)
from epochal.protocol.log.frames import Damage, Frame, LogBytes, Tail, cut, footer_of, recover, scan
from epochal.protocol.log.history import SegmentState


@dataclass(frozen=True, slots=True)
class Summary:
    """A log file according to its header and its end."""

    path: Path
    stream: str
    segment: str
    state: SegmentState
    """The state just before the file's first event."""
    incarnations: Incarnations
    """The incarnations that began before the file; for the last file, also those that begin in it."""
    last: int
    size: int
    created: int
    newest: int
    sealed: bool

    @property
    def events(self) -> int:
        """The number of events."""
        return self.last - self.state.seq


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking every byte of a file."""

    path: Path
    size: int
    events: int
    frames: int
    torn: int
    """Bytes at the end of the last file that form no whole frame; cut off when the log is next opened for writing."""
    index: str
    """`sound`, `stale` or `none`; nothing is lost without one."""
    damage: tuple[CorruptLog, ...]


def log_directories(path: Path) -> list[Path]:
    """`path`, or every directory below it, that holds log files; raises `OSError` when there is no such directory."""
    next(path.iterdir(), None)
    return sorted({file.parent for file in path.rglob("*.log") if log_paths(file.parent)})


def owner_of(directory: Path) -> tuple[int, str]:
    """(incarnation, instance) of the last owner; (0, "") if that cannot be read."""
    try:
        owner = json.loads((directory / INCARNATION).read_bytes())
        return int(owner["incarnation"]), str(owner["instance"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, ""


# ---- what files say ----


def summarize(path: Path, *, is_last: bool, disk: Disk | None = None) -> Summary:
    """Reads both ends of a sealed file, or all of the last one. Raises `CorruptLog`, `LogMismatch`, `OSError`."""
    disk = disk or OSDisk()
    if not is_last:
        file, header = read_sealed(disk, path)
        return _summary(file, header, header.incarnations)
    descriptor = disk.open(path)
    try:
        header = read_header(disk, descriptor, path)
        return _summary_of_last(path, FileBytes(disk, descriptor), header)
    finally:
        disk.close(descriptor)


def _summary_of_last(path: Path, data: LogBytes, header: FileHeader) -> Summary:
    kept = recover(data, header)
    if isinstance(kept, Damage):
        raise CorruptLog(path, kept.first, kept.last, "it was on disk once, and sound", kept.behind)
    incarnations, last, newest = header.incarnations, header.base - 1, header.created
    for frame in kept.frames:
        last, newest = frame.head.last, frame.head.milliseconds
        if frame.incarnation is not None:
            incarnations = with_incarnation(incarnations, frame.incarnation, frame.head.base)
    end = kept.end + (0 if kept.sealed else kept.torn)
    file = LogFile(path, header.seed, header.base, header.length, header.created, end, last, newest, sealed=kept.sealed)
    return _summary(file, header, incarnations)


def _summary(file: LogFile, header: FileHeader, incarnations: Incarnations) -> Summary:
    return Summary(
        path=file.path,
        stream=header.stream,
        segment=header.segment,
        state=header.checkpoint.state,
        incarnations=incarnations,
        last=file.last,
        size=file.size,
        created=file.created,
        newest=file.newest,
        sealed=file.sealed,
    )


# ---- what files hold ----


def verify(directory: Path, disk: Disk | None = None) -> Iterator[Checked]:
    """Read every byte of a log, one file at a time, oldest first, and report all that is wrong."""
    disk = disk or OSDisk()
    paths, following = log_paths(directory), None
    for path in paths:
        try:
            data = read_whole(disk, path)
        except FileNotFoundError:  # removed by retention in the meantime
            following = None
            continue
        checked, following = _check(disk, path, data, following, is_last=path == paths[-1])
        yield checked


def _check(disk: Disk, path: Path, data: bytes, expected: int | None, *, is_last: bool) -> tuple[Checked, int | None]:
    """The check of one file, and the event with which the next file must begin, if that is known."""
    try:
        header = decode_header(data)
    except (Damaged, LogError) as error:
        return Checked(path, len(data), 0, 0, 0, "none", (CorruptLog(path, 0, len(data), str(error)),)), None
    footer = footer_of(data, header.seed)
    end = len(data) if footer is None else footer.length
    found = list(scan(data, header.length, end, header.seed, header.base))
    frames = [frame for frame in found if isinstance(frame, Frame)]
    last = frames[-1].head.last if frames else header.base - 1
    torn, damage = _judge(path, data, header, found, is_last=is_last)
    damage += [*_out_of_place(path, header, expected), *_miscounted(path, frames)]
    if footer is not None:
        damage += [] if damage else _beside_the_footer(path, footer, len(frames), last)
    elif not is_last:
        damage.append(CorruptLog(path, end - FOOTER_BYTES, end, NO_FOOTER))
    checked = Checked(
        path=path,
        size=len(data),
        events=sum(frame.head.entries for frame in frames),
        frames=len(frames),
        torn=torn,
        index=_index_state(disk, path, header, footer),
        damage=tuple(damage),
    )
    return checked, None if footer is None else footer.last + 1


def _judge(
    path: Path, data: bytes, header: FileHeader, found: list[Frame | Damage], *, is_last: bool
) -> tuple[int, list[CorruptLog]]:
    """(torn bytes, damage)."""
    kept = recover(data, header)
    if is_last and isinstance(kept, Tail):
        return kept.torn, _damaged_end(path, data, header, found, kept)
    return 0, [
        CorruptLog(path, one.first, one.last, _lost(one, found[:at], header), one.behind)
        for at, one in enumerate(found)
        if isinstance(one, Damage)
    ]


def _damaged_end(
    path: Path, data: bytes, header: FileHeader, found: list[Frame | Damage], kept: Tail
) -> list[CorruptLog]:
    """The damage to a footer with exactly one wrong bit. No crash does that, but no event is lost either."""
    heads = [frame.head for frame in found if isinstance(frame, Frame)]
    if kept.sealed or kept.torn != FOOTER_BYTES or not heads:
        return []
    footer = Footer(len(heads), heads[-1].last, heads[-1].milliseconds, kept.end)
    differ = int.from_bytes(encode_footer(footer, header.seed)) ^ int.from_bytes(data[kept.end :])
    if differ.bit_count() != 1:
        return []
    return [CorruptLog(path, kept.end, len(data), "it is the end of the file; no events were there")]


def _lost(damage: Damage, before: list[Frame | Damage], header: FileHeader) -> str:
    """Which events the damaged bytes held."""
    good = [frame.head.last for frame in before if isinstance(frame, Frame)]
    first = good[-1] + 1 if good else header.base
    if damage.behind is None:
        return f"events from {first} on, to the end of the file, cannot be read"
    return f"events {first} to {damage.behind} cannot be read" if damage.behind >= first else "no events were there"


def _out_of_place(path: Path, header: FileHeader, expected: int | None) -> list[CorruptLog]:
    if path.stem != f"{header.base:020d}":
        return [CorruptLog(path, reason=f"it begins with event {header.base}, not with that of its name")]
    if expected is not None and expected != header.base:
        return [CorruptLog(path, reason=f"it begins with event {header.base}; {expected} would be next")]
    return []


def _miscounted(path: Path, frames: list[Frame]) -> list[CorruptLog]:
    """Frames whose number of events differs from the one in their head: sound bytes that were written wrongly."""
    return [
        CorruptLog(path, frame.offset, frame.end, f"it says {frame.head.entries} events and holds others")
        for frame in frames
        if not _counts(frame)
    ]


def _counts(frame: Frame) -> bool:
    try:
        return cut(frame.events, frame.head.entries + 1, frame.head.events) == (frame.head.events, frame.head.entries)
    except Damaged:
        return False


def _beside_the_footer(path: Path, footer: Footer, frames: int, last: int) -> list[CorruptLog]:
    if (footer.frames, footer.last) == (frames, last):
        return []
    return [CorruptLog(path, reason=f"its footer says {footer.frames} frames up to event {footer.last}")]


def _index_state(disk: Disk, path: Path, header: FileHeader, footer: Footer | None) -> str:
    try:
        data = read_whole(disk, path.with_suffix(".index"))
    except OSError:
        return "none"
    sound = footer is not None and decode_index(data, header.seed, footer.length) is not None
    return "sound" if sound else "stale"

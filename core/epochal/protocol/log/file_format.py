"""The start and the end of a log file, byte by byte: header with checkpoint, footer, and the index beside it.

The frames between them are in `frames`. These are functions over bytes, without files, so that tests can cut and flip
every byte. Integers are big endian. All checksums of a file are CRC-32Cs that start from its `seed`, so that no part of
another file, and nothing that a writer hides in a payload, is mistaken for a part of this file.

Sources: rules E10, E12, E13; docs/log.md.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import google_crc32c
import msgpack

from epochal.errors import LocalProtocolError, LogMismatch
from epochal.protocol.log.history import Lull, SegmentState

FORMAT: Final = 1
MAX_CHECKPOINT: Final = 64 * 2**20
"""Most bytes of a header after its first part, the checkpoint included."""
INDEX_STEP: Final = 64 * 1024
"""Bytes between two points of an index."""

_HEAD = struct.Struct(">8sHHQQ8sII")
_CRC = struct.Struct(">I")
_PUBLIC_FIELDS: Final = 5
_FOOTER = struct.Struct(">IIqQQ")
_INDEX_HEAD = struct.Struct(">8sHIQ")
_LOG_MAGIC: Final = b"EPOCHLOG"
_INDEX_MAGIC: Final = b"EPOCHIDX"
_FOOTER_MAGIC: Final = 0xE70C5EA1

HEAD_BYTES: Final = _HEAD.size + _CRC.size
"""Bytes of the first part of a header, which gives the length of the rest."""
FOOTER_BYTES: Final = _FOOTER.size + _CRC.size

Incarnations = tuple[tuple[int, int], ...]
"""(incarnation, its first seq), oldest first."""


class Damaged(Exception):
    """Bytes that differ from those written. The shell, which knows file and offset, raises `CorruptLog` for it."""


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """A segment just after event `state.seq`: the public state, and the notes that only the publisher can read."""

    state: SegmentState
    machine: bytes = b""
    quiet_since: SegmentState | None = None
    """The state since which only the frontier had moved; None if a batch or an abort was last (E13 retention)."""

    @property
    def lull(self) -> Lull:
        """The lull that ends here; an empty one if a batch or an abort was the last event."""
        state = self.state
        return Lull(state if self.quiet_since is None else self.quiet_since, state.seq, state.lower)


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The content of a log file before its first frame."""

    stream: str
    """The stream's uid."""
    segment: str
    created: int
    """Milliseconds since 1970."""
    checkpoint: LogCheckpoint
    incarnations: Incarnations
    length: int
    """Bytes of the header: the first frame begins there."""
    seed: int
    """The header's own checksum, from which all other checksums of this file start."""

    @property
    def base(self) -> int:
        """The seq of the file's first event."""
        return self.checkpoint.state.seq + 1


@dataclass(frozen=True, slots=True)
class Footer:
    """The end of a sealed file, after its last frame. Without it, a file cut between two frames would look whole."""

    frames: int
    last: int
    """The seq of the file's last event."""
    newest: int
    """Milliseconds since 1970 of the last frame."""
    length: int
    """Bytes before the footer."""


def with_incarnation(so_far: Incarnations, incarnation: int, first: int) -> Incarnations:
    """The table with one more incarnation, which begins at seq `first`.

    If several incarnations begin at the same event, only the first and the last of them are kept, so that restarts
    without events do not make the table grow. The ones between had no events, so nothing can refer to them.

    >>> with_incarnation(((1, 0), (2, 50), (3, 50)), 4, 50)
    ((1, 0), (2, 50), (4, 50))
    """
    earlier = [entry for entry in so_far if entry[1] < first]
    same = [entry for entry in so_far if entry[1] == first]
    return (*earlier, *same[:1], (incarnation, first))


# ---- header ----

_pack = msgpack.Packer(autoreset=True).pack
_unpack = partial(msgpack.unpackb, use_list=False, strict_map_key=True)


def encode_header(
    stream: str, segment: str, checkpoint: LogCheckpoint, incarnations: Incarnations, *, created: int, salt: bytes
) -> bytes:
    """A header. `salt` is eight random bytes, so that no two files have the same seed. Raises `LocalProtocolError`."""
    quiet = None if checkpoint.quiet_since is None else _fields(checkpoint.quiet_since)
    public: bytes = _pack([stream, segment, _fields(checkpoint.state), incarnations, quiet])
    if len(public) + len(checkpoint.machine) > MAX_CHECKPOINT:
        raise LocalProtocolError(f"a checkpoint of more than {MAX_CHECKPOINT} bytes")
    head = _HEAD.pack(
        _LOG_MAGIC, FORMAT, 0, checkpoint.state.seq + 1, created, salt, len(public), len(checkpoint.machine)
    )
    body = public + checkpoint.machine
    # The last checksum does not cover the first one: over both, half of the salt's effect would cancel out.
    return b"".join((head, _crc(0, head), body, _crc(0, head + body)))


def header_length(start: bytes) -> int:
    """The length of the header that begins with `start`; its first `HEAD_BYTES` are enough.

    Raises `Damaged`, also for fewer bytes, and `LogMismatch` for another format.
    """
    if len(start) < HEAD_BYTES:
        raise Damaged("it ends inside its header")
    magic, version, _, _, _, _, public, machine = _HEAD.unpack_from(start)
    if magic != _LOG_MAGIC:
        raise Damaged("it does not begin as a log file")
    if _crc(0, start[: _HEAD.size]) != start[_HEAD.size : HEAD_BYTES]:
        raise Damaged("the first bytes do not have their checksum")
    if version != FORMAT:
        raise LogMismatch(f"a log file of format {version}; this version reads format {FORMAT}")
    return HEAD_BYTES + int(public) + int(machine) + _CRC.size


def decode_header(data: bytes) -> FileHeader:
    """The header at the start of `data`, which may be longer. Raises as `header_length` does."""
    length = header_length(data)
    if len(data) < length:
        raise Damaged("it ends inside its header")
    body, crc = data[HEAD_BYTES : length - _CRC.size], data[length - _CRC.size : length]
    if _crc(0, data[: _HEAD.size] + body) != crc:
        raise Damaged("the header does not have its checksum")
    *_, created, _, public, _ = _HEAD.unpack_from(data)
    fields = _unpack(body[:public])
    if len(fields) != _PUBLIC_FIELDS:
        raise LogMismatch(
            f"a log file whose checkpoint has {len(fields)} fields: it is from before 0.1.0, and no release reads it"
        )
    stream, segment, state, incarnations, quiet = fields
    quiet_since = None if quiet is None else SegmentState(*quiet)
    checkpoint = LogCheckpoint(SegmentState(*state), body[public:], quiet_since)
    return FileHeader(stream, segment, created, checkpoint, incarnations, length, _CRC.unpack(crc)[0])


# ---- footer ----


def encode_footer(footer: Footer, seed: int) -> bytes:
    """The footer's bytes."""
    start = _FOOTER.pack(_FOOTER_MAGIC, footer.frames, footer.last, footer.newest, footer.length)
    return start + _crc(seed, start)


def decode_footer(end: bytes, seed: int, size: int) -> Footer | None:
    """The footer in `end`, the last `FOOTER_BYTES` of a file of `size` bytes; None if there is no valid one."""
    if len(end) != FOOTER_BYTES or _crc(seed, end[: -_CRC.size]) != end[-_CRC.size :]:
        return None
    magic, *fields = _FOOTER.unpack_from(end)
    footer = Footer(*fields)
    return footer if magic == _FOOTER_MAGIC and footer.length == size - FOOTER_BYTES else None


# ---- index ----


class Point(NamedTuple):
    """The start of a frame: its first seq, its offset in the file, its milliseconds since 1970."""

    seq: int
    offset: int
    milliseconds: int


class Index:
    """The starts of some frames of a log file, about one every 64 KiB, and some states: places to begin to read.

    It only saves time: a scan of the whole file gives the same answers. Appending while others read is safe.
    """

    def __init__(self, points: Iterable[Point] = (), states: Iterable[SegmentState] = ()) -> None:
        self.points = list(points)
        self.states = list(states)

    def add(self, point: Point) -> None:
        """Note a frame, unless one less than `INDEX_STEP` before it is noted already."""
        if not self.points or point.offset - self.points[-1].offset >= INDEX_STEP:
            self.points.append(point)

    def before(self, seq: int) -> Point | None:
        """The frame from which to look for event `seq`; None for the start of the file."""
        at = bisect_right(self.points, seq, key=lambda point: point.seq)
        return self.points[at - 1] if at else None

    def state(self, seq: int) -> SegmentState | None:
        """The newest known state at or before event `seq`."""
        at = bisect_right(self.states, seq, key=lambda state: state.seq)
        return self.states[at - 1] if at else None


def encode_index(index: Index, seed: int, length: int) -> bytes:
    """The index of the sealed file with that seed, whose footer begins at `length`."""
    body: bytes = _pack([index.points, [_fields(state) for state in index.states]])
    start = _INDEX_HEAD.pack(_INDEX_MAGIC, FORMAT, seed, length) + body
    return start + _crc(seed, start)


def decode_index(data: bytes, seed: int, length: int) -> Index | None:
    """The index of that file; None if it is damaged, or belongs to another file or to an older state of this one."""
    if len(data) < _INDEX_HEAD.size + _CRC.size or _crc(seed, data[: -_CRC.size]) != data[-_CRC.size :]:
        return None
    if _INDEX_HEAD.unpack_from(data) != (_INDEX_MAGIC, FORMAT, seed, length):
        return None
    points, states = _unpack(data[_INDEX_HEAD.size : -_CRC.size])
    return Index((Point(*point) for point in points), (SegmentState(*state) for state in states))


def _fields(state: SegmentState) -> tuple[object, ...]:
    return (state.seq, state.lower, state.active, state.aborted, state.below)


def _crc(seed: int, data: bytes) -> bytes:
    return _CRC.pack(google_crc32c.extend(seed, data))

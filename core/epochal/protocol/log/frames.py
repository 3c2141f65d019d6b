"""The frames of a log file, and what recovery keeps of a file after a crash or damage by the disk.

The header and the footer around them are in `file_format`. A frame is one group commit: events, and the publisher's
notes that are valid exactly if the events are there. Its head has a checksum of its own, so that the lengths in it can
be trusted before they are used; the body has another.

The field `synced` distinguishes a crash from damage. It says how many bytes of the file were on disk when the frame was
written. A crash leaves only bytes unreadable that were never synced, so no later frame counts them as synced. If a
later frame does, the bad bytes were good once and were damaged afterwards.

Sources: rules E10, Q3, S12; docs/log.md.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import google_crc32c
import msgpack

from epochal.errors import LocalProtocolError
from epochal.protocol import wire
from epochal.protocol.log.file_format import FOOTER_BYTES, Damaged, FileHeader, Footer, decode_footer
from epochal.protocol.messages import Event, Message
from epochal.protocol.topics.filter import TopicFilter

FRAME_VERSION: Final = 1
MAX_FRAME: Final = 64 * 2**20
"""Most bytes of a frame's body."""

_HEAD = struct.Struct(">IBBIQIIQQI")
_CRC = struct.Struct(">I")
_MAGIC: Final = 0xE70CF4A3
_MAGIC_BYTES: Final = _MAGIC.to_bytes(4, "big")
_BEGINS: Final = 1
_LENGTHS = struct.Struct(">HI")
_LARGE: Final = wire.APART_BYTES
_APART: Final = 0xFFFFFFFF

_pack = msgpack.Packer(autoreset=True).pack

FRAME_HEAD: Final = _HEAD.size + _CRC.size


class Head(NamedTuple):
    """The head of a frame, with a correct checksum."""

    begins: bool
    """Whether an incarnation begins here; its number is the first of the notes."""
    entries: int
    """The number of events."""
    base: int
    """The seq of the first event; in a frame without events, the seq that the next event will have."""
    notes: int
    """Bytes of notes."""
    events: int
    """Bytes of events."""
    milliseconds: int
    """When it was written: milliseconds since 1970."""
    synced: int
    crc: int
    """The checksum of the body."""

    @property
    def body(self) -> int:
        """Bytes after the head."""
        return self.notes + self.events

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        return FRAME_HEAD + self.notes + self.events

    @property
    def last(self) -> int:
        """The seq of the last event, or of the one before the frame when it has none."""
        return self.base + self.entries - 1


class Frame(NamedTuple):
    """A frame with correct checksums."""

    head: Head
    offset: int
    body: bytes

    @property
    def notes(self) -> bytes:
        """The publisher's notes, without the number of an incarnation that begins here."""
        return self._notes()[1]

    @property
    def incarnation(self) -> int | None:
        """The incarnation that begins here, if one does."""
        return self._notes()[0]

    @property
    def events(self) -> memoryview:
        """The entries, joined."""
        return memoryview(self.body)[self.head.notes :]

    @property
    def end(self) -> int:
        """The offset just after the frame."""
        return self.offset + self.head.size

    def _notes(self) -> tuple[int | None, bytes]:
        notes = self.body[: self.head.notes]
        if not self.head.begins:
            return None, notes
        reader = msgpack.Unpacker()
        reader.feed(notes)
        number: int = reader.unpack()
        return number, notes[reader.tell() :]


# ---- writing ----


def frame_parts(
    seed: int,
    base: int,
    count: int,
    events: Sequence[bytes],
    notes: bytes = b"",
    *,
    milliseconds: int,
    synced: int,
    begins: int | None = None,
) -> list[bytes]:
    """The buffers of one frame; the buffers of `events` are passed on without a copy.

    `begins` is the incarnation that begins with the frame. Raises `LocalProtocolError` for a body over 64 MiB.
    """
    if begins is not None:
        notes = _pack(begins) + notes
    size, crc = 0, google_crc32c.extend(seed, notes)
    for buffer in events:
        size += len(buffer)
        crc = google_crc32c.extend(crc, buffer)
    if len(notes) + size > MAX_FRAME:
        raise LocalProtocolError(f"a frame of {len(notes) + size} bytes; a log takes at most {MAX_FRAME}")
    flags = 0 if begins is None else _BEGINS
    head = _HEAD.pack(_MAGIC, FRAME_VERSION, flags, count, base, len(notes), size, milliseconds, synced, crc)
    return [head, _CRC.pack(google_crc32c.extend(seed, head)), notes, *events]


def entry(event: Event) -> list[bytes]:
    """One event as a log entry, in one or two buffers: as on the wire, but a large payload follows its header."""
    ((start, *payload),) = wire.encode(event)
    if not payload:
        return [start]
    return [_LENGTHS.pack(len(start) - _LENGTHS.size, len(payload[0])) + start[_LENGTHS.size :], *payload]


# ---- reading ----


def read_head(data: bytes, at: int, seed: int) -> Head | None:
    """The frame head at `at`; None if there is no valid one."""
    if len(data) - at < FRAME_HEAD:
        return None
    magic, version, flags, *fields = _HEAD.unpack_from(data, at)
    if magic != _MAGIC or version != FRAME_VERSION:
        return None
    behind = at + _HEAD.size
    if google_crc32c.extend(seed, data[at:behind]) != _CRC.unpack_from(data, behind)[0]:
        return None
    return Head(bool(flags & _BEGINS), *fields)


def is_sound(head: Head, body: bytes, seed: int) -> bool:
    """Whether `body` has the checksum that `head` gives."""
    return len(body) == head.body and google_crc32c.extend(seed, body) == head.crc


def cut(data: memoryview, max_events: int, max_bytes: int) -> tuple[int, int]:
    """(bytes, events) of the longest run of whole entries at the start of `data` within both limits.

    Raises `Damaged` for bytes that are not entries.
    """
    at, count, end = 0, 0, len(data)
    while at < end and count < max_events:
        if end - at < _LENGTHS.size:
            raise Damaged("an entry ends inside its lengths")
        header, payload = _LENGTHS.unpack_from(data, at)
        behind = at + _LENGTHS.size + header + payload
        if behind > end:
            raise Damaged("an entry is longer than its frame")
        if behind > max_bytes:
            break
        at, count = behind, count + 1
    return at, count


def entries(data: memoryview) -> Iterator[memoryview]:
    """The entries in `data`, one by one. Raises `Damaged` for bytes that are not entries."""
    while data:
        size, _ = cut(data, 1, len(data))
        yield data[:size]
        data = data[size:]


def wanted_entries(data: memoryview, topics: TopicFilter) -> Iterator[memoryview]:
    """The entries in `data` without batches of topics that are not wanted; no payload is decoded (S12).

    Raises `Damaged` for bytes that are not entries, `RemoteProtocolError` for one that no publisher wrote.
    """
    for raw in entries(data):
        header, _ = _LENGTHS.unpack_from(raw)
        topic = wire.batch_topic(bytes(raw[_LENGTHS.size : _LENGTHS.size + header]))
        if topic is None or topics.wants(topic):
            yield raw


def decode_entry(data: memoryview) -> Event:
    """The event in an entry. Raises `RemoteProtocolError` for one that no publisher wrote."""
    # A list, because compiled code that unpacks a generator hides the error that it raises.
    (event,) = list(wire.decode(_wire_frames(data), max_payload=MAX_FRAME))
    return event  # type: ignore[return-value]  # a log holds events and nothing else


def packed(first: Message, data: Iterable[memoryview]) -> list[wire.Frames]:
    """The zmq messages for `first` and then the entries in `data`, packed together as `wire.encode` does (S12).

    The bytes are those of the file: no payload is decoded and no header is written again.
    """
    (start,) = wire.encode(first)[0]
    messages: list[wire.Frames] = []
    parts: list[bytes | memoryview] = [start]
    size = len(start)
    for run in data:
        rest = run
        while rest:
            length, _ = cut(rest, len(rest), _LARGE)  # none of these has a large payload
            alone = length == 0  # a single entry, which may have a large payload
            if alone:
                length, _ = cut(rest, 1, len(rest))
            if parts and (alone or size + length > wire.PACK_BYTES):
                messages.append([b"".join(parts)])
                parts, size = [], 0
            if alone:
                messages.append(_wire_frames(rest[:length]))
            else:
                parts.append(rest[:length])
                size += length
            rest = rest[length:]
    if parts:
        messages.append([b"".join(parts)])
    return messages


def _wire_frames(entry: memoryview) -> wire.Frames:
    """One entry as a message; a large payload has a zmq frame of its own, as the wire format wants."""
    header, payload = _LENGTHS.unpack_from(entry)
    if payload < _LARGE:
        return [bytes(entry)]
    behind = _LENGTHS.size + header
    return [_LENGTHS.pack(header, _APART) + entry[_LENGTHS.size : behind], bytes(entry[behind:])]


# ---- what is left of a file ----


class LogBytes(Protocol):
    """The content of a file: all its bytes, or an object that reads them piece by piece."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> bytes: ...

    def find(self, what: bytes, start: int, end: int, /) -> int:
        """The offset of the first `what` between two offsets; -1 if there is none."""
        ...


class Damage(NamedTuple):
    """Bytes `first` to `last` of a file, which hold no sound frame."""

    first: int
    last: int
    behind: int | None
    """The seq of the last event that is lost; None if nothing sound follows in the file."""


@dataclass(frozen=True, slots=True)
class SoundFrames:
    """Sound frames of a file. Each iteration reads them again, so that none has to be kept in memory."""

    data: LogBytes
    start: int
    end: int
    seed: int
    base: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Frame]:
        """Each frame in order. Raises `Damaged` for one that is no longer sound."""
        for found in scan(self.data, self.start, self.end, self.seed, self.base):
            if isinstance(found, Damage):
                raise Damaged(f"bytes {found.first} to {found.last} were sound a moment ago")
            yield found


@dataclass(frozen=True, slots=True)
class Tail:
    """The part of a log's last file that recovery keeps."""

    frames: SoundFrames
    end: int
    """How many bytes are kept; the next frame is written at this offset."""
    torn: int
    """How many bytes after `end` are cut off; they were never synced."""
    sealed: bool
    """Whether the file has a footer, which must be removed before another frame can follow."""


def scan(data: LogBytes, start: int, end: int, seed: int, base: int) -> Iterator[Frame | Damage]:
    """Every sound frame between two offsets, and the damage between them. The first must begin with event `base`."""
    at = start
    while at < end:
        frame = frame_at(data, at, end, seed)
        if frame is None or frame.head.base != base:
            frame = _next_frame(data, at + 1, end, seed, base)
            yield Damage(at, end, None) if frame is None else Damage(at, frame.offset, frame.head.base - 1)
        if frame is None:
            return
        yield frame
        at, base = frame.end, frame.head.last + 1


def frame_at(data: LogBytes, at: int, end: int, seed: int) -> Frame | None:
    """The sound frame that begins at `at` and ends at or before `end`, if there is one."""
    head = read_head(data[at : at + FRAME_HEAD], 0, seed)
    if head is None or at + head.size > end:
        return None
    body = data[at + FRAME_HEAD : at + head.size]
    return Frame(head, at, body) if is_sound(head, body, seed) else None


def _next_frame(data: LogBytes, at: int, end: int, seed: int, base: int) -> Frame | None:
    """The first sound frame from `at` on, at any offset, that begins with event `base` or a later one."""
    while (at := data.find(_MAGIC_BYTES, at, end)) >= 0:
        frame = frame_at(data, at, end, seed)
        if frame is not None and frame.head.base >= base:
            return frame
        at += 1
    return None


def footer_of(data: LogBytes, seed: int) -> Footer | None:
    """The footer of a whole file; None if it is not sealed."""
    return decode_footer(data[-FOOTER_BYTES:], seed, len(data))


def recover(data: LogBytes, header: FileHeader, keep: Callable[[Frame], object] = id) -> Tail | Damage:
    """Decide what to keep of a log's last file; returns `Damage` if no crash explains its state and it must stay as is.

    A bad end is taken for a torn write and cut off, unless something after it proves that it was on disk once. `keep`
    is called with each frame before the first bad bytes; ignore these calls if damage is returned.
    """
    # Cutting is safe if nothing from the first bad byte on was ever synced, because nothing that is not synced is
    # acknowledged under `batch`. Two things prove the contrary: a later sound frame whose `synced` is past that byte,
    # because it was written after a sync of it, and a footer, which is written only when all frames are synced. Damage
    # to the very last frame looks like a torn write, which is why a quiet log writes an empty frame (`TailFile.vouch`).
    footer = footer_of(data, header.seed)
    end = len(data) if footer is None else footer.length
    count = 0
    torn: Damage | None = None
    for found in scan(data, header.length, end, header.seed, header.base):
        if isinstance(found, Damage):
            torn = torn or found
        elif torn is None:
            count += 1
            keep(found)
        elif found.head.synced > torn.first:
            return torn
    if torn is not None and footer is not None:  # all frames were synced before the footer was written
        return torn
    stays = end if torn is None else torn.first
    frames = SoundFrames(data, header.length, stays, header.seed, header.base, count)
    return Tail(frames, stays, 0 if torn is None else len(data) - stays, footer is not None)

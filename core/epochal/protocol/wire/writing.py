"""Messages to bytes: the header of each message, and many messages packed into few zmq messages."""

import struct
from typing import Any, Final

import msgpack

from epochal.errors import LocalProtocolError
from epochal.protocol import messages as m
from epochal.protocol.wire.batch_meta import META_CHECKS, NO_META, meta_fields
from epochal.protocol.wire.kinds import BATCH_FIELDS, KIND_OF, WITH_DETAIL, WITH_PAYLOAD
from epochal.protocol.wire.limits import APART, APART_BYTES, LENGTHS, MAX_HEADER, MAX_TEXT, PACK_BYTES, Frames

_INT64 = b"\xd3"
_pack = msgpack.Packer(autoreset=True).pack
_STARTS: Final = tuple(bytes([0x90 | (BATCH_FIELDS + more)]) for more in range(len(META_CHECKS) + 1))
_DATA_KIND: Final = b"\x01"
_APPEND_KIND: Final = b"\x22"
_DATA_NUMBERS = struct.Struct(">cqcq")
_SEQ_BYTES: Final = 8
_PREV_AT: Final = 1 + len(_DATA_KIND) + _DATA_NUMBERS.size - _SEQ_BYTES
"""Where `prev` is in the header of a batch: after the array's start, the kind, and `seq`."""
_COUNTS = struct.Struct(">cIcI")


class _Cache(dict[Any, bytes]):
    """The msgpack bytes of the few times, topics and segments that recur on a connection; bounded."""

    def __missing__(self, key: Any) -> bytes:
        if len(self) >= 1024:
            self.clear()
        packed: bytes = _pack(key)
        self[key] = packed
        return packed


_packed_time, _packed_topic, _packed_text = _Cache(), _Cache(), _Cache()


_AROUND: Final = (_STARTS[0], b"")


def _packed_meta(meta: m.Meta) -> tuple[bytes, bytes]:
    """How the header of a batch with `meta` begins, and what comes after its checksum."""
    global _packed_last
    last, packed = _packed_last
    if meta is last:
        return packed
    fields = meta_fields(meta)
    packed = _STARTS[len(fields)], b"".join(map(_pack, fields))
    _packed_last = meta, packed
    return packed


_packed_last: tuple[m.Meta, tuple[bytes, bytes]] = (NO_META, _AROUND)
"""The last `Meta` and its bytes: batches with the same trace come one after the other, and share one `Meta`."""


def _readable(message: m.Message) -> m.Message:
    """The message with its `detail` cut to what a reader takes: it may quote what a peer sent."""
    if not isinstance(message, WITH_DETAIL):
        return message
    detail = message.detail.encode(errors="replace").decode()
    return message._replace(detail=detail if len(detail) <= MAX_TEXT else f"{detail[: MAX_TEXT - 3]}...")


def header_bytes(message: m.Message) -> bytes:
    """The header of a message; raises various errors for one that does not fit msgpack (`Packer.add`)."""
    # The two hot kinds are put together from cached parts: 4 times as fast as packing a list (see docs/performance.md).
    if type(message) is m.Data:
        seq, prev, time, topic, count, crc, _, meta = message
        start, end = _AROUND if meta is None else _packed_meta(meta)
        return b"".join((
            start, _DATA_KIND, _DATA_NUMBERS.pack(_INT64, seq, _INT64, prev), _packed_time[time], _packed_topic[topic],
            _COUNTS.pack(b"\xce", count, b"\xce", crc), end,
        ))  # fmt: skip
    if type(message) is m.Append:
        segment, number, time, topic, count, crc, _, meta = message
        start, end = _AROUND if meta is None else _packed_meta(meta)
        return b"".join((
            start, _APPEND_KIND, _packed_text[segment], _INT64, number.to_bytes(8, "big"), _packed_time[time],
            _packed_topic[topic],
            _COUNTS.pack(b"\xce", count, b"\xce", crc), end,
        ))  # fmt: skip
    fields = list(_readable(message))
    if type(message) is m.Answer:
        fields.pop()  # the payload
    for default in reversed(message._field_defaults.values()):
        if fields[-1] != default:
            break
        fields.pop()  # a reader takes them for what is missing
    packed: bytes = _pack([KIND_OF[type(message)], *fields])
    return packed


def data_around_prev(data: m.Data) -> tuple[bytes, bytes]:
    """The header of a batch before and after the number `prev`: these bytes are the same on every channel (F6).

    Raises `LocalProtocolError` for a batch that does not fit the protocol.
    """
    ((start,),) = encode(data._replace(payload=b""))
    header, size = start[LENGTHS.size :], len(data.payload)
    lengths = LENGTHS.pack(len(header), APART if size >= APART_BYTES else size)
    return lengths + header[:_PREV_AT], header[_PREV_AT + _SEQ_BYTES :]


class Packer:
    """Gathers messages into as few zmq messages as the limits allow, in order.

    `prefix` is put before the first frame of each; a frame is full at `most` bytes. `add` gathers, `flush` returns what
    was gathered.
    """

    __slots__ = ("_most", "_parts", "_prefix", "_size", "full")

    def __init__(self, prefix: bytes = b"", most: int = PACK_BYTES) -> None:
        self._prefix = prefix
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0
        self.full: list[Frames] = []

    def add(self, message: m.Message) -> None:
        """Append one message; raises `LocalProtocolError` for one that does not fit the protocol."""
        try:
            header = header_bytes(message)
        except (OverflowError, TypeError, ValueError, struct.error) as error:  # such as 2^64, or half a surrogate pair
            raise LocalProtocolError(f"a {type(message).__name__} cannot be written: {error}") from None
        if len(header) > MAX_HEADER:
            raise LocalProtocolError(f"a {type(message).__name__} of {len(header)} bytes does not fit a header")
        payload: bytes = message.payload if isinstance(message, WITH_PAYLOAD) else b""
        apart = len(payload) >= APART_BYTES
        size = LENGTHS.size + len(header) + (0 if apart else len(payload))
        if self._parts and self._size + size > self._most:
            self._close()
        self._parts += (LENGTHS.pack(len(header), APART if apart else len(payload)), header)
        self._size += size
        if apart:
            self._close(payload)
        elif payload:
            self._parts.append(payload)

    def add_data(self, around: tuple[bytes, bytes], prev: int, payload: bytes) -> None:
        """Append a batch whose header is there already but for `prev`; see `data_around_prev`."""
        before, after = around
        apart = len(payload) >= APART_BYTES
        size = len(before) + _SEQ_BYTES + len(after) + (0 if apart else len(payload))
        if self._parts and self._size + size > self._most:
            self._close()
        self._parts += (before, prev.to_bytes(_SEQ_BYTES, "big", signed=True), after)
        self._size += size
        if apart:
            self._close(payload)
        elif payload:
            self._parts.append(payload)

    def flush(self) -> list[Frames]:
        """The zmq messages gathered since the last flush, as lists of frames."""
        if self._parts:
            self._close()
        full, self.full = self.full, []
        return full

    def _close(self, *apart: bytes) -> None:
        self.full.append([b"".join((self._prefix, *self._parts)), *apart])
        self._parts = []
        self._size = 0


def encode(*messages: m.Message, prefix: bytes = b"") -> list[Frames]:
    """The zmq messages for `messages`, packed together where they fit."""
    packer = Packer(prefix)
    for message in messages:
        packer.add(message)
    return packer.flush()

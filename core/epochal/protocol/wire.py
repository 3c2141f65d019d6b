"""The bytes of wire protocol version 1: messages to frames and back, with every limit.

Separate from `messages` so that their meaning can be read without their bytes. Payloads are cut out of frames and
never decoded (S12).

A zmq message is a list of frames. Its first frame is a prefix (`C<channel>`, `P<nonce>`, or nothing) and then one or
more messages, each `u16 header length | u32 payload length | header | payload`, big endian; the header is a msgpack
array `[kind, field...]`. A payload of 64 KiB or more has a frame of its own, named by the payload length 2^32-1;
its message is the last of the first frame. Fields that a later minor version appends are ignored, those that an earlier
one does not have may be missing; an unknown kind is refused.
"""

import reprlib
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgpack

from epochal.errors import EpochalError, LimitExceeded, LocalProtocolError, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol.times import MAX_SHAPE_DEPTH, MAX_TIME, Time

MAX_HEADER: Final = 0xFFFF
MAX_PAYLOAD: Final = 16 * 2**20
MAX_FRAMES: Final = 4
MAX_ITEMS: Final = 8192
MAX_DEPTH: Final = 16
"""Arrays within arrays, also in fields that this version does not know."""
MAX_TEXT: Final = 4096
MAX_TOPIC: Final = 1024
MAX_KEY: Final = 1024
"""Bytes of the key of a batch."""
MAX_TRACESTATE: Final = 512
MAX_HEADERS: Final = 4096
"""Bytes of all names and values of a batch's headers."""
TRACE_BYTES: Final = 16 + 8 + 1
APART_BYTES: Final = 64 * 1024
"""A payload of this size or more gets a frame of its own."""
PACK_BYTES: Final = 192 * 1024
"""Messages are packed into one frame up to this size.

Each zmq message costs a sender and a reader some 15 us of processor time: five batches of 33 kB share that here, where
at 64 KiB each had its own (docs/performance.md).
"""
MAX_FIRST_FRAME: Final = 256 * 1024
"""The frame that messages are packed into, more than twice what the largest single message needs.

A larger one could hold a million messages, and its reader would do nothing else for seconds.
"""

CHANNEL_PREFIX: Final = 1 + 8
NONCE_PREFIX: Final = 1 + 16

_APART: Final = 0xFFFFFFFF
_LENGTHS = struct.Struct(">HI")
_INT64 = b"\xd3"

Frames = list[bytes]


# ---- what a field may hold; each raises RemoteProtocolError that says what was expected ----

Check = Callable[[Any], Any]


def _bad(expected: str, value: object) -> RemoteProtocolError:
    # reprlib looks only a few levels and items deep, so that a hostile value costs nothing to show.
    return RemoteProtocolError(f"expected {expected}, got {reprlib.repr(value)[:80]}")


def _int(value: Any) -> int:
    if type(value) is int and -1 <= value <= MAX_TIME:
        return value
    raise _bad("an int in -1 .. 2^63-1", value)


def _count(value: Any) -> int:
    if type(value) is int and 0 <= value <= 0xFFFFFFFF:
        return value
    raise _bad("an int in 0 .. 2^32-1", value)


def _trace_or_none(value: Any) -> bytes | None:
    return value if _is_trace(value) else None  # as in a batch: what is wrong is left out


def _float(value: Any) -> float:
    if type(value) in (int, float) and 0 <= value <= 86_400:
        return float(value)
    raise _bad("seconds in 0 .. 86400", value)


def _bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _bad("a boolean", value)


def _text(value: Any) -> str:
    if type(value) is str and len(value) <= MAX_TEXT:
        return value
    raise _bad(f"a string of at most {MAX_TEXT} characters", value)


def _long_text(value: Any) -> str:
    if type(value) is str and len(value) <= MAX_HEADER:
        return value
    raise _bad(f"a string of at most {MAX_HEADER} characters", value)


def _sized(size: int) -> Check:
    def check(value: Any) -> bytes:
        if type(value) is bytes and len(value) == size:
            return value
        raise _bad(f"{size} bytes", value)

    return check


def _topic(value: Any) -> bytes:
    if type(value) is bytes and len(value) <= MAX_TOPIC:
        return value
    raise _bad(f"a topic of at most {MAX_TOPIC} bytes", value)


def _time(value: Any, depth: int = 0) -> Time:
    if type(value) is int and 0 <= value <= MAX_TIME:
        return value
    if type(value) is tuple and depth <= MAX_SHAPE_DEPTH:
        for part in value:
            _time(part, depth + 1)
        return value
    raise _bad("a time: an int in 0 .. 2^63-1 or a nested array of such", value)


def _change(value: Any) -> tuple[Time, int]:
    if type(value) is tuple and len(value) == 2 and type(value[1]) is int and -(2**31) <= value[1] < 2**31:
        return (_time(value[0]), value[1])
    raise _bad("a pair of a time and a change of its count", value)


def _many(item: Check) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is tuple and len(value) <= MAX_ITEMS:
            return tuple(map(item, value))
        raise _bad(f"an array of at most {MAX_ITEMS}", value)

    return check


def _optional(item: Check) -> Check:
    return lambda value: None if value is None else item(value)


def _times_or_none(value: Any) -> tuple[Any, ...]:
    return () if value is None else _times(value)


def _position(value: Any) -> m.Position:
    if type(value) is tuple and len(value) == 2:
        return m.Position(_int(value[0]), _int(value[1]))
    raise _bad("a position [incarnation, seq]", value)


def _resume(value: Any) -> m.Resume:
    if type(value) is tuple and len(value) == 3:
        return m.Resume(_int(value[0]), _times(value[1]), _times(value[2]))
    raise _bad("[number, held, touched]", value)


def _prefixes(value: Any) -> m.Prefixes:
    if type(value) is not tuple or len(value) != 2:
        raise _bad("a filter [wanted, rejected]", value)
    wanted, rejected = _topics(value[0]), _topics(value[1])
    if len(wanted) + len(rejected) > m.MAX_FILTER_ENTRIES:
        raise LimitExceeded(
            f"a filter of {len(wanted) + len(rejected)} prefixes; one message takes {m.MAX_FILTER_ENTRIES}"
        )
    size = sum(map(len, (*wanted, *rejected)))
    if size > m.MAX_FILTER_BYTES:
        raise LimitExceeded(f"a filter of {size} bytes; one message takes {m.MAX_FILTER_BYTES}")
    return wanted, rejected


def _step(value: Any) -> int:
    if type(value) is int and 1 <= value <= 3:
        return value
    raise _bad("a step 1, 2 or 3", value)


def _question(value: Any) -> m.AskKind:
    try:
        return m.AskKind(value)
    except ValueError:
        raise _bad("open, get or session", value) from None


def _how(value: Any) -> m.Leaving:
    try:
        return m.Leaving(value)
    except ValueError:
        raise _bad("close, finish or abort", value) from None


_times = _many(_time)
_topics = _many(_topic)


# ---- what a batch says of itself; a part that is not so is left out, and the batch is taken all the same ----


def _is_trace(value: Any) -> bool:
    return type(value) is bytes and len(value) == TRACE_BYTES and any(value[:16]) and any(value[16:24])


def _is_headers(value: Any) -> bool:
    """Whether `value` is names and values in turn, each name once, within the limit."""
    return (
        type(value) is tuple and len(value) % 2 == 0 and all(type(part) is bytes for part in value)
        and sum(map(len, value)) <= MAX_HEADERS and len(set(value[::2])) * 2 == len(value)
    )  # fmt: skip


_META: Final[tuple[Callable[[Any], bool], ...]] = (
    _is_trace,
    lambda value: type(value) is bytes and len(value) <= MAX_TRACESTATE,
    lambda value: type(value) is bytes and len(value) <= MAX_KEY,
    lambda value: type(value) is int and 0 <= value <= MAX_TIME,
    _is_headers,
    lambda value: type(value) is int and 0 <= value <= MAX_TIME,
)
"""One check for each part of `Meta`, in order; nil means that the part is not there."""
_HEADERS: Final = m.Meta._fields.index("headers")
_NO_META: Final = m.Meta()


def _read_meta(parts: tuple[Any, ...]) -> m.Meta | None:
    """The `Meta` in the fields after a batch's checksum; None where they say nothing."""
    read: list[Any] = list(_NO_META[:-1])
    ignored = 0
    for at, (sound, value) in enumerate(zip(_META, parts, strict=False)):
        if value is None:
            continue
        if sound(value):
            read[at] = value
        else:
            ignored += 1
    flat = read[_HEADERS]
    read[_HEADERS] = tuple(zip(flat[::2], flat[1::2], strict=True))
    meta = m.Meta(*read)._replace(ignored=ignored)
    return None if meta == _NO_META else meta


def _behind(parts: tuple[Any, ...]) -> m.Meta | None:
    """As `_read_meta`, also of parts that may be anything; those of one trace, and nothing else, share one `Meta`."""
    global _read_last
    last, meta = _read_last
    if parts == last:
        return meta
    _not_deeper(parts, 1)
    read = _read_meta(parts)
    if len(parts) == 1 and read is not None and read.trace is not None:
        _read_last = parts, read
    return read


_read_last: tuple[tuple[Any, ...], m.Meta | None] = ((), None)
"""The one before of a trace and nothing else."""


def _meta_fields(meta: m.Meta) -> list[Any]:
    """The fields of `meta` as they come after a batch's checksum, without those at the end that say nothing."""
    trace, tracestate, key, published, headers, source, _ = meta
    flat = tuple(part for pair in headers for part in pair)
    fields = [trace, tracestate or None, key, published, flat or None, source]
    while fields and fields[-1] is None:
        fields.pop()
    return fields


KINDS: Final[dict[int, tuple[type[Any], tuple[Check, ...]]]] = {
    1: (m.Data, (_int, _int, _time, _topic, _count, _count)),
    2: (m.Frontier, (_int, _int, _many(_change))),
    3: (m.Aborted, (_int, _int, _times)),
    5: (m.Heartbeat, (_int, _int)),
    6: (m.Snapshot, (_int, _int, _sized(16), _times, _times, _times, _times_or_none, _optional(_int))),
    7: (m.Refused, (_int, _text, _text)),
    8: (m.Ended, (_text,)),
    16: (m.Hello, (_int, _many(_int), _text, _text, _sized(16), _optional(_prefixes), _optional(_sized(16)), _int)),
    17: (m.Welcome, (_int, _int, _sized(8), _int, _int, _count, _float, _many(_text), _bool, _many(_text))),
    18: (m.Since, (_int, _text, _optional(_position), _count, _optional(_times), _optional(_prefixes))),
    19: (m.Credit, (_int, _count)),
    20: (m.Opening, (_int, _position, _times, _times, _times, _times_or_none, _int, _times)),
    21: (m.Chunk, (_int, _count, _bool, _int)),
    22: (m.Truncated, (_int, _position, _times)),
    23: (m.Filter, (_text, _int, _int, _int, _step, _topic)),
    24: (m.Confirm, (_int, _int, _step, _topic)),
    32: (m.Open, (_int, _text, _text, _text, _int, _optional(_text), _optional(_resume), _bool)),
    33: (
        m.Opened,
        (
            _int,
            _text,
            _int,
            _times,
            _times,
            _int,
            _times,
            _times,
            _int,
            _bool,
            _optional(_int),
            _int,
            _int,
            _bool,
            _bool,
        ),
    ),
    34: (m.Append, (_text, _int, _time, _topic, _count, _count)),
    35: (m.Ack, (_text, _int, _int, _count)),
    36: (m.AppendRefused, (_text, _int, _text, _text)),
    37: (m.Hold, (_int, _text, _times, _int)),
    38: (m.Abort, (_int, _text, _times)),
    39: (m.Leave, (_int, _text, _how)),
    40: (m.Done, (_int, _text)),
    41: (m.Alive, (_text,)),
    42: (m.Lost, (_text, _text, _text)),
    48: (m.Greet, (_int, _many(_int), _text)),
    49: (m.Greeted, (_int, _int, _text, _text)),
    50: (m.Ask, (_int, _question, _text, _text, _many(_long_text), _float)),
    51: (m.Answer, (_int, _long_text)),
    52: (m.Pass, (_int, _text, _text, _text, _trace_or_none)),
    53: (m.Cut, (_text, _text)),
    54: (m.Free, ()),
    55: (m.Passed, (_int,)),
    56: (m.Left, (_text, _text, _int)),
}
"""kind -> (message type, one check a header field); 4 and the gaps are reserved.

Fields whose type has a default may be missing at the end of a header. Behind those of a batch (`Data`, `Append`) come
those of its `Meta`, as far as it says anything.
"""

KIND_OF: Final = {kind: number for number, (kind, _) in KINDS.items()}
_BATCHES: Final = (m.Data, m.Append)
_WITH_PAYLOAD: Final = (*_BATCHES, m.Answer)
_WITH_DETAIL: Final = (m.Refused, m.AppendRefused, m.Lost, m.Cut)


# ---- writing ----

_pack = msgpack.Packer(autoreset=True).pack
_BATCH_FIELDS: Final = 7
"""The kind and the fields of a batch, without its `Meta`."""
_KEY_AT: Final = _BATCH_FIELDS + m.Meta._fields.index("key")
_STARTS: Final = tuple(bytes([0x90 | (_BATCH_FIELDS + more)]) for more in range(len(_META) + 1))
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
    fields = _meta_fields(meta)
    packed = _STARTS[len(fields)], b"".join(map(_pack, fields))
    _packed_last = meta, packed
    return packed


_packed_last: tuple[m.Meta, tuple[bytes, bytes]] = (_NO_META, _AROUND)
"""The one before: batches of one trace follow each other, and share one `Meta`."""


def _readable(message: m.Message) -> m.Message:
    """The message with its `detail` cut to what a reader takes: it may quote what a peer sent."""
    if not isinstance(message, _WITH_DETAIL):
        return message
    detail = message.detail.encode(errors="replace").decode()
    return message._replace(detail=detail if len(detail) <= MAX_TEXT else f"{detail[: MAX_TEXT - 3]}...")


def _header(message: m.Message) -> bytes:
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
    """What is before and after the number `prev` of a batch, up to its payload: the same on every channel (F6).

    Raises `LocalProtocolError` for a batch that does not fit the protocol.
    """
    ((start,),) = encode(data._replace(payload=b""))
    header, size = start[_LENGTHS.size :], len(data.payload)
    lengths = _LENGTHS.pack(len(header), _APART if size >= APART_BYTES else size)
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
            header = _header(message)
        except (OverflowError, TypeError, ValueError, struct.error) as error:  # such as 2^64, or half a surrogate pair
            raise LocalProtocolError(f"a {type(message).__name__} cannot be written: {error}") from None
        if len(header) > MAX_HEADER:
            raise LocalProtocolError(f"a {type(message).__name__} of {len(header)} bytes does not fit a header")
        payload: bytes = message.payload if isinstance(message, _WITH_PAYLOAD) else b""
        apart = len(payload) >= APART_BYTES
        size = _LENGTHS.size + len(header) + (0 if apart else len(payload))
        if self._parts and self._size + size > self._most:
            self._close()
        self._parts += (_LENGTHS.pack(len(header), _APART if apart else len(payload)), header)
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


# ---- reading ----


def _no_extension(code: int, data: bytes) -> object:
    raise RemoteProtocolError(f"msgpack extension type {code} is not part of the protocol")


_unpack = partial(
    msgpack.unpackb,
    use_list=False,
    raw=False,
    ext_hook=_no_extension,
    max_map_len=0,
    max_array_len=MAX_ITEMS,
    max_ext_len=0,
)


def _unpacked(header: bytes) -> tuple[type[Any], tuple[Check, ...], tuple[Any, ...]]:
    """What a header says: the kind, its checks, and its fields, the kind's number first, not checked yet."""
    try:
        fields = _unpack(header)
    except EpochalError:
        raise
    except Exception as error:  # msgpack raises a dozen kinds, StackError and ValueError among them
        raise RemoteProtocolError(f"a header is not msgpack as the protocol has it: {error}") from None
    if type(fields) is not tuple or not fields or type(fields[0]) is not int:
        raise _bad("a header [kind, ...]", fields)
    entry = KINDS.get(fields[0])
    if entry is None:
        raise RemoteProtocolError(f"message kind {fields[0]} is not known to protocol version {m.VERSION}")
    return *entry, fields


def _checked(kind: type[Any], checks: tuple[Check, ...], fields: tuple[Any, ...]) -> tuple[Any, ...]:
    """The fields of a message that is no batch."""
    if len(fields) <= len(checks) and len(fields) <= len(checks) - len(kind._field_defaults):
        raise _bad(f"a {kind.__name__} of {len(checks)} fields", fields)
    if len(fields) > len(checks) + 1:
        _not_deeper(fields[len(checks) + 1 :], 1)
    return tuple([check(value) for check, value in zip(checks, fields[1:], strict=False)])


def _batch(kind: type[Any], checks: tuple[Check, ...], fields: tuple[Any, ...], payload: bytes) -> m.Message:
    """A `Data` or `Append`."""
    meta = None
    if len(fields) != _BATCH_FIELDS:
        if len(fields) < _BATCH_FIELDS:
            raise _bad(f"a {kind.__name__} of {len(checks)} fields", fields)
        if kind is m.Append and len(fields) > _KEY_AT:
            key = fields[_KEY_AT]
            if type(key) is bytes and len(key) > MAX_KEY:  # of what a writer wants, nothing is left out without a word
                raise _bad(f"a key of at most {MAX_KEY} bytes", key)
        meta = _behind(fields[_BATCH_FIELDS:])
        fields = fields[:_BATCH_FIELDS]
    if not _plain(kind, fields):
        fields = (fields[0], *[check(value) for check, value in zip(checks, fields[1:], strict=True)])
    # 0.1 us less than a call of it
    return tuple.__new__(kind, (*fields[1:], payload, meta))  # type: ignore[no-any-return]


def _plain(kind: type[Any], fields: tuple[Any, ...]) -> bool:
    """Whether the header of a batch passes every check, for a time that is an int.

    Nearly all there is to read are batches, and checks written out are three times as fast.
    """
    _, first, number, time, topic, count, crc = fields
    if kind is m.Append:
        sound = type(first) is str and len(first) <= MAX_TEXT
    else:
        sound = type(first) is int and -1 <= first <= MAX_TIME
    return (
        sound and type(number) is int and -1 <= number <= MAX_TIME
        and type(time) is int and 0 <= time <= MAX_TIME and type(topic) is bytes and len(topic) <= MAX_TOPIC
        and type(count) is int and 0 <= count <= 0xFFFFFFFF and type(crc) is int and 0 <= crc <= 0xFFFFFFFF
    )  # fmt: skip


def batch_topic(header: bytes) -> bytes | None:
    """The topic in the header of a batch of a log; None for another event. Raises `RemoteProtocolError` for neither."""
    kind, _, fields = _unpacked(header)
    return _topic(fields[4]) if kind is m.Data and len(fields) >= _BATCH_FIELDS else None


def _not_deeper(fields: tuple[Any, ...], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise LimitExceeded(f"a header nests at most {MAX_DEPTH} arrays")
    for value in fields:
        if type(value) is tuple:
            _not_deeper(value, depth + 1)


def decode(
    frames: Sequence[bytes], *, prefix: int = 0, max_payload: int = MAX_PAYLOAD, max_messages: int = MAX_FIRST_FRAME
) -> Iterator[m.Message]:
    """The messages of one zmq message, in order; the first frame starts with `prefix` bytes to skip.

    Raises `RemoteProtocolError` (or `LimitExceeded`) at the first fault; messages before it have been yielded already.
    """
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise LimitExceeded(f"a zmq message has 1 to {MAX_FRAMES} frames here, not {len(frames)}")
    first = frames[0]
    at, end = prefix, len(first)
    if end > MAX_FIRST_FRAME:
        raise LimitExceeded(f"a first frame of {end} bytes; at most {MAX_FIRST_FRAME} are allowed")
    while at < end:
        max_messages -= 1
        if max_messages < 0:
            raise LimitExceeded("more messages in one zmq message than are taken here")
        if end - at < _LENGTHS.size:
            raise RemoteProtocolError("a frame ends inside the lengths of a message")
        header_size, payload_size = _LENGTHS.unpack_from(first, at)
        at += _LENGTHS.size
        header = first[at : at + header_size]
        if len(header) != header_size:
            raise RemoteProtocolError("a frame ends inside a header")
        at += header_size
        if payload_size == _APART:
            if at != end or len(frames) != 2:
                raise RemoteProtocolError("a payload apart belongs to the last message, in the second of two frames")
            payload = frames[1]
        else:
            payload = first[at : at + payload_size]
            if len(payload) != payload_size:
                raise RemoteProtocolError("a frame ends inside a payload")
            at += payload_size
        if len(payload) > max_payload:
            raise LimitExceeded(f"a payload of {len(payload)} bytes; at most {max_payload} are allowed")
        yield _assemble(header, payload)
        if payload_size == _APART:
            return
    if len(frames) > 1:
        raise RemoteProtocolError("a frame that no message names")


def _assemble(header: bytes, payload: bytes) -> m.Message:
    kind, checks, fields = _unpacked(header)
    if kind in _BATCHES:
        return _batch(kind, checks, fields, payload)
    found = _checked(kind, checks, fields)
    if kind is m.Answer:
        return m.Answer(found[0], found[1], payload)
    if payload:
        raise RemoteProtocolError(f"a {kind.__name__} carries no payload")
    return kind(*found)  # type: ignore[no-any-return]

"""Bytes to messages: a frame cut into headers and payloads, and each header checked.

Every limit is checked before anything of the claimed size is allocated.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgpack

from epochal.errors import EpochalError, LimitExceeded, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol.times import MAX_TIME
from epochal.protocol.wire.batch_meta import meta_after_checksum
from epochal.protocol.wire.fields import Check, check_depth, topic, unexpected
from epochal.protocol.wire.kinds import BATCH_FIELDS, BATCHES, KINDS
from epochal.protocol.wire.limits import (
    APART,
    LENGTHS,
    MAX_FIRST_FRAME,
    MAX_FRAMES,
    MAX_ITEMS,
    MAX_KEY,
    MAX_PAYLOAD,
    MAX_TEXT,
    MAX_TOPIC,
)

_KEY_AT: Final = BATCH_FIELDS + m.Meta._fields.index("key")


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
        raise unexpected("a header [kind, ...]", fields)
    entry = KINDS.get(fields[0])
    if entry is None:
        raise RemoteProtocolError(f"message kind {fields[0]} is not known to protocol version {m.VERSION}")
    return *entry, fields


def _checked(kind: type[Any], checks: tuple[Check, ...], fields: tuple[Any, ...]) -> tuple[Any, ...]:
    """The fields of a message that is no batch."""
    if len(fields) <= len(checks) and len(fields) <= len(checks) - len(kind._field_defaults):
        raise unexpected(f"a {kind.__name__} of {len(checks)} fields", fields)
    if len(fields) > len(checks) + 1:
        check_depth(fields[len(checks) + 1 :], 1)
    return tuple([check(value) for check, value in zip(checks, fields[1:], strict=False)])


def _batch(kind: type[Any], checks: tuple[Check, ...], fields: tuple[Any, ...], payload: bytes) -> m.Message:
    """A `Data` or `Append`."""
    meta = None
    if len(fields) != BATCH_FIELDS:
        if len(fields) < BATCH_FIELDS:
            raise unexpected(f"a {kind.__name__} of {len(checks)} fields", fields)
        if kind is m.Append and len(fields) > _KEY_AT:
            key = fields[_KEY_AT]
            # Other fields of a wrong form are left out. A key is refused, so that its writer hears of it.
            if type(key) is bytes and len(key) > MAX_KEY:
                raise unexpected(f"a key of at most {MAX_KEY} bytes", key)
        meta = meta_after_checksum(fields[BATCH_FIELDS:])
        fields = fields[:BATCH_FIELDS]
    if not _plain(kind, fields):
        fields = (fields[0], *[check(value) for check, value in zip(checks, fields[1:], strict=True)])
    # 0.1 us less than a call of the type.
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
    return topic(fields[4]) if kind is m.Data and len(fields) >= BATCH_FIELDS else None


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
        if end - at < LENGTHS.size:
            raise RemoteProtocolError("a frame ends inside the lengths of a message")
        header_size, payload_size = LENGTHS.unpack_from(first, at)
        at += LENGTHS.size
        header = first[at : at + header_size]
        if len(header) != header_size:
            raise RemoteProtocolError("a frame ends inside a header")
        at += header_size
        if payload_size == APART:
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
        if payload_size == APART:
            return
    if len(frames) > 1:
        raise RemoteProtocolError("a frame that no message names")


def _assemble(header: bytes, payload: bytes) -> m.Message:
    kind, checks, fields = _unpacked(header)
    if kind in BATCHES:
        return _batch(kind, checks, fields, payload)
    found = _checked(kind, checks, fields)
    if kind is m.Answer:
        return m.Answer(found[0], found[1], payload)
    if payload:
        raise RemoteProtocolError(f"a {kind.__name__} carries no payload")
    return kind(*found)  # type: ignore[no-any-return]

"""Events from a log file to the wire, with the bytes of the file: no payload is decoded, no header written again.

Sources: rule S12; docs/protocol.md (History).
"""

import struct
from collections.abc import Iterable

from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.log.frames import cut

_LENGTHS = struct.Struct(">HI")
_APART = 0xFFFFFFFF


def packed(first: m.Message, data: Iterable[memoryview]) -> list[wire.Frames]:
    """The zmq messages for `first` and then the entries in `data`, packed together as `wire.encode` does."""
    (start,) = wire.encode(first)[0]
    messages: list[wire.Frames] = []
    parts: list[bytes | memoryview] = [start]
    size = len(start)
    for run in data:
        rest = run
        while rest:
            length, _ = cut(rest, len(rest), wire.PACK_BYTES)
            alone = length == 0  # one entry, larger than what is packed together
            if alone:
                length, _ = cut(rest, 1, len(rest))
            if parts and size + length > wire.PACK_BYTES:
                messages.append([b"".join(parts)])
                parts, size = [], 0
            if alone:
                messages.append(_alone(rest[:length]))
            else:
                parts.append(rest[:length])
                size += length
            rest = rest[length:]
    if parts:
        messages.append([b"".join(parts)])
    return messages


def _alone(entry: memoryview) -> wire.Frames:
    """A large entry; its payload goes into a zmq frame of its own where the wire format has that."""
    header, payload = _LENGTHS.unpack_from(entry)
    if payload < wire.PACK_BYTES:
        return [bytes(entry)]
    behind = _LENGTHS.size + header
    return [_LENGTHS.pack(header, _APART) + entry[_LENGTHS.size : behind], bytes(entry[behind:])]

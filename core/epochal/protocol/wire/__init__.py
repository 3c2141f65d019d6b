"""The bytes of wire protocol version 1: messages to frames and back, with every limit.

Separate from `messages` so that their meaning can be read without their bytes. Payloads are cut out of frames and
never decoded (S12).

A zmq message is a list of frames. Its first frame is a prefix (`C<channel>`, `P<nonce>`, or nothing) and then one or
more messages, each `u16 header length | u32 payload length | header | payload`, big endian; the header is a msgpack
array `[kind, field...]`. A payload of 64 KiB or more has a frame of its own, named by the payload length 2^32-1;
its message is the last of the first frame. A reader ignores fields that a later minor version appends, and accepts that
those which an earlier one does not have are missing; it refuses an unknown kind.
"""

from epochal.protocol.wire.kinds import KIND_OF, KINDS
from epochal.protocol.wire.limits import (
    APART_BYTES,
    CHANNEL_PREFIX,
    MAX_DEPTH,
    MAX_FIRST_FRAME,
    MAX_FRAMES,
    MAX_HEADER,
    MAX_HEADERS,
    MAX_ITEMS,
    MAX_KEY,
    MAX_PAYLOAD,
    MAX_TEXT,
    MAX_TOPIC,
    NONCE_PREFIX,
    PACK_BYTES,
    Frames,
)
from epochal.protocol.wire.reading import batch_topic, decode
from epochal.protocol.wire.writing import Packer, data_around_prev, encode

__all__ = [
    "APART_BYTES",
    "CHANNEL_PREFIX",
    "KINDS",
    "KIND_OF",
    "MAX_DEPTH",
    "MAX_FIRST_FRAME",
    "MAX_FRAMES",
    "MAX_HEADER",
    "MAX_HEADERS",
    "MAX_ITEMS",
    "MAX_KEY",
    "MAX_PAYLOAD",
    "MAX_TEXT",
    "MAX_TOPIC",
    "NONCE_PREFIX",
    "PACK_BYTES",
    "Frames",
    "Packer",
    "batch_topic",
    "data_around_prev",
    "decode",
    "encode",
]

"""How lengths are written in a frame, and the limits of frames, headers, payloads and fields.

What a peer claims is compared with these before anything of that size is allocated.
"""

import struct
from typing import Final

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

LENGTHS: Final = struct.Struct(">HI")
"""Before each message: the length of its header, and that of its payload."""
APART: Final = 0xFFFFFFFF
"""The length of a payload that has a frame of its own."""

Frames = list[bytes]

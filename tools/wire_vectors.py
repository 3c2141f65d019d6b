"""Write tests/protocol/wire-vectors.json: messages of every kind with their bytes, and bytes that must be refused.

Run as `python tools/wire_vectors.py`. The file is for implementations in any language; it changes only when the
protocol does, so a change of it is a change of the protocol. The tests decode and encode each; they never write it.

In `fields`, times are JSON (ints and nested arrays) and names are those of docs/protocol.md. Byte strings are
{"hex": ...}; with {"hex": ..., "fill": "aa", "count": n} the byte aa follows n times.
"""

import argparse
import json
import struct
from pathlib import Path
from typing import Any

import msgpack

from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.times import MAX_TIME

FILE = Path(__file__).parents[1] / "tests" / "protocol" / "wire-vectors.json"
LONG = 1000
"""A byte that repeats at least this often at the end is counted instead of written."""
NONCE = bytes(range(16))
CHANNEL = b"\x00\x01\x02\x03\xfc\xfd\xfe\xff"
COUNT = 2**32 - 1

TRACE = bytes.fromhex("0af7651916cd43dd8448eb211c80319cb7ad6b716920333101")
FULL_META = m.Meta(TRACE, b"vendor=1", b"JFK", 1_380_000_000_000, ((b"source", b"tower"),))

VALID: dict[str, tuple[m.Message, ...]] = {
    "data": (m.Data(0, -1, 0, b"", 1, 0xE3069283, b"123456789"),),
    "data, every number at its limit": (m.Data(MAX_TIME, MAX_TIME - 1, MAX_TIME, b"\xff" * 3, COUNT, COUNT, b""),),
    "data, a time of two ints": (m.Data(7, 6, (2013, 5), b"delay/JFK", 256, 1, b"\x00"),),
    "data, a nested time": (m.Data(7, 6, (1, (2, (3, ()))), b"", 0, 0, b""),),
    "data, the only time of a stream without ints": (m.Data(1, 0, (), b"", 0, 0, b""),),
    "data, the largest payload inside the first frame": (m.Data(1, 0, 3, b"", 1, 2, b"\xaa" * 65_535),),
    "data, the smallest payload apart": (m.Data(1, 0, 3, b"", 1, 2, b"\xaa" * 65_536),),
    "frontier": (m.Frontier(3, 2, ((0, -1), (1, 1))),),
    "frontier, changes of more than one": (m.Frontier(3, 2, (((0, 3), -(2**31)), ((5, 0), 2**31 - 1))),),
    "frontier, everything gone": (m.Frontier(3, 2, ((7, -1),)),),
    "aborted": (m.Aborted(4, 3, (5, 8)),),
    "heartbeat before the first event": (m.Heartbeat(-1),),
    "heartbeat": (m.Heartbeat(127),),
    "heartbeat, one byte more": (m.Heartbeat(128),),
    "heartbeat, nine bytes": (m.Heartbeat(2**32),),
    "heartbeat of a quiet channel": (m.Heartbeat(41, 127),),
    "snapshot": (m.Snapshot(41, 2, NONCE, ((0, 3), (2, 0)), ((1, 1),), ((1, 0),)),),
    "snapshot on a new channel": (m.Snapshot(41, 2, NONCE, ((0, 3),), (), (), left=38),),
    "snapshot of a complete stream": (m.Snapshot(9, 1, NONCE, (), (), ()),),
    "refused": (m.Refused(3, "stream_gone", "the stream was deleted and created anew; look it up again"),),
    "refused, text beyond ASCII": (m.Refused(0, "remote_protocol", "\u00e9poque \u03b5 \u65f6"),),
    "ended": (m.Ended("the relay stops; join elsewhere"),),
    "hello": (m.Hello(1, (1,), "5e1f", "0", NONCE),),
    "hello with a filter": (m.Hello(1, (1,), "5e1f", "0", NONCE, ((b"delay/",), (b"delay/EWR", b"delay/LGA"))),),
    "hello with a filter that wants nothing": (m.Hello(1, (1,), "5e1f", "0", NONCE, ((), ())),),
    "hello that replaces another": (m.Hello(4, (1,), "5e1f", "0", NONCE, ((b"",), (b"gate/",)), NONCE[::-1]),),
    "hello that names a view": (m.Hello(9, (1,), "5e1f", "0", NONCE, view=2),),
    "filter, a step that sends": (m.Filter("0", 0, 1, 1, 1, b"delay/"),),
    "filter, a step that sends no more": (m.Filter("0", 2, 8, 5, 2, b""),),
    "filter, a step that takes back": (m.Filter("0", 2, 9, 9, 3, b"gate/"),),
    "confirm": (m.Confirm(2, 9, 3, b"gate/"),),
    "hello, several versions": (m.Hello(1, (1, 2, 3), "5e1f", "0", NONCE),),
    "welcome": (m.Welcome(1, 1, CHANNEL, 2, 41, 16 * 2**20, 1.0, ("since", "filter:receiver", "since:times")),),
    "welcome to a coarse channel": (
        m.Welcome(1, 1, CHANNEL, 2, 41, 16 * 2**20, 1.0, ("since", "since:filter", "filter:channels"), True),
    ),
    "welcome by a relay that follows another": (
        m.Welcome(1, 1, CHANNEL, 2, 41, 16 * 2**20, 1.0, ("since", "since:filter"), path=("relay-1", "relay-2")),
    ),
    "since the start": (m.Since(2, "0", None, 8),),
    "since a position": (m.Since(2, "0", m.Position(2, 41), 8),),
    "since a position, of some topics": (m.Since(2, "0", m.Position(2, 41), 8, None, ((b"delay/",), ())),),
    "since the start, of some epochs": (m.Since(2, "0", None, 8, ((4, 0), (0, 6))),),
    "since the start, of no epoch": (m.Since(2, "0", None, 8, ()),),
    "credit": (m.Credit(2, 1),),
    "opening": (m.Opening(2, m.Position(2, -1), (0,), (), ()),),
    "chunk": (m.Chunk(2, 256, False),),
    "chunk of a filtered answer": (m.Chunk(2, 3, False, 4137),),
    "chunk of a filtered answer, nothing wanted": (m.Chunk(2, 0, True, 4200),),
    "truncated": (m.Truncated(2, m.Position(2, 1000), (17,)),),
    "open": (m.Open(1, "5e1f", "0", "w1", 1, None, None),),
    "open under another writer": (m.Open(1, "5e1f", "0", "query/0", 1, "query", None),),
    "open, resuming": (m.Open(9, "5e1f", "0", "w1", 1, None, m.Resume(12, (3,), (3, 4))),),
    "open, asking for source numbers": (m.Open(1, "5e1f", "0", "w1", 1, None, None, True),),
    "opened": (m.Opened(1, "0", 2, (3,), (3,), 12, (4,), (), 8 * 2**20, False),),
    "opened, appends lost": (m.Opened(1, "0", 3, (3,), (3,), 12, (), (4,), 8 * 2**20, True),),
    "opened, with source numbers": (m.Opened(1, "0", 2, (3,), (3,), 12, (4,), (), 8 * 2**20, False, 95, 70, 90, True),),
    "opened, after a close": (m.Opened(1, "0", 2, (3,), (3,), 12, (), (), 8 * 2**20, True, closed=True),),
    "append": (m.Append("0", 12, 3, b"delay/JFK", 256, 0xE3069283, b"123456789"),),
    "append, the first of a group": (m.Append("0", 5 << 32, 3, b"", 1, 0, b""),),
    "append, its payload apart": (m.Append("0", 0, 3, b"", 1, 0, b"\x55" * 70_000),),
    "append with all that a batch can say of itself": (
        m.Append("0", 13, 3, b"", 1, 0xE3069283, b"123456789", FULL_META),
    ),
    "append with a key alone": (m.Append("0", 14, 3, b"", 1, 0, b"", m.Meta(key=b"JFK")),),
    "append with a source number": (m.Append("0", 15, 3, b"", 1, 0, b"", m.Meta(key=b"JFK", source=95)),),
    "data with all that a batch can say of itself": (m.Data(7, 6, 3, b"", 1, 0xE3069283, b"123456789", FULL_META),),
    "data with headers alone": (m.Data(7, 6, 3, b"", 1, 0, b"", m.Meta(headers=((b"", b"empty"), (b"a", b"")))),),
    "data with a trace that is not sampled": (m.Data(7, 6, 3, b"", 1, 0, b"", m.Meta(trace=TRACE[:24] + b"\x00")),),
    "ack of a run": (m.Ack("0", 12, 41, 5),),
    "append refused": (m.AppendRefused("0", 12, "epoch_aborted", "epoch 3 was aborted; it can never complete"),),
    "hold": (m.Hold(2, "0", ((1, 3), (2, 0))),),
    "hold, up to a source number": (m.Hold(2, "0", (4,), 95),),
    "abort": (m.Abort(3, "0", (3,)),),
    "leave by closing": (m.Leave(4, "0", m.Leaving.CLOSE),),
    "leave by finishing": (m.Leave(4, "0", m.Leaving.FINISH),),
    "leave by aborting": (m.Leave(4, "0", m.Leaving.ABORT),),
    "done": (m.Done(4, "0"),),
    "alive": (m.Alive("0"),),
    "lost": (m.Lost("0", "writer_fenced", "a newer session of writer 'w1' has opened"),),
    "greet": (m.Greet(1, (1,), "8d1f3c52-6f0e-4c7a-9a55-0c3d5d3f7a11"),),
    "greeted": (m.Greeted(1, 1, "f00d", "8d1f3c52-6f0e-4c7a-9a55-0c3d5d3f7a11"),),
    "ask to open": (m.Ask(2, m.AskKind.OPEN, "demo/flights", "w1", ("int", "", ""), 30.0),),
    "ask for a session": (m.Ask(3, m.AskKind.SESSION, "demo/flights", "w1", (), 0.0),),
    "answer": (m.Answer(3, '{"session":1}', b'{"stream":{}}'),),
    "pass": (m.Pass(4, "f00d", "tcp://127.0.0.1:8703"),),
    "pass, within a trace": (m.Pass(4, "f00d", "tcp://127.0.0.1:8703", "demo/flights", TRACE),),
    "cut": (m.Cut("unavailable", "the connection to the publisher was lost"),),
    "passed": (m.Passed(4),),
    "free": (m.Free(),),
    "left": (m.Left("demo/flights", "nightly/0", 1838430386300929),),
    "several messages in one frame": (
        m.Chunk(2, 2, True),
        m.Data(0, -1, 0, b"", 1, 0x9EF61F95, b"one"),
        m.Frontier(1, 0, ((0, -1), (1, 1))),
    ),
    "several messages, the payload of the last apart": (
        m.Heartbeat(3),
        m.Data(4, 3, 0, b"", 1, 0, b"\x11" * 65_536),
    ),
}
"""name -> the messages of one zmq message."""

PREFIXES = {"data": b"C" + CHANNEL, "heartbeat": b"C" + CHANNEL, "snapshot": b"P" + NONCE}
"""Names of the vectors that show a prefix; the others have none."""


def frame(header: Any, payload: bytes = b"", *, claims: int | None = None) -> bytes:
    """A frame with one message whose header the codec would not write."""
    packed = header if isinstance(header, bytes) else msgpack.Packer().pack(header)
    return struct.pack(">HI", len(packed), len(payload) if claims is None else claims) + packed + payload


def _read_as(meta: m.Meta | None) -> m.Data:
    return m.Data(7, 6, 3, b"", 1, 0, b"", meta)


INVALID: dict[str, tuple[str, list[bytes]]] = {
    "five frames": ("limit_exceeded", [b""] * 5),
    "a frame that no message names": ("remote_protocol", [frame([5, 1]), b"more"]),
    "an HTTP request": ("remote_protocol", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"]),
    "ends inside the lengths": ("remote_protocol", [b"\x00\x02\x00"]),
    "ends inside the header": ("remote_protocol", [frame([5, 1])[:-1]]),
    "ends inside the payload": ("remote_protocol", [frame([1, 0, -1, 0, b"", 1, 0], b"abc", claims=4)]),
    "claims four gigabytes": ("remote_protocol", [frame([1, 0, -1, 0, b"", 1, 0], claims=2**32 - 2)]),
    "a payload apart that is not there": ("remote_protocol", [frame([1, 0, -1, 0, b"", 1, 0], claims=COUNT)]),
    "an array that claims four gigabytes": ("remote_protocol", [frame(b"\x92\x05\xdd\xff\xff\xff\xff")]),
    "not msgpack": ("remote_protocol", [frame(b"\xc1")]),
    "not an array": ("remote_protocol", [frame({})]),
    "an empty array": ("remote_protocol", [frame([])]),
    "an unknown kind": ("remote_protocol", [frame([99, 1])]),
    "the reserved kind 4": ("remote_protocol", [frame([4, 0, -1, []])]),
    "a field too few": ("remote_protocol", [frame([2, 0, -1])]),
    "a field too few, of those that must be there": ("remote_protocol", [frame([18, 2, "0", None])]),
    "an optional field of a wrong type": ("remote_protocol", [frame([18, 2, "0", None, 8, 4])]),
    "an int below -1": ("remote_protocol", [frame([5, -2])]),
    "an int above 2^63-1": ("remote_protocol", [frame([5, 2**63])]),
    "a boolean for an int": ("remote_protocol", [frame([5, True])]),
    "a float for an int": ("remote_protocol", [frame([5, 1.0])]),
    "a map": ("remote_protocol", [frame([5, {"a": 1}])]),
    "an extension type": ("remote_protocol", [frame([5, msgpack.ExtType(7, b"x")])]),
    "a time stamp": ("remote_protocol", [frame([5, msgpack.Timestamp(1)])]),
    "a negative time": ("remote_protocol", [frame([3, 0, -1, [-1]])]),
    "a time that is too deep": ("remote_protocol", [frame(b"\x94\x03\x00\xff\x91" + b"\x91" * 10 + b"\x00")]),
    "an unknown field that is too deep": ("limit_exceeded", [frame(b"\x94\x05\x00\x00" + b"\x91" * 17 + b"\x00")]),
    "a change that is no pair": ("remote_protocol", [frame([2, 0, -1, [[0]]])]),
    "too many times": ("remote_protocol", [frame([3, 0, -1, [0] * 8193])]),
    "a nonce of 15 bytes": ("remote_protocol", [frame([6, 0, 1, NONCE[:15], [], [], []])]),
    "bytes for a string": ("remote_protocol", [frame([41, b"0"])]),
    "a string that is not UTF-8": ("remote_protocol", [frame(b"\x92\x29\xa1\xff")]),
    "a way of leaving that does not exist": ("remote_protocol", [frame([39, 1, "0", "explode"])]),
    "a filter that is no pair": ("remote_protocol", [frame([16, 1, [1], "5e1f", "0", NONCE, [[b"a"]]])]),
    "a filter of text": ("remote_protocol", [frame([16, 1, [1], "5e1f", "0", NONCE, [["a"], []]])]),
    "a filter of 257 prefixes": (
        "limit_exceeded", [frame([16, 1, [1], "5e1f", "0", NONCE, [[b"a"] * 200, [b"b"] * 57]])]
    ),
    "a filter of 16385 bytes": (
        "limit_exceeded", [frame([18, 2, "0", None, 8, None, [[b"t" * 1024] * 16, [b"u"]]])]
    ),
    "a step that does not exist": ("remote_protocol", [frame([23, "0", 0, 1, 1, 4, b""])]),
    "a topic of 1025 bytes": ("remote_protocol", [frame([1, 0, -1, 0, b"t" * 1025, 1, 0])]),
    "a payload where none belongs": ("remote_protocol", [frame([5, 1], b"x")]),
}  # fmt: skip
"""name -> (the code of the error, the frames)."""

_BATCH = [1, 7, 6, 3, b"", 1, 0]
LENIENT: dict[str, tuple[bytes, m.Data]] = {
    "a trace of 24 bytes": (frame([*_BATCH, TRACE[:24]]), _read_as(m.Meta(ignored=1))),
    "a trace id of zeros": (frame([*_BATCH, bytes(16) + TRACE[16:]]), _read_as(m.Meta(ignored=1))),
    "a tracestate of 513 bytes": (frame([*_BATCH, TRACE, b"v" * 513]), _read_as(m.Meta(trace=TRACE, ignored=1))),
    "a key that is text": (frame([*_BATCH, None, None, "JFK", 5]), _read_as(m.Meta(published=5, ignored=1))),
    "a key of 1025 bytes": (frame([*_BATCH, None, None, b"k" * 1025]), _read_as(m.Meta(ignored=1))),
    "a clock before 1970": (frame([*_BATCH, None, None, b"k", -1]), _read_as(m.Meta(key=b"k", ignored=1))),
    "a header without its value": (frame([*_BATCH, None, None, None, None, [b"a"]]), _read_as(m.Meta(ignored=1))),
    "a header twice": (frame([*_BATCH, None, None, None, None, [b"a", b"", b"a", b""]]), _read_as(m.Meta(ignored=1))),
    "headers of 4097 bytes": (
        frame([*_BATCH, None, None, None, None, [b"a", b"v" * 4096]]), _read_as(m.Meta(ignored=1)),
    ),
    "nothing of it right": (frame([*_BATCH, 1, 2, 3, "4", 5]), _read_as(m.Meta(ignored=5))),
    "fields of a later version": (
        frame([*_BATCH, None, None, b"k", None, None, None, "?"]), _read_as(m.Meta(key=b"k")),
    ),
    "a source number below 0": (frame([*_BATCH, None, None, None, None, None, -1]), _read_as(m.Meta(ignored=1))),
    "only nils": (frame([*_BATCH, None, None, None, None, None]), _read_as(None)),
}  # fmt: skip
"""name -> (a frame that is read although a part of it breaks the protocol, and what it is read as)."""


def plain(value: Any) -> Any:
    """A field as JSON."""
    if isinstance(value, bytes):
        head = value.rstrip(value[-1:])
        if len(value) - len(head) < LONG:
            return {"hex": value.hex()}
        return {"hex": head.hex(), "fill": value[-1:].hex(), "count": len(value) - len(head)}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def _fields(message: m.Message) -> dict[str, Any]:
    """The fields by name, without those at the end that say nothing and are not written."""
    fields = message._asdict()
    for name, default in reversed(message._field_defaults.items()):
        if fields[name] != default:
            break
        del fields[name]
    return {name: plain(value) for name, value in fields.items()}


def vectors() -> dict[str, Any]:
    """The content of the file."""
    valid = []
    for name, messages in VALID.items():
        prefix = PREFIXES.get(name, b"")
        (frames,) = wire.encode(*messages, prefix=prefix)
        described = [
            {"message": type(message).__name__, "kind": wire.KIND_OF[type(message)],
             "fields": _fields(message)}
            for message in messages
        ]  # fmt: skip
        valid.append({"name": name, "prefix": plain(prefix), "messages": described, "frames": plain(tuple(frames))})
    invalid = [
        {"name": name, "error": code, "frames": plain(tuple(frames))} for name, (code, frames) in INVALID.items()
    ]
    lenient = [
        {"name": name, "frames": [plain(frames)], "meta": plain(message.meta)}
        for name, (frames, message) in LENIENT.items()
    ]
    return {"version": m.VERSION, "valid": valid, "lenient": lenient, "invalid": invalid}


def main() -> None:
    """Write the file."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    FILE.write_text(json.dumps(vectors(), indent=1) + "\n")
    print(f"{len(VALID)} valid, {len(LENIENT)} lenient and {len(INVALID)} invalid vectors in {FILE}")


if __name__ == "__main__":
    main()

"""Every decoder under one name, and what it says of some bytes: the same for tests, corpus, fuzzers and subprocesses.

Run as a program, it reads files named on the command line and prints a verdict a line: which msgpack was used is up to
the environment (MSGPACK_PUREPYTHON).
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from epochal.catalog_api.answers import Registration, StreamInfo
from epochal.client.catalog import answers, http
from epochal.client.encoding import encodings
from epochal.errors import CursorError, EpochalError, ManifestError, RemoteProtocolError, TimeShapeError
from epochal.protocol import wire
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.times import TimeShape

CORPUS = Path(__file__).with_name("corpus")


def _frames(data: bytes) -> list[bytes]:
    """A zmq message out of flat bytes: frames are told apart by a marker."""
    return data.split(b"\x00FRAME\x00")


def _answer(data: bytes) -> Any:
    body = http._decode(data)
    if body is None:
        raise RemoteProtocolError("not JSON")
    if isinstance(body, dict) and "code" in body:
        return str(http._error("http://x", 400, body))
    return answers.read(StreamInfo.from_json, body)


def _time(data: bytes) -> Any:
    try:
        return TimeShape.parse("(int, (int, int))").from_json(json.loads(data))
    except (ValueError, RecursionError) as error:  # of json, which is not ours
        raise TimeShapeError(str(error)) from None


DECODERS: dict[str, tuple[Callable[[bytes], Any], tuple[type[EpochalError], ...]]] = {
    "wire": (lambda data: list(wire.decode(_frames(data))), (RemoteProtocolError,)),
    "push": (lambda data: list(wire.decode(_frames(data), prefix=wire.CHANNEL_PREFIX)), (RemoteProtocolError,)),
    "cursor": (lambda data: Cursor.from_json(data.decode("utf-8", "surrogateescape")), (CursorError,)),
    "time": (_time, (TimeShapeError,)),
    "shape": (lambda data: str(TimeShape.parse(data.decode("latin-1"))), (TimeShapeError,)),
    "bytes": (encodings.decoder("bytes"), (RemoteProtocolError,)),
    "msgpack": (encodings.decoder("msgpack"), (RemoteProtocolError,)),
    "json": (encodings.decoder("json"), (RemoteProtocolError,)),
    "arrow": (encodings.decoder("arrow"), (RemoteProtocolError,)),
    "answer": (_answer, (RemoteProtocolError,)),
    "registration": (
        lambda data: answers.read(Registration.from_json, http._decode(data)),
        (RemoteProtocolError, ManifestError),
    ),
}
"""name -> (decoder, the errors that may come out)."""


def verdict(name: str, data: bytes) -> str:
    """`sound`, or the code of the typed error; anything else that is raised goes through."""
    decode, allowed = DECODERS[name]
    try:
        decode(data)
    except allowed as error:
        return error.code
    return "sound"


def decoder_of(path: Path) -> str:
    """`wire-nested-1024.bin` is for `wire`."""
    return path.name.partition("-")[0]


if __name__ == "__main__":
    print("fallback" if msgpack.unpackb.__module__ == "msgpack.fallback" else "extension")
    for name in sys.argv[1:]:
        path = Path(name)
        print(path.name, verdict(decoder_of(path), path.read_bytes()))

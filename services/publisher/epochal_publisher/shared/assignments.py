"""The orders to a process that serves many streams, and its reports: one JSON object per line, in each direction.

`{"serve": {"publisher": ID, "stream": "namespace/name", "uid": UID, "segments": ["0"], "http_port": 0}}` (0 is any free
port) and `{"stop": ID, "uid": UID}` come in on standard input; its end stops everything. `{"publisher": ID, "uid": UID,
"state": "ready" | "failed" | "stopped", "reason": TEXT}` goes out on standard output. The uid identifies the stream:
another one may have its name, and its publisher's id, by now. `epochal.local.shared` sends the orders.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from epochal.errors import ConfigError

MOST_REASON = 500
"""Characters of a reason: each takes at most six bytes, and a pipe takes 4,096 bytes in one piece."""

State: TypeAlias = Literal["ready", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Serve:
    """The order to serve these segments as this publisher, until `StopServing`."""

    publisher: str
    stream: str
    uid: str
    segments: tuple[str, ...]
    http_port: int = 0


@dataclass(frozen=True, slots=True)
class StopServing:
    """The order to stop this publisher of this stream in an orderly way."""

    publisher: str
    uid: str


def parse(line: bytes) -> Serve | StopServing:
    """Read one order. Raises `ConfigError` for anything else."""
    try:
        order: Any = json.loads(line)
        match order:
            case {
                "serve": {
                    "publisher": str(publisher), "stream": str(stream), "uid": str(uid), "segments": list(segments),
                }
            }:  # fmt: skip
                port = order["serve"].get("http_port", 0)
                return Serve(publisher, stream, uid, tuple(map(str, segments)), int(port))
            case {"stop": str(publisher), "uid": str(uid)}:
                return StopServing(publisher, uid)
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"{line[:200]!r} is no order to serve a stream or to stop")


def said(publisher: str, uid: str, state: State, reason: str = "") -> str:
    """The line that reports the state of one publisher; short enough to be written in one piece."""
    return json.dumps({"publisher": publisher, "uid": uid, "state": state, "reason": reason[:MOST_REASON]})

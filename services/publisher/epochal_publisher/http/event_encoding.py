"""Events as they are sent to HTTP clients: as JSON lines, server-sent events or msgpack.

Answers and web-hooks send the same lines. Encoding takes so long that it runs on threads. Only here does a publisher
decode payloads, and only for clients that want JSON.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgpack

from epochal.client.encoding.encodings import decoder
from epochal.client.tracing import traceparent
from epochal.errors import RemoteProtocolError
from epochal.protocol.log.history import SegmentState
from epochal.protocol.messages import Aborted, Data, Event, Frontier, Position
from epochal.protocol.times import Time, to_json

MOST_DECODED = 256 * 1024
"""Bytes of the largest payload that is decoded.

Nothing else runs meanwhile: at this size for some ten milliseconds at worst. And empty lists take many times more
memory when decoded than in their encoding.
"""
Placed = tuple[Position, Event]
"""An event and its position."""


class Form(StrEnum):
    """A format in which events are sent; the value is the content type."""

    LINES = "application/x-ndjson"
    MSGPACK = "application/msgpack"
    SERVER_SENT = "text/event-stream"


def opening(position: Position, incarnation: int, state: SegmentState) -> dict[str, Any]:
    """The first item of every answer: the state just after `position`, where its events start (E13 retention)."""
    return {
        "kind": "opening",
        "position": list(position),
        "lower": _times(state.lower),
        "active": _times(state.active),
        "aborted": _times(state.aborted),
        "below": _times(state.below),
        "incarnation": incarnation,
    }


class BatchMeta(Protocol):
    """The metadata of a batch, with the fields of `Meta` and of the client's `Data`."""

    @property
    def trace(self) -> bytes | None:
        """As in `Meta`."""

    @property
    def tracestate(self) -> bytes:
        """As in `Meta`."""
        ...

    @property
    def key(self) -> bytes | None:
        """As in `Meta`."""

    @property
    def published(self) -> int | None:
        """As in `Meta`."""

    @property
    def headers(self) -> Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]]:
        """As in `Meta`."""
        ...


class BatchEncoder:
    """Makes the JSON of batches of a stream whose payloads have this `encoding`."""

    def __init__(self, encoding: str) -> None:
        self._decode = None if encoding in ("arrow", "bytes") else decoder(encoding)
        self._split = decoder("bytes") if encoding == "bytes" else None

    def fields(self, topic: bytes, meta: BatchMeta | None, payload: bytes, count: int) -> dict[str, Any]:
        """Topic, optional fields and records of a batch; `count` is the number of records that it says it has."""
        shown: dict[str, Any] = _text("topic", topic)
        if meta is not None:
            shown |= _readable(_meta(meta))
        return shown | self._records(payload, count)

    def _records(self, payload: bytes, count: int) -> dict[str, Any]:
        """The records as JSON; base64 for a payload that has no JSON form, or is not what the stream declares (S12)."""
        if len(payload) > MOST_DECODED:
            return self._whole(payload, count)
        try:
            if self._decode is not None:
                records = self._decode(payload)
                to_line(records)
                return {"records": records}
            if self._split is not None:
                return {"encoding": "base64", "records": [_base64(record) for record in self._split(payload)]}
        except (RemoteProtocolError, ValueError, TypeError, RecursionError):
            pass
        return self._whole(payload, count)

    @staticmethod
    def _whole(payload: bytes, count: int) -> dict[str, Any]:
        return {"encoding": "base64", "count": count, "payload": _base64(payload)}


class EventEncoder:
    """Encodes the events of a stream whose payloads have this `encoding` for HTTP clients."""

    def __init__(self, encoding: str) -> None:
        self._batches = BatchEncoder(encoding)

    def lines(self, first: dict[str, Any] | None, events: Sequence[Placed], **fields: str) -> bytes:
        """JSON lines, `first` before the events; `fields` are added to each event."""
        items = [] if first is None else [first]
        items += [{**self._described(placed), **fields} for placed in events]
        return b"".join(to_line(item) + b"\n" for item in items)

    def packed(self, first: dict[str, Any], events: Sequence[Placed]) -> bytes:
        """One msgpack map after the other; payloads are sent as they are."""
        pack = msgpack.Packer(autoreset=True).pack
        parts: list[bytes] = [pack(first)]
        for placed in events:
            shown, event = _head(placed), placed[1]
            if isinstance(event, Data):
                shown |= {"topic": event.topic, "count": event.records, "crc": event.crc, "payload": event.payload}
                if event.meta is not None:
                    shown |= _meta(event.meta)
            parts.append(pack(shown))
        return b"".join(parts)

    def server_sent(self, events: Sequence[Placed]) -> bytes:
        """Server-sent events, each with its position as id."""
        return b"".join(server_sent(event["kind"], event, placed[0]) for placed, event in self._each(events))

    def _each(self, events: Sequence[Placed]) -> Iterable[tuple[Placed, dict[str, Any]]]:
        return ((placed, self._described(placed)) for placed in events)

    def _described(self, placed: Placed) -> dict[str, Any]:
        shown, event = _head(placed), placed[1]
        if isinstance(event, Data):
            shown |= self._batches.fields(event.topic, event.meta, event.payload, event.records)
        return shown


def server_sent(kind: str, data: dict[str, Any], position: Position | None) -> bytes:
    """One server-sent event."""
    name = b"" if position is None else b"id: %d.%d\n" % position
    return name + b"event: " + kind.encode() + b"\ndata: " + to_line(data) + b"\n\n"


def _head(placed: Placed) -> dict[str, Any]:
    position, event = placed
    match event:
        case Data():
            return {"position": list(position), "kind": "data", "time": to_json(event.time)}
        case Frontier():
            changes = [[to_json(time), change] for time, change in event.changes]
            return {"position": list(position), "kind": "frontier", "changes": changes}
        case Aborted():
            return {"position": list(position), "kind": "aborted", "times": _times(event.times)}


def _meta(meta: BatchMeta) -> dict[str, Any]:
    """The optional fields of a batch, those that it has."""
    shown: dict[str, Any] = {}
    if meta.key is not None:
        shown["key"] = meta.key
    if meta.published is not None:
        shown["published"] = meta.published
    if meta.headers:
        shown["headers"] = dict(meta.headers)
    if meta.trace is not None:
        shown["traceparent"] = traceparent(meta.trace)
        if meta.tracestate:
            shown["tracestate"] = meta.tracestate.decode("latin-1")
    return shown


def _readable(shown: dict[str, Any]) -> dict[str, Any]:
    """The same for JSON: bytes as text if they are UTF-8, else as base64 with a field that says so."""
    if "key" in shown:
        shown |= _text("key", shown["key"])
    if "headers" in shown:
        parts = [(_text("name", name), _text("value", value)) for name, value in shown["headers"].items()]
        if any(len(part) > 1 for pair in parts for part in pair):
            shown["headers"] = {_base64(name): _base64(value) for name, value in shown["headers"].items()}
            shown["headers_encoding"] = "base64"
        else:
            shown["headers"] = {name["name"]: value["value"] for name, value in parts}
    return shown


def _text(field: str, value: bytes) -> dict[str, str]:
    try:
        return {field: value.decode()}
    except UnicodeDecodeError:
        return {field: _base64(value), f"{field}_encoding": "base64"}


def _times(times: Iterable[Time]) -> list[Any]:
    return [to_json(time) for time in times]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def to_line(value: Any) -> bytes:
    """JSON without a line break."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

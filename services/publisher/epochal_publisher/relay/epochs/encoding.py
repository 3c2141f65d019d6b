"""Whole epochs as they are sent to HTTP clients: as JSON lines or server-sent events.

An outcome is encoded once for all readers, whichever form they want.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from epochal.client.subscriber.values import Data, Epoch, EpochAborted, Gap
from epochal.protocol.epochs.ring import MOST_ID, text_of
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.times import Time, to_json
from epochal_publisher.http.event_encoding import BatchEncoder, to_line

PART = 2**20
"""Bytes of JSON above which an epoch is sent in parts; a batch that is larger is a part of its own."""

PIECE = 64 * 1024
"""Bytes that are written to a connection at once: one that is not read holds two or three of them."""

Item = Epoch | EpochAborted | Gap
Piece = bytes | memoryview


class Kind(StrEnum):
    """The field `kind` of a JSON object."""

    EPOCH = "epoch"
    PART = "part"
    ABORTED = "aborted"
    GAP = "gap"
    FRONTIER = "frontier"
    COMPLETE = "complete"
    REFUSED = "refused"
    """Only in server-sent events. Where an answer as JSON lines cannot continue, the status of the next says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One outcome as JSON objects, all but the last of kind `part`, with the cursor after it.

    Parts have no id, so a reader that loses its connection between them gets the whole epoch again (F18).
    """

    kind: Kind
    bodies: tuple[bytes, ...]
    id: str = ""
    """The cursor after it; empty for a gap, and for a cursor that is too long."""

    @classmethod
    def behind(cls, kind: Kind, bodies: tuple[bytes, ...], after: Cursor) -> Self:
        """An outcome whose id is the cursor after it. A cursor that is too long is no id, and the last body says so."""
        text = text_of(after)
        if len(text) <= MOST_ID:
            return cls(kind, bodies, text)
        return cls(kind, (*bodies[:-1], _with(bodies[-1], b'"cursor":null,"cursor_bytes":%d' % len(text))))

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return sum(map(len, self.bodies)) + len(self.id)

    def lines(self) -> Iterator[Iterator[Piece]]:
        """Each object as a line of JSON, in pieces; the last has the cursor as `cursor`."""
        *parts, last = self.bodies
        yield from (pieces(b"", part, b"\n") for part in parts)
        if not self.id:
            yield pieces(b"", last, b"\n")
        else:
            yield pieces(b"", memoryview(last)[:-1], b',"cursor":' + json.dumps(self.id).encode() + b"}\n")

    def events(self) -> Iterator[Iterator[Piece]]:
        """Each object as a server-sent event, in pieces; the last has the cursor as its id."""
        *parts, last = self.bodies
        yield from (pieces(b"event: part\ndata: ", part, b"\n\n") for part in parts)
        head = b"id: " + self.id.encode() + b"\n" if self.id else b""
        yield pieces(head + b"event: " + self.kind.encode() + b"\ndata: ", last, b"\n\n")


def pieces(head: bytes, body: Piece, tail: bytes) -> Iterator[Piece]:
    """Head, body and tail in pieces. A large body is not copied, because all readers are sent the same one."""
    if len(body) <= PIECE:
        yield b"".join((head, body, tail))
        return
    view = memoryview(body)
    last = (len(view) - 1) // PIECE * PIECE
    yield b"".join((head, view[:PIECE]))
    yield from (view[start : start + PIECE] for start in range(PIECE, last, PIECE))
    yield b"".join((view[last:], tail))


def frontier(cursor: Cursor) -> Outcome:
    """The frontier of the stream as an outcome."""
    body = to_line({"kind": Kind.FRONTIER, "frontier": _times(cursor.frontier)})
    return Outcome.behind(Kind.FRONTIER, (body,), cursor)


def complete(cursor: Cursor) -> Outcome:
    """The outcome that ends a complete stream."""
    return Outcome.behind(Kind.COMPLETE, (to_line({"kind": Kind.COMPLETE}),), cursor)


def refused(problem: Mapping[str, Any]) -> Outcome:
    """The outcome that ends an answer with an error, as a problem document."""
    return Outcome(Kind.REFUSED, (to_line({"kind": Kind.REFUSED, **problem}),))


class EpochEncoder:
    """Encodes the items of subscriptions to a stream whose payloads have this `encoding`."""

    def __init__(self, encoding: str) -> None:
        self._batches = BatchEncoder(encoding)

    def bodies(self, item: Item) -> tuple[bytes, ...]:
        """The JSON objects of an item. Takes long for a large epoch."""
        match item:
            case Epoch():
                return tuple(self._epoch(item))
            case EpochAborted():
                return (to_line({"kind": Kind.ABORTED, "time": to_json(item.time)}),)
            case Gap():
                gap = {"segment": item.segment, "incarnation": item.incarnation, "seq": item.seq}
                return (to_line({"kind": Kind.GAP, **gap, "below": _times(item.below)}),)

    def _epoch(self, epoch: Epoch) -> Iterator[bytes]:
        time = to_line(to_json(epoch.time))
        *parts, last = _parted(self._batch(batch) for batch in epoch.batches)
        for part in parts:
            yield b'{"kind":"part","time":' + time + b',"batches":[' + b",".join(part) + b"]}"
        counted = b',"parts":%d' % len(parts) if parts else b""
        yield b'{"kind":"epoch","time":' + time + counted + b',"batches":[' + b",".join(last) + b"]}"

    def _batch(self, batch: Data) -> bytes:
        fields = self._batches.fields(batch.topic, batch, batch.payload, batch.count)
        return to_line({"segment": batch.segment, **fields})


def _parted(batches: Iterable[bytes]) -> list[list[bytes]]:
    """Batches in their order, in lists of at most `PART` bytes each; at least one list."""
    lists: list[list[bytes]] = [[]]
    size = 0
    for batch in batches:
        if lists[-1] and size + len(batch) > PART:
            lists.append([])
            size = 0
        lists[-1].append(batch)
        size += len(batch)
    return lists


def _with(body: bytes, field: bytes) -> bytes:
    return body[:-1] + b"," + field + b"}"


def _times(times: Iterable[Time]) -> list[Any]:
    return [to_json(time) for time in times]

"""Gathers records that are appended one at a time into batches.

Records of one segment, time, topic and headers share a batch. A batch ends at `max_records`, or when the writer's
linger is over, or before any move.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from epochal.client.tracing import Trace, current_trace
from epochal.errors import EpochalError, PayloadTooLarge
from epochal.protocol.messages import Position
from epochal.protocol.segments import Placement
from epochal.protocol.times import Time
from epochal.protocol.wire import MAX_PAYLOAD

Headers = tuple[tuple[bytes, bytes], ...]
"""A batch's headers, by name."""


class Slot(NamedTuple):
    """What records of one batch have in common."""

    segment: str
    time: Time
    topic: bytes
    headers: Headers = ()


class GatheredBatch:
    """The records of one batch so far."""

    __slots__ = ("key", "records")

    def __init__(self, key: bytes | None) -> None:
        self.records: list[Any] = []
        self.key = key
        """The key of all of them; None as soon as they differ."""


class Batcher:
    """Open batches in the order in which they were begun."""

    __slots__ = ("_max_records", "_open", "_placement", "_without_key")

    def __init__(self, placement: Placement, max_records: int) -> None:
        self._placement = placement
        self._max_records = max_records
        self._open: dict[Slot, GatheredBatch] = {}
        self._without_key: dict[tuple[Time, bytes, Headers], str] = {}

    def add(
        self, time: Time, records: list[Any], key: bytes | None, topic: bytes, headers: Headers = ()
    ) -> tuple[Slot, bool]:
        """Put `records` into their batch; returns its slot and whether the batch is full.

        Without a key, a batch goes to the next segment in turn.
        """
        if key is None:
            segment = self._without_key.get((time, topic, headers))
            if segment is None:
                segment = self._without_key[time, topic, headers] = self._placement.segment(None)
        else:
            segment = self._placement.segment(key)
        slot = Slot(segment, time, topic, headers)
        batch = self._open.get(slot)
        if batch is None:
            batch = self._open[slot] = GatheredBatch(key)
        elif batch.key != key:
            batch.key = None
        batch.records += records
        return slot, len(batch.records) >= self._max_records

    def take(self, slot: Slot) -> GatheredBatch:
        """End one batch."""
        _, time, topic, headers = slot
        if self._without_key.get((time, topic, headers)) == slot.segment:
            del self._without_key[time, topic, headers]
        return self._open.pop(slot)

    @property
    def slots(self) -> list[Slot]:
        """The open batches, oldest first."""
        return list(self._open)

    def __len__(self) -> int:
        """How many batches are open."""
        return len(self._open)


class Gathering:
    """Batches under way, each with a promise for those who await it.

    `send(slot, batch, trace, awaited, promise)` sends a batch, begun in `trace`, and resolves the promise later. `tell`
    is called with the error of a batch that cannot be sent at all and holds records that no one awaits, so that the
    next move raises it (E1 barrier).
    """

    def __init__(
        self,
        batcher: Batcher,
        linger: float,
        send: Callable[[Slot, GatheredBatch, Trace | None, bool, asyncio.Future[Position]], None],
        tell: Callable[[EpochalError], None],
    ) -> None:
        self._batcher = batcher
        self._linger = linger
        self._send = send
        self._tell = tell
        self._promises: dict[Slot, asyncio.Future[Position]] = {}
        self._traces: dict[Slot, Trace] = {}
        """The trace of each batch that was begun within one."""
        self._unawaited: set[Slot] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self,
        time: Time,
        records: Sequence[Any],
        key: bytes | None,
        topic: bytes,
        headers: Headers = (),
        *,
        awaited: bool,
    ) -> asyncio.Future[Position]:
        """Put `records` into their batch, and send it if it is full; returns the promise of its position."""
        slot, full = self._batcher.add(time, list(records), key, topic, headers)
        promise = self._promises.get(slot)
        if promise is None:
            loop = asyncio.get_running_loop()
            promise = self._promises[slot] = loop.create_future()
            trace = current_trace()
            if trace is not None:
                self._traces[slot] = trace
            if self._timer is None:
                self._timer = loop.call_later(self._linger, self.send_all)
        if not awaited:
            self._unawaited.add(slot)
        if full:
            self._end(slot)
        return promise

    def unheard(self, promise: asyncio.Future[Position]) -> None:
        """A caller that awaited a batch which is not sent yet was cancelled: count its records as not awaited."""
        self._unawaited.update(slot for slot, known in self._promises.items() if known is promise)

    def send_all(self) -> None:
        """End every batch: the linger is over, or a move comes."""
        self._stop_timer()
        for slot in self._batcher.slots:
            self._end(slot)

    def drop(self, error: EpochalError) -> None:
        """Drop every batch; callers that await one get `error`."""
        self._stop_timer()
        for slot in self._batcher.slots:
            self._batcher.take(slot)
            fail(self._promises.pop(slot), error)
        self._unawaited.clear()
        self._traces.clear()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, slot: Slot) -> None:
        batch, promise, trace = self._batcher.take(slot), self._promises.pop(slot), self._traces.pop(slot, None)
        awaited = slot not in self._unawaited
        self._unawaited.discard(slot)
        try:
            self._send(slot, batch, trace, awaited, promise)
        except EpochalError as error:
            fail(promise, error)
            if not awaited:
                self._tell(error)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """End a future with an error; asyncio does not warn if no one awaits it."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def within_limit(payload: bytes) -> bytes:
    """Return the payload; raises `PayloadTooLarge` for one that no publisher takes."""
    if len(payload) > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"{len(payload)} bytes in one append; at most {MAX_PAYLOAD} are allowed: append less at once"
        )
    return payload


def parts(records: list[Any], encode: Callable[[Sequence[Any]], bytes]) -> list[tuple[bytes, int]]:
    """A batch as (payload, number of records) pairs: one, or halves of halves while a payload is too large."""
    payload = encode(records)
    if len(payload) <= MAX_PAYLOAD or len(records) == 1:
        return [(within_limit(payload), len(records))]
    half = len(records) // 2
    return parts(records[:half], encode) + parts(records[half:], encode)

"""Which records share a batch, when a batch ends, and who is told what became of it."""

import asyncio
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.client.tracing import Trace
from epochal.client.writer.batching import Batcher, GatheredBatch, Gathering, Slot
from epochal.errors import EpochalError, RecordTypeError, WriterClosed
from epochal.protocol.messages import Position
from epochal.protocol.segments import Placement, key_ranges

SEGMENTS = ["0", "1", "2"]


def placement() -> Placement:
    return Placement(list(zip(SEGMENTS, key_ranges(3), strict=True)))


def test_segment_time_and_topic_make_a_batch() -> None:
    batcher = Batcher(placement(), 3)
    a, full = batcher.add(0, [1], b"k", b"")
    assert not full
    assert batcher.add(0, [2], b"k", b"") == (a, False)
    others = {batcher.add(1, [3], b"k", b"")[0], batcher.add(0, [4], b"k", b"t")[0]}
    assert len({a, *others}) == 3 == len(batcher)
    assert batcher.add(0, [5, 6], b"k", b"") == (a, True)
    batch = batcher.take(a)
    assert (batch.records, batch.key) == ([1, 2, 5, 6], b"k")
    assert batcher.slots[0].time == 1, "the oldest first"


def test_batches_without_a_key_go_round() -> None:
    batcher = Batcher(placement(), 2)
    used = []
    for number in range(6):
        slot, full = batcher.add(0, [number], None, b"")
        if full:
            used.append(slot.segment)
            assert len(batcher.take(slot).records) == 2
    assert sorted(used) == SEGMENTS


def test_a_keyed_batch_that_ends_leaves_the_one_without_a_key_open() -> None:
    batcher = Batcher(placement(), 10)
    unkeyed, _ = batcher.add(0, [1], None, b"")
    keyed = next(s for n in range(64) if (s := batcher.add(0, [2], bytes([n]), b"")[0]) != unkeyed)
    batcher.take(keyed)
    assert batcher.add(0, [3], None, b"")[0] == unkeyed


def test_a_batch_has_a_key_as_long_as_all_its_records_share_it_and_headers_of_its_own() -> None:
    batcher = Batcher(placement(), 10)
    first, _ = batcher.add(0, [1], b"k", b"", ((b"a", b"1"),))
    second, _ = batcher.add(0, [2], b"k", b"", ((b"a", b"2"),))
    assert first != second
    other = next(key for n in range(64) if batcher.add(0, [3], key := bytes([n]), b"", first.headers)[0] == first)
    assert other != b"k"
    batcher.add(0, [4], b"k", b"", first.headers)
    assert batcher.take(first).key is None
    assert (second.headers, batcher.take(second).key) == (((b"a", b"2"),), b"k")


class Sender:
    """Takes batches as a writer does."""

    def __init__(self, linger: float = 60, max_records: int = 3) -> None:
        self.sent: list[tuple[Slot, list[Any], bool, asyncio.Future[Position]]] = []
        self.traces: list[Trace | None] = []
        self.failures: list[EpochalError] = []
        self.refuses: EpochalError | None = None
        self.gathering = Gathering(Batcher(placement(), max_records), linger, self.send, self.failures.append)

    def send(
        self, slot: Slot, batch: GatheredBatch, trace: Trace | None, awaited: bool, promise: asyncio.Future[Position]
    ) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.sent.append((slot, batch.records, awaited, promise))
        self.traces.append(trace)

    def add(self, record: object, *, awaited: bool = True) -> asyncio.Future[Position]:
        return self.gathering.add(0, [record], b"k", b"", awaited=awaited)


async def test_a_full_batch_is_sent_at_once_and_answers_all() -> None:
    sender = Sender()
    promises = [sender.add(n) for n in range(3)]
    ((_, records, awaited, future),) = sender.sent
    assert (records, awaited) == ([0, 1, 2], True)
    future.set_result(Position(1, 5))
    assert await asyncio.gather(*promises) == [Position(1, 5)] * 3


async def test_the_linger_ends_a_batch() -> None:
    sender = Sender(linger=0.01)
    sender.add(1)
    sender.add(2, awaited=False)
    async with asyncio.timeout(PATIENCE):
        while not sender.sent:  # noqa: ASYNC110 - the timer tells nobody else
            await asyncio.sleep(0.001)
    ((_, records, awaited, _),) = sender.sent
    assert (records, awaited) == ([1, 2], False), "a failure must be raised by the next move as well"


@pytest.mark.rule("E1")
async def test_a_batch_whose_reader_went_away_counts_as_not_awaited() -> None:
    sender = Sender()
    promise = sender.add(1)
    sender.gathering.unheard(promise)
    sender.gathering.send_all()
    sender.gathering.unheard(promise)  # sent by now: that is for the writer's machine
    sender.add(2)
    sender.gathering.send_all()
    assert [awaited for _, _, awaited, _ in sender.sent] == [False, True]


@pytest.mark.rule("E1")
async def test_every_caller_gets_the_error_of_a_batch_that_cannot_be_sent() -> None:
    sender = Sender()
    sender.refuses = RecordTypeError("no")
    alone = sender.add(object())
    sender.gathering.send_all()
    with pytest.raises(RecordTypeError):
        await alone
    assert sender.failures == [], "whoever appended it has been told"
    sender.add(object(), awaited=False)
    sender.gathering.send_all()
    assert sender.failures == [sender.refuses]


async def test_batches_that_are_dropped() -> None:
    sender = Sender(linger=0.001)
    promise = sender.add(1)
    sender.gathering.drop(WriterClosed("over"))
    with pytest.raises(WriterClosed):
        await promise
    await asyncio.sleep(0.01)
    assert sender.sent == [], "and its timer with them"

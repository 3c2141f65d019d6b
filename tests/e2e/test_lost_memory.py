"""A publisher in memory ends, by a kill or in order: its open epochs end with it, and no one is given a part of one."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.catalog_api.answers import SegmentInfo
from epochal.errors import AppendsLost, CapabilityError, EpochAbortedError, HistoryTruncated, Unavailable, WriterLost

LATER = 1_000
"""A time that no publisher can have asked for ahead when it ended."""
GONE = (AppendsLost, EpochAbortedError, WriterLost, CapabilityError)

Seen = list[epochal.Epoch | epochal.EpochAborted]


@pytest.mark.rule("E11", "E2", "E18")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_an_epoch_is_not_completed_by_those_who_did_not_lose_their_records(services, how: signal.Signals) -> None:
    stream = await services.stream(segments=1, progress={"minWriters": 2}, dedicated=True)
    (publisher,) = services.publishers(stream)
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream) as live,
        client.writer(stream, writer_id="w1") as w1,
        client.writer(stream, writer_id="w2") as w2,
        asyncio.timeout(PATIENCE),
    ):
        await live.ready.wait()
        seen: dict[epochal.Subscription, Seen] = {live: []}
        reading = asyncio.create_task(_follow(live, seen[live]))
        await asyncio.gather(w1.advance(5), w2.advance(5))
        await w2.append(5, ["w2"])
        await w2.advance(6)
        before = await _reported(client, stream, lambda segment: segment.lower == (5,))
        os.kill(publisher, how)
        await _reported(client, stream, lambda segment: segment.incarnation != before.incarnation)
        assert not await _published(w1, 5, "w1"), "what w2 acknowledged of it is lost"
        await asyncio.gather(_go_on(w1, LATER), _go_on(w2, LATER))
        last = LATER
        while not _records(seen[live], last - 1):  # what is under way when the reader comes back is not for it (E15)
            assert all([await _published(writer, last, writer.writer_id) for writer in (w1, w2)]), "the stream goes on"
            last += 1
        await asyncio.gather(w1.finish(), w2.finish())
        await reading
        async with client.subscribe(stream, since="start") as late:
            seen[late] = [epoch async for epoch in late.epochs()]
            for sub, epochs in seen.items():
                assert _records(epochs, 5) == [], "a writer was told that it is aborted"
                assert not sub.saw_whole(5)
                assert _records(epochs, last - 1) == [["w1", "w2"]]
                assert len({epoch.time for epoch in epochs}) == len(epochs), "each once"
        assert [epoch.time for epoch in seen[live]].count(5) == 1, "it held data of it, so it is told"


@pytest.mark.rule("E20")
async def test_a_complete_stream_of_which_nothing_is_left_is_not_taken_for_an_empty_one(services) -> None:
    stream = await services.stream(dedicated=True)
    (publisher,) = services.publishers(stream)
    async with epochal.connect(services.url) as client, asyncio.timeout(PATIENCE):
        async with client.writer(stream) as writer:
            await writer.append(0, ["lost"])
            await writer.finish()
        async with client.subscribe(stream, since="start") as sub:
            assert [epoch.time async for epoch in sub.epochs()] == [0], "while it is in memory"
        before = await _reported(client, stream, lambda segment: segment.lower == ())
        os.kill(publisher, signal.SIGKILL)
        await _reported(client, stream, lambda segment: segment.incarnation != before.incarnation)
        async with client.subscribe(stream, since="start") as sub:
            with pytest.raises(HistoryTruncated, match=r"complete, and none of its epochs is .* history\.storage"):
                await anext(sub.epochs())
        async with client.subscribe(stream, since="start") as sub:
            with pytest.raises(HistoryTruncated):
                [event async for event in sub.events()]
        async with client.subscribe(stream, since="start", partial=True) as sub:
            assert [event async for event in sub.events()] == [epochal.FrontierChanged(())], "what is there"
        async with client.subscribe(stream) as sub:
            assert [epoch async for epoch in sub.epochs()] == [], "from now on, there is nothing to miss"


@pytest.mark.rule("E20")
async def test_one_segment_that_lost_all_is_enough_for_no_epoch_to_be_whole(services) -> None:
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, dedicated=True)
    first, _ = services.publishers(stream)
    async with epochal.connect(services.url) as client, asyncio.timeout(PATIENCE):
        async with client.writer(stream) as writer:
            await writer.append(0, ["a", "b"])
            await writer.finish()
        before = await _reported(client, stream, lambda segment: segment.lower == ())
        os.kill(first, signal.SIGKILL)
        await _reported(client, stream, lambda segment: segment.incarnation != before.incarnation)
        async with client.subscribe(stream, since="start") as sub:
            with pytest.raises(HistoryTruncated, match="none of its epochs is retained whole"):
                await anext(sub.epochs())


async def _reported(client: epochal.Client, stream: str, true: Callable[[SegmentInfo], bool]) -> SegmentInfo:
    """The stream's first segment, once the catalog lists it so."""
    while True:
        segment, *_ = (await client.catalog.get(*stream.split("/"))).segments
        if true(segment):
            return segment
        await asyncio.sleep(0.05)


async def _published(writer: epochal.Writer, time: int, record: str) -> bool:
    """Publish an epoch of one record; whether it was taken."""
    try:
        await writer.append(time, [record])
        await writer.advance(time + 1)
    except GONE:
        return False
    return True


async def _go_on(writer: epochal.Writer, time: int) -> None:
    """Leave whatever was lost."""
    while writer.held[0] < time:
        try:
            await writer.advance(time)
        except GONE:
            await asyncio.sleep(0.01)


def _records(seen: Seen, time: int) -> list[list[str]]:
    """What was given of an epoch, each time that it was."""
    return [sorted(epoch.records()) for epoch in seen if isinstance(epoch, epochal.Epoch) and epoch.time == time]


@pytest.mark.rule("E11", "E15", "E17")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_no_halves_are_left_of_epochs_that_were_completed_and_not_yet_reported(services, how) -> None:
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, dedicated=True)
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream, since="start") as live,
        asyncio.timeout(PATIENCE),
    ):
        await live.ready.wait()
        given: Seen = []
        reading = asyncio.create_task(_follow(live, given))
        acknowledged: dict[int, list[str]] = {}
        over = asyncio.Event()
        writing = asyncio.create_task(_write(client, stream, acknowledged, over))
        for number in (0, 1):
            await _given(given, after=max(acknowledged, default=0) + 20)
            os.kill(services.publishers(stream)[number], how)
            await _given(given, after=max(acknowledged) + 20)
        over.set()
        await writing
        await reading
        async with client.subscribe(stream, since="start") as late:
            seen = [epoch async for epoch in late.epochs()]
            halves = [time for time in acknowledged if _records(seen, time) not in ([], [acknowledged[time]])]
            assert not halves, f"given {[_records(seen, time) for time in halves]} of {halves}"
            claimed = [time for time in acknowledged if late.saw_whole(time) and not _records(seen, time)]
            assert not claimed, "seen whole, and not given"
        both = {epoch.time for epoch in given if isinstance(epoch, epochal.EpochAborted)} & set(acknowledged)
        assert all(not _records(given, time) for time in both), "given whole, and told to be aborted"
        wrong = [time for time in acknowledged if _records(given, time) not in ([], [acknowledged[time]])]
        assert not wrong, "the live reader is given no halves either"
        assert _records(seen, max(acknowledged)), "a late reader has what came after"


async def _write(client: epochal.Client, stream: str, acknowledged: dict[int, list[str]], over: asyncio.Event) -> None:
    """Epochs of a record in each segment; those that were acknowledged and left whole are noted."""
    async with client.writer(stream, writer_id="w") as writer:
        keys = {writer.segment(bytes([n])): bytes([n]) for n in range(64)}
        while not over.is_set():
            (time,) = writer.held
            records = [f"{time}/{segment}" for segment in sorted(keys)]
            try:
                for segment, record in zip(sorted(keys), records, strict=True):
                    await writer.append(time, [record], key=keys[segment])
                acknowledged[time] = records
                await writer.advance(time + 1)
                await asyncio.sleep(0.005)
            except (*GONE, Unavailable):
                await _go_on(writer, time + 1)
        await writer.finish()


async def _follow(sub: epochal.Subscription, into: Seen) -> None:
    async for epoch in sub.epochs():
        into.append(epoch)


async def _given(seen: Seen, after: int) -> None:
    """Wait until an epoch later than `after` was given."""
    while not any(isinstance(epoch, epochal.Epoch) and epoch.time > after for epoch in seen[-5:]):  # noqa: ASYNC110
        await asyncio.sleep(0.02)

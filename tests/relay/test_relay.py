"""Readers of a relay are given what the publisher's readers are, whatever happens to relays and publishers."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.relay.conftest import Relays

import epochal
from epochal.errors import AppendsLost, UsageError

TOPICS = (b"a", b"b", b"bb")
KEYS = (b"1", b"2", b"3")
NONE = {"push": {"initialFilter": "none"}}


async def publish(writer: epochal.Writer, times: range) -> None:
    """Of each time, each topic under each key."""
    for time in times:
        for topic in TOPICS:
            for key in KEYS:
                await writer.append(time, [time], topic=topic, key=key)
        await writer.advance(time + 1)


async def reasons(sub: epochal.Subscription) -> AsyncIterator[str]:
    """Why connections were lost."""
    async for event in sub.events():
        if isinstance(event, epochal.SegmentDown):
            yield event.reason


class Reader:
    """Reads epochs; topic `a` is wanted all the time, others come and go."""

    def __init__(self, sub: epochal.Subscription) -> None:
        self.sub = sub
        self.epochs: dict[int, Counter[bytes]] = {}
        self.aborted: set[int] = set()

    async def read(self) -> None:
        async for epoch in self.sub.epochs():
            assert epoch.time not in self.epochs
            assert epoch.time not in self.aborted
            if isinstance(epoch, epochal.Epoch):
                self.epochs[epoch.time] = Counter(batch.topic for batch in epoch.batches)
            else:
                self.aborted.add(epoch.time)

    async def change(self) -> None:
        """A hundred times a second at most, so that others get on as well; `test_many_changes` is wilder."""
        while True:
            for topics in ([b"a"], [b"a", b"b"], [b"a", b"bb"]):
                await self.sub.change(topics=topics, reject=[b"bb"] if b"b" in topics else [])
                await asyncio.sleep(0.01)

    def judge(self, times: range) -> None:
        """Topic `a` is in every epoch whole, the others whole or not at all."""
        assert sorted(self.epochs) == list(times)
        assert {self.epochs[time][b"a"] for time in times} == {len(KEYS)}
        assert {count for epoch in self.epochs.values() for count in epoch.values()} == {len(KEYS)}


@pytest.mark.rule("E24", "N18")
async def test_epochs_come_whole_and_only_of_the_topics_that_are_wanted(services, relays: Relays) -> None:
    stream = await services.stream(segments=2, **NONE)
    await relays.start(stream)
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream, writer_id="w") as writer,
        client.subscribe(stream, topics=[b"a"], via="relay") as some,
        client.subscribe(stream, via="relay:relay") as every,
        asyncio.timeout(PATIENCE),
    ):
        await asyncio.gather(some.ready.wait(), every.ready.wait())
        assert some.via == every.via == {"0": "relay:relay", "1": "relay:relay"}
        await publish(writer, range(50))
        await writer.finish()
        for sub, topics in ((some, 1), (every, 3)):
            epochs = [epoch async for epoch in sub.epochs()]
            assert [epoch.time for epoch in epochs] == list(range(50))
            assert {len(epoch.batches) for epoch in epochs if isinstance(epoch, epochal.Epoch)} == {3 * topics}


@pytest.mark.rule("F15")
async def test_what_was_before_comes_from_the_publisher(services, relays: Relays) -> None:
    """The start, what is after a time, and a cursor that is older than the relay."""
    stream = await services.stream(segments=2, **NONE)
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="w") as writer:
        async with client.subscribe(stream) as first, asyncio.timeout(PATIENCE):
            await first.ready.wait()
            await publish(writer, range(20))
            assert (await anext(first.epochs())).time == 0
            cursor = first.cursor()
        await relays.start(stream)
        await writer.finish()
        for since, times in (("start", range(20)), ("time:15", range(16, 20)), (cursor, range(1, 20))):
            async with client.subscribe(stream, since=since, via="relay") as sub, asyncio.timeout(PATIENCE):
                assert [epoch.time async for epoch in sub.epochs()] == list(times)


@pytest.mark.rule("F15", "E20")
async def test_an_event_that_a_relay_has_not_heard_of_is_found_at_the_publisher(services, relays: Relays) -> None:
    stream = await services.stream(push={"initialFilter": "none", "heartbeat": "30s"})
    await relays.start(stream)
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream, topics=[b"a"], via="relay") as some,
        asyncio.timeout(PATIENCE),
    ):
        await some.ready.wait()
        await writer.append(0, ["a"], topic=b"a")
        await writer.append(0, ["b"], topic=b"b")  # which nobody reads at the relay
        async with client.subscribe(stream, topics=[b"a"], since="seq:1", via="relay", partial=True) as sub:
            await sub.ready.wait()
            await writer.append(0, ["c"], topic=b"a")
            assert [event.seq async for event in _data(sub, 1)] == [2]
        with pytest.raises(UsageError, match="ahead of this log"):
            await _opened(client.subscribe(stream, since="seq:9", via="relay"))


async def _opened(subscription: epochal.Subscription) -> None:
    async with subscription as sub:
        await sub.ready.wait()
        sub.frontier()


async def _data(sub: epochal.Subscription, count: int) -> AsyncIterator[epochal.Data]:
    """The next batches."""
    async for event in sub.events():
        if isinstance(event, epochal.Data):
            yield event
            count -= 1
        if not count:
            return


@pytest.mark.rule("F13")
async def test_a_relay_that_is_stopped_leaves_the_catalog_and_notifies_its_readers(services, relays: Relays) -> None:
    stream = await services.stream()
    relay = await relays.start(stream)
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream, via="relay") as sub,
        asyncio.timeout(PATIENCE),
    ):
        await sub.ready.wait()
        await relay.stop()
        assert "the relay stops" in await anext(reasons(sub))
        assert not await client.catalog.relays(*stream.split("/"))


@pytest.mark.rule("E48")
async def test_a_relay_ends_when_its_stream_is_deleted(services, relays: Relays) -> None:
    stream = await services.stream()
    relay = await relays.start(stream)
    await services.delete(stream)
    async with asyncio.timeout(PATIENCE):
        assert await relay.child.ended() == 0
    assert "was deleted" in relay.log.read_text()


@pytest.mark.rule("F15", "N18")
async def test_a_reader_of_more_topics_than_a_hello_names_makes_no_relay_ask_for_everything(
    services, relays: Relays
) -> None:
    stream = await services.stream(**NONE)
    await relays.start(stream, "near")
    await relays.start(stream, "far", upstream="near")
    topics = [b"a", *(b"x%d/" % number for number in range(300))]
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream, topics=topics, via="relay:far") as sub,
        asyncio.timeout(PATIENCE),
    ):
        await sub.ready.wait()
        await publish(writer, range(1))
        epoch = await anext(sub.epochs())
        assert isinstance(epoch, epochal.Epoch)
        assert [batch.topic for batch in epoch.batches] == [b"a"] * 3
        counters = sub._report()[1]
        assert (counters["relayed"], counters["unwanted_bytes"], counters["firehose_bytes"]) == (1, 0, 0)
        asked = [each.filter for each in await client.catalog.relays(*stream.split("/"))]
        assert len(asked) == 2
        assert "" not in asked, "which would be everything"


@pytest.mark.rule("E24", "F8", "F13", "F15", "F16", "F17")
@pytest.mark.parametrize("initial", ["none", pytest.param("firehose", marks=pytest.mark.long)])
async def test_readers_change_topics_and_ways_while_relays_die_stop_and_stand_still(
    services, relays: Relays, initial: str
) -> None:
    stream = await services.stream(segments=2, push={"initialFilter": initial})
    near = await relays.start(stream, "near", filter_linger=0.5)
    far = await relays.start(stream, "far", upstream="near", filter_linger=0.5)
    published = 0
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream, writer_id="w") as writer,
        client.subscribe(stream, topics=[b"a"], via="relay:near") as one,
        client.subscribe(stream, topics=[b"a"], via="relay:far") as two,
        client.subscribe(stream, topics=[b"a"]) as three,
        asyncio.timeout(PATIENCE * 3),
    ):
        readers = [Reader(sub) for sub in (one, two, three)]
        await asyncio.gather(*(reader.sub.ready.wait() for reader in readers))
        reading = [asyncio.create_task(reader.read()) for reader in readers]
        changing = [asyncio.create_task(reader.change()) for reader in readers]

        async def goes_on(epochs: int = 10) -> None:
            """More is published, and every reader is given it."""
            nonlocal published
            await publish(writer, range(published, published + epochs))
            published += epochs
            while not all(published - 1 in reader.epochs for reader in readers):
                await asyncio.wait(reading, timeout=0.02)
                assert not any(task.done() and task.exception() for task in (*reading, *changing))

        await goes_on()
        await near.kill()
        near = await relays.start(stream, "near", filter_linger=0.5)
        await goes_on()
        far.pause()
        await publish(writer, range(published, published + 20))
        published += 20
        far.go_on()
        await goes_on()
        await far.stop()
        far = await relays.start(stream, "far", upstream="near", filter_linger=0.5)
        await goes_on()
        near.pause()
        segments = one._machine._segments.values()
        while not any(segment.down for segment in segments):  # it has waited long enough for a silent relay
            await asyncio.wait(reading, timeout=0.02)
        near.go_on()
        await goes_on()
        for task in changing:
            task.cancel()
        await writer.finish()
        await asyncio.gather(*reading)
    for reader in readers:
        reader.judge(range(published))


def incarnation(sub: epochal.Subscription) -> int:
    """Which of the publisher's lives is followed live; 0 for none."""
    (link,) = sub._links
    return link.welcome.incarnation if link.live and link.welcome is not None else 0


@pytest.mark.rule("E17", "F13")
@pytest.mark.parametrize("retention", ["keep", "none"])
async def test_a_publisher_that_dies_ends_the_run_and_nothing_half_is_delivered(
    services, relays: Relays, retention: str
) -> None:
    stream = await services.stream(**NONE, history={"retention": {"mode": retention}}, dedicated=True)
    await relays.start(stream)
    (publisher,) = services.publishers(stream)
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream, topics=[b"a"], via="relay") as through,
        client.subscribe(stream, topics=[b"a"], via="direct") as straight,
        asyncio.timeout(PATIENCE * 2),
    ):
        readers = [Reader(through), Reader(straight)]
        await asyncio.gather(through.ready.wait(), straight.ready.wait())
        reading = [asyncio.create_task(reader.read()) for reader in readers]
        with suppress(AppendsLost):
            async with client.writer(stream, writer_id="w") as writer:
                await publish(writer, range(5))
                await writer.append(5, ["lost"], topic=b"a", key=b"1")
                await writer.flush()
                while not all(4 in reader.epochs for reader in readers):
                    await asyncio.wait(reading, timeout=0.02)
                before = [incarnation(sub) for sub in (through, straight)]
                os.kill(publisher, signal.SIGKILL)
                while not all(incarnation(sub) > was for sub, was in zip((through, straight), before, strict=True)):
                    done, _ = await asyncio.wait(reading, timeout=0.02)  # what is under way when it comes back is lost
                    assert not done
        async with client.writer(stream, writer_id="w") as writer:
            (held,) = writer.held
            await publish(writer, range(held + 20, held + 23))
            await writer.finish()
        await asyncio.gather(*reading)
    for reader in readers:
        assert set(range(5)) <= set(reader.epochs)
        assert {count for epoch in reader.epochs.values() for count in epoch.values()} == {len(KEYS)}
        assert {held + 20, held + 21, held + 22} <= set(reader.epochs)


@pytest.mark.rule("F16")
async def test_three_in_a_row_say_which_way_they_are_and_one_cannot_follow_itself(services, relays: Relays) -> None:
    stream = await services.stream(segments=2, **NONE)
    for name, upstream in (("a", "direct"), ("b", "a"), ("c", "b")):
        await relays.start(stream, name, upstream=upstream, id=f"{name}-0")
    itself = await relays.start(stream, "d", upstream="d", id="d-0")
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream, writer_id="w") as writer,
        client.subscribe(stream, topics=[b"b"], reject=[b"bb"], via="relay:c") as sub,
        asyncio.timeout(PATIENCE),
    ):
        await sub.ready.wait()
        await publish(writer, range(30))
        await writer.finish()
        epochs: list[Any] = [epoch async for epoch in sub.epochs()]
        assert [epoch.time for epoch in epochs] == list(range(30))
        assert {tuple(batch.topic for batch in epoch.batches) for epoch in epochs} == {(b"b",) * 3}
        listed = {relay.id: relay for relay in await client.catalog.relays(*stream.split("/"))}
    assert listed["c-0"].path == ("b-0", "a-0")
    assert listed["d-0"].state == "waiting"
    assert "relay" in itself.log.read_text()

"""Topics that change while real publishers push: no epoch has a part of one."""

import asyncio
import os
import random
import signal
from collections import Counter
from typing import Any

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import UsageError
from epochal.protocol.topics.filter import TopicFilter

TOPICS = (b"a", b"b", b"bb")
KEYS = (b"1", b"2", b"3")
WAYS: dict[str, dict[str, Any]] = {
    "channels": {"push": {"initialFilter": "none"}},
    "channels, without history": {"push": {"initialFilter": "none"}, "history": {"retention": {"mode": "none"}}},
    "everything": {},
}


async def publish(writer: epochal.Writer, times: range) -> None:
    """Of each time, each topic under each key."""
    for time in times:
        for topic in TOPICS:
            for key in KEYS:
                await writer.append(time, [time], topic=topic, key=key)
        await writer.advance(time + 1)


def topics_of(epoch: Any) -> Counter[bytes]:
    """How many batches of each topic it has."""
    return Counter(batch.topic for batch in epoch.batches)


class Reader:
    """Reads epochs, and changes what it wants; `always` is what it has wanted all the time."""

    def __init__(self, sub: epochal.Subscription, seed: int) -> None:
        self._sub, self._random = sub, random.Random(seed)
        self.epochs: dict[int, Counter[bytes]] = {}
        self.changes = 0

    async def read(self) -> None:
        async for epoch in self._sub.epochs():
            assert epoch.time not in self.epochs
            self.epochs[epoch.time] = topics_of(epoch)

    async def change(self) -> None:
        while True:
            some = self._random.sample([b"b", b"bb"], self._random.randrange(3))
            await self._sub.change(topics=[b"a", *some], reject=[b"bb"] if b"bb" not in some else [])
            self.changes += 1
            await asyncio.sleep(self._random.uniform(0, 0.05))

    @property
    def has_changed(self) -> bool:
        """Whether it has changed often, and had each topic in some epoch."""
        return self.changes > 20 and set().union(*self.epochs.values()) == set(TOPICS)

    def judge(self, last: int) -> None:
        """Topic `a` is in every epoch whole, the others whole or not at all."""
        whole = len(KEYS)
        assert [self.epochs[time][b"a"] for time in range(last)] == [whole] * last
        assert {count for epoch in self.epochs.values() for count in epoch.values()} == {whole}


@pytest.mark.rule("E19", "F6", "F8")
@pytest.mark.parametrize("way", WAYS)
async def test_epochs_have_all_of_a_topic_or_nothing_while_readers_change_what_they_want(services, way) -> None:
    stream, last = await services.stream(segments=2, **WAYS[way]), 0
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream, writer_id="w") as writer,
        client.subscribe(stream, topics=[b"a"]) as one,
        client.subscribe(stream, topics=[b"a"]) as two,
    ):
        readers = [Reader(one, 1), Reader(two, 2)]
        await asyncio.gather(one.ready.wait(), two.ready.wait())
        reading = [asyncio.create_task(each.read()) for each in readers]
        changing = [asyncio.create_task(each.change()) for each in readers]
        while not all(each.has_changed for each in readers):
            assert not any(task.done() for task in (*reading, *changing))
            await publish(writer, range(last, last + 1))
            last += 1
        for task in changing:
            task.cancel()
        await asyncio.gather(*changing, return_exceptions=True)
        await writer.finish()
        await asyncio.gather(*reading)
    for each in readers:
        each.judge(last)


@pytest.mark.rule("F8", "F9")
async def test_a_publisher_that_is_killed_and_a_cursor_with_other_topics_tear_no_epoch(services) -> None:
    spec: dict[str, Any] = {"push": {"initialFilter": "none"}, "history": {"storage": {"size": "1Gi"}}}
    stream = await services.stream(segments=2, **spec, dedicated=True)
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="w") as writer:
        async with client.subscribe(stream, topics=[b"a"]) as sub:
            await sub.ready.wait()
            await publish(writer, range(3))
            await writer.append(3, [3], topic=b"b", key=b"1")
            epochs = sub.epochs()
            assert [(await anext(epochs)).time for _ in range(3)] == [0, 1, 2]
            for pid in services.publishers(stream):
                os.kill(pid, signal.SIGKILL)
            (first,) = await sub.change(topics=[b"a", b"b"])
            assert first in (3, 4)  # 3 where the history still has what was left out of it
            await publish(writer, range(3, 5))
            found = [await anext(epochs) for _ in range(2)]
            cursor = epochal.Cursor.from_json(sub.cursor().to_json())
        assert [topics_of(epoch) for epoch in found] == [
            {b"a": 3} if first == 4 else {b"a": 3, b"b": 4, b"bb": 3},
            {b"a": 3, b"b": 3, b"bb": 3},
        ]
        await publish(writer, range(5, 6))
        async with client.subscribe(stream, since=cursor) as all_of_it:
            epoch = await anext(all_of_it.epochs())
            assert topics_of(epoch) == dict.fromkeys(TOPICS, 3)


@pytest.mark.rule("F2", "F6", "F10", "N14")
async def test_who_wants_more_topics_than_a_hello_names_is_sent_these_and_no_other_from_the_first_batch_on(
    services,
) -> None:
    stream = await services.stream(segments=2, push={"initialFilter": "none"})
    wanted = [b"x%d/" % number for number in range(300)]
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream, topics=[b"a", *wanted]) as sub,
    ):
        await sub.ready.wait()
        epochs = sub.epochs()
        await publish(writer, range(1))
        assert topics_of(await anext(epochs)) == {b"a": 3}
        assert (sub._report()[1]["unwanted_bytes"], sub._report()[1]["firehose_bytes"]) == (0, 0)
        await sub.change(topics=[b"a", b"bb", *wanted])
        await publish(writer, range(1, 2))
        assert topics_of(await anext(epochs)) == {b"a": 3, b"bb": 3}
        assert (sub._report()[1]["unwanted_bytes"], sub._report()[1]["firehose_bytes"]) == (0, 0)


@pytest.mark.rule("N3", "N20")
async def test_prefixes_are_counted_and_what_is_none_is_refused(services) -> None:
    stream = await services.stream(push={"initialFilter": "none"})
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        sub = client.subscribe(stream, topics=[b"a"])
        sub.add_topic(b"bb")
        assert sub.topics == TopicFilter([b"a", b"bb"])
        with pytest.raises(UsageError, match="async with"):
            await sub.change(topics=[b"a"])
        async with sub:
            await sub.ready.wait()
            sub.add_topic(b"bb")
            sub.drop_topic(b"bb")
            await publish(writer, range(1))
            epoch = await anext(sub.epochs())
            assert set(topics_of(epoch)) == {b"a", b"bb"}
            sub.drop_topic(b"bb")
            with pytest.raises(UsageError, match="not wanted"):
                sub.drop_topic(b"bb")
            with pytest.raises(UsageError, match="1024"):
                sub.add_topic(bytes(1025))
            with pytest.raises(UsageError, match="bytes"):
                await sub.change(topics="a")  # type: ignore[arg-type]  # on purpose
            await publish(writer, range(1, 2))
            epoch = await anext(sub.epochs())
            assert set(topics_of(epoch)) == {b"a"}
        for late in (sub.add_topic, sub.drop_topic):
            with pytest.raises(UsageError, match="left; open a new one"):
                late(b"a")
        with pytest.raises(UsageError, match="left; open a new one"):
            await sub.change(topics=[b"a"])
        assert sub.topics == TopicFilter([b"a"])


def test_the_blocking_client_changes_topics_too(services) -> None:
    stream = asyncio.run(services.stream(push={"initialFilter": "none"}))
    with (
        epochal.connect_blocking(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream, topics=[b"a"]) as sub,
    ):
        sub.ready.wait(PATIENCE)
        assert sub.change(topics=[b"b"]) == (0,)
        assert sub.topics == TopicFilter([b"b"])
        for topic in TOPICS:
            writer.append(0, [0], topic=topic)
        writer.advance(1)
        epoch = next(sub.epochs(10))
        assert set(topics_of(epoch)) == {b"b", b"bb"}

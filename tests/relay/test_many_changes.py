"""Filters change a thousand times while pushes are dropped and processes die, and every epoch stays exact."""

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.relay.conftest import Relays

import epochal
from epochal.client.catalog.relay_choice import Via
from epochal.client.subscriber import segment_reader

TOPICS = (b"a", b"b", b"bb", b"bbc", b"bc", b"c", b"cc", b"d")
PREFIXES = (b"b", b"bb", b"bc", b"c", b"cc", b"d")
"""What readers change; `a` is wanted all the time, and in every epoch."""
KEYS = (b"1", b"2", b"3")
SMALL, LARGE = 100, 70_000
"""Bytes of a batch; a large one fills the queue that the least `bufferBytes` gives a subscriber."""
LARGE_EVERY = 6
AHEAD = 12
"""Epochs that writers may be ahead of the frontier of the slowest reader."""
ROUND = 28
"""Changes of each reader from one fault to the next."""
WAYS = (Via("direct"), Via("direct"), *[Via("relay", "relay", avoid=0.1, longest=0.5)] * 2)
"""Of the readers. A relay that has failed is tried again soon."""
KEPT = {"storage": {"size": "1Gi"}, "durability": "interval"}
NOT_KEPT = {"retention": {"mode": "none"}}
NEVER = 1 << 62

Labels = dict[bytes, list[str]]
"""Of one epoch: topic -> what its batches are called."""


def wanted_topics(prefixes: Iterable[bytes], rejected: Iterable[bytes]) -> frozenset[bytes]:
    """By the rule's words: the longest prefix decides, and one that is in both is wanted (F1)."""

    def longest(topic: bytes, of: Iterable[bytes]) -> int:
        return max((len(prefix) for prefix in of if topic.startswith(prefix)), default=-1)

    return frozenset(each for each in TOPICS if -1 < longest(each, prefixes) >= longest(each, rejected))


@dataclass(slots=True)
class Change:
    """One call that changed what is wanted."""

    topics: frozenset[bytes]
    complete: int
    """The frontier before it: earlier epochs were complete, and so are without what is new."""
    whole_from: int = NEVER
    """The frontier that the call returned, if it returned one."""


class Published:
    """What writers publish, and what of that is acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, Labels] = defaultdict(lambda: defaultdict(list))
        self.begun = -1
        """The last epoch that has begun."""
        self.over = False

    async def write(self, writer: epochal.Writer, slowest: Callable[[], int], seed: int) -> None:
        """Epoch by epoch, with topics and keys by chance, and `a` in each."""
        chance, time = random.Random(seed), 0
        while not self.over or time <= self.begun:
            while time - slowest() > AHEAD:  # noqa: ASYNC110 - of several readers
                await asyncio.sleep(0.005)
            self.begun = max(self.begun, time)
            size = LARGE if time % LARGE_EVERY == 0 else SMALL
            batches = [(topic, key) for topic in TOPICS for key in KEYS if chance.random() < 0.5]
            batches.append((b"a", b"always"))
            labels = [(topic, key, f"{writer.writer_id} {time} {key.decode()}") for topic, key in batches]
            for topic, key, label in labels:
                writer.append_nowait(time, [label, bytes(size)], topic=topic, key=key)
            await writer.advance(time + 1)
            for topic, _, label in labels:
                self.acknowledged[time][topic].append(label)
            time += 1
        await writer.finish()


class Reader:
    """Reads epochs while it changes its topics."""

    def __init__(self, sub: epochal.Subscription, published: Published, seed: int) -> None:
        self.sub = sub
        self._published, self._chance = published, random.Random(seed)
        self._prefixes, self._rejected = {b"a"}, set[bytes]()
        self.changes = [Change(wanted_topics([b"a"], []), 0, 0)]
        self.epochs: list[tuple[int, int, Labels]] = []
        """The time, how many changes came before it was returned, and what it holds."""
        self.missed: list[int] = []
        """Epochs that were aborted, or passed over."""
        self.decided = 0
        """How often a topic had to be in an epoch because of the frontier that a change had returned."""
        self.last = -1
        """The last epoch that is over."""
        self._more = asyncio.Event()

    async def read(self) -> None:
        async for epoch in self.sub.epochs():
            if isinstance(epoch, epochal.Epoch):
                labels: Labels = defaultdict(list)
                for batch in epoch.batches:
                    label, _ = batch.records()
                    labels[batch.topic].append(label)
                self.epochs.append((epoch.time, len(self.changes) - 1, labels))
                self._pass_over(epoch.time)
            else:
                self._pass_over(epoch.time + 1)
            self.last = epoch.time
            self._more.set()
        self._pass_over(self._published.begun + 1)

    def _pass_over(self, before: int) -> None:
        for time in range(self.last + 1, before):
            assert not self.sub.saw_whole(time), f"epoch {time} was not given, and nothing says so"
            self.missed.append(time)

    async def change(self) -> None:
        """Change topics in each of the three ways, and often wait for an epoch that has what is new."""
        while True:
            if self._chance.random() < 0.6:
                some = self._chance.sample(PREFIXES, 3)
                await self._replace({b"a", *some[:2]}, set(some[2:]))
            else:
                self._one_more_or_less(self._chance.choice(PREFIXES))
                await asyncio.sleep(0)

    async def _replace(self, prefixes: set[bytes], rejected: set[bytes]) -> None:
        self._prefixes, self._rejected = prefixes, rejected
        change = self._noted()
        (change.whole_from,) = await self.sub.change(topics=prefixes, reject=rejected)
        assert change.whole_from <= self._published.begun + 1
        waits = self._chance.random() < 0.5
        while waits and self.last < change.whole_from:
            self._more.clear()
            await self._more.wait()

    def _one_more_or_less(self, prefix: bytes) -> None:
        call = self.sub.drop_topic if prefix in self._prefixes else self.sub.add_topic
        self._prefixes ^= {prefix}
        self._noted()
        call(prefix)

    def _noted(self) -> Change:
        """The change that is about to be made; the last one if this makes none."""
        topics = wanted_topics(self._prefixes, self._rejected)
        if topics != self.changes[-1].topics:
            self.changes.append(Change(topics, min(self.sub.frontier(), default=NEVER)))
        return self.changes[-1]

    def judge(self, published: Published) -> None:
        """Each epoch once, in order, with all of each topic that it must have, and nothing of any other."""
        times = [time for time, _, _ in self.epochs]
        assert times == sorted({*range(published.begun + 1)} - {*self.missed})
        began: dict[bytes, int] = dict.fromkeys(self.changes[0].topics, 0)
        """Topic that is wanted -> the change since which it is."""
        came: set[bytes] = set()
        at = 0
        for time, changes, labels in self.epochs:
            while at < changes:
                at += 1
                topics = self.changes[at].topics
                came &= topics
                began = {topic: began.get(topic, at) for topic in topics}
            assert labels.keys() <= began.keys(), f"epoch {time} has what was not wanted after change {changes}"
            for topic, change in began.items():
                found, whole = sorted(labels[topic]), sorted(published.acknowledged[time][topic])
                assert found in ([], whole), f"epoch {time} has only a part of {topic!r}"
                if time >= self._whole_from(topic, change):
                    assert found == whole, f"epoch {time} lacks {topic!r}, new by change {change}"
                    self.decided += change > 0 and bool(whole)
                elif found:
                    assert time >= self.changes[change].complete
                    came.add(topic)
                else:
                    assert not whole or topic not in came, f"epoch {time} lacks {topic!r}, and earlier ones had it"

    def _whole_from(self, topic: bytes, change: int) -> int:
        """The frontier of the first answer that holds for a topic that is wanted since `change`."""
        for each in self.changes[change:]:
            if topic not in each.topics:
                break
            if each.whole_from != NEVER:
                return each.whole_from
        return NEVER


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How often what was pushed showed a live reader that an earlier push had been dropped, by subscription."""
    dropped: Counter[Any] = Counter()
    connection = segment_reader._Connection
    pushed = connection._pushed

    def watched(self: segment_reader._Connection, frames: Any) -> None:
        was_live, gaps = self.follower.live, dropped[self._reader]
        pushed(self, frames)
        dropped[self._reader] = gaps + (was_live and not self.follower.live and not self.follower.broken)

    monkeypatch.setattr(connection, "_pushed", watched)
    return dropped


@pytest.mark.long
@pytest.mark.rule("E16", "E17", "E19", "E24", "F1", "F5", "F8", "F13", "F15", "Q12")
@pytest.mark.parametrize("history", [KEPT, NOT_KEPT], ids=["kept", "none"])
async def test_a_thousand_changes_while_pushes_are_dropped_and_publishers_and_relays_die(
    services, relays: Relays, dropped: Counter[Any], history: dict[str, Any]
) -> None:
    """Where no history is kept, publishers only stand still, and what was dropped is missing whole, and known to be."""
    stream = await services.stream(
        segments=2,
        history=history,
        push={"bufferBytes": "64Ki", "initialFilter": "none"},
        progress={"minWriters": 2, "writerTimeout": "10m"},
        dedicated=True,
    )
    relay = await relays.start(stream, id="relay-0", filter_linger=0.5)
    published, faults = Published(), Counter[str]()
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream, writer_id="v") as first,
        client.writer(stream, writer_id="w") as second,
        AsyncExitStack() as stack,
        asyncio.timeout(PATIENCE * 3),
    ):
        subs = [await stack.enter_async_context(client.subscribe(stream, topics=[b"a"], via=way)) for way in WAYS]
        await asyncio.gather(*(sub.ready.wait() for sub in subs))
        readers = [Reader(sub, published, seed) for seed, sub in enumerate(subs)]

        def slowest() -> int:
            return min(min(sub.frontier(), default=NEVER) for sub in subs)

        reading = [asyncio.create_task(reader.read()) for reader in readers]
        changing = [asyncio.create_task(reader.change()) for reader in readers]
        writing = [
            asyncio.create_task(published.write(writer, slowest, seed)) for seed, writer in enumerate((first, second))
        ]

        async def until(reached: Callable[[], bool]) -> None:
            while not reached():
                done, _ = await asyncio.wait([*reading, *changing, *writing], timeout=0.02)
                for task in done:
                    task.result()

        async def goes_on(after: str) -> None:
            """Each reader changes its topics often, and has epochs that began after this."""
            faults[after] += 1
            enough, begun = [(reader, len(reader.changes) + ROUND) for reader in readers], published.begun
            await until(lambda: all(len(reader.changes) >= least and reader.last > begun for reader, least in enough))

        def signal_publishers(number: signal.Signals) -> None:
            for pid in services.publishers(stream):
                os.kill(pid, number)

        await goes_on("no fault")
        for _ in range(2 if history is KEPT else 1):
            await relay.kill()
            relay = await relays.start(stream, id="relay-0", filter_linger=0.5)
            await goes_on("relay killed")
            signal_publishers(signal.SIGSTOP)
            await until(lambda: all(each.down for sub in subs for each in sub._machine._segments.values()))
            signal_publishers(signal.SIGCONT)
            await goes_on("upstream of the relay stopped")
            if history is KEPT:
                signal_publishers(signal.SIGKILL)
                await goes_on("publisher killed")
                await relay.kill()
                signal_publishers(signal.SIGKILL)
                relay = await relays.start(stream, id="relay-0", filter_linger=0.5)
                await goes_on("both killed")
        for task in changing:
            task.cancel()
        await asyncio.gather(*changing, return_exceptions=True)
        published.over = True
        await asyncio.gather(*writing)
        await asyncio.gather(*reading)
    changes = sum(len(reader.changes) - 1 for reader in readers)
    assert changes >= sum(faults.values()) * ROUND * len(readers) >= (1_000 if history is KEPT else 300)
    assert sum(dropped.values()) > 0
    for reader in readers:
        reader.judge(published)
        assert reader.decided > ROUND
        gaps, healed = reader.sub._counters["gaps"], reader.sub._counters["healed"]
        if history is KEPT:
            assert dropped[reader.sub] > 0
            assert healed > 0
            assert gaps == len(reader.missed) == 0
        else:  # readers of a relay see what it has missed by the end of its run, not by a later push
            assert gaps > 0
            assert reader.missed

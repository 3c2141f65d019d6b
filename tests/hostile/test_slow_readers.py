"""Subscribers that read at a crawl or not at all: what they cost a publisher and others, and who names them."""

import asyncio
import itertools
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zmq

import epochal
from epochal.client.catalog.catalog import CatalogClient
from epochal.protocol import messages as m

sys.path.insert(0, str(Path(__file__).parent))  # no package: its neighbours are imported by their plain names
from abuse import ESTABLISHED, FIN_WAIT_1, IMPATIENT, MIB, Honest, connected, stopped_subscriber
from tests.patience import PATIENCE

BUFFER = 8 * MIB


class Crawling:
    """A subscriber that reads one event of every hundred that are pushed."""

    def __init__(self, wires: Any, publisher: Any, stream: Any, segment: str) -> None:
        self.wire = wires.subscriber(publisher, stream, segment)
        self.wire.events.socket.setsockopt(zmq.RCVHWM, 1)
        self.wire.events.socket.setsockopt(zmq.RCVBUF, 64 * 1024)
        assert isinstance(self.wire.join(), m.Snapshot)
        self.seen: list[Any] = []
        self._owed = 0

    def pushed(self, events: int) -> None:
        self._owed += events
        while self._owed >= 100 and self.wire.events.poll():  # never waits: what it would wait for may be dropped
            self.seen.append(self.wire.events.receive())
            self._owed -= 0 if isinstance(self.seen[-1], m.Heartbeat) else 100

    def missed(self, last: int) -> bool:
        """Whether something was dropped for it up to the event `last`; reads all that still waits."""
        while self.wire.events.poll(0.5):
            self.seen.append(self.wire.events.receive())
        if any(isinstance(event, m.Refused) for event in self.seen):
            return True  # on a busy machine it was so slow that it was cut, and is told so when it comes back
        events = [event for event in self.seen if not isinstance(event, m.Heartbeat)]
        return events[-1].seq < last or any(b.prev != a.seq for a, b in pairwise(events))


@pytest.mark.clock
@pytest.mark.long
@pytest.mark.rule("S22")
@pytest.mark.parametrize("size", [500, 300_000])
def test_a_crawling_and_a_stopped_reader_cost_the_declared_buffer_and_no_other_reader_anything(
    start, wires, wait_until, monkeypatch, size
):
    """Faults 16 and 17: the memory is free again after the cut, for the next pair takes no more."""
    for name, value in IMPATIENT.items():
        monkeypatch.setenv(name, value)
    stream, publisher = start(segments=2, push={"bufferBytes": "8Mi"}, history={"retention": {"bytes": "2Mi"}})
    writer, stalled = wires.writer(publisher, stream, "1"), wires.subscriber(publisher, stream, "1")
    writer.open("loud")
    assert isinstance(stalled.hello(), m.Welcome)
    payload, batch = os.urandom(size), max(1, 600_000 // size)

    times = itertools.count()

    def push(total: int, *crawling: Crawling) -> int:
        peak = 0
        for _ in range(total // (batch * size)):
            at = next(times)
            writer.acked(at, *[payload] * batch)
            assert isinstance(writer.advance(at + 1), m.Done)
            peak = max(peak, publisher.rss())
            for each in crawling:
                each.pushed(batch + 1)
        return peak

    push(24 * MIB)
    with Honest(publisher, stream.uid, "0") as honest:
        honest.check()
        before, memory, peaks = connected(publisher, "events", ESTABLISHED), publisher.rss(), []
        for _ in range(2):
            with stopped_subscriber(publisher, stalled.channel):
                crawling = Crawling(wires, publisher, stream, "1")
                peaks.append(push(48 * MIB, crawling))
                assert crawling.missed(writer.acked(next(times), b"x").seq)
                crawling.wire.close()
                wait_until(lambda: connected(publisher, "events", ESTABLISHED, FIN_WAIT_1) <= before, PATIENCE)
        honest.check()
        print(f"{size}-byte records, 48 MiB past a crawling and a stopped reader, 8 MiB each: "
              f"{', '.join(f'{(peak - memory) / MIB:.1f}' for peak in peaks)} MiB more; "
              f"an honest epoch took {honest.slowest * 1000:.0f} ms at most")  # fmt: skip
    assert honest.error is None, repr(honest.error)
    assert peaks[0] - memory < 2 * BUFFER + 8 * MIB
    assert peaks[-1] < peaks[0] * 1.1 + 4 * MIB


@pytest.mark.long
async def test_a_reader_that_is_too_slow_is_named_by_the_catalog(start, monkeypatch):
    monkeypatch.setattr("epochal.client.subscriber.subscriber.MAX_WAITING_BYTES", MIB)
    stream, _ = start(push={"bufferBytes": "1Mi"}, payload={"encoding": "bytes"})
    namespace, _, name = stream.name.partition("/")
    async with epochal.connect(stream.catalog) as client, client.writer(stream.name) as writer:
        slow = client.subscribe(stream.name, subscriber="slow")
        async with slow, client.subscribe(stream.name, subscriber="quick") as quick:
            await quick.ready.wait()

            async def read() -> None:
                async for _ in quick.epochs():
                    pass

            reading = asyncio.create_task(read())
            for time in range(40):
                await writer.append(time, [b"x" * 50_000])
                await writer.advance(time + 1)
            async with CatalogClient(stream.catalog) as catalog, asyncio.timeout(PATIENCE):
                while True:
                    listed = await catalog.subscriptions(namespace, name)
                    waiting = {each.subscriber: each.counters.get("waiting_bytes", 0) for each in listed}
                    if waiting.get("slow", 0) > MIB:
                        break
                    await asyncio.sleep(0.1)
            assert waiting["quick"] < MIB
            await writer.finish()
            await reading

"""A relay whose publisher, played by the test, is lost once more before it was followed to its end."""

import asyncio
import time as clock
from collections.abc import Callable

import pytest
from tests.client.test_segment_reader import Publisher, Reader
from tests.patience import PATIENCE

from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import Push
from epochal.protocol.publisher.views import ViewMemory
from epochal.protocol.relay.effects import ForReaders
from epochal.protocol.relay.segment import RelayLimits
from epochal.protocol.subscriber.follower import FollowerSettings
from epochal_publisher.relay.segment import HostedRelaySegment


class Relayed:
    """One segment of a relay; `until` waits for what its connection brings about."""

    def __init__(self, publisher: Publisher) -> None:
        self.reader = Reader(publisher, FollowerSettings())
        self._news = asyncio.Event()
        self._ahead = 0.0
        self.hosted = HostedRelaySegment(
            "0", self.reader.context, self.reader.directory, self.reader.routes, "relay", RelayLimits(),
            ViewMemory(), self._news.set, self.reader.fail,
        )  # fmt: skip

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    @property
    def beats(self) -> bool:
        """Whether its readers are sent a heartbeat when one is due."""
        machine = self.hosted.machine
        self._ahead += 60
        machine.tick(clock.monotonic() + self._ahead)
        sent = [each for effect in machine.take() if isinstance(effect, ForReaders) for each in effect.effects]
        return any(isinstance(each, Push) for each in sent)


@pytest.mark.rule("F16")
async def test_who_is_lost_while_a_relay_catches_up_is_not_beaten_for(caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher()
    relayed = Relayed(publisher)
    machine = relayed.hosted.machine
    following = asyncio.create_task(relayed.hosted.run())
    try:
        async with asyncio.timeout(PATIENCE):
            await publisher.joined(seq=4)
            await relayed.until(lambda: machine.alive)
            assert relayed.beats
            for _ in range(2):
                publisher.cut()
                publisher.begin()
                await publisher.joined(seq=8)
                assert not machine.alive
                assert not relayed.beats
                since = await publisher.asked()
                opening = m.Opening(since.request, m.Position(1, 4), (0,), (), ())
                await publisher.answer(opening, m.Chunk(since.request, 0, False))
                await relayed.until(lambda: machine.alive)
                assert not relayed.hosted.live, "it still catches up"
                assert relayed.beats
            assert caplog.text.count("upstream is lost") == 1
    finally:
        following.cancel()
        await asyncio.wait([following])
        publisher.close()
        relayed.reader.context.term()

"""A subscription's connection to one publisher, which the test plays on real sockets: what is asked, and when."""

import asyncio
import time as clock
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import google_crc32c
import pytest
import zmq
import zmq.asyncio
from tests.patience import PATIENCE

import epochal
from epochal.client.catalog.routes import Route
from epochal.client.subscriber.segment_reader import SegmentReader
from epochal.errors import EpochalError
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.subscriber.effects import Began, Broke, FollowerReport, Moved, Reached, Rejoined
from epochal.protocol.subscriber.follower import FollowerSettings
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import TimeShape
from epochal.protocol.topics.filter import TopicFilter

CHANNEL = b"channel0"


def data(seq: int) -> m.Data:
    payload = b"%d" % seq
    return m.Data(seq, seq - 1, 0, b"", 1, google_crc32c.value(payload), payload)


class Publisher:
    """The two sockets that subscribers see of a publisher."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self.begin()

    def begin(self) -> None:
        """Listen, under new addresses."""
        self._peer = b""
        self.events, self.requests = self._context.socket(zmq.XPUB), self._context.socket(zmq.ROUTER)
        for socket in (self.events, self.requests):
            socket.linger = 0
            socket.bind("tcp://127.0.0.1:*")

    def cut(self) -> None:
        """Lose every connection."""
        self.events.close()
        self.requests.close()

    def close(self) -> None:
        self.cut()
        self._context.term()

    async def route(self, _segment: str) -> Route:
        """Where it listens now."""
        events, requests = [each.getsockopt_string(zmq.LAST_ENDPOINT) for each in (self.events, self.requests)]
        return Route(events, requests)

    async def asked(self) -> Any:
        """The next message that came."""
        self._peer, *frames = await self.requests.recv_multipart()
        (message,) = wire.decode(frames)
        return message

    async def answer(self, *messages: m.Message) -> None:
        for frames in wire.encode(*messages):
            await self.requests.send_multipart([self._peer, *frames])

    async def push(self, *messages: m.Message, prefix: bytes = b"C" + CHANNEL) -> None:
        for frames in wire.encode(*messages, prefix=prefix):
            await self.events.send_multipart(frames)

    async def joined(self, *, seq: int, incarnation: int = 1, heartbeat: float = 0.1) -> m.Hello:
        """Let a reader join behind event `seq`."""
        hello = await self.asked()
        assert isinstance(hello, m.Hello)
        await self.answer(m.Welcome(hello.request, m.VERSION, CHANNEL, incarnation, seq, 1000, heartbeat, ()))
        while await self.events.recv() != b"\x01P" + hello.nonce:
            pass
        await self.push(m.Snapshot(seq, incarnation, hello.nonce, (0,), (), ()), prefix=b"P" + hello.nonce)
        return hello


class Reader:
    """What a connection feeds; the base of what the tests look at."""

    def __init__(self, publisher: Publisher, settings: FollowerSettings) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.directory: Any = SimpleNamespace(
            info=SimpleNamespace(uid="uid"),
            shape=TimeShape(),
            stale=lambda: None,
        )
        self.routes: Any = SimpleNamespace(
            take=publisher.route,
            live=lambda *_: None,
            ended=lambda *_: None,
            pause=lambda _, seconds: asyncio.sleep(seconds),
        )
        self.follower_settings, self.pushes = settings, True
        self.topics: TopicFilter | None = None
        self.whole_filter = False
        self.relay: str | None = None
        self.seqs: list[int] = []
        self.lost: list[str] = []
        self.may_lose = 0
        self._at = m.Position(0, m.NOTHING_YET)
        self._news = asyncio.Event()

    def take_reports(self, segment: str, reports: Sequence[FollowerReport]) -> None:
        for report in reports:
            if isinstance(report, Began):
                self._at = m.Position(report.incarnation, report.state.seq)
            elif not isinstance(report, Broke | Reached | Rejoined | Moved):
                self._at = self._at._replace(seq=report.seq)
                self.seqs.append(report.seq)
        self._news.set()

    async def until(self, seq: int) -> None:
        while not self.seqs or self.seqs[-1] < seq:
            assert len(self.lost) <= self.may_lose, self.lost
            self._news.clear()
            await self._news.wait()

    async def looked(self) -> None:
        """Wait until the connection has looked at the clock."""
        self._news.clear()
        await self._news.wait()

    def down(self, segment: str, reason: str) -> None:
        self.lost.append(reason)
        self._news.set()

    def up(self, segment: str) -> None:
        pass

    def position(self, segment: str) -> m.Position:
        return self._at

    def fail(self, error: EpochalError) -> None:
        raise AssertionError(error)


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    made = Publisher()
    yield made
    made.close()


class Following:
    """A link that runs for the time of a block, which must not last long."""

    def __init__(self, publisher: Publisher, **settings: Any) -> None:
        self.reader = Reader(publisher, FollowerSettings(**settings))

    async def __aenter__(self) -> Reader:
        self._patience = asyncio.timeout(PATIENCE)
        await self._patience.__aenter__()
        self.link = SegmentReader(self.reader, "0", From.LIVE)
        self._task = asyncio.create_task(self.link.run())
        return self.reader

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self.reader.context.term()
        await self._patience.__aexit__(kind, error, trace)


@pytest.mark.rule("Q4", "Q8", "E26")
async def test_a_reader_that_lost_its_connection_joins_under_a_new_id_and_pulls_what_came_after_its_last_event(
    publisher: Publisher,
) -> None:
    async with Following(publisher) as reader:
        first = await publisher.joined(seq=4)
        await publisher.push(data(5), data(6))
        await reader.until(6)
        reader.may_lose = 1
        publisher.cut()
        publisher.begin()
        second = await publisher.joined(seq=8)
        assert second.nonce != first.nonce
        since = await publisher.asked()
        assert isinstance(since, m.Since)
        assert since.position == (1, 6)
        opening = m.Opening(since.request, m.Position(1, 6), (0,), (), ())
        await publisher.answer(opening, m.Chunk(since.request, 2, True), data(7), data(8))
        await publisher.push(data(8), data(9))
        await reader.until(9)
        assert reader.seqs == [5, 6, 7, 8, 9]


@pytest.mark.rule("Q11")
async def test_silence_is_looked_into_on_the_connection_that_there_is(publisher: Publisher) -> None:
    async with Following(publisher, silence=4.5) as reader:  # it asks after 3 s, and gives up 1.5 s later
        await publisher.joined(seq=4)
        since = await publisher.asked()
        assert isinstance(since, m.Since)
        assert since.position == (1, 4)
        assert reader.lost == []


@pytest.mark.rule("S19")
async def test_a_program_that_was_busy_itself_does_not_take_its_publisher_for_gone(publisher: Publisher) -> None:
    async with Following(publisher, silence=3.0) as reader:
        await publisher.joined(seq=4)
        await publisher.push(data(5))
        await reader.until(5)
        await reader.looked()
        clock.sleep(3.5)  # noqa: ASYNC251  # the event loop is what must stand still
        await reader.looked()
        await publisher.push(data(6))
        await reader.until(6)
        assert reader.lost == []


@pytest.mark.rule("S19")
async def test_a_program_that_is_slow_and_then_busy_does_not_take_its_publisher_for_gone(publisher: Publisher) -> None:
    following = Following(publisher, silence=1.5)  # more than a busy machine can hold this loop up unnoticed
    async with following as reader:
        await publisher.joined(seq=4)
        await publisher.push(data(5))
        await reader.until(5)
        following.link.pause()
        clock.sleep(1.5)  # noqa: ASYNC251  # the event loop is what must stand still
        for _ in range(20):
            await reader.looked()
        assert reader.lost == []
        following.link.resume()
        await publisher.push(data(6))
        await reader.until(6)


@pytest.mark.rule("Q7")
async def test_who_wants_no_pushes_subscribes_to_nothing(publisher: Publisher) -> None:
    following = Following(publisher, poll=0.05)
    following.reader.pushes = False
    async with following as reader:
        hello = await publisher.asked()
        await publisher.answer(m.Welcome(hello.request, m.VERSION, CHANNEL, 1, 4, 1000, 0.1, ()))
        for seq in (4, 5):
            since = await publisher.asked()
            assert since.position == (1, seq)
            opening = m.Opening(since.request, since.position, (0,), (), ())
            await publisher.answer(opening, m.Chunk(since.request, 1, True), data(seq + 1))
        await reader.until(6)
        assert not await publisher.events.poll(0)


@pytest.mark.rule("Q13", "Q15")
async def test_what_a_program_wants_of_pushes_holds_for_every_connection(publisher: Publisher) -> None:
    async with epochal.connect("http://127.0.0.1:9") as client:
        subscription = client.subscribe("test/s", push=False, poll=0.25)
        assert subscription.follower_settings.poll == 0.25
        assert not subscription.pushes
        subscription.push(True)
        assert subscription.pushes
        subscription.push(False)
    following = Following(publisher)
    following.reader.follower_settings = subscription.follower_settings
    following.reader.pushes, following.reader.may_lose = subscription.pushes, 2
    async with following as reader:
        for seq in (4, 5):
            hello = await publisher.asked()
            await publisher.answer(m.Welcome(hello.request, m.VERSION, CHANNEL, 1, seq, 1000, 0.1, ()))
            since = await publisher.asked()
            assert since.position == (1, seq)
            opening = m.Opening(since.request, since.position, (0,), (), ())
            await publisher.answer(opening, m.Chunk(since.request, 1, True), data(seq + 1))
            await reader.until(seq + 1)
            assert not await publisher.events.poll(0)
            publisher.cut()
            publisher.begin()

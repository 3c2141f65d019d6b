"""Filters at the sender, on real sockets: what readers can make a publisher hold, and what a publisher can pretend."""

import asyncio
import itertools
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

import epochal
from epochal.errors import RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.publisher import views
from epochal.protocol.publisher.server import ServingSettings
from epochal.protocol.topics import publisher_trie

sys.path.insert(0, str(Path(__file__).parent))  # no package: what these tests share is imported by its plain name
from abuse import MIB, Honest
from tests.patience import PATIENCE

FIREHOSE: dict[str, Any] = {"push": {"initialFilter": "firehose"}}
NAMED: dict[str, Any] = {"push": {"initialFilter": "none", "heartbeat": "100ms"}}
SUBSCRIBE, RESET = 1, 3
VIEWS = 220
"""With prefixes of 256 KiB each, they take more than all views may."""

# ---- readers ----


class Reader:
    """A raw subscriber that stays; `number` makes its filter unlike all others."""

    def __init__(self, wires: Any, publisher: Any, uid: str, number: int) -> None:
        self._requests = wires.line(zmq.DEALER, publisher.addresses["requests"])
        self._events = wires.line(zmq.SUB, publisher.addresses["events"], prefix=1)
        self._uid, self._number = uid, number
        self._taken: list[m.Filter] = []

    def _prefixes(self, size: int) -> list[bytes]:
        """As few as there can be of so many bytes: each step costs a request."""
        names = (f"{self._number:04}/{each:04}/".encode() for each in range(size // wire.MAX_TOPIC))
        return [name.ljust(wire.MAX_TOPIC, b"x") for name in names]

    def take_view(self) -> int:
        """Take a view that is as large as one may be; returns how many of its steps are refused."""
        prefixes = self._prefixes(publisher_trie.MAX_BYTES)
        steps = [(RESET, b""), *((SUBSCRIBE, prefix) for prefix in prefixes)]
        requests = [m.Filter("0", 1, number, number, *step) for number, step in enumerate(steps, 1)]
        for first in range(0, len(requests), 16):
            some = requests[first : first + 16]
            self._requests.send(*some)
            self._taken += [each for each in some if not isinstance(self._requests.receive(), m.Refused)]
        return len(requests) - len(self._taken)

    def stay(self) -> None:
        """Say again what was said last: a view of which nothing is heard for long is forgotten."""
        self._requests.send(self._taken[-1])
        self._requests.receive()

    def join(self, *, named: bool) -> Any:
        """Join the channel of the largest filter that a hello can name, or of the view; returns the welcome."""
        topics = (tuple(self._prefixes(m.MAX_FILTER_BYTES)), ()) if named else None
        nonce = secrets.token_bytes(16)
        self._requests.send(m.Hello(1, (1,), self._uid, "0", nonce, topics, view=1))
        welcome = self._requests.receive()
        for prefix in (b"C" + welcome.channel, b"P" + nonce):
            self._events.socket.subscribe(prefix)
        self._events.await_(m.Snapshot)
        return welcome


@pytest.mark.clock
@pytest.mark.long
@pytest.mark.rule("F4", "F12")
def test_a_flood_of_the_largest_views_costs_bounded_memory_and_others_are_served(start, wires, wait_until):
    """Each connection takes prefixes of 256 KiB, until all views have 64 MiB; and then channels run out, too."""
    stream, publisher = start(**FIREHOSE)
    with Honest(publisher, stream.uid, "0") as honest:
        honest.check()
        memory, refused, coarse = publisher.rss(), 0, 0
        readers: list[Reader] = []
        heard = time.monotonic()
        for number in range(VIEWS):
            readers.append(Reader(wires, publisher, stream.uid, number))
            refused += readers[-1].take_view()
            coarse += readers[-1].join(named=False).coarse
            if not refused and time.monotonic() > heard + ServingSettings().view_ttl / 4:
                heard = time.monotonic()
                for reader in readers:
                    reader.stay()
        assert refused > 0
        coarse += sum(
            Reader(wires, publisher, stream.uid, number).join(named=True).coarse for number in range(VIEWS, VIEWS + 40)
        )
        honest.check()
        held = publisher.rss() - memory
        print(f"{VIEWS} of the largest views, {refused} steps refused, {coarse} coarse joins: {held / MIB:.1f} MiB; an"
              f" honest epoch took {honest.slowest * 1000:.0f} ms at most")  # fmt: skip
    assert honest.error is None, repr(honest.error)
    assert publisher.metric("channels") == 64
    assert publisher.metric("coarse") == publisher.metric("coarse_joins_total") == coarse > 30
    wait_until(lambda: sum(each["coarse"] for each in stream.segment()["channels"]) == coarse)
    assert len(channels := stream.segment()["channels"]) == 64
    assert max(len(each["filter"]) for each in channels) == 60
    assert held < 4 * views.MAX_BYTES


async def publish(writer: epochal.Writer, time: int, *topics: bytes) -> None:
    """An epoch with a batch of each topic, complete."""
    for topic in topics:
        await writer.append(time, [topic], topic=topic)
    await writer.advance(time + 1)


def topics_of(epoch: Any) -> list[bytes]:
    return [batch.topic for batch in epoch.batches]


@pytest.mark.rule("N12")
async def test_a_reader_of_10000_prefixes_is_refused_the_filter_and_given_its_topics(start):
    """A publisher takes 4,096 of them. Then all is sent, and what is not wanted is left out at the receiver."""
    stream, _ = start(**NAMED)
    topics = [b"%05d" % number for number in range(10_000)]
    async with (
        epochal.connect(stream.catalog) as client,
        client.writer(stream.name) as writer,
        client.subscribe(stream.name, topics=topics) as sub,
    ):
        await sub.ready.wait()
        connection = sub._links[0]._connection
        assert connection is not None
        assert connection.follower._upstream._refused, "before the join"
        epochs = sub.epochs()
        await publish(writer, 0, b"other", topics[-1])
        assert topics_of(await anext(epochs)) == [topics[-1]]
        await sub.change(topics=[b"other"])
        await publish(writer, 1, b"other", topics[-1])
        assert topics_of(await anext(epochs)) == [b"other"]


@pytest.mark.rule("F11")
def test_a_subscription_that_a_stranger_names_as_replaced_goes_on_and_the_stranger_learns_nothing(start, wires):
    stream, publisher = start(**NAMED)
    writer, reader, stranger = (
        wires.writer(publisher, stream), wires.subscriber(publisher, stream), wires.subscriber(publisher, stream)
    )  # fmt: skip
    writer.open()
    assert reader.join().left is None
    nonce, left = reader.nonce, {}
    writer.acked(0, b"first")
    assert reader.next_event().payload == b"first"
    for each in (stranger, reader):
        fresh = secrets.token_bytes(16)
        each.requests.send(m.Hello(9, (1,), stream.uid, "0", fresh, ((b"a",), ()), nonce))
        welcome = each.requests.receive()
        for prefix in (b"C" + welcome.channel, b"P" + fresh):
            each.events.socket.subscribe(prefix)
        left[each is reader] = each.events.await_(m.Snapshot).left
        writer.acked(0, b"next")
        assert reader.next_event().payload == b"next"
    assert left == {False: None, True: 1}


@pytest.mark.rule("F11")
def test_who_subscribes_to_a_shorter_prefix_is_sent_every_channel_and_counted(start, wires, wait_until):
    """Filters are no permission: docs/hostile-input.md names this as not defended."""
    stream, publisher = start(**NAMED)
    writer = wires.writer(publisher, stream)
    writer.open()
    readers = [Reader(wires, publisher, stream.uid, number) for number in range(2)]
    stranger = wires.line(zmq.SUB, publisher.addresses["events"], prefix=1)
    for prefix in (b"C", b"", b"P", b"C1234567", b"P" + bytes(15)):
        stranger.socket.subscribe(prefix)
    for none in (b"Q", b"C123456789", b"P" + bytes(17)):
        stranger.socket.subscribe(none)
    wait_until(lambda: publisher.metric("refused_messages_total") == 8)
    assert publisher.metric("shorter_prefixes_total") == 5
    for prefix in (b"", b"P"):
        stranger.socket.unsubscribe(prefix)
    assert not any(each.join(named=True).coarse for each in readers)
    writer.acked(0, b"of no topic that anyone wants")
    assert isinstance(writer.advance(1), m.Done)
    assert [stranger.await_(m.Frontier).changes for _ in readers] == [((0, -1), (1, 1))] * 2


# ---- a publisher ----


class Liar:
    """What stands between a subscriber and its publisher, and changes what the publisher says."""

    def __init__(self, publisher: Any, lie: Callable[[m.Message], m.Message | None]) -> None:
        self._lie = lie
        self.lies = asyncio.Event()
        """Whether anything was changed."""
        self._context = zmq.asyncio.Context()
        self._behind, self._in_front = {}, {}
        for name, behind, front in (("events", zmq.XSUB, zmq.XPUB), ("requests", zmq.DEALER, zmq.ROUTER)):
            self._behind[name], self._in_front[name] = self._context.socket(behind), self._context.socket(front)
            self._behind[name].connect(publisher.addresses[name])
            self._in_front[name].bind("tcp://127.0.0.1:*")
        self._addresses = {publisher.addresses[name]: name for name in self._behind}
        self._peer = b""

    async def reach(self, address: str) -> str:
        """The address that a subscriber is to use."""
        name = self._addresses.get(address)
        return address if name is None else self._in_front[name].getsockopt_string(zmq.LAST_ENDPOINT)

    def _changed(self, frames: list[bytes], size: int) -> list[list[bytes]]:
        messages = []
        for message in wire.decode(frames, prefix=size):
            lie = self._lie(message)
            messages.append(message if lie is None else lie)
            if lie is not None:
                self.lies.set()
        return wire.encode(*messages, prefix=frames[0][:size])

    async def _subscriptions(self) -> None:
        while True:
            await self._behind["events"].send(await self._in_front["events"].recv())

    async def _pushes(self) -> None:
        while True:
            frames = await self._behind["events"].recv_multipart()
            for each in self._changed(frames, wire.CHANNEL_PREFIX if frames[0][:1] == b"C" else wire.NONCE_PREFIX):
                await self._in_front["events"].send_multipart(each)

    async def _questions(self) -> None:
        while True:
            self._peer, *frames = await self._in_front["requests"].recv_multipart()
            await self._behind["requests"].send_multipart(frames)

    async def _answers(self) -> None:
        while True:
            for each in self._changed(await self._behind["requests"].recv_multipart(), 0):
                await self._in_front["requests"].send_multipart([self._peer, *each])

    async def run(self) -> None:
        await asyncio.gather(self._subscriptions(), self._pushes(), self._questions(), self._answers())

    def close(self) -> None:
        for each in (*self._behind.values(), *self._in_front.values()):
            each.close(0)
        self._context.term()


@asynccontextmanager
async def lying(publisher: Any, lie: Callable[[m.Message], m.Message | None]) -> AsyncIterator[Liar]:
    liar = Liar(publisher, lie)
    task = asyncio.create_task(liar.run())
    try:
        yield liar
    finally:
        task.cancel()
        await asyncio.wait([task])
        liar.close()


def heartbeat(more: int, of_channel: int = 0) -> Callable[[m.Message], m.Message | None]:
    """Heartbeats name a wrong end of the log, or a wrong last event of the channel."""

    def lie(message: m.Message) -> m.Message | None:
        if not isinstance(message, m.Heartbeat):
            return None
        upto = max(message.seq, message.upto) + more
        return m.Heartbeat(message.seq + of_channel, max(upto, m.NOTHING_YET))

    return lie


def chunk(more: int) -> Callable[[m.Message], m.Message | None]:
    """Chunks of a filtered answer name a wrong end of what they cover."""

    def lie(message: m.Message) -> m.Message | None:
        return message._replace(upto=message.upto + more) if isinstance(message, m.Chunk) else None

    return lie


LIES = {
    "one event more than there is": (heartbeat(1), True),
    "a hundred events more": (heartbeat(100), True),
    "fewer events than there are": (heartbeat(-100), False),
    "an event on the channel that is not there": (heartbeat(0, 1), False),
    "a chunk that goes on by one event": (chunk(1), True),
    "a chunk that goes on by a hundred": (chunk(100), True),
    "a chunk that ends before its events": (chunk(-2), True),
}
"""A lie, and whether the subscription must end by it; else it must heal."""


@pytest.mark.rule("F7", "F10")
@pytest.mark.parametrize("name", LIES)
async def test_a_publisher_that_lies_about_what_a_reader_has_passed_makes_no_wrong_epoch(start, name):
    lie, ends = LIES[name]
    stream, publisher = start(**NAMED)
    async with (
        lying(publisher, lie) as liar,
        epochal.connect(stream.catalog) as client,
        epochal.connect(stream.catalog, reach=liar.reach) as deceived,
        client.writer(stream.name) as writer,
    ):
        for at in range(2):
            await publish(writer, at, b"a", b"b", b"a")
        async with deceived.subscribe(stream.name, topics=[b"a"], since="start") as sub:
            epochs = sub.epochs()
            try:
                async with asyncio.timeout(PATIENCE):
                    assert [topics_of(await anext(epochs)) for _ in range(2)] == [[b"a", b"a"]] * 2
                    for at in itertools.count(2) if ends else range(2, 6):
                        if not ends:
                            liar.lies.clear()
                            await liar.lies.wait()
                        await publish(writer, at, b"a", b"b", b"a")
                        epoch = await anext(epochs)
                        assert (epoch.time, topics_of(epoch)) == (at, [b"a", b"a"])
            except RemoteProtocolError:
                assert ends

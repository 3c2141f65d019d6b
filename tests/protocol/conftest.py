"""The machines of one stream, wired together in memory: no sockets, no clock, no threads.

Each message passes through the codec, so what a test sees is what the wire can carry. A test cuts, holds or heals links
by hand; nothing happens by itself except inside `run`.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.effects import AskRecord, Private, Push, Reply, ReportFinishing, SendAnswers
from epochal.protocol.publisher.horizon import Record
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SegmentServer, ServingSettings
from epochal.protocol.subscriber.effects import (
    Began,
    Broke,
    Reached,
    Rejoined,
    Request,
    SubscribePrefix,
    UnsubscribePrefix,
)
from epochal.protocol.subscriber.follower import Follower
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import Time, TimeShape
from epochal.protocol.writer.effects import Failed, Over, Reconnect, Send
from epochal.protocol.writer.machine import WriterMachine

STREAM = "uid-of-the-stream"


def through_the_codec(message: m.Message) -> m.Message:
    """What the peer reads of `message`."""
    ((frames,), prefix) = wire.encode(message, prefix=b"prefix"), len(b"prefix")
    (read,) = wire.decode(frames, prefix=prefix)
    assert read == message
    return read


class Writer:
    """A writer machine, its connections, and what it was told."""

    def __init__(self, wiring: "Wiring", machine: WriterMachine) -> None:
        self.wiring, self.machine = wiring, machine
        self.peers: dict[str, bytes] = {}
        self.held_back: dict[str, deque[m.Message]] = {}
        """Segment -> what waits on its way to the publisher there."""
        self.deaf: set[str] = set()
        """Segments whose answers get lost."""
        self.told: list[Any] = []

    def connect(self, *segments: str) -> None:
        for segment in segments or self.wiring.segments:
            self.peers[segment] = b"writer %d" % next(self.wiring.numbers)
            self.deaf.discard(segment)
            self.machine.connected(segment)
        self.wiring.run()

    def cut(self, *segments: str) -> None:
        """Both ends lose the connection; what was on its way is gone."""
        for segment in segments or self.wiring.segments:
            del self.peers[segment]
            self.held_back.pop(segment, None)
            self.machine.disconnected(segment)

    def hold_back(self, segment: str) -> None:
        self.held_back[segment] = deque()

    def let_through(self, segment: str) -> None:
        for message in self.held_back.pop(segment):
            self.wiring.publishers[segment].receive(self.peers[segment], message, self.wiring.now)
        self.wiring.run()

    def append(self, segment: str, time: Time, *payloads: bytes, awaited: bool = False) -> list[int]:
        tickets = [
            self.machine.appends.append(segment, time, b"", 1, payload, awaited=awaited)
            for payload in payloads or (b"x",)
        ]
        self.wiring.run()
        return tickets

    def advance(self, time: Time, *, awaited: bool = False) -> int:
        ticket = self.machine.advance(time, awaited=awaited)
        self.wiring.run()
        return ticket

    def leave(self, how: m.Leaving) -> int:
        ticket = self.machine.leave(how)
        self.wiring.run()
        return ticket

    def of(self, kind: type) -> list[Any]:
        """What was told of one kind, oldest first."""
        return [told for told in self.told if type(told) is kind]

    def errors(self) -> list[str]:
        return [told.error.code for told in self.told if isinstance(told, Failed | Over)]


class Reader:
    """A subscriber, one follower a segment, and what they were told."""

    def __init__(self, wiring: "Wiring", machine: SubscriberMachine) -> None:
        self.wiring, self.machine = wiring, machine
        self.followers: dict[str, Follower] = {}
        self.peers: dict[str, bytes] = {}
        self.prefixes: dict[str, set[bytes]] = {}
        self.losing: set[str] = set()
        """Segments whose pushes on the channel get lost."""
        self.began: list[tuple[str, Began]] = []
        self.broke: list[tuple[str, str]] = []

    def join(self, segment: str, begin: From | m.Position = From.LIVE, **options: Any) -> None:
        self.peers[segment] = b"reader %d" % next(self.wiring.numbers)
        self.prefixes[segment] = set()
        self.followers[segment] = Follower(
            STREAM,
            segment,
            begin,
            shape=self.machine.shape,
            fresh_nonce=self.wiring.nonce,
            now=self.wiring.now,
            **options,
        )
        self.wiring.run()

    def rejoin(self, segment: str) -> None:
        """Replace a broken connection: go on behind the last event taken in."""
        at = self.machine.position(segment)
        self.join(segment, at, continuing=True, least_incarnation=at.incarnation)

    def epochs(self) -> list[Any]:
        """(time, payloads) of each complete epoch, and what else came, since the last call."""
        found = []
        while (epoch := self.machine.next_epoch()) is not None:
            batches = getattr(epoch, "batches", None)
            found.append(epoch if batches is None else (epoch.time, sorted(data.payload for _, data in batches)))
        return found

    def events(self) -> list[Any]:
        found = []
        while (event := self.machine.next_event()) is not None:
            found.append(event)
        return found

    @property
    def frontier(self) -> list[Time]:
        return list(self.machine.frontier)


class Wiring:
    """One stream: its segments' publishers, writers, readers, and the catalog's record of completion."""

    stream = STREAM

    def __init__(self, shape: str = "int", segments: str = "0", **settings: Any) -> None:
        self.shape, self.segments = TimeShape.parse(shape), tuple(segments)
        self.settings = PublisherSettings(self.shape, **settings)
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.writers: list[Writer] = []
        self.readers: list[Reader] = []
        self.publishers: dict[str, SegmentPublisher] = {}
        self.servers: dict[str, SegmentServer] = {}
        self.finishing: dict[str, bool] = {}
        self.reports: deque[tuple[str, ReportFinishing]] = deque()
        self.records: deque[tuple[str, Record]] = deque()
        """What publishers have asked the catalog to store, and it has not."""
        self.asked: set[str] = set()
        """Segments whose publishers ask for a record, beside those under way."""
        self.stored: dict[str, Record] = {}
        """Segment -> what the catalog has of it."""
        self.catalog_answers = True
        self.arrives: Callable[[str, m.Message], int] = lambda segment, message: 1
        """How often a reader's request arrives at a segment's publisher."""
        self.log: dict[str, list[m.Message]] = {segment: [] for segment in segments}
        """Segment -> every event and heartbeat pushed, in order."""
        for segment in self.segments:
            self.start_publisher(segment)

    def nonce(self) -> bytes:
        return next(self.numbers).to_bytes(16, "big")

    def start_publisher(self, segment: str, incarnation: int = 1, **options: Any) -> SegmentPublisher:
        """Start the publisher of a segment, or its next life; connections to the last one are the test's to cut."""
        publisher = SegmentPublisher(STREAM, segment, self.settings, incarnation=incarnation, now=self.now, **options)
        self.publishers[segment] = publisher
        channels = Channels(lambda: b"%s%07d" % (segment.encode(), next(self.numbers)))
        self.servers[segment] = SegmentServer(publisher, channels, ServingSettings(), self.now)
        return publisher

    def report(self, segment: str) -> None:
        """A publisher renews its lease, as it does every second."""
        record = self.publishers[segment].record()
        assert record is not None
        self.records.append((segment, record))
        self.run()

    def lose_memory(self, segment: str, incarnation: int = 2, **options: Any) -> SegmentPublisher:
        """Kill a publisher without a log, with its connections; the next life begins with what the catalog has."""
        known = self.publishers[segment].writers
        self.records = deque(entry for entry in self.records if entry[0] != segment)
        self.asked.discard(segment)
        for writer in self.writers:
            if segment in writer.peers:
                writer.cut(segment)
        stored = self.stored.get(segment)
        given = {} if stored is None else {"lower": stored.lower, "horizon": stored.horizon}
        return self.start_publisher(segment, incarnation, **{"known_writers": known, **given, **options})

    def writer(self, name: str = "w", session: int = 1, *, connect: bool = True, **options: Any) -> Writer:
        machine = WriterMachine(STREAM, self.shape, self.segments, name, session, now=self.now, **options)
        writer = Writer(self, machine)
        self.writers.append(writer)
        if connect:
            writer.connect()
        return writer

    def reader(self, begin: From | None = From.LIVE, **options: Any) -> Reader:
        """A reader that joins every segment; with `cursor`, behind its positions; with None it joins by hand."""
        reader = Reader(self, SubscriberMachine(STREAM, self.shape, self.segments, **options))
        self.readers.append(reader)
        cursor = options.get("cursor")
        if begin is not None:
            for segment in self.segments:
                reader.join(segment, begin if cursor is None else cursor.positions[segment])
        return reader

    def tick(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass, in steps no longer than a loop that is never stalled takes."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            for writer in self.writers:
                writer.machine.tick(self.now)
            self.run()
            for segment in self.segments:
                self.publishers[segment].tick(self.now)
                self.servers[segment].tick(self.now)
            self.run()
            for reader in self.readers:
                for follower in reader.followers.values():
                    follower.tick(self.now)
            self.run()

    def run(self) -> None:
        """Carry messages until nothing is left to carry."""
        while self._writers_send() | self._readers_send() | self._publishers_send() | self._catalog_answers():
            pass

    def _writers_send(self) -> bool:
        busy = False
        for writer in self.writers:
            for effect in writer.machine.take():
                busy = True
                match effect:
                    case Send(segment, message) if segment in writer.held_back:
                        writer.held_back[segment].append(through_the_codec(message))
                    case Send(segment, message) if segment in writer.peers:
                        peer = writer.peers[segment]
                        self.publishers[segment].receive(peer, through_the_codec(message), self.now)
                    case Reconnect(segment, _):
                        writer.told.append(effect)
            writer.told += writer.machine.reports()
        return busy

    def _readers_send(self) -> bool:
        busy = False
        for reader in self.readers:
            for segment, follower in reader.followers.items():
                server, prefixes = self.servers[segment], reader.prefixes[segment]
                for effect in follower.take():
                    busy = True
                    match effect:
                        case Request(message):
                            for _ in range(self.arrives(segment, message)):
                                server.receive(reader.peers[segment], through_the_codec(message), self.now)
                        case SubscribePrefix(prefix):
                            prefixes.add(prefix)
                            if prefix.startswith(b"P"):
                                server.subscribed(prefix[1:], self.now)
                            else:
                                server.channels.hears(prefix[1:], True)
                        case UnsubscribePrefix(prefix):
                            prefixes.discard(prefix)
                            if prefix.startswith(b"P"):
                                server.unsubscribed(prefix[1:])
                            elif not any(self._followers(segment, prefix)):
                                server.channels.hears(prefix[1:], False)
        return busy

    def _publishers_send(self) -> bool:
        busy = False
        for segment in self.segments:
            for effect in self.publishers[segment].take():
                busy = True
                self._carry(segment, effect)
        for reader in self.readers:
            for segment, follower in reader.followers.items():
                for told in follower.reports():
                    self._tell(reader, segment, told)
        return busy

    def _carry(self, segment: str, effect: Any) -> None:
        match effect:
            case Push(message):
                self.log[segment].append(message)
                self.servers[segment].channels.push(message)
                self._flush(segment)
            case Private(nonce, message, replaced):
                message = self.servers[segment].channels.left(message, replaced)
                for _, follower in self._followers(segment, b"P" + nonce):
                    follower.pushed(b"P" + nonce, through_the_codec(message), self.now)
            case Reply(peer, message):
                for writer in self.writers:
                    if writer.peers.get(segment) == peer and segment not in writer.deaf:
                        writer.machine.receive(segment, through_the_codec(message))
                        writer.told += writer.machine.reports()
            case SendAnswers(peer, messages):
                for reader in self.readers:
                    if reader.peers.get(segment) == peer:
                        for message in messages:
                            reader.followers[segment].answered(through_the_codec(message), self.now)
            case ReportFinishing():
                self.reports.append((segment, effect))
            case AskRecord():
                self.asked.add(segment)
                self._renew_where_asked()

    def _flush(self, segment: str) -> None:
        """Deliver what was pushed on the segment's channels."""
        for frames in self.servers[segment].channels.flush():
            prefix = frames[0][: wire.CHANNEL_PREFIX]
            for reader, follower in self._followers(segment, prefix):
                for message in wire.decode(frames, prefix=len(prefix)):
                    if segment not in reader.losing:
                        follower.pushed(prefix, message, self.now)

    def _renew_where_asked(self) -> None:
        """One request at a time: what is asked for meanwhile goes with the next (E11)."""
        for segment in self.asked - {of for of, _ in self.records}:
            self.asked.discard(segment)
            record = self.publishers[segment].record()
            assert record is not None
            self.records.append((segment, record))

    def _followers(self, segment: str, prefix: bytes) -> Iterator[tuple[Reader, Follower]]:
        for reader in self.readers:
            if prefix in reader.prefixes.get(segment, ()):
                yield reader, reader.followers[segment]

    def _tell(self, reader: Reader, segment: str, told: Any) -> None:
        match told:
            case Began():
                reader.began.append((segment, told))
                reader.machine.began(segment, told)
            case Broke(error):
                reader.broke.append((segment, error.code))
            case Rejoined():
                reader.machine.rejoined(segment, told)
            case Reached(seq):
                reader.machine.reached(segment, seq)
            case _:
                reader.machine.event(segment, told)

    def _catalog_answers(self) -> bool:
        if not self.catalog_answers:
            return False
        if self.records:
            segment, record = self.records.popleft()
            self.stored[segment] = record
            self.publishers[segment].recorded(record.number, self.now)
            self._renew_where_asked()
            return True
        if not self.reports:
            return False
        segment, report = self.reports.popleft()
        if not all(self.finishing.get(each) for each in self.segments):  # once recorded, never undone
            self.finishing[segment] = report.finishing
        complete = all(self.finishing.get(each) for each in self.segments)
        self.publishers[segment].finishing_answered(report.number, complete, self.now)
        if complete:
            for publisher in self.publishers.values():
                publisher.completed()
        return True


@pytest.fixture(scope="session")  # it makes a new stream at each call, so hypothesis may use it too
def wire_up() -> Callable[..., Wiring]:
    """Makes a stream of wired machines: `wire_up("(int, int)", segments="01", min_writers=2)`."""
    return Wiring

"""A relay at a publisher that announces no filters: it is pushed everything on one channel, and no field is new."""

from typing import Any

import google_crc32c
import pytest

from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import Private, Push, SendAnswers
from epochal.protocol.relay.effects import ForReaders, Want
from epochal.protocol.relay.segment import RelayedSegment, RelayLimits
from epochal.protocol.subscriber.effects import Request
from epochal.protocol.subscriber.follower import Follower
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import TimeShape
from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.wire import decode, encode

A = TopicFilter([b"a"])
CHANNEL = b"channel0"
FEATURES = ("since", "filter:receiver", "since:times")


def data(seq: int, topic: bytes) -> m.Data:
    return m.Data(seq, seq - 1, 3, topic, 1, google_crc32c.value(topic), topic)


class Relayed:
    """A relay's machine with its connection upstream; the test plays the publisher."""

    def __init__(self) -> None:
        self._drawn = 0
        shape = TimeShape.parse("int")
        self.machine = RelayedSegment("uid", "0", shape, "me", RelayLimits(), self._fresh)
        self.follower = Follower(
            "uid", "0", From.LIVE, shape=shape, fresh_nonce=lambda: self._fresh(16), now=0.0,
            topics=self.machine.wanted, whole_filter=True, relay="me",
        )  # fmt: skip

    def _fresh(self, size: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(size, "big")

    def asks(self) -> Any:
        """The request that was sent upstream."""
        (message,) = [each.message for each in self.follower.take() if isinstance(each, Request)]
        return message

    def answers(self, *messages: m.Message) -> list[Any]:
        for frames in encode(*messages):
            for message in decode(frames):
                self.follower.answered(message, 0.0)
        return self.reported()

    def pushes(self, *messages: m.Message, prefix: bytes = b"C" + CHANNEL) -> list[Any]:
        for frames in encode(*messages, prefix=prefix):
            for message in decode(frames, prefix=len(prefix)):
                self.follower.pushed(prefix, message, 0.0)
        return self.reported()

    def welcomes(self, seq: int) -> None:
        """Answer its hello with a snapshot after event `seq`, in which nothing is said of what it replaces."""
        hello = self.asks()
        self.answers(m.Welcome(hello.request, 1, CHANNEL, 2, seq, 1 << 20, 1.0, FEATURES))
        snapshot = m.Snapshot(seq, 2, hello.nonce, (3,), (5,), ())
        self.pushes(snapshot, prefix=b"P" + hello.nonce)

    def reported(self) -> list[Any]:
        """What the machine makes of what has come."""
        self.machine.reported(self.follower.reports(), self.follower.welcome, 0.0)
        return self.done()

    def done(self) -> list[Any]:
        """What the machine does, the effects of its run among the others."""
        flat: list[Any] = []
        for effect in self.machine.take():
            flat += effect.effects if isinstance(effect, ForReaders) else [effect]
            if isinstance(effect, Want):
                self.follower.want(effect.topics, 0.0, widens=effect.widens)
        return flat


@pytest.fixture
def relayed() -> Relayed:
    relayed = Relayed()
    relayed.welcomes(9)
    relayed.pushes(data(10, b"a"), data(11, b"b"))
    return relayed


def test_only_what_is_wanted_is_passed_on_and_all_of_it_is_passed(relayed: Relayed) -> None:
    assert relayed.pushes(data(12, b"a"), m.Heartbeat(12)) == []
    assert relayed.machine.position == (2, 12)
    assert relayed.follower.live


@pytest.mark.rule("E24", "F8", "F15")
def test_new_topics_come_from_where_the_relay_is_with_the_state_there(relayed: Relayed) -> None:
    """The publisher knows nothing of a subscription that replaces another, so what follows is pulled, all of it."""
    hello = m.Hello(1, (1,), "uid", "0", b"n" * 16, A.prefixes)
    relayed.machine.receive(b"peer", hello, 0.0)
    assert relayed.done() == [Want(A, widens=True)], "and no welcome"
    relayed.welcomes(13)
    since = relayed.asks()
    assert (since.position, since.filter) == ((2, 11), None)
    opening, chunk = m.Opening(since.request, since.position, (3,), (5,), ()), m.Chunk(since.request, 2, True)
    said = relayed.answers(opening, chunk, data(12, b"b"), data(13, b"a"))
    (welcome,) = [each.messages[0] for each in said if isinstance(each, SendAnswers)]
    assert isinstance(welcome, m.Welcome)
    assert (welcome.incarnation, welcome.path) == (2, ("me",))
    assert [each.message.seq for each in said if isinstance(each, Push)] == [13]
    assert relayed.machine.run is not None
    relayed.machine.run.server.subscribed(hello.nonce, 0.0)
    (private,) = [each for each in relayed.done() if isinstance(each, Private)]
    assert isinstance(private.message, m.Snapshot)
    assert (private.message.seq, private.message.upper) == (13, (5,))
    live = relayed.pushes(data(14, b"a"), data(15, b"b"), m.Heartbeat(15))
    assert [each.message.seq for each in live if isinstance(each, Push)] == [14]

"""Everything is pushed at first; what is not wanted is turned away step by step, and what is wanted never."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.protocol.test_changing_topics import BOTH, A, B, Stream

from epochal.errors import LimitExceeded, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol.publisher import views
from epochal.protocol.publisher.effects import SendAnswers
from epochal.protocol.publisher.server import SegmentServer
from epochal.protocol.publisher.views import ViewMemory, Views
from epochal.protocol.subscriber.effects import Request
from epochal.protocol.subscriber.follower import FollowerSettings
from epochal.protocol.subscriber.upstream_filter import FRESH, FilterTimes
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter
from epochal.protocol.topics.publisher_trie import MAX_ENTRIES
from epochal.protocol.topics.requests import WINDOW, Step

QUICK = FollowerSettings(filter=FilterTimes(between_changes=0.5, again=0.4))


def stepwise(wire_up: Any, topics: TopicFilter | None = A, **options: Any) -> Stream:
    stream = Stream(wire_up, None, whole=False, **options)
    stream.wiring.readers.clear()
    stream.options["settings"] = QUICK
    stream.reader = stream.join(topics)
    return stream


def converge(stream: Stream) -> None:
    """Batches of epoch 0, until each segment's publisher has what reader A wants: three of it a segment, b and c."""
    for topic in (b"b", b"a", b"c", b"a", b"b", b"a"):
        stream.publish(0, topic)
    stream.wiring.tick(1)
    assert channels(stream, "0") == channels(stream, "1") == [A]


def channels(stream: Stream, segment: str = "0") -> list[TopicFilter]:
    """What the reader's subscriptions at a segment are sent."""
    return [each.channel.filter for each in stream.wiring.servers[segment].subscriptions.values()][-1:]


@pytest.mark.rule("F2", "N1", "N11")
def test_batches_lead_the_publisher_to_the_filter_and_the_reader_to_its_channel(wire_up):
    stream = stepwise(wire_up)
    assert channels(stream) == [EVERYTHING]
    converge(stream)
    before = stream.reader.followers["0"]._subscription.last
    stream.publish(0, b"b", b"c")
    assert stream.reader.followers["0"]._subscription.last == before
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0"] * 3 + [b"a1"] * 3)]
    assert [began.gap or began.resumed for _, began in stream.reader.began] == [False, False]


@pytest.mark.rule("F2", "F12")
def test_what_came_is_counted_with_what_was_unwanted_and_what_came_before_the_filter_was_known(wire_up):
    stream = stepwise(wire_up)
    converge(stream)
    received = stream.reader.followers["0"].received  # each batch is one record of two bytes
    assert (received.records, received.bytes) == (5, 10)
    assert (received.unwanted_bytes, received.firehose_bytes) == (4, 8)
    stream.publish(0, b"b", b"a", b"c")
    assert (received.records, received.bytes) == (6, 12)
    assert (received.unwanted_bytes, received.firehose_bytes) == (4, 8)


@pytest.mark.rule("F7", "F12")
def test_a_reader_that_shares_a_channel_counts_what_is_unwanted_and_no_firehose(wire_up):
    stream = Stream(wire_up)
    stream.change(None)
    stream.wiring.tick(1)
    stream.change(A)  # its channel is the one for everything, until it has stayed so for a while
    stream.publish(0, b"a", b"b")
    received = stream.reader.followers["0"].received
    assert (received.bytes, received.unwanted_bytes, received.firehose_bytes) == (4, 2, 0)


@pytest.mark.rule("F3", "F8")
def test_a_join_for_new_topics_waits_until_the_publisher_knows_that_they_are_wanted(wire_up):
    stream = stepwise(wire_up)
    converge(stream)
    follower, server = stream.reader.followers["0"], stream.wiring.servers["0"]
    stream.reader.machine.change(BOTH)
    follower.want(BOTH, stream.wiring.now, widens=True)
    (step,) = [effect.message for effect in follower.take() if isinstance(effect, Request)]
    assert isinstance(step, m.Filter)  # and no hello yet
    assert (step.step, step.prefix) == (Step.SUBSCRIBE, b"b")
    stream.publish(0, b"b", segments="0")
    server.receive(stream.reader.peers["0"], step, stream.wiring.now)
    stream.wiring.run()
    stream.hear("1")
    assert channels(stream) == [BOTH]
    assert not stream.reader.machine.widening
    stream.publish(1, b"a", b"b")
    stream.writer.advance(2)
    assert stream.reader.epochs()[-1] == (1, [b"a0", b"a1", b"b0", b"b1"])


@pytest.mark.rule("F4", "N8")
def test_a_step_that_is_lost_is_sent_again_and_one_that_comes_twice_changes_nothing(wire_up):
    stream = stepwise(wire_up)
    lost: list[m.Message] = []

    def arrives(segment: str, message: m.Message) -> int:
        if not isinstance(message, m.Filter) or segment != "0":
            return 1
        if len(lost) < 2:
            lost.append(message)
            return 0
        return 2

    stream.wiring.arrives = arrives
    for topic in (b"a", b"b", b"a", b"b", b"a", b"b"):
        stream.publish(0, topic)
        stream.wiring.tick(1)
    assert len(lost) == 2
    assert channels(stream) == [A]
    assert not stream.reader.broke


@pytest.mark.rule("N12")
def test_where_a_publisher_takes_no_more_steps_everything_is_sent_and_left_out_at_the_receiver(wire_up, monkeypatch):
    monkeypatch.setattr(views, "MAX_BYTES", 0)
    stream = stepwise(wire_up)
    asked: list[m.Message] = []

    def arrives(segment: str, message: m.Message) -> int:
        asked.append(message)
        return 1

    stream.wiring.arrives = arrives
    for _ in range(20):
        stream.publish(0, b"b", b"a", b"b")
        stream.wiring.tick(0.5)
    assert channels(stream) == [EVERYTHING]
    assert sum(isinstance(each, m.Filter) for each in asked) <= 2 * WINDOW  # and it is left alone then
    assert sum(isinstance(each, m.Hello) for each in asked) == 2
    stream.change(B)
    stream.publish(1, b"a", b"b")
    stream.writer.advance(2)
    assert stream.reader.epochs() == [(1, [b"b0", b"b1"])]


@pytest.mark.rule("F6", "N15")
def test_a_view_that_the_publisher_has_forgotten_begins_again(wire_up):
    stream = stepwise(wire_up)
    converge(stream)
    assert len(stream.wiring.servers["0"].views) == 1
    stream.wiring.tick(2 * FRESH + 2)
    assert len(stream.wiring.servers["0"].views) == 0
    assert channels(stream) == [A]  # stays
    stream.change(B)
    assert channels(stream) == [EVERYTHING]
    for topic in (b"a", b"b", b"a", b"b", b"a", b"b"):
        stream.publish(1, topic)
    stream.wiring.tick(2)
    assert channels(stream) == [B]
    stream.writer.advance(2)
    assert stream.reader.epochs() == [(1, [b"b0"] * 3 + [b"b1"] * 3)]


@pytest.mark.rule("F6", "N15")
def test_who_wanted_everything_for_a_while_is_led_to_its_channel_again(wire_up):
    stream = stepwise(wire_up)
    converge(stream)
    stream.change(None)
    assert channels(stream) == [EVERYTHING]
    stream.change(A)
    for topic in (b"b", b"a", b"b", b"a"):
        stream.publish(0, topic)
    stream.wiring.tick(1)
    assert channels(stream, "0") == channels(stream, "1") == [A]


@pytest.mark.rule("N12", "N15")
def test_a_view_that_is_forgotten_between_two_steps_mutes_nothing(wire_up):
    stream = stepwise(wire_up, BOTH)
    stream.publish(0, b"a")
    assert len(stream.wiring.servers["0"].views) == 1
    stream.wiring.tick(2 * FRESH + 2)
    assert len(stream.wiring.servers["0"].views) == 0
    for topic in (b"b", b"b", b"a", b"b", b"a", b"b"):
        stream.publish(0, topic)
    stream.wiring.tick(1)
    assert channels(stream) == [BOTH]
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0"] * 3 + [b"a1"] * 3 + [b"b0"] * 4 + [b"b1"] * 4)]


def test_a_join_after_a_loss_is_sent_what_the_view_has(wire_up):
    stream = stepwise(wire_up)
    converge(stream)
    stream.reader.losing.add("0")
    stream.publish(0, b"a", segments="0")
    stream.reader.losing.clear()
    stream.publish(0, b"a", segments="0")
    assert channels(stream) == [A]
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0"] * 5 + [b"a1"] * 3)]


@pytest.mark.rule("N13")
def test_a_publisher_that_confirms_nothing_slows_no_other(wire_up):
    stream = stepwise(wire_up)
    stream.wiring.arrives = lambda segment, message: not (segment == "0" and isinstance(message, m.Filter))
    for topic in (b"b", b"a", b"c", b"a"):
        stream.publish(0, topic)
    stream.wiring.tick(2)
    assert (channels(stream, "0"), channels(stream, "1")) == ([EVERYTHING], [A])
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0"] * 2 + [b"a1"] * 2)]


@pytest.mark.rule("N16", "N17")
def test_a_publisher_that_comes_later_is_led_to_the_same_filter(wire_up):
    stream = stepwise(wire_up)
    converge(stream)
    stream.wiring.lose_memory("0")
    stream.writer.connect("0")
    stream.reader.join("0", stream.reader.machine.position("0"), continuing=True, topics=A, **stream.options)
    assert channels(stream, "0") == [EVERYTHING]
    for topic in (b"b", b"a", b"b", b"a"):
        stream.publish(1, topic)
    stream.wiring.tick(1)
    assert channels(stream, "0") == [A]


@pytest.mark.rule("N12")
def test_a_hello_whose_filter_is_refused_is_said_again_without(wire_up):
    stream = Stream(wire_up, None)
    stream.wiring.readers.clear()
    reader = stream.wiring.reader(None, topics=A)
    refused: list[m.Message] = []

    def arrives(segment: str, message: m.Message) -> int:
        if not (isinstance(message, m.Hello) and message.filter is not None):
            return 1
        refused.append(message)
        refusal = m.Refused(message.request, LimitExceeded.code, "too many")
        reader.followers[segment].answered(refusal, stream.wiring.now)
        return 0

    stream.wiring.arrives = arrives
    for segment in "01":
        reader.join(segment, topics=A, whole_filter=True)
    stream.publish(0, b"a", b"b")
    stream.writer.advance(1)
    assert reader.epochs() == [(0, [b"a0", b"a1"])]
    assert (len(refused), reader.broke) == (2, [])


@pytest.mark.rule("F6", "F12")
def test_a_filter_that_the_publisher_had_is_named_when_it_may_be_forgotten(wire_up):
    stream = stepwise(wire_up)
    converge(stream)
    stream.wiring.tick(2 * FRESH + 2)
    stream.reader.losing.add("0")
    stream.publish(0, b"a", segments="0")
    stream.reader.losing.clear()
    stream.publish(0, b"a", segments="0")
    assert channels(stream) == [A]  # joined again, and not by way of everything


# ---- what a hello cannot name, where nothing is to be sent before it is known ----

LONG = TopicFilter([b"a", *(b"x%d/" % number for number in range(m.MAX_FILTER_ENTRIES))])
LONGER = LONG.union(B)
MANY = len(LONG) + 1
"""Steps to it from everything: each prefix is subscribed to, and "" is reset."""


class Line:
    """What passes between readers and publishers. `arrives`: how often a step does."""

    def __init__(self, stream: Stream, arrives: Callable[[str, m.Filter], int] = lambda segment, step: 1) -> None:
        self.asked: dict[str, list[m.Message]] = {"0": [], "1": []}
        self._arrives = arrives
        stream.wiring.arrives = self._takes

    def _takes(self, segment: str, message: m.Message) -> int:
        self.asked[segment].append(message)
        return self._arrives(segment, message) if isinstance(message, m.Filter) else 1

    def of(self, kind: type, segment: str = "0") -> list[Any]:
        return [each for each in self.asked[segment] if type(each) is kind]


def named(
    wire_up: Any, topics: TopicFilter = LONG, arrives: Callable[[str, m.Filter], int] = lambda segment, step: 1
) -> tuple[Stream, Line]:
    """A reader whose publishers are told what it wants before it joins."""
    stream = Stream(wire_up, None)
    stream.wiring.readers.clear()
    line = Line(stream, arrives)
    stream.options["settings"] = QUICK
    stream.reader = stream.join(topics)
    return stream, line


@pytest.mark.rule("F2", "F6", "N4", "N14")
def test_a_filter_that_is_too_long_for_a_hello_is_sent_before_the_join_and_no_batch_is_needed(wire_up):
    stream, line = named(wire_up)
    assert channels(stream, "0") == channels(stream, "1") == [LONG]
    first, last = line.of(m.Hello)
    assert (first.filter, last.filter) == (((), ()), None)
    assert [type(each) for each in line.asked["0"]] == [m.Hello, *[m.Filter] * MANY, m.Hello]
    assert all(step.number - step.oldest < WINDOW for step in line.of(m.Filter))
    stream.publish(0, b"a", b"b")
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0", b"a1"])]
    received = stream.reader.followers["0"].received
    assert (received.bytes, received.unwanted_bytes, received.firehose_bytes) == (2, 0, 0)


@pytest.mark.rule("F2", "E19")
def test_the_snapshot_that_judges_comes_after_the_publisher_knows_a_long_filter(wire_up):
    under_way: list[tuple[str, m.Filter]] = []

    def arrives(segment: str, step: m.Filter) -> int:
        under_way.append((segment, step))
        return 0

    stream, line = named(wire_up, arrives=arrives)
    stream.publish(0, b"a")
    stream.writer.advance(1)
    stream.publish(1, b"a")
    assert not stream.reader.machine.ready
    while under_way:
        assert len(under_way) <= 2 * WINDOW
        segment, step = under_way.pop(0)
        stream.wiring.servers[segment].receive(stream.reader.peers[segment], step, stream.wiring.now)
        stream.wiring.run()
    assert channels(stream, "0") == channels(stream, "1") == [LONG]
    assert len(line.of(m.Hello)) == 2
    stream.publish(1, b"a")
    stream.publish(2, b"a")
    stream.writer.advance(3)
    assert stream.reader.epochs() == [(2, [b"a0", b"a1"])], "epoch 1 had begun, and 0 was over"


@pytest.mark.rule("F2", "N12")
def test_a_long_filter_that_rejects_is_sent_in_full_before_the_join(wire_up):
    all_but = TopicFilter(None, [b"x%d/" % number for number in range(m.MAX_FILTER_ENTRIES)])
    mixed = TopicFilter([b"", b"x1/y"], [b"x%d/" % number for number in range(m.MAX_FILTER_ENTRIES)])
    for wanted in (all_but, mixed):
        stream, line = named(wire_up, wanted)
        assert channels(stream, "0") == channels(stream, "1") == [wanted]
        assert len(line.of(m.Filter)) == len(wanted) - 1  # "" is sent as it is


@pytest.mark.rule("F4", "N8")
def test_steps_before_the_join_that_are_lost_are_sent_again(wire_up):
    count = itertools.count(1)
    stream, line = named(wire_up, arrives=lambda segment, step: {7: 0, 9: 2}.get(next(count) % 11, 1))
    before = len(line.of(m.Filter))
    assert before < MANY
    stream.wiring.tick(60)
    assert channels(stream, "0") == channels(stream, "1") == [LONG]
    assert len(line.of(m.Filter)) > MANY
    assert not stream.reader.broke


@pytest.mark.rule("N12", "N13")
def test_a_publisher_that_answers_no_step_before_the_join_sends_everything_and_slows_no_other(wire_up):
    stream, line = named(wire_up, arrives=lambda segment, step: segment == "1")
    assert channels(stream, "1") == [LONG]
    stream.wiring.tick(5)
    assert channels(stream, "0") == [EVERYTHING]
    assert len(line.of(m.Filter)) == 3 * WINDOW
    stream.publish(0, b"a", b"b")
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0", b"a1"])]
    assert stream.reader.followers["0"].received.firehose_bytes == 4
    stream.wiring.tick(60)
    assert len(line.of(m.Hello)) == 2, "and it is left alone then"


@pytest.mark.rule("N12")
def test_a_publisher_that_refuses_a_step_before_the_join_sends_everything(wire_up, monkeypatch):
    monkeypatch.setattr(views, "MAX_BYTES", 0)
    stream, line = named(wire_up)
    assert channels(stream, "0") == channels(stream, "1") == [EVERYTHING]
    assert len(line.of(m.Hello)) == 2
    assert len(line.of(m.Filter)) == WINDOW
    stream.publish(0, b"a", b"b")
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0", b"a1"])]


@pytest.mark.rule("N12")
def test_an_earlier_publisher_gets_no_filter_and_sends_everything(wire_up, monkeypatch):
    monkeypatch.setattr(SegmentServer, "wanted", lambda server, peer, hello: EVERYTHING)
    stream = Stream(wire_up, None)
    stream.wiring.readers.clear()
    for server in stream.wiring.servers.values():
        server._features = ("since", "filter:receiver")
    line = Line(stream)
    stream.reader = stream.join(LONG)
    assert channels(stream, "0") == channels(stream, "1") == [EVERYTHING]
    assert [hello.filter for hello in line.of(m.Hello)] == [((), ()), None]
    assert line.of(m.Filter) == []
    stream.publish(0, b"a", b"b")
    stream.change(LONGER)
    stream.publish(1, b"a", b"b")
    stream.writer.advance(2)
    assert stream.reader.epochs() == [(0, [b"a0", b"a1"]), (1, [b"a0", b"a1", b"b0", b"b1"])]


@pytest.mark.rule("F3", "F5", "F8")
def test_a_long_filter_is_changed_without_a_batch_while_the_channel_before_is_followed(wire_up):
    stream = Stream(wire_up)  # reader A, by its hello
    line = Line(stream)
    stream.change(LONGER)
    assert len(line.of(m.Filter)) == MANY + 1
    assert channels(stream, "0") == channels(stream, "1") == [LONGER]
    assert not stream.reader.machine.widening
    stream.change(LONG)  # less, so one of three steps is a while later
    assert len(line.of(m.Filter)) == MANY + 2
    stream.wiring.tick(6)
    assert channels(stream, "0") == channels(stream, "1") == [LONG]
    stream.change(LONGER)
    assert channels(stream, "0") == channels(stream, "1") == [LONGER]
    assert len(line.of(m.Filter)) == MANY + 3
    stream.publish(0, b"a", b"b")
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0", b"a1", b"b0", b"b1"])]
    stream.change(B)
    stream.wiring.tick(6)
    assert channels(stream, "0") == channels(stream, "1") == [B]
    assert not any(hello.filter == ((), ()) for hello in line.of(m.Hello)), "nothing is followed in between"


@pytest.mark.rule("N12", "F8")
def test_where_a_change_to_a_long_filter_is_not_answered_everything_is_joined(wire_up):
    stream = Stream(wire_up)
    Line(stream, lambda segment, step: segment == "1")
    stream.change(LONGER)
    assert (channels(stream, "0"), channels(stream, "1")) == ([A], [LONGER])
    stream.wiring.tick(5)
    assert channels(stream, "0") == [EVERYTHING]
    assert not stream.reader.machine.widening


def test_a_change_before_the_join_continues_with_the_steps_already_sent(wire_up):
    budget = itertools.count()
    stream, line = named(wire_up, arrives=lambda segment, step: next(budget) < 2 * 20)
    assert stream.reader.prefixes == {"0": set(), "1": set()}
    stream.change(LONGER)
    budget = itertools.count(-1000)
    stream.wiring.tick(1)
    assert channels(stream, "0") == channels(stream, "1") == [LONGER]
    assert len(line.of(m.Hello)) == 2
    assert len({step.number for step in line.of(m.Filter)}) == MANY + 1


@pytest.mark.parametrize("shorter", [A, None])
def test_a_change_before_the_join_to_what_a_hello_can_say_joins_at_once(wire_up, shorter):
    stream, line = named(wire_up, arrives=lambda segment, step: 0)
    stream.change(shorter)
    wanted = EVERYTHING if shorter is None else shorter
    assert channels(stream, "0") == channels(stream, "1") == [wanted]
    assert len(line.of(m.Hello)) == 2
    stream.publish(0, b"a", b"b")
    stream.writer.advance(1)
    (epoch,) = stream.reader.epochs()
    assert epoch[1] == [b"a0", b"a1", *([b"b0", b"b1"] if shorter is None else [])]


@pytest.mark.rule("F6")
def test_the_channel_of_a_hello_that_asked_for_nothing_is_never_joined(wire_up):
    """The user wants less, which a hello could say, after the hello and before its welcome."""
    stream = Stream(wire_up, None)
    stream.wiring.readers.clear()
    stream.reader = stream.wiring.reader(None, topics=LONG)
    stream.wiring.arrives = lambda segment, message: 0
    for segment in "01":
        stream.reader.join(segment, topics=LONG, whole_filter=True)
    follower, server = stream.reader.followers["0"], stream.wiring.servers["0"]
    nonce, request = follower._subscription.nonce, follower._connection.request
    stream.change(A)
    stream.wiring.arrives = lambda segment, message: 1
    server.receive(stream.reader.peers["0"], m.Hello(request, (1,), stream.wiring.stream, "0", nonce, ((), ())), 0.0)
    stream.wiring.run()
    assert channels(stream) == [A]


@pytest.mark.rule("Q15")
def test_pushes_can_be_left_before_the_join_and_followed_again(wire_up):
    stream, line = named(wire_up, arrives=lambda segment, step: 0)
    stream.change(LONGER)
    followers = stream.reader.followers.values()
    for follower in followers:
        follower.follow_pushes(False, stream.wiring.now)
    stream.wiring.run()
    stream.wiring.tick(1)
    assert not stream.reader.machine.widening
    stream.publish(0, b"a", b"b")
    stream.wiring.tick(2)
    stream.publish(1, b"b")
    assert len(line.of(m.Filter)) == WINDOW, "who pulls need not tell"
    line._arrives = lambda segment, step: 1
    for follower in followers:
        follower.follow_pushes(True, stream.wiring.now)
    stream.wiring.tick(1)
    assert channels(stream, "0") == channels(stream, "1") == [LONGER]
    stream.writer.advance(2)
    assert stream.reader.epochs() == [(0, [b"a0", b"a1", b"b0", b"b1"]), (1, [b"b0", b"b1"])]


@pytest.mark.rule("F6", "E14")
def test_a_long_filter_that_may_be_forgotten_is_sent_again_before_a_join_after_a_loss(wire_up):
    stream, line = named(wire_up)
    stream.wiring.tick(2 * FRESH + 2)
    assert len(stream.wiring.servers["0"].views) == 0
    line.asked["0"].clear()
    stream.reader.losing.add("0")
    stream.publish(0, b"a", segments="0")
    stream.reader.losing.clear()
    stream.publish(0, b"a", segments="0")
    assert [hello.filter for hello in line.of(m.Hello)] == [((), ()), None]
    assert channels(stream) == [LONG]
    stream.publish(0, b"b", b"a")
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0"] * 3 + [b"a1"])]
    assert stream.reader.followers["0"].received.firehose_bytes == 0


@pytest.mark.rule("F12")
def test_a_long_filter_that_may_be_forgotten_is_sent_again_before_another_channel_is_tried(wire_up):
    stream, _ = named(wire_up)
    follower, channels_there = stream.reader.followers["0"], stream.wiring.servers["0"].channels
    channels_there._most = len(channels_there)
    stream.change(LONGER)
    assert channels(stream) == [EVERYTHING]
    channels_there._most += 1
    stream.wiring.tick(70)
    assert channels(stream) == [LONGER]
    assert follower.live


# ---- views ----


def step(number: int, prefix: bytes, view: int = 1, kind: Step = Step.REJECT, oldest: int | None = None) -> m.Filter:
    return m.Filter("0", view, number, number if oldest is None else oldest, kind, prefix)


@pytest.mark.rule("F4")
def test_a_view_belongs_to_one_peer_and_a_higher_number_begins_a_new_one():
    kept = Views(60.0, ViewMemory())
    assert kept.receive(b"p", step(1, b"a"), 0.0) == m.Confirm(1, 1, Step.REJECT, b"a")
    assert kept.filter(b"p", 1) == TopicFilter(None, [b"a"])
    assert kept.filter(b"q", 1) == kept.filter(b"p", 2) == EVERYTHING
    kept.receive(b"p", step(1, b"b", view=2), 0.0)
    assert kept.filter(b"p", 2) == TopicFilter(None, [b"b"])
    assert kept.receive(b"p", step(2, b"c", view=1), 0.0) is None
    assert kept.filter(b"p", 2) == TopicFilter(None, [b"b"])


@pytest.mark.rule("F4")
def test_views_are_bounded_each_and_together_and_forgotten():
    memory = ViewMemory()
    kept, others = Views(60.0, memory), Views(60.0, memory)
    numbers = itertools.count(1)
    for number in itertools.islice(numbers, MAX_ENTRIES - 1):
        kept.receive(b"p", step(number, b"%d" % number), 0.0)
    before = kept.filter(b"p", 1), memory.used
    with pytest.raises(LimitExceeded, match="4096 prefixes"):
        kept.receive(b"p", step(next(numbers), b"one more"), 0.0)
    assert (kept.filter(b"p", 1), memory.used) == before
    memory.most = memory.used + 1000
    for segment in (kept, others):
        with pytest.raises(LimitExceeded, match="all subscribers"):
            segment.receive(b"q", step(1, b"a"), 0.0)
    with pytest.raises(RemoteProtocolError, match="oldest"):
        kept.receive(b"p", step(MAX_ENTRIES + 50, b"a", oldest=1), 0.0)
    assert len(kept) == 1
    kept.forget(61.0)
    assert (len(kept), memory.used) == (0, 0)
    others.receive(b"q", step(1, b"a"), 0.0)
    assert memory.used > 0


@pytest.mark.rule("F11")
def test_a_step_of_another_peer_changes_no_view(wire_up):
    stream = stepwise(wire_up)
    converge(stream)
    server, peer = stream.wiring.servers["0"], stream.reader.peers["0"]
    before = server.views.filter(peer, 0)
    assert before == A
    server.receive(b"somebody", step(99, b"a", kind=Step.REJECT), 0.0)
    (answer,) = stream.wiring.publishers["0"].take()
    assert isinstance(answer, SendAnswers)
    assert server.views.filter(peer, 0) == before

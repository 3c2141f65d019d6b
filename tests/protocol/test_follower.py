"""One segment as a subscriber follows it: joins, gaps that are pulled, publishers that fall silent."""

import itertools
from typing import Any

import google_crc32c
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.subscriber.effects import (
    Began,
    Broke,
    EpochWasAborted,
    GapFound,
    Request,
    RewoundTo,
    SubscribePrefix,
    UnsubscribePrefix,
)
from epochal.protocol.subscriber.follower import Follower, FollowerSettings
from epochal.protocol.subscriber.since import AfterEvent, From
from epochal.protocol.times import TimeShape
from epochal.protocol.topics.filter import TopicFilter

CHANNEL = b"channel0"


def data(seq, time=0, prev=None):
    payload = b"%d" % seq
    return m.Data(seq, seq - 1 if prev is None else prev, time, b"", 1, google_crc32c.value(payload), payload)


class Alone:
    """A follower without a publisher: the test plays it."""

    def __init__(self, begin: Any = From.LIVE, **options):
        numbers = itertools.count(1)
        self.follower = Follower(
            "uid",
            "0",
            begin,
            shape=TimeShape(),
            fresh_nonce=lambda: next(numbers).to_bytes(16, "big"),
            now=0.0,
            **options,
        )
        self.nonce = b""

    def take(self) -> list[Any]:
        return self.follower.take()

    def told(self) -> list[Any]:
        return self.follower.reports()

    def request(self) -> Any:
        """The one request that was sent."""
        (message,) = [effect.message for effect in self.take() if isinstance(effect, Request)]
        return message

    def welcome(self, incarnation=1, version=1, heartbeat=1.0, features=(), **more):
        hello = self.request()
        self.nonce = hello.nonce
        self.answer(m.Welcome(hello.request, version, CHANNEL, incarnation, -1, 1000, heartbeat, features, **more))
        return hello

    def answer(self, *messages):
        for message in messages:
            self.follower.answered(message, 0.0)

    def push(self, *messages, now=0.0):
        for message in messages:
            self.follower.pushed(b"C" + CHANNEL, message, now)

    def open(self, seq, incarnation=1, lower=(0,), upper=()):
        """Begin the answer to the pull that was sent."""
        since = self.request()
        self.answer(m.Opening(since.request, m.Position(incarnation, seq), lower, upper, ()))
        return since

    def snapshot(self, seq=4, incarnation=1, nonce=None):
        snapshot = m.Snapshot(seq, incarnation, self.nonce if nonce is None else nonce, (0,), (0,), ())
        self.follower.pushed(b"P" + self.nonce, snapshot, 0.0)

    def join(self, seq=4):
        self.welcome()
        self.snapshot(seq)
        self.take()

    def error(self):
        (broke,) = [told for told in self.told() if isinstance(told, Broke)]
        assert self.follower.broken
        return broke.error.code


def taken_in_by(reader) -> list[int]:
    """The number of each event that a reader takes in from now on, in that order."""
    taken, take_in = [], reader.machine.event

    def noting(name, event):
        taken.append(event.seq)
        take_in(name, event)

    reader.machine.event = noting
    return taken


# ---- joining: S8, E14 ----


@pytest.mark.rule("E14")
def test_a_join_subscribes_to_the_channel_and_then_to_itself_alone():
    alone = Alone()
    alone.welcome()
    assert alone.take() == [SubscribePrefix(b"C" + CHANNEL), SubscribePrefix(b"P" + alone.nonce)]
    alone.push(data(3), data(4))
    alone.snapshot(4)
    alone.push(data(5))
    began, event = alone.told()
    assert (began.state.seq, began.filters, began.gap, began.resumed) == (4, True, False, False)
    assert event == data(5)
    assert alone.follower.live


@pytest.mark.rule("S8")
@pytest.mark.parametrize("message", [m.Heartbeat(1), data(5), m.Frontier(5, 4, ()), m.Alive("0")])
def test_anything_but_the_snapshot_first_is_a_protocol_error(message):
    alone = Alone()
    alone.welcome()
    alone.follower.pushed(b"P" + alone.nonce, message, 0.0)
    assert alone.error() == "remote_protocol"


@pytest.mark.rule("S8")
def test_a_second_snapshot_is_a_protocol_error():
    alone = Alone()
    alone.join()
    alone.snapshot(5)
    assert alone.error() == "remote_protocol"


@pytest.mark.rule("S8")
def test_a_snapshot_for_everybody_is_a_protocol_error():
    alone = Alone()
    alone.welcome()
    alone.push(m.Snapshot(4, 1, alone.nonce, (0,), (), ()))
    assert alone.error() == "remote_protocol"


@pytest.mark.rule("E14")
@pytest.mark.parametrize("wrong", [{"incarnation": 2}, {"nonce": b"x" * 16}])
def test_a_snapshot_must_be_of_what_was_welcomed(wrong):
    alone = Alone()
    alone.welcome()
    alone.snapshot(**wrong)
    assert alone.error() == "remote_protocol"


@pytest.mark.rule("E14", "S33")
@pytest.mark.parametrize("incarnation", [1, 2])
def test_who_comes_back_goes_on_at_once_only_in_the_incarnation_that_it_knows(incarnation):
    alone = Alone(m.Position(1, 4), continuing=True)
    alone.welcome(incarnation)
    alone.take()
    alone.snapshot(seq=4, incarnation=incarnation)
    assert alone.follower.live == (incarnation == 1)
    if not alone.follower.live:  # as many events, and perhaps others
        assert alone.request().position == (1, 4)


@pytest.mark.rule("Q6", "Q9", "E26")
def test_what_belongs_to_an_earlier_subscription_is_ignored():
    alone = Alone()
    alone.join()
    alone.follower.pushed(b"Polder nonce here", m.Snapshot(1, 1, b"older nonce here", (0,), (), ()), 0.0)
    assert [type(told) for told in alone.told()] == [Began]


@pytest.mark.rule("E12")
def test_a_stale_publisher_is_left():
    alone = Alone(least_incarnation=3)
    alone.welcome(incarnation=2)
    assert alone.error() == "timed_out"


def test_a_version_that_was_not_offered_is_refused():
    alone = Alone()
    alone.welcome(version=2)
    assert alone.error() == "remote_protocol"


@pytest.mark.parametrize("code", ["stream_gone", "version_mismatch", "limit_exceeded"])
def test_a_refusal_is_the_error_it_names(code):
    alone = Alone()
    hello = alone.request()
    alone.answer(m.Refused(hello.request, code, "why"))
    assert alone.error() == code


def test_a_refused_subscription_is_over():
    alone = Alone()
    alone.welcome()
    alone.follower.pushed(b"P" + alone.nonce, m.Refused(0, "remote_protocol", "expired"), 0.0)
    assert alone.error() == "remote_protocol"


def test_a_refusal_after_the_join_is_for_another_client():
    alone = Alone()
    alone.welcome()
    alone.snapshot()
    alone.follower.pushed(b"P" + alone.nonce, m.Refused(0, "remote_protocol", "this subscription id is used"), 0.0)
    assert not alone.follower.broken


def test_a_join_without_an_answer_times_out():
    alone = Alone()
    alone.follower.tick(3.1)
    assert alone.error() == "timed_out"


@pytest.mark.rule("Q13")
@pytest.mark.parametrize(("heartbeat", "silence"), [(1.0, 3.0), (10.0, 20.0), (1e9, 120.0)])
def test_a_publisher_with_rare_heartbeats_is_given_the_time_that_it_names(heartbeat, silence):
    alone = Alone()
    alone.welcome(heartbeat=heartbeat)
    alone.snapshot()
    alone.follower.tick(silence)
    assert not alone.follower.broken
    alone.follower.tick(silence + 0.1)
    assert alone.error() == "timed_out"


@pytest.mark.rule("S19", "Q11")
def test_a_silent_publisher_is_noticed_unless_the_reader_itself_paused():
    alone = Alone()
    alone.join()
    alone.follower.pause()
    alone.follower.tick(60.0)
    alone.follower.resume(60.0)
    alone.follower.tick(62.9)
    assert not alone.follower.broken
    alone.follower.tick(63.1)
    alone.told()
    assert alone.follower.broken


def test_a_history_answer_that_stops_is_noticed_though_heartbeats_go_on():
    alone = Alone(m.Position(1, 2))
    alone.welcome()
    alone.snapshot()
    for now in range(1, 9):
        alone.follower.pushed(b"C" + CHANNEL, m.Heartbeat(4), float(now))
        alone.follower.tick(float(now))
    assert alone.error() == "timed_out"


# ---- gaps: E14, E17 ----


@pytest.mark.rule("Q1", "Q13", "E26")
def test_a_gap_is_pulled_under_a_fresh_subscription_id():
    alone = Alone()
    alone.join(seq=4)
    first = alone.nonce
    alone.push(data(7, prev=6))
    effects = alone.take()
    assert effects[0] == UnsubscribePrefix(b"P" + first)
    assert isinstance(effects[1].message, m.Hello)
    assert effects[1].message.nonce != first
    assert not alone.follower.live


@pytest.mark.rule("Q1", "Q13")
def test_a_heartbeat_shows_loss_at_the_tail():
    alone = Alone()
    alone.join(seq=4)
    alone.push(m.Heartbeat(4))
    assert alone.take() == []
    alone.push(m.Heartbeat(5))
    assert [type(effect) for effect in alone.take()] == [UnsubscribePrefix, Request]


@pytest.mark.rule("F7", "F8")
def test_what_one_channel_had_not_the_next_one_may_have() -> None:
    alone, other = Alone(), b"channel1"
    alone.join(seq=4)
    alone.push(m.Heartbeat(4, 9))  # nothing up to event 9 is on this channel
    alone.push(data(12, prev=10))  # event 10 was lost
    hello = alone.request()
    alone.nonce = hello.nonce
    alone.answer(m.Welcome(hello.request, 1, other, 1, 9, 1000, 1.0, ()))
    alone.follower.pushed(b"C" + other, data(8, prev=7), 0.0)
    alone.snapshot(9)
    alone.follower.pushed(b"C" + other, data(10), 0.0)
    assert alone.follower.live
    assert alone.told()[-1] == data(10)


@pytest.mark.rule("E18")
def test_a_reader_that_stood_still_while_history_was_pulled_gives_its_publisher_time() -> None:
    alone = Alone(m.Position(1, 2))
    alone.welcome()
    alone.snapshot(seq=4)
    since = alone.open(2)
    alone.follower.pause()
    alone.follower.tick(60.0)
    alone.follower.resume(60.0)
    alone.follower.tick(62.0)
    assert not alone.follower.broken
    alone.follower.answered(m.Chunk(since.request, 1, False), 62.5)
    alone.follower.tick(65.0)
    assert not alone.follower.broken
    alone.follower.tick(66.0)
    assert alone.error() == "timed_out"


@pytest.mark.rule("Q11")
def test_a_long_history_may_take_long_as_long_as_it_comes_on() -> None:
    alone = Alone(m.Position(1, 2))
    alone.welcome()
    alone.snapshot(seq=8)
    since = alone.open(2)
    alone.answer(m.Chunk(since.request, 6, True))
    for seq in range(3, 8):
        alone.follower.answered(data(seq), 2.0 * seq)
        alone.follower.tick(2.0 * seq + 1.5)
        assert not alone.follower.broken
    alone.follower.pushed(b"C" + CHANNEL, m.Heartbeat(8), 17.5)  # the publisher lives, and sends no more of it
    alone.follower.tick(17.5)
    assert alone.error() == "timed_out"


@pytest.mark.rule("S24")
def test_what_comes_while_history_is_pulled_is_bounded_and_pulled_where_it_is_too_much():
    alone = Alone(m.Position(1, 2), settings=FollowerSettings(max_backlog=500))
    alone.welcome()
    alone.snapshot(seq=4)
    since = alone.open(2)
    alone.push(data(5), data(6), data(7), data(8))
    alone.answer(m.Chunk(since.request, 2, True), data(3), data(4))
    assert [told.seq for told in alone.told() if isinstance(told, m.Data)] == [3, 4]
    assert isinstance(alone.request(), m.Hello)


@pytest.mark.rule("E14")
@pytest.mark.parametrize("prev", [5, 6])
def test_an_event_that_does_not_follow_its_predecessor_is_a_protocol_error(prev):
    alone = Alone()
    alone.join(seq=4)
    alone.push(data(5, prev=prev))
    assert alone.error() == "remote_protocol"


def test_a_predecessor_that_goes_back_is_a_protocol_error():
    alone = Alone()
    alone.join(seq=4)
    alone.push(data(5), data(6), data(7, prev=5))
    assert alone.error() == "remote_protocol"


def test_a_damaged_event_is_pulled_like_a_lost_one():
    alone = Alone()
    alone.join(seq=4)
    alone.push(data(5)._replace(payload=b"damaged"))
    assert [type(effect) for effect in alone.take()] == [UnsubscribePrefix, Request]
    assert alone.follower.damaged == 1


@pytest.mark.rule("Q3")
def test_history_with_a_hole_is_a_protocol_error():
    alone = Alone(m.Position(1, 2))
    alone.welcome()
    alone.snapshot(seq=9)
    since = alone.request()
    alone.answer(m.Opening(since.request, m.Position(1, 2), (0,), (), ()), m.Chunk(since.request, 2, True))
    alone.answer(data(3), data(5))
    assert alone.error() == "remote_protocol"


def test_history_from_elsewhere_is_a_protocol_error():
    alone = Alone(m.Position(1, 2))
    alone.welcome()
    alone.snapshot(seq=9)
    since = alone.request()
    alone.answer(m.Opening(since.request, m.Position(1, 3), (0,), (), ()))
    assert alone.error() == "remote_protocol"


@pytest.mark.pure("replaces a method to see its calls")
@pytest.mark.rule("E14", "S24", "Q1", "Q7", "Q10")
@given(st.lists(st.sampled_from(["append", "advance", "lose", "heal", "beat"]), max_size=30))
@example(["lose", "append", "heal", "append"])
def test_whatever_is_lost_on_the_way_every_event_is_taken_in_once_and_in_order(wire_up, steps):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    taken = taken_in_by(reader)
    time = 0
    for step in [*steps, "heal", "beat", "beat"]:
        match step:
            case "append":
                writer.append("0", time)
            case "advance":
                time += 1
                writer.advance(time)
            case "lose":
                reader.losing.add("0")
            case "heal":
                reader.losing.clear()
            case "beat":
                wiring.tick(1.0)
        if reader.followers["0"].broken:  # nothing was heard for too long
            reader.losing.clear()
            reader.rejoin("0")
    assert taken == list(range(wiring.publishers["0"].seq + 1))
    assert reader.frontier == [time]
    assert {code for _, code in reader.broke} <= {"timed_out"}


@pytest.mark.rule("Q5")
def test_what_is_pushed_while_the_past_is_pulled_follows_it_once():
    alone = Alone(m.Position(1, 2))
    alone.welcome()
    alone.push(data(4), data(5))
    alone.snapshot(seq=5)
    since = alone.open(2)
    alone.push(data(6))
    alone.answer(m.Chunk(since.request, 3, True), data(3), data(4), data(5))
    assert [told.seq for told in alone.told() if isinstance(told, m.Data)] == [3, 4, 5, 6]
    assert alone.follower.live


@pytest.mark.rule("Q5")
def test_events_that_come_while_history_is_pulled_follow_it_without_a_seam(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    reader.losing.add("0")
    for n in range(600):  # more than two chunks
        writer.machine.appends.append("0", 0, b"", 1, b"%d" % n)
    wiring.run()
    reader.losing.clear()
    writer.append("0", 0, b"live")
    writer.advance(1)
    ((_, payloads),) = reader.epochs()
    assert len(payloads) == 601


@pytest.mark.rule("E17", "S33")
def test_a_gap_that_cannot_be_healed_is_reported_and_the_epochs_are_aborted(wire_up):
    wiring = wire_up(retention_bytes=0)
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 0, b"seen")
    reader.losing.add("0")
    writer.append("0", 0, b"lost")
    writer.append("0", 1, b"lost")
    reader.losing.clear()
    writer.append("0", 1, b"seen")
    writer.append("0", 2, b"whole")
    writer.advance(3)
    events = reader.events()
    assert GapFound("0", 1, 3) in events
    assert reader.epochs() == [EpochWasAborted(0), (2, [b"whole"])]
    assert not reader.machine.saw_whole(1)
    assert reader.machine.saw_whole(2)


@pytest.mark.rule("S33", "E17")
def test_a_publisher_that_starts_again_at_bottom_moves_no_reader_back(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 4, b"a")
    writer.advance(5)
    assert reader.epochs() == [(4, [b"a"])]
    wiring.writers.remove(writer)
    wiring.start_publisher("0", 2)  # at bottom
    reader.rejoin("0")
    assert reader.frontier == [5]
    again = wiring.writer("w", session=2)
    again.append("0", 4, b"again")
    again.append("0", 6, b"b")
    assert reader.frontier == [5]
    again.advance(7)
    assert reader.epochs() == [(6, [b"b"])]
    assert RewoundTo("0", 2, -1) in reader.events()


def test_a_cursor_that_is_too_old_is_refused_by_name(wire_up):
    wiring = wire_up(retention_bytes=0)
    writer = wiring.writer()
    writer.append("0", 0)
    alone = wiring.reader(None)
    alone.join("0", m.Position(1, -1))
    assert alone.broke == [("0", "history_truncated")]


def test_a_reconnect_that_missed_nothing_just_goes_on(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 0, b"a")
    reader.rejoin("0")
    writer.append("0", 0, b"b")
    writer.advance(1)
    assert [began.resumed for _, began in reader.began] == [False, True]
    assert reader.epochs() == [(0, [b"a", b"b"])]


# ---- places to begin at: E20 ----


@pytest.mark.rule("E20")
@pytest.mark.parametrize(
    ("begin", "asked"), [(AfterEvent(2), (1, 2)), (AfterEvent(-1), (1, -1)), (AfterEvent(2, 1), (1, 2))]
)
def test_a_start_after_an_event_is_like_a_join_there(begin, asked):
    alone = Alone(begin)
    alone.welcome()
    alone.snapshot(seq=4)
    assert alone.open(asked[1], upper=(0,)).position == asked
    (began,) = alone.told()
    assert (began.state.seq, began.filters, began.gap, began.resumed) == (asked[1], True, False, False)


@pytest.mark.rule("E20")
@pytest.mark.parametrize("begin", [AfterEvent(5), AfterEvent(0, 2)])
def test_a_start_after_an_event_that_is_not_there_yet_is_refused(begin):
    alone = Alone(begin)
    alone.welcome()
    alone.snapshot(seq=4)
    assert alone.error() == "usage"


@pytest.mark.rule("E20", "F15")
def test_whether_an_event_that_a_relay_does_not_have_exists_is_for_the_publisher_to_say():
    alone = Alone(AfterEvent(5))
    alone.welcome(path=("relay",))
    alone.snapshot(seq=4)
    asked = alone.request()
    assert asked.position == (1, 5)
    alone.answer(m.Refused(asked.request, "remote_protocol", "position (1, 5) is ahead of this log"))
    assert alone.error() == "usage"


@pytest.mark.rule("Q2")
@pytest.mark.parametrize("begin", [m.Position(1, 2), AfterEvent(2, 1)])
def test_a_reader_whose_place_is_gone_learns_that_in_words_and_what_to_do(begin):
    alone = Alone(begin)
    alone.welcome()
    alone.snapshot(seq=9)
    alone.answer(m.Truncated(alone.request().request, m.Position(1, 5), (0,)))
    assert alone.follower.error is not None
    assert str(alone.follower.error) == (
        "segment 0: what was asked for is no longer retained: the first retained position is (1, 5); begin again, with "
        "since='start' for what is left"
    )


@pytest.mark.rule("E20", "Q2", "Q16")
@pytest.mark.parametrize(
    ("lower", "upper", "whole"),
    [((0,), (), True), ((5,), (), True), ((5,), (5,), False), ((3,), (4,), True), ((6,), (), False), ((), (), False)],
)
def test_what_was_asked_for_must_not_have_begun_before_the_history(lower, upper, whole):
    alone = Alone(EpochQuery((5,)))
    alone.welcome()
    alone.snapshot(seq=9)
    assert alone.open(4, lower=lower, upper=upper).position is None
    if whole:
        assert [type(told) for told in alone.told()] == [Began]
    else:
        assert alone.error() == "history_truncated"


@pytest.mark.rule("E20")
@pytest.mark.parametrize("features", [(), ("since",), ("since", m.SINCE_TIMES)])
@pytest.mark.parametrize(
    "begin", [EpochQuery((5,)), EpochQuery(()), EpochQuery(tuple(range(33))), From.START, AfterEvent(2)]
)
def test_a_filter_is_sent_only_to_publishers_that_understand_it_and_only_once(begin, features):
    alone = Alone(begin)
    alone.welcome(features=features)
    alone.snapshot(seq=4)
    since = alone.request()
    told = m.SINCE_TIMES in features and isinstance(begin, EpochQuery) and len(begin.times) < 33
    assert since.wanted == (begin.times if told else None)
    at = m.Position(1, 2)
    alone.answer(m.Opening(since.request, at, (5,), (), ()), m.Chunk(since.request, 2, True), data(3, 5), data(4, 5))
    if begin != EpochQuery(tuple(range(33))):
        alone.told()
        assert alone.follower.live
        alone.push(data(6, 5))  # a gap: from here on, it is behind its own events
        alone.welcome(features=features)
        alone.snapshot(seq=6)
        healing = alone.request()
        assert (healing.position, healing.wanted) == ((1, 4), None)


@pytest.mark.rule("E20", "Q2")
@pytest.mark.parametrize(("lower", "upper"), [((6,), ()), ((0,), (5,)), ((), ())])
def test_a_publisher_that_leaves_out_too_much_is_found_out(lower, upper):
    alone = Alone(EpochQuery((5,)))
    alone.welcome(features=(m.SINCE_TIMES,))
    alone.snapshot(seq=4)
    alone.open(2, lower=lower, upper=upper)
    assert alone.error() == "history_truncated"


@pytest.mark.rule("E20", "Q2")
@pytest.mark.parametrize(
    ("begin", "ends"), [(EpochQuery((5,)), True), (AfterEvent(2), True), (From.START, False), (m.Position(1, 2), False)]
)
def test_retention_that_overtakes_what_was_asked_for_ends_it_else_there_is_a_gap(begin, ends):
    alone = Alone(begin)
    alone.welcome()
    alone.snapshot(seq=9)
    since = alone.open(2)
    alone.answer(m.Chunk(since.request, 1, False), data(3), m.Refused(since.request, "history_truncated", "too slow"))
    *_, effect = alone.follower.take()  # the first is credit
    assert isinstance(effect, Request)
    again = effect.message
    assert isinstance(again, m.Since)
    assert again.position == m.Position(1, 3), "perhaps what is gone was progress alone (E13)"
    alone.answer(m.Truncated(again.request, m.Position(1, 7), (0,)))
    told = alone.told()
    assert told[1] == data(3)
    if ends:
        assert isinstance(told[2], Broke)
        assert told[2].error.code == "history_truncated"
    else:
        assert told[2].gap


@pytest.mark.rule("E17", "F8")
def test_a_join_for_other_topics_goes_on_after_the_last_event_while_what_is_left_of_a_gap_is_requested():
    """Not from the beginning: events that come twice in one incarnation look like those that a crash has lost."""
    alone = Alone(m.Position(1, 2), continuing=True, pushes=False, topics=TopicFilter([b"a"]))
    alone.welcome()
    since = alone.open(2)
    alone.answer(m.Chunk(since.request, 1, True), data(3))
    alone.follower.tick(FollowerSettings().poll)
    since = alone.request()
    assert since.position == m.Position(1, 3)
    alone.answer(m.Truncated(since.request, m.Position(1, 7), (0,)))
    assert alone.request().position is None
    alone.follower.want(TopicFilter([b"b"]), 1.0, widens=True)
    alone.welcome()
    assert alone.request().position == m.Position(1, 3)


# ---- silence: Q11, Q12 ----


@pytest.mark.rule("Q11")
def test_silence_leads_to_a_pull_and_if_that_brings_nothing_all_stays_as_it_is():
    alone = Alone()
    alone.join(seq=4)
    alone.told()
    for now in (2.1, 4.2, 6.3):  # an answer is not silence
        assert alone.take() == []
        alone.follower.tick(now)
        since = alone.request()
        assert since.position == (1, 4)
        for message in (m.Opening(since.request, m.Position(1, 4), (0,), (), ()), m.Chunk(since.request, 0, True)):
            alone.follower.answered(message, now)
    assert alone.follower.live
    alone.push(data(5), now=6.4)
    assert alone.told() == [data(5)]


@pytest.mark.rule("Q13")
@pytest.mark.parametrize(("silence", "heartbeat", "look"), [(3.0, 1.0, 2.0), (9.0, 1.0, 6.0), (3.0, 9.0, 12.0)])
def test_when_silence_is_looked_into_is_set_by_the_application_and_fits_the_stream_s_heartbeats(
    silence, heartbeat, look
):
    """It does not adapt to how often events come: heartbeats bound every silence of a stream, busy or not."""
    alone = Alone(settings=FollowerSettings(silence=silence))
    alone.welcome(heartbeat=heartbeat)
    alone.snapshot(seq=4)
    alone.take()
    alone.follower.tick(look - 0.01)
    assert alone.take() == []
    alone.follower.tick(look + 0.01)
    assert isinstance(alone.request(), m.Since)


@pytest.mark.rule("Q11")
def test_what_is_pushed_while_silence_is_looked_into_is_followed():
    alone = Alone()
    alone.join(seq=4)
    alone.follower.tick(2.1)
    since = alone.open(4)
    alone.push(data(5), now=2.2)
    alone.answer(m.Chunk(since.request, 0, True))
    assert alone.told()[1:] == [data(5)]
    assert alone.take() == []


@pytest.mark.rule("Q12", "Q9", "E26")
def test_if_it_brings_events_the_subscription_is_replaced_after_them():
    alone = Alone()
    alone.join(seq=4)
    first = alone.nonce
    alone.follower.tick(2.1)
    since = alone.open(4)
    alone.answer(m.Chunk(since.request, 1, True), data(5))
    left, hello = alone.take()
    assert left == UnsubscribePrefix(b"P" + first)
    assert hello.message.nonce != first
    alone.nonce = hello.message.nonce
    alone.answer(m.Welcome(hello.message.request, 1, CHANNEL, 1, 5, 1000, 1.0, ()))
    alone.follower.pushed(b"P" + first, m.Snapshot(5, 1, first, (0,), (0,), ()), 2.2)
    assert not alone.follower.live
    alone.snapshot(seq=5)
    assert alone.follower.live
    alone.push(data(6))
    assert [told.seq for told in alone.told() if isinstance(told, m.Data)] == [5, 6]


@pytest.mark.rule("Q12")
def test_pushes_that_stop_are_made_up_for_by_pulls(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    reader.losing.add("0")  # the heartbeats as well
    writer.append("0", 0, b"a")
    writer.advance(1)
    wiring.tick(2.5)
    assert reader.epochs() == [(0, [b"a"])]
    assert reader.broke == []


@pytest.mark.rule("Q8", "Q9", "E26")
def test_a_subscriber_that_was_away_pulls_what_it_missed_and_then_subscribes_again(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 0, b"a")
    (before,) = [prefix for prefix in reader.prefixes["0"] if prefix.startswith(b"P")]
    reader.losing.add("0")
    writer.append("0", 0, b"missed")
    writer.advance(1)
    reader.losing.clear()
    reader.rejoin("0")
    (now,) = [prefix for prefix in reader.prefixes["0"] if prefix.startswith(b"P")]
    assert now != before
    old = m.Snapshot(1, 1, before[1:], (0,), (), ())
    reader.followers["0"].pushed(before, old, wiring.now)  # its end was never heard of
    writer.append("0", 1, b"b")
    writer.advance(2)
    assert reader.epochs() == [(0, [b"a", b"missed"]), (1, [b"b"])]
    assert reader.broke == []


@pytest.mark.pure("replaces a method to see its calls")
@pytest.mark.rule("Q8")
def test_a_reader_that_sees_a_gap_pulls_it_and_continues_after_it(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    taken = taken_in_by(reader)
    writer.append("0", 0, b"a")
    reader.losing.add("0")
    writer.append("0", 0, b"b", b"c")
    reader.losing.clear()
    writer.append("0", 0, b"d")
    writer.advance(1)
    assert reader.epochs() == [(0, [b"a", b"b", b"c", b"d"])]
    assert taken == [0, 1, 2, 3, 4]


# ---- pulling only: Q7, Q15 ----


def polls(alone, seq, *events, now):
    """Let the next pull be due, and answer it."""
    alone.follower.tick(now)
    since = alone.request()
    assert since.position == (1, seq)
    answer = m.Opening(since.request, m.Position(1, seq), (0,), (), ()), m.Chunk(since.request, len(events), True)
    for message in (*answer, *events):
        alone.follower.answered(message, now)


@pytest.mark.rule("Q7")
def test_without_pushes_it_pulls_and_never_subscribes():
    alone = Alone(pushes=False)
    hello = alone.request()
    alone.answer(m.Welcome(hello.request, 1, CHANNEL, 1, 4, 1000, 1.0, ()))
    since = alone.open(4)
    assert since.position == (1, 4)
    alone.answer(m.Chunk(since.request, 1, True), data(5))
    assert alone.follower.live
    began, event = alone.told()
    assert (began.state.seq, began.filters, began.resumed, event) == (4, True, False, data(5))
    polls(alone, 5, now=1.1)
    polls(alone, 5, data(6), data(7), now=2.2)
    assert alone.told() == [data(6), data(7)]
    alone.follower.tick(3.1)
    assert alone.take() == []


@pytest.mark.rule("Q7")
def test_a_poll_that_is_not_answered_is_noticed():
    alone = Alone(pushes=False)
    hello = alone.request()
    alone.answer(m.Welcome(hello.request, 1, CHANNEL, 1, 4, 1000, 1.0, ()))
    since = alone.open(4)
    alone.answer(m.Chunk(since.request, 0, True))
    alone.follower.tick(1000.0)  # between two pulls nothing is expected
    assert not alone.follower.broken
    alone.follower.tick(1003.1)
    assert [type(told) for told in alone.told()] == [Began, Broke]


@pytest.mark.rule("Q15")
def test_pushes_can_be_left_and_taken_up_again():
    alone = Alone()
    alone.join(seq=4)
    alone.push(data(5))
    alone.follower.follow_pushes(False, 0.0)
    assert alone.take() == [UnsubscribePrefix(b"P" + alone.nonce), UnsubscribePrefix(b"C" + CHANNEL)]
    alone.push(data(6))  # was on its way
    polls(alone, 5, data(6), now=1.1)
    alone.follower.follow_pushes(True, 1.2)
    alone.welcome()
    assert alone.take() == [SubscribePrefix(b"C" + CHANNEL), SubscribePrefix(b"P" + alone.nonce)]
    alone.push(data(7), data(8))
    alone.snapshot(seq=7)
    since = alone.open(6)
    alone.answer(m.Chunk(since.request, 1, True), data(7))
    assert [told.seq for told in alone.told() if isinstance(told, m.Data)] == [5, 6, 7, 8]
    assert alone.follower.live


@pytest.mark.rule("Q15", "Q9", "E26")
def test_a_snapshot_of_a_join_that_was_left_for_pulls_is_not_taken_for_the_next_ones():
    alone = Alone()
    alone.welcome()
    alone.take()
    left = alone.nonce
    alone.follower.follow_pushes(False, 0.0)
    alone.follower.follow_pushes(True, 0.0)
    since: Any = [effect.message for effect in alone.take() if isinstance(effect, Request)][-1]
    alone.follower.pushed(b"P" + left, m.Snapshot(4, 1, left, (0,), (), ()), 0.0)
    alone.answer(m.Opening(since.request, m.Position(1, -1), (0,), (), ()), m.Chunk(since.request, 0, True))
    assert not alone.follower.broken
    alone.welcome()
    assert alone.nonce != left
    alone.snapshot(seq=-1)
    assert alone.follower.live


@pytest.mark.rule("Q15")
@pytest.mark.parametrize("again", [True, False])
def test_a_change_while_history_is_pulled_waits_for_its_end(again):
    alone = Alone(m.Position(1, 2))
    alone.welcome()
    alone.snapshot(seq=3)
    since = alone.open(2)
    alone.follower.follow_pushes(False, 0.0)
    alone.follower.follow_pushes(again, 0.0)
    alone.take()
    alone.answer(m.Chunk(since.request, 1, True), data(3))
    assert alone.told()[1:] == [data(3)]
    if again:
        assert isinstance(alone.request(), m.Hello)
    else:
        assert alone.follower.live
        polls(alone, 3, data(4), now=1.1)


@pytest.mark.pure("replaces a method to see its calls")
@pytest.mark.rule("Q15")
@given(st.lists(st.sampled_from(["append", "advance", "push", "poll", "lose", "heal", "wait", "rejoin"]), max_size=30))
def test_whenever_it_changes_between_both_every_event_is_taken_in_once_and_in_order(wire_up, steps):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    taken = taken_in_by(reader)
    time = 0
    for step in [*steps, "heal", "wait", "wait", "wait"]:
        match step:
            case "append":
                writer.machine.appends.append("0", time, b"", 1, b"x")
            case "advance":
                time += 1
                writer.machine.advance(time)
            case "push" | "poll":  # in the middle of whatever is under way
                reader.followers["0"].follow_pushes(step == "push", wiring.now)
            case "lose":
                reader.losing.add("0")
            case "heal":
                reader.losing.clear()
            case "wait":
                wiring.tick(1.0)
            case "rejoin":
                reader.rejoin("0")
        if reader.followers["0"].broken:
            reader.rejoin("0")
    assert taken == list(range(wiring.publishers["0"].seq + 1))
    assert reader.frontier == [time]
    assert {code for _, code in reader.broke} <= {"timed_out"}


@pytest.mark.rule("Q7", "E17")
def test_a_gap_is_reported_also_where_everything_is_pulled(wire_up):
    wiring = wire_up(retention_bytes=0)
    writer, reader = wiring.writer(), wiring.reader(None)
    reader.join("0", pushes=False)
    writer.append("0", 0, b"lost")
    wiring.tick(1.5)
    assert GapFound("0", 1, 0) in reader.events()
    writer.advance(1)
    wiring.tick(1.5)
    assert reader.frontier == [1]
    assert reader.epochs() == []
    assert not reader.machine.saw_whole(0)


# ---- behind a relay: F8, F13, F16 ----


def relayed(path: tuple[str, ...], **options: Any) -> Alone:
    """A follower that has been welcomed by a relay with this way to the publisher."""
    alone = Alone(**options)
    hello = alone.request()
    alone.nonce = hello.nonce
    alone.answer(m.Welcome(hello.request, 1, CHANNEL, 1, -1, 1000, 1.0, (), path=path))
    return alone


@pytest.mark.rule("F13")
def test_a_run_that_ends_is_joined_again():
    alone = relayed(("relay-1",))
    alone.snapshot()
    alone.push(data(5), m.Ended("the relay stops"))
    assert [told.seq for told in alone.told() if isinstance(told, m.Data)] == [5]
    assert alone.follower.broken
    error = alone.follower.error
    assert error is not None
    assert (error.code, error.retryable) == ("relay_ended", True)


@pytest.mark.rule("F16")
@pytest.mark.parametrize("path", [("me",), ("relay-1", "me", "relay-2"), tuple(map(str, range(8)))])
def test_a_relay_does_not_follow_itself_nor_too_long_a_chain(path):
    assert relayed(path, relay="me").error() == "unavailable"


@pytest.mark.rule("F16")
def test_a_relay_follows_others_and_a_subscriber_any():
    assert not relayed(tuple(map(str, range(7))), relay="me").follower.broken
    assert not relayed(("me", *map(str, range(7)))).follower.broken


@pytest.mark.rule("F8")
def test_a_relay_that_is_behind_is_joined_again_for_other_topics():
    """Its snapshot is older than what has come: the state where the follower is must be asked for."""
    everything, some = TopicFilter(), TopicFilter([b"a"])
    alone = relayed(("relay-1",), topics=some, whole_filter=True)
    alone.snapshot(seq=9)
    alone.take()
    alone.told()
    alone.follower.want(everything, 1.0, widens=True)
    hello = alone.request()
    assert hello.replaces == alone.nonce
    alone.answer(m.Welcome(hello.request, 1, b"channel1", 1, 7, 1000, 1.0, (), path=("relay-1",)))
    older = m.Snapshot(7, 1, hello.nonce, (0,), (), (), left=7)
    alone.follower.pushed(b"P" + hello.nonce, older, 1.0)
    assert not alone.told(), "nothing says yet from where on the new topics come"
    (again,) = [each.message for each in alone.take() if isinstance(each, Request)][-1:]
    assert isinstance(again, m.Hello)
    assert again.replaces is None


@pytest.mark.rule("F13")
@pytest.mark.parametrize("changes", [True, False], ids=["a change of topics", "a gap"])
def test_a_connection_to_a_relay_is_over_when_it_follows_another_incarnation(changes):
    """Else the last event of the one would be taken for a position of the other."""
    alone = relayed(("relay-1",), topics=TopicFilter([b"a"]), whole_filter=True)
    alone.snapshot()
    alone.take()
    if changes:
        alone.follower.want(None, 1.0, widens=True)
    else:
        alone.push(data(9))
    hello = alone.request()
    alone.answer(m.Welcome(hello.request, 1, b"channel1", 2, -1, 1000, 1.0, (), path=("relay-1",)))
    assert alone.error() == "relay_ended"
    assert alone.follower.error is not None
    assert alone.follower.error.retryable

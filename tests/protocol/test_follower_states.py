"""From every state of a follower: what a publisher refuses or says wrongly ends it, and the table knows all of that."""

import itertools
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest

from epochal.errors import HistoryTruncated, LocalProtocolError, Unavailable
from epochal.protocol import messages as m
from epochal.protocol.subscriber.effects import Began, Broke, Request, UnsubscribePrefix
from epochal.protocol.subscriber.follower import Follower
from epochal.protocol.subscriber.follower_states import FOLLOWER_TRANSITIONS, FollowerEvent, FollowerState
from epochal.protocol.subscriber.since import AfterEvent, From
from epochal.protocol.times import TimeShape
from epochal.protocol.topics.filter import TopicFilter

CHANNEL = b"channel0"
LONG = TopicFilter([b"%06d" % number for number in range(m.MAX_FILTER_ENTRIES + 1)])
"""Too long for a hello."""


class Alone:
    """A follower whose publisher the test plays."""

    def __init__(self, begin: Any = From.LIVE, **options: Any) -> None:
        numbers = itertools.count(1)
        self.follower = Follower(
            "uid", "0", begin, shape=TimeShape(), now=0.0,
            fresh_nonce=lambda: next(numbers).to_bytes(16, "big"), **options,
        )  # fmt: skip
        self.nonce = b""
        self.request = 0

    def sent(self) -> list[Any]:
        """The requests since the last call."""
        requests = [effect.message for effect in self.follower.take() if isinstance(effect, Request)]
        for request in requests:
            if isinstance(request, m.Hello | m.Since):
                self.request = request.request
            if isinstance(request, m.Hello):
                self.nonce = request.nonce
        return requests

    def welcome(self, seq: int = 4) -> None:
        self.sent()
        self.answer(m.Welcome(self.request, m.VERSION, CHANNEL, 1, seq, 1000, 1.0, (m.FILTER_CHANNELS,)))

    def answer(self, message: m.Message) -> None:
        self.follower.answered(message, 0.0)

    def snapshot(self, seq: int = 4) -> None:
        self.follower.pushed(b"P" + self.nonce, m.Snapshot(seq, 1, self.nonce, (0,), (), ()), 0.0)

    def open(self, seq: int) -> None:
        self.sent()
        self.answer(m.Opening(self.request, m.Position(1, seq), (0,), (), ()))


def greeting() -> Alone:
    return Alone()


def naming() -> Alone:
    alone = Alone(topics=LONG, whole_filter=True)
    alone.welcome()
    return alone


def joining() -> Alone:
    alone = Alone()
    alone.welcome()
    return alone


def pulling() -> Alone:
    alone = Alone(m.Position(1, 2))
    alone.welcome()
    alone.snapshot()
    return alone


def live() -> Alone:
    alone = Alone()
    alone.welcome()
    alone.snapshot()
    return alone


def waiting() -> Alone:
    alone = Alone(pushes=False)
    alone.welcome()
    alone.open(4)
    alone.answer(m.Chunk(alone.request, 0, True, 4))
    return alone


EVERY = pytest.mark.parametrize("way", [greeting, naming, joining, pulling, live, waiting])


@EVERY
def test_the_way_leads_to_the_state_of_its_name(way: Callable[[], Alone]) -> None:
    assert way().follower.state == way.__name__


@EVERY
def test_a_publisher_that_breaks_a_rule_is_left_from_every_state(way: Callable[[], Alone]) -> None:
    alone = way()
    alone.answer(m.Alive("0"))
    assert alone.follower.error is not None
    assert alone.follower.error.code == "remote_protocol"
    assert alone.follower.reports()[-1] == Broke(alone.follower.error)
    assert alone.follower.state is FollowerState.BROKEN


@EVERY
def test_a_publisher_that_refuses_the_last_request_is_left_from_every_state(way: Callable[[], Alone]) -> None:
    alone = way()
    alone.sent()
    alone.answer(m.Refused(alone.request, Unavailable.code, "not now"))
    assert isinstance(alone.follower.error, Unavailable)
    assert alone.follower.broken


@pytest.mark.rule("F13")
@pytest.mark.parametrize("way", [joining, pulling, live])
def test_a_relay_that_ends_its_channel_is_left_wherever_it_is_heard(way: Callable[[], Alone]) -> None:
    alone = way()
    alone.follower.pushed(b"C" + CHANNEL, m.Ended("it stops"), 0.0)
    assert alone.follower.error is not None
    assert alone.follower.error.code == "relay_ended"


@pytest.mark.rule("F13")
def test_a_relay_that_ends_the_channel_of_an_earlier_join_is_left_while_a_filter_is_named() -> None:
    alone = live()
    alone.follower.want(LONG, 0.0, widens=True)
    alone.follower.pushed(b"C" + CHANNEL, m.Ended("it stops"), 0.0)
    assert alone.follower.error is not None
    assert alone.follower.error.code == "relay_ended"


@pytest.mark.rule("E13")
@pytest.mark.parametrize("pushes", [True, False])
def test_to_begin_after_an_event_that_is_not_there_ends_it(pushes: bool) -> None:
    alone = Alone(AfterEvent(9), pushes=pushes)
    alone.welcome()
    alone.snapshot()
    assert alone.follower.error is not None
    assert str(alone.follower.error) == "segment 0 ends at 4 as yet; there is no event 9"


@pytest.mark.rule("Q11", "E17")
def test_a_look_for_what_is_no_longer_retained_joins_again_and_the_gap_is_reported() -> None:
    alone = live()
    alone.sent()
    alone.follower.reports()
    alone.follower.tick(2.5)
    (look,) = alone.sent()
    assert isinstance(look, m.Since)
    left = alone.nonce
    alone.answer(m.Truncated(look.request, m.Position(1, 8), (0,)))
    assert alone.follower.state is FollowerState.GREETING
    assert UnsubscribePrefix(b"P" + left) in alone.follower.take()
    alone.request, alone.nonce = alone.follower._connection.request, alone.follower._subscription.nonce
    alone.welcome(9)
    alone.snapshot(9)
    (pull,) = alone.sent()
    alone.answer(m.Refused(pull.request, HistoryTruncated.code, "gone"))
    (began,) = alone.follower.reports()
    assert isinstance(began, Began)
    assert (began.gap, began.state.seq, alone.follower.live) == (True, 9, True)


@pytest.mark.parametrize("way", [joining, waiting])
def test_new_topics_are_joined_for_at_once(way: Callable[[], Alone]) -> None:
    alone = way()
    alone.sent()
    alone.follower.want(TopicFilter([b"a"]), 0.0, widens=True)
    assert alone.follower.state is FollowerState.GREETING
    assert isinstance(alone.sent()[-1], m.Hello)


def test_an_undeclared_change_is_an_error_of_this_side() -> None:
    with pytest.raises(LocalProtocolError, match="no transition from state 'live' by the event"):
        live().follower._connection.enter(FollowerEvent.JOINED, 0.0)


def test_nothing_leads_out_of_broken_and_every_state_leads_to_it() -> None:
    ways = {(state, after) for state, _, after in FOLLOWER_TRANSITIONS.rows()}
    assert {state for state, after in ways if after is FollowerState.BROKEN} == set(FollowerState) - {
        FollowerState.BROKEN
    }
    assert FollowerState.BROKEN not in FOLLOWER_TRANSITIONS.table


def test_damage_in_a_history_ends_it() -> None:
    alone = pulling()
    alone.open(2)
    alone.answer(m.Chunk(alone.request, 1, True, 3))
    alone.answer(m.Data(3, 2, 0, b"", 1, google_crc32c.value(b"sent"), b"came"))
    assert alone.follower.error is not None
    assert alone.follower.error.code == "checksum_mismatch"

"""A relay's machine: which run it serves, who is welcomed when, and what is passed on."""

from typing import Any

import pytest

from epochal.protocol import messages as m
from epochal.protocol.log.history import SegmentState
from epochal.protocol.publisher.effects import Private, Push, SendAnswers
from epochal.protocol.relay.effects import ForReaders, Forward, HangUp, Want
from epochal.protocol.relay.run import Run
from epochal.protocol.relay.segment import RelayedSegment, RelayLimits
from epochal.protocol.relay.union import NOTHING
from epochal.protocol.subscriber.effects import Began, Moved, Reached, Rejoined
from epochal.protocol.times import TimeShape
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter

A, B = TopicFilter([b"a"]), TopicFilter([b"b"])
STATE = SegmentState(9, (3,), (), ())
UPSTREAM = m.Welcome(1, 1, b"channel0", 2, 9, 1 << 20, 1.0, ("since",))


def data(seq: int, topic: bytes = b"a") -> m.Data:
    return m.Data(seq, seq - 1, 3, topic, 1, 0, b"x")


def began(topics: TopicFilter | None = A, *, seq: int = 9, incarnation: int = 2, **more: bool) -> Began:
    said = {"filters": True, "gap": False, "resumed": False, **more}
    return Began(incarnation, SegmentState(seq, (3,), (), ()), **said, topics=topics)


class Relay:
    """A machine and what it has asked for."""

    def __init__(self, **limits: Any) -> None:
        self._drawn = 0
        self.machine = RelayedSegment("uid", "0", TimeShape.parse("int"), "me", RelayLimits(**limits), self._fresh)
        self.now = 0.0
        self.nonce = b""
        """Of the last hello."""
        self.ended: list[Run] = []

    def _fresh(self, size: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(size, "big")

    def reports(self, *reports: Any, path: tuple[str, ...] = (), incarnation: int = 2) -> list[Any]:
        welcome = UPSTREAM._replace(path=path, incarnation=incarnation)
        for report in reports:
            if isinstance(report, Began):
                self.has_asked_for(EVERYTHING if report.topics is None else report.topics)
        self.machine.reported(reports, welcome, self.now)
        return self.done()

    def has_asked_for(self, topics: TopicFilter) -> None:
        """Somebody wanted these topics a moment ago, so that they are what it asks for as it connects."""
        self.machine._union.update([topics], self.now)
        self.machine.wanted = self.machine._union.wanted

    def done(self) -> list[Any]:
        """What it asks for, the effects of its run among the others."""
        flat: list[Any] = []
        for effect in self.machine.take():
            if isinstance(effect, ForReaders):
                flat += effect.effects
                if effect.run.over is not None:
                    self.ended.append(effect.run)
            else:
                flat.append(effect)
        return flat

    def hello(self, peer: bytes, topics: TopicFilter | None = None, **more: Any) -> list[Any]:
        self.nonce = self._fresh(16)
        hello = m.Hello(1, (1,), "uid", "0", self.nonce, None if topics is None else topics.prefixes)
        self.machine.receive(peer, hello._replace(**more), self.now)
        return self.done()

    def joins(self, peer: bytes, topics: TopicFilter | None = None) -> bytes:
        """Join whole; the subscription id."""
        (answer,) = [each for each in self.hello(peer, topics) if isinstance(each, SendAnswers)]
        welcome, nonce = answer.messages[0], self.nonce
        assert isinstance(welcome, m.Welcome)
        run = self.run
        run.channels.hears(welcome.channel, True)
        run.server.subscribed(nonce, self.now)
        return nonce

    @property
    def run(self) -> Run:
        assert self.machine.run is not None
        return self.machine.run

    def tick(self, seconds: float) -> list[Any]:
        self.now += seconds
        self.machine.tick(self.now)
        return self.done()


def answers(effects: list[Any]) -> list[m.Message]:
    return [each.messages[0] for each in effects if isinstance(each, SendAnswers)]


def wants(effects: list[Any]) -> list[Want]:
    return [each for each in effects if isinstance(each, Want)]


@pytest.mark.rule("F15", "E24")
def test_a_hello_waits_until_its_topics_come_from_upstream() -> None:
    relay = Relay()
    relay.reports(began(NOTHING))
    asked = relay.hello(b"peer", A)
    assert asked == [Want(A, widens=True)], "and no welcome"
    assert answers(relay.reports(Reached(12))) == []
    (welcome,) = answers(relay.reports(Rejoined(SegmentState(12, (3,), (5,), ()), A)))
    assert isinstance(welcome, m.Welcome)
    assert (welcome.seq, welcome.incarnation) == (12, 2)
    relay.run.server.subscribed(relay.nonce, 0.0)
    (private,) = [each for each in relay.done() if isinstance(each, Private)]
    assert isinstance(private.message, m.Snapshot)
    assert (private.message.seq, private.message.upper) == (12, (5,)), "the state of that join or a later one"


@pytest.mark.rule("F15")
def test_one_widening_comes_after_the_other_and_all_who_wait_are_welcomed() -> None:
    relay = Relay()
    relay.reports(began(NOTHING))
    assert relay.hello(b"one", A) == [Want(A, widens=True)]
    assert relay.hello(b"two", B) == [], "the first widening must not be put off by others"
    effects = relay.reports(Rejoined(STATE, A))
    assert Want(A.union(B), widens=True) in effects
    assert [type(each) for each in answers(effects)] == [m.Welcome]
    assert [type(each) for each in answers(relay.reports(Rejoined(STATE, A.union(B))))] == [m.Welcome]


@pytest.mark.rule("F15")
def test_who_waits_in_vain_or_in_too_long_a_line_is_sent_on() -> None:
    relay = Relay()
    relay.reports(began(NOTHING))
    for number in range(64):
        assert not answers(relay.hello(b"greedy", A, request=number))
    (refused,) = answers(relay.hello(b"greedy", A, request=64))
    assert isinstance(refused, m.Refused)
    assert refused.code == "unavailable"
    assert not answers(relay.hello(b"other", A))
    late = answers(relay.tick(10.1))
    assert {(type(each), each.code) for each in late if isinstance(each, m.Refused)} == {(m.Refused, "unavailable")}
    assert len(late) == 65


@pytest.mark.rule("F15")
def test_topics_that_are_about_to_end_are_asked_for_again_before_anyone_is_welcomed() -> None:
    """Else they would end behind the welcome, and what is published then would be missed by nobody's notice."""
    relay = Relay()
    relay.reports(began(NOTHING))
    relay.hello(b"first", A)
    relay.reports(Rejoined(STATE, A))
    relay.tick(10.1)  # its subscription has not come
    assert Want(NOTHING, widens=False) in relay.tick(30.1)
    assert relay.hello(b"second", A) == [Want(A, widens=True)], "`a` comes still, but not for long"
    relay.reports(Rejoined(STATE, NOTHING))
    assert not answers(relay.done())
    (welcome,) = answers(relay.reports(Rejoined(STATE, A)))
    assert isinstance(welcome, m.Welcome)


@pytest.mark.rule("F4", "F15")
def test_a_view_that_grows_while_its_hello_waits_is_waited_for() -> None:
    relay = Relay()
    relay.reports(began(NOTHING))
    for number, (step, prefix) in enumerate([(1, b"a"), (3, b"")], 1):
        relay.machine.receive(b"peer", m.Filter("0", 1, number, number, step, prefix), 0.0)
    relay.done()
    assert relay.hello(b"peer", view=1) == [Want(A, widens=True)]
    relay.machine.receive(b"peer", m.Filter("0", 1, 3, 3, 1, b"b"), 0.0)
    relay.done()
    assert relay.reports(Rejoined(STATE, A)) == [Want(A.union(B), widens=True)]
    (welcome,) = answers(relay.reports(Rejoined(STATE, A.union(B))))
    assert isinstance(welcome, m.Welcome)


@pytest.mark.rule("F4", "F13")
def test_a_view_outlives_a_run_as_its_connection_does() -> None:
    relay = Relay()
    relay.reports(began(EVERYTHING))
    for number, (step, prefix) in enumerate([(1, b"a"), (3, b"")], 1):
        relay.machine.receive(b"peer", m.Filter("0", 1, number, number, step, prefix), 0.0)
    relay.done()
    relay.reports(began(EVERYTHING, seq=40))
    relay.hello(b"peer", view=1)
    (joined,) = relay.run.server._pending.values()
    assert joined.channel.filter == A


def test_it_can_do_no_more_with_history_than_the_publisher() -> None:
    relay = Relay()
    relay.has_asked_for(EVERYTHING)
    relay.machine.reported([began(EVERYTHING)], UPSTREAM._replace(features=("since", "since:times")), 0.0)
    relay.done()
    (welcome,) = answers(relay.hello(b"peer", A))
    assert isinstance(welcome, m.Welcome)
    assert m.SINCE_TIMES in welcome.features
    assert m.FILTER_CHANNELS in welcome.features
    assert m.SINCE_FILTER not in welcome.features


@pytest.mark.rule("F13")
@pytest.mark.parametrize(
    "report",
    [
        began(gap=True, resumed=True, seq=10),
        began(seq=12),
        began(incarnation=3, resumed=True, seq=10),
        began(resumed=True, seq=8),
    ],
    ids=["a gap", "another place", "a new incarnation", "back"],
)
def test_what_does_not_follow_ends_the_run_on_every_channel(report: Began) -> None:
    relay = Relay()
    relay.reports(began(EVERYTHING))
    relay.joins(b"one", A)
    relay.joins(b"two", None)
    before, tokens = relay.run, {channel.token for channel in relay.run.channels}
    relay.reports(data(10))
    effects = relay.reports(report, incarnation=report.incarnation)
    assert not [each for each in effects if isinstance(each, Push)]
    assert relay.ended == [before]
    before.channels.end(before.over or "")
    ends = [frames[0][:9] for frames in before.channels.flush()]
    assert len(ends) == 2, "on both channels"
    assert relay.run is not before
    assert not tokens & {channel.token for channel in relay.run.channels}
    assert relay.run.history.batch(-1, 10, 1 << 20) == [], "the cache is dropped"


@pytest.mark.rule("F13")
def test_what_follows_exactly_goes_on_with_the_same_run() -> None:
    relay = Relay()
    relay.reports(began(A))
    run = relay.run
    relay.reports(data(10))
    relay.machine.lost()
    pushed = relay.reports(began(A, resumed=True, seq=10), data(11))
    assert relay.run is run
    assert not relay.ended
    assert [each.message.seq for each in pushed if isinstance(each, Push)] == [11]


@pytest.mark.rule("F16")
def test_without_upstream_it_is_silent_and_welcomes_no_one() -> None:
    relay = Relay()
    assert isinstance(answers(relay.hello(b"early", A))[0], m.Refused)
    relay.reports(began(EVERYTHING))
    assert any(isinstance(each, Push) for each in relay.tick(1.0))
    relay.machine.lost()
    assert not [each for each in relay.tick(1.0) if isinstance(each, Push)]
    (refused,) = answers(relay.hello(b"peer", A))
    assert isinstance(refused, m.Refused)
    assert refused.code == "unavailable"
    relay.reports(began(EVERYTHING, resumed=True))
    assert any(isinstance(each, Push) for each in relay.tick(1.0))
    assert isinstance(answers(relay.hello(b"peer", A))[0], m.Welcome)


@pytest.mark.rule("F15")
def test_what_is_answered_from_memory_goes_on_while_upstream_is_away() -> None:
    relay = Relay()
    relay.reports(began(A))
    relay.joins(b"peer", A)
    relay.reports(*(data(seq) for seq in range(10, 1200)))
    _, first = [each.messages for each in asking(relay, since(m.Position(2, 9))._replace(credit=1))]
    relay.machine.lost()
    relay.machine.receive(b"peer", m.Credit(first[0].request, 1), relay.now)
    (rest,) = [each.messages for each in relay.done() if isinstance(each, SendAnswers)]
    assert [event.seq for event in (*first[1:], *rest[1:])] == list(range(10, 1200))


@pytest.mark.rule("F13")
def test_what_is_answered_ends_with_its_run() -> None:
    """Who only asks follows no channel, on which it would be notified."""
    relay = Relay()
    relay.reports(began(A))
    relay.joins(b"peer", A)
    relay.reports(*(data(seq) for seq in range(10, 1200)))
    asking(relay, since(m.Position(2, 9))._replace(credit=1))
    (refused,) = answers(relay.reports(began(A, incarnation=3), incarnation=3))
    assert isinstance(refused, m.Refused)
    assert (refused.op, refused.code) == (7, "relay_ended")


@pytest.mark.rule("F16")
def test_who_waits_for_topics_is_sent_on_when_upstream_is_lost() -> None:
    relay = Relay()
    relay.reports(began(NOTHING))
    relay.hello(b"peer", A)
    relay.machine.lost()
    (refused,) = answers(relay.done())
    assert isinstance(refused, m.Refused)


@pytest.mark.rule("F16")
def test_another_way_to_the_publisher_is_made_known_and_nothing_is_forgotten() -> None:
    relay = Relay()
    relay.reports(began(A), data(10), path=("up",))
    before = relay.run
    assert before.path == ("me", "up")
    relay.machine.lost()
    relay.reports(began(A, resumed=True, seq=10), path=("up", "other"))
    assert relay.ended == [before], "a relay that follows this one would not learn of it else"
    assert relay.run.path == ("me", "up", "other")
    assert [event.seq for event in relay.run.history.batch(9, 10, 1 << 20)] == [10]
    (welcome,) = answers(relay.hello(b"peer", A))
    assert isinstance(welcome, m.Welcome)
    assert welcome.path == ("me", "up", "other")


@pytest.mark.rule("F12", "F13")
def test_what_was_not_asked_for_is_passed_over() -> None:
    relay = Relay()
    effects = relay.reports(began(A), data(10), data(11, b"b"))
    assert [each.message.seq for each in effects if isinstance(each, Push)] == [10]
    assert relay.machine.position == (2, 11)
    assert len(relay.run.history.batch(9, 10, 1 << 20)) == 1


@pytest.mark.rule("F17", "N18")
def test_who_leaves_is_asked_for_a_little_longer() -> None:
    relay = Relay()
    relay.reports(began(NOTHING))
    relay.hello(b"peer", A)
    relay.reports(Rejoined(STATE, A))
    nonce = relay.nonce
    channel = next(channel for channel in relay.run.channels if channel.filter == A)
    relay.run.channels.hears(channel.token, True)
    relay.run.server.subscribed(nonce, 0.0)
    assert not [each for each in relay.tick(60.0) if isinstance(each, Want)]
    relay.run.server.unsubscribed(nonce)
    relay.run.channels.hears(channel.token, False)
    assert not [each for each in relay.tick(29.0) if isinstance(each, Want)]
    assert [each for each in relay.tick(1.2) if isinstance(each, Want)] == [Want(NOTHING, widens=False)]


def test_a_full_relay_sends_others_on_but_lets_its_own_change() -> None:
    relay = Relay(capacity=1)
    relay.reports(began(EVERYTHING))
    nonce = relay.joins(b"one", A)
    (refused,) = answers(relay.hello(b"two", A))
    assert isinstance(refused, m.Refused)
    assert refused.code == "unavailable"
    (refused,) = answers(relay.hello(b"two", A, replaces=nonce))
    assert isinstance(refused, m.Refused), "everybody can see the id of another"
    assert isinstance(answers(relay.hello(b"one", B, replaces=nonce))[0], m.Welcome)


def test_who_comes_while_others_join_is_counted_with_them() -> None:
    """Readers of a relay that has ended come at once, before the first of them has joined."""
    relay = Relay(capacity=2)
    relay.reports(began(A))
    welcomed = [answers(relay.hello(b"%d" % number, A))[0] for number in range(3)]
    assert [type(each) for each in welcomed] == [m.Welcome, m.Welcome, m.Refused]
    relay = Relay(capacity=2)
    relay.reports(began(NOTHING))
    relay.hello(b"0", A), relay.hello(b"1", B)
    assert isinstance(answers(relay.hello(b"2", A))[0], m.Refused), "those who wait for their topics have places"


def test_who_wants_nothing_for_a_while_keeps_its_place_at_a_full_relay() -> None:
    relay = Relay(capacity=1)
    relay.reports(began(EVERYTHING))
    nonce = relay.joins(b"one", NOTHING)
    assert isinstance(answers(relay.hello(b"one", A, replaces=nonce))[0], m.Welcome)


@pytest.mark.rule("F15")
def test_a_full_relay_answers_history_to_those_who_only_ask_and_lets_them_take_no_place() -> None:
    """A relay that follows it says hello for each request that it passes on, and wants nothing by that."""
    relay = Relay(capacity=1)
    relay.reports(began(EVERYTHING), data(10))
    relay.joins(b"one", A)
    assert isinstance(answers(relay.hello(b"passes on", NOTHING))[0], m.Welcome)
    _, chunk = [each.messages for each in asking(relay, since(m.Position(2, 9)), b"passes on")]
    assert [event.seq for event in chunk[1:]] == [10]
    nonce = relay.joins(b"two", NOTHING)
    (refused,) = answers(relay.hello(b"two", B, replaces=nonce))
    assert isinstance(refused, m.Refused), "it has taken no place that it could change"
    (refused,) = answers(relay.hello(b"three", NOTHING))
    assert isinstance(refused, m.Refused), "and there are not any number of them"


# ---- history ----


def since(position: m.Position | None, topics: TopicFilter | None = A, **more: Any) -> m.Since:
    prefixes = None if topics is None else topics.prefixes
    return m.Since(7, "0", position, 4, filter=prefixes)._replace(**more)


def asking(relay: Relay, asked: m.Since | m.Credit, peer: bytes = b"peer") -> list[Any]:
    relay.machine.receive(peer, asked, relay.now)
    return relay.done()


@pytest.fixture
def relay() -> Relay:
    relay = Relay(max_passed_on=2)
    relay.reports(began(A), data(10), data(11), data(13))
    relay.hello(b"peer", A)
    return relay


@pytest.mark.rule("F15")
def test_what_it_has_it_answers(relay: Relay) -> None:
    opening, chunk = [each.messages for each in asking(relay, since(m.Position(2, 10)))]
    assert opening[0].position == (2, 10)
    assert [event.seq for event in chunk[1:]] == [11, 13]
    assert (chunk[0].upto, chunk[0].last) == (13, True)


@pytest.mark.rule("E13", "E24")
def test_what_only_moved_the_frontier_and_is_gone_upstream_is_one_event_for_readers() -> None:
    relay = Relay()
    relay.reports(began(A))
    at = relay.run.seq
    (before,) = relay.run.state().lower
    assert isinstance(before, int)
    effects = relay.reports(Moved(at + 9, (before + 4,)))
    moved = m.Frontier(at + 9, at, ((before, -1), (before + 4, 1)))
    assert [each.message for each in effects if isinstance(each, Push)] == [moved]
    assert (relay.run.seq, relay.run.state().lower) == (at + 9, (before + 4,))
    assert relay.run.history.batch(at, 10, 10**6) == [moved], "also for who comes back"
    assert relay.run.history.lull is None
    assert not [each for each in relay.reports(Moved(at + 12, (before + 4,))) if isinstance(each, Push)]
    assert relay.run.seq == at + 12


@pytest.mark.rule("F10", "F15")
@pytest.mark.parametrize("topics", [A, None], ids=["filtered", "everything"])
def test_an_answer_ends_where_its_topics_no_longer_came(topics: TopicFilter | None) -> None:
    """Its reader is sent nothing by itself, and asks for more after a pause: nobody has these topics any more."""
    relay = Relay()
    relay.reports(began(topics), *(data(seq)._replace(payload=bytes(2000)) for seq in range(10, 700)))
    relay.hello(b"peer", topics)
    *_, chunk = [each.messages for each in asking(relay, since(m.Position(2, 9), topics, credit=1))]
    assert 0 < (had := len(chunk) - 1) < 690
    relay.reports(Rejoined(SegmentState(699, (3,), (3,), ()), B), Reached(800))
    relay.reports(m.Frontier(801, 800, ((3, -1), (4, 1))))  # it completes what the reader had a part of
    *chunks, refused = [each.messages for each in asking(relay, m.Credit(7, 20))]
    events = [event for _, *events in chunks for event in events]
    assert [event.seq for event in events] == [*range(10 + had, 700)], "not the frontier behind what was left out"
    assert not any(chunk.last for chunk, *_ in chunks)
    assert refused[0].code == "unavailable"
    assert "ask again" in refused[0].detail
    assert isinstance(asking(relay, since(m.Position(2, 699), topics))[0], Forward), "which asks the publisher"


@pytest.mark.rule("N18", "F15")
def test_who_asks_again_and_again_keeps_its_topics_at_the_relay() -> None:
    relay = Relay()
    relay.reports(began(A))
    relay.hello(b"peer", A)
    for _ in range(60):
        assert not wants(relay.tick(2.0))
        assert not [each for each in asking(relay, since(m.Position(2, 9))) if isinstance(each, Forward)]
    asked = [each for _ in range(60) for each in wants(relay.tick(2.0))]
    assert asked == [Want(NOTHING, widens=False)], "and nobody has them any more once it does not"


@pytest.mark.rule("F15")
def test_topics_of_what_is_passed_on_are_asked_for_but_not_all_of_them_for_an_old_client() -> None:
    relay = Relay()
    relay.reports(began(B))
    relay.joins(b"peer", B)
    asking(relay, since(m.Position(2, 9), None))
    assert not wants(relay.tick(1.0)), "it has no other way to ask, and may want a few of them"
    asking(relay, since(m.Position(2, 9), A, request=8))
    assert wants(relay.tick(1.0)) == [Want(A.union(B), widens=True)]


@pytest.mark.rule("F15", "E24")
@pytest.mark.parametrize(
    "asked",
    [
        since(None),
        since(None, wanted=((3,),)),
        since(m.Position(2, 8)),
        since(m.Position(2, 14)),
        since(m.Position(1, 10)),
        since(m.Position(2, 10), B),
        since(m.Position(2, 10), None),
    ],
    ids=["start", "times", "older", "ahead", "an earlier incarnation", "other topics", "everything"],
)
def test_all_else_is_passed_on(relay: Relay, asked: m.Since) -> None:
    (hello,) = asking(relay, asked)
    assert isinstance(hello, Forward)
    assert isinstance(hello.message, m.Hello)
    relay.machine.answered(hello.number, [UPSTREAM], 0.0)
    assert relay.done() == [Forward(hello.number, asked._replace(request=2))]


@pytest.mark.rule("F15")
def test_an_answer_comes_back_under_the_askers_number_and_with_its_credit(relay: Relay) -> None:
    (hello,) = asking(relay, since(None, credit=1))
    relay.machine.receive(b"peer", m.Credit(7, 2), 0.0)
    relay.machine.answered(hello.number, [UPSTREAM], 0.0)
    (forward,) = relay.done()
    assert forward.message.credit == 3, "what was given meanwhile too"
    relay.machine.answered(hello.number, [m.Opening(2, m.Position(2, -1), (0,), (), ())], 0.0)
    relay.machine.answered(hello.number, [m.Chunk(2, 2, False), data(0), data(1)], 0.0)
    opening, chunk = relay.done()
    assert opening == SendAnswers(b"peer", (m.Opening(7, m.Position(2, -1), (0,), (), ()),))
    assert chunk == SendAnswers(b"peer", (m.Chunk(7, 2, False), data(0), data(1)))
    relay.machine.receive(b"peer", m.Credit(7, 1), 0.0)
    assert relay.done() == [Forward(hello.number, m.Credit(2, 1))]
    relay.machine.answered(hello.number, [m.Chunk(2, 2, True), data(2)], 0.0)
    assert not [each for each in relay.done() if isinstance(each, HangUp)], "one event is still to come"
    relay.machine.answered(hello.number, [data(3)], 0.0)
    assert relay.done() == [SendAnswers(b"peer", (data(3),)), HangUp(hello.number)]
    assert relay.machine.passed_on == 0


@pytest.mark.rule("F15")
@pytest.mark.parametrize("last", [m.Truncated(2, m.Position(2, 5), (3,)), m.Refused(2, "history_truncated", "gone")])
def test_a_refusal_comes_back_too(relay: Relay, last: Any) -> None:
    (hello,) = asking(relay, since(None))
    relay.machine.answered(hello.number, [UPSTREAM], 0.0)
    relay.done()
    relay.machine.answered(hello.number, [last], 0.0)
    answer, end = relay.done()
    named = {"op": 7} if isinstance(last, m.Refused) else {"request": 7}
    assert answer == SendAnswers(b"peer", (last._replace(**named),))
    assert end == HangUp(hello.number)


@pytest.mark.rule("F15")
def test_the_publisher_that_answers_must_be_the_one_that_the_asker_knows(relay: Relay) -> None:
    (hello,) = asking(relay, since(m.Position(2, 8)))
    relay.machine.answered(hello.number, [UPSTREAM._replace(incarnation=3)], 0.0)
    refused, end = relay.done()
    assert refused.messages[0].code == "relay_ended"
    assert end == HangUp(hello.number)


@pytest.mark.rule("F13", "F15")
def test_who_has_not_said_hello_to_this_run_joins_again_before_it_asks(relay: Relay) -> None:
    (hello,) = asking(relay, since(None))
    ended = relay.reports(began(A, seq=40))
    (refused,) = answers(ended)
    assert isinstance(refused, m.Refused)
    assert refused.code == "relay_ended"
    assert HangUp(hello.number) in ended
    (refused,) = answers(asking(relay, since(m.Position(2, 11))))
    assert isinstance(refused, m.Refused)
    assert refused.code == "relay_ended"
    relay.hello(b"peer", A)
    assert isinstance(asking(relay, since(m.Position(2, 11)))[0], Forward)


@pytest.mark.rule("F15")
def test_so_many_at_once_are_passed_on_and_further_ones_try_again(relay: Relay) -> None:
    for number in range(2):
        assert isinstance(asking(relay, since(None, request=number))[0], Forward)
    (refused,) = answers(asking(relay, since(None, request=2)))
    assert isinstance(refused, m.Refused)
    assert refused.code == "unavailable"
    relay.machine.cut(1)
    assert [type(each) for each in relay.done()] == [SendAnswers, HangUp]
    assert isinstance(asking(relay, since(None, request=3))[0], Forward)
    relay.now += 61.0
    assert [each for each in relay.tick(0.0) if isinstance(each, HangUp)], "nobody has said anything for a minute"
    assert relay.machine.passed_on == 0


@pytest.mark.parametrize("nonsense", [m.Done(1, "0"), m.Chunk(3, 0, True), data(1)])
def test_what_is_no_answer_ends_the_forwarded_request(relay: Relay, nonsense: m.Message) -> None:
    (hello,) = asking(relay, since(None))
    relay.machine.answered(hello.number, [UPSTREAM], 0.0)
    relay.done()
    relay.machine.answered(hello.number, [nonsense], 0.0)
    refused, end = relay.done()
    assert refused.messages[0].code == "unavailable"
    assert end == HangUp(hello.number)


@pytest.mark.rule("F13")
def test_a_relay_that_stops_notifies_all(relay: Relay) -> None:
    relay.hello(b"other", B)
    (hello,) = asking(relay, since(None))
    run = relay.run
    relay.machine.end("the relay stops")
    effects = relay.done()
    assert {each.code for each in answers(effects) if isinstance(each, m.Refused)} <= {"unavailable", "relay_ended"}
    assert HangUp(hello.number) in effects
    assert relay.ended == [run]

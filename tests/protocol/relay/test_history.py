"""What a relay remembers of a run, against a list that forgets nothing."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.errors import Unavailable
from epochal.protocol import messages as m
from epochal.protocol.log.history import EVENT_OVERHEAD, SegmentState
from epochal.protocol.relay.history import RunHistory
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter

A, B = TopicFilter([b"a"]), TopicFilter([b"b"])
START = SegmentState(9, (3,), (), ())


def data(seq: int, time: int, topic: bytes = b"a") -> m.Data:
    return m.Data(seq, seq - 1, time, topic, 1, 0, b"")


def history(topics: TopicFilter = EVERYTHING, *, most: int = 1 << 20, state: SegmentState = START) -> RunHistory:
    return RunHistory(2, state, topics, max_bytes=most)


@pytest.mark.rule("F15", "E24")
def test_it_has_what_follows_a_position_if_all_topics_came_from_there_on() -> None:
    run = history(A)
    run.append(data(10, 3))
    run.joined(SegmentState(12, (3,), (), ()), A.union(B))
    run.append(data(13, 4, b"b"))
    assert run.has(m.Position(2, 9), A)
    assert not run.has(m.Position(2, 9), B), "from event 12 on"
    assert run.has(m.Position(2, 12), B)
    assert run.has(m.Position(2, 13), A.union(B))
    assert not run.has(m.Position(2, 14), A), "ahead of this relay"
    assert not run.has(m.Position(1, 10), A), "of an earlier incarnation"
    assert not run.has(m.Position(2, 8), A), "before this run"
    run.joined(SegmentState(13, (3,), (), ()), B)
    assert not run.has(m.Position(2, 13), A), "no more"
    assert run.has(m.Position(2, 12), B)


@pytest.mark.rule("F15", "E24")
def test_what_was_left_out_of_the_run_for_a_while_is_not_there_after_it() -> None:
    run = history(A)
    run.joined(SegmentState(10, (3,), (), ()), B)
    run.joined(SegmentState(11, (3,), (), ()), A.union(B))
    assert not run.has(m.Position(2, 9), A)
    assert not run.has(m.Position(2, 10), A)
    assert run.has(m.Position(2, 11), A)
    assert run.has(m.Position(2, 10), B)


@pytest.mark.rule("F15")
def test_a_topic_is_whole_up_to_where_it_was_no_longer_asked_for() -> None:
    run = history(A.union(B))
    run.append(data(10, 3))
    run.joined(SegmentState(12, (3,), (), ()), B)
    run.append(data(20, 3, b"b"))
    assert [run.whole_until(seq, A) for seq in (9, 10, 12)] == [12, 12, 12]
    assert [run.whole_until(seq, B) for seq in (9, 12, 20)] == [20, 20, 20]
    assert run.whole_until(9, None) == 9, "all topics never came"
    assert run.whole_until(15, A) == 15, "not behind where one is"
    run.joined(SegmentState(20, (3,), (), ()), A.union(B))
    run.append(data(21, 3))
    assert [run.whole_until(seq, A) for seq in (9, 15, 20)] == [12, 15, 21]


@pytest.mark.rule("F15")
def test_the_oldest_events_leave_first_and_a_reader_that_they_overtake_is_asked_to_ask_again() -> None:
    run = history(most=2 * EVENT_OVERHEAD)
    for seq in range(10, 14):
        run.append(data(seq, 3))
    assert (run.first, run.last) == (12, 13)
    assert not run.has(m.Position(2, run.first - 1), A)
    assert run.has(m.Position(2, run.first), A)
    assert isinstance(run.overtaken(10), Unavailable)


@pytest.mark.rule("F14")
def test_an_aborted_maximal_time_goes_on_to_cover_smaller_ones_that_may_have_begun_before() -> None:
    run = history(A, state=SegmentState(9, (1,), (5,), ()))
    run.append(m.Aborted(10, 9, (5,)))
    assert run.state().upper == (5,), "2 may have begun before event 9"
    assert run.state().aborted == (5,)
    run.append(m.Frontier(11, 10, ((1, -1), (6, +1))))
    assert run.state() == SegmentState(11, (6,), (), ())


@pytest.mark.rule("F14")
def test_what_was_seen_to_begin_leaves_when_it_is_aborted() -> None:
    run = history(A)
    run.append(data(10, 7))
    run.append(m.Aborted(11, 10, (7,)))
    assert run.state().upper == ()
    assert run.state().aborted == (7,)


@pytest.mark.rule("F14")
def test_new_topics_bring_the_active_times_of_their_join_and_known_ones_do_not() -> None:
    run = history(A)
    run.joined(SegmentState(10, (3,), (8,), ()), A)
    assert run.state().upper == (), "all that is active in `a` was seen"
    run.joined(SegmentState(11, (3,), (8,), ()), B)
    assert run.state().upper == (8,)
    run.joined(SegmentState(12, (3,), (9,), ()), TopicFilter([b"ba"]))
    assert run.state().upper == (8,)


def test_events_name_the_one_before_in_this_history() -> None:
    run = history(A)
    assert run.append(m.Data(14, 2, 3, b"a", 1, 0, b"")).prev == 9
    run.reached(20)
    assert run.append(m.Data(21, 14, 3, b"a", 1, 0, b"")).prev == 20
    assert [event.seq for event in run.batch(9, 10, 1 << 20)] == [14, 21]
    assert [event.seq for event in run.batch(14, 10, 1 << 20)] == [21]


@dataclass
class Model:
    """Everything: (seq, what comes) and the states."""

    states: list[SegmentState] = field(default_factory=list)
    events: list[m.Event] = field(default_factory=list)


STEPS = st.lists(st.sampled_from(["data", "data", "abort", "move", "reach", "join"]), max_size=60)


@settings(max_examples=60)
@given(STEPS, st.integers(1, 12), st.randoms(use_true_random=False))
def test_states_and_events_are_those_of_a_history_that_forgets_nothing(steps, kept, random) -> None:
    run, all_of_it, model = history(A, most=kept * EVENT_OVERHEAD), history(A), Model()
    lower, topics = 3, A
    model.states.append(all_of_it.state())
    for step in steps:
        seq = run.last + random.randrange(1, 3)
        event: m.Event | None = None
        if step == "data":
            event = m.Data(seq, 0, lower + random.randrange(4), b"a", 1, 0, b"")
        elif step == "abort":
            event = m.Aborted(seq, 0, (lower + random.randrange(4),))
        elif step == "move":
            event, lower = m.Frontier(seq, 0, ((lower, -1), (lower + 1, +1))), lower + 1
        if event is not None:
            model.events.append(all_of_it.append(event))
            run.append(event)
        elif step == "reach":
            for each in (run, all_of_it):
                each.reached(seq)
        else:
            topics = topics.union(TopicFilter([bytes([random.randrange(98, 120)])]))
            for each in (run, all_of_it):
                each.joined(SegmentState(seq, (lower,), (lower + 2,), ()), topics)
        model.states.append(all_of_it.state())
        assert run.state() == model.states[-1]
    for state in model.states:
        if state.seq >= run.first and [each.seq for each in model.states].count(state.seq) == 1:
            assert SegmentState.of(state.seq, run.state_at(state.seq)) == state
    assert run.after(run.first, 1000) == [event for event in model.events if event.seq > run.first]
    assert run.batch(run.first, 3, 1 << 20) == [event for event in model.events if event.seq > run.first][:3]
    assert run.bytes <= kept * EVENT_OVERHEAD


def test_long_histories_replay_from_states_between() -> None:
    run = history(most=1 << 30)
    for seq in range(10, 6000):
        run.append(data(seq, seq))
    assert len(run.states()) > 4
    for at in (10, 1033, 1034, 2500, 5999):
        assert SegmentState.of(at, run.state_at(at)).active == tuple(range(10, at + 1))


def test_a_long_run_in_a_small_memory_keeps_a_short_list() -> None:
    run = history(most=100 * EVENT_OVERHEAD)
    for seq in range(10, 20_000):
        run.append(m.Frontier(seq, 0, ((seq - 7, -1), (seq - 6, +1))))
    assert len(run._entries) < 9000
    assert run.state().lower == (19_993,)
    assert SegmentState.of(run.first, run.state_at(run.first)).lower == (run.first - 6,)

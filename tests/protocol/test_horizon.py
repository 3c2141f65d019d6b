"""What is asked of the catalog before anything may be lost with a publisher's memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.protocol.frontier import Antichain, Downset
from epochal.protocol.publisher.horizon import Horizon, Marks, Pace, Record
from epochal.protocol.times import MAX_TIME, Time, TimeShape, less_equal

INT, PAIR = TimeShape(), TimeShape.parse("(int, int)")
NONE = Marks()
SMALL = st.tuples(st.integers(0, 4), st.integers(0, 4))


def stored(horizon: Horizon, frontier: list[Time], *, marks: Marks = NONE) -> Record:
    record = horizon.record(Antichain(frontier), marks)
    assert horizon.answered(record.number)
    return record


@pytest.mark.rule("E11")
def test_only_what_was_answered_counts_as_recorded() -> None:
    horizon = Horizon(INT, [0], [])
    horizon.want(5)
    assert horizon.urgent
    first = horizon.record(Antichain([0]), NONE)
    assert (first, horizon.urgent, horizon.covers(5)) == (Record(0, (0,), (5,)), False, False)
    horizon.want(7)
    second = horizon.record(Antichain([0]), NONE)
    assert not horizon.answered(first.number), "the second may have been stored before it, or not at all"
    assert not horizon.covers(5)
    assert horizon.answered(second.number)
    assert (horizon.covers(7), horizon.covers(8)) == (True, False)
    assert not horizon.answered(second.number)


@pytest.mark.rule("E11")
def test_a_horizon_only_grows_but_for_what_the_frontier_has_passed() -> None:
    horizon = Horizon(INT, [3], [9])
    horizon.want(5)
    assert stored(horizon, [3]).horizon == (9,)
    assert stored(horizon, [9]).horizon == (9,)
    assert stored(horizon, [10]).horizon == ()
    pairs = Horizon(PAIR, [(0, 0)], [(1, 4), (4, 1)])
    assert stored(pairs, [(2, 0)]).horizon == ((4, 1),)


@pytest.mark.rule("E11")
def test_a_frontier_of_ints_may_be_reported_up_to_one_past_the_horizon() -> None:
    horizon = Horizon(INT, [2], [5])
    assert [time for time in range(2, 9) if horizon.allows(Antichain([time]))] == [2, 3, 4, 5, 6]
    assert not horizon.allows(Antichain()), "that everything is over is the catalog's word"
    stored(horizon, [8])
    assert horizon.allows(Antichain([8]))


@pytest.mark.rule("E11")
@given(st.lists(SMALL, min_size=1, max_size=3), st.lists(SMALL, max_size=3), st.lists(SMALL, max_size=3))
def test_a_frontier_may_be_reported_if_all_that_it_passes_is_in_the_horizon(
    recorded: list[Time], lost: list[Time], asked: list[Time]
) -> None:
    """By trying every time of a grid, whose edge stands for all beyond it."""
    edge = (0, 1, 2, 3, 4, MAX_TIME)
    horizon = Horizon(PAIR, recorded, lost)
    lower, frontier = Antichain(recorded), Antichain(asked)
    passed = [(a, b) for a in edge for b in edge if lower.less_equal((a, b)) and not frontier.less_equal((a, b))]
    assert horizon.allows(frontier) == (frontier == lower or all(time in Downset(lost) for time in passed))


@given(st.lists(SMALL, max_size=4))
def test_the_corners_of_what_a_frontier_has_passed_are_the_maximal_times_that_it_does_not_reach(
    times: list[Time],
) -> None:
    frontier, passed = Antichain(times), Downset(PAIR.not_reached(times))
    for time in [(a, b) for a in (0, 1, 2, 3, 4, 5, MAX_TIME) for b in (0, 1, 2, 3, 4, 5, MAX_TIME)]:
        assert (time in passed) != frontier.less_equal(time)
    assert TimeShape.parse("()").not_reached([()]) == []


@given(st.lists(st.integers(0, 5), max_size=3))
def test_what_a_frontier_of_ints_has_passed_has_one_corner_or_none(times):
    passed = Downset(TimeShape.parse("int").not_reached(times))
    for time in (*range(7), MAX_TIME):
        assert (time in passed) == (not Antichain(times).less_equal(time))


@given(st.lists(SMALL, max_size=6), SMALL)
def test_a_downset_holds_what_is_below_one_of_its_times(times: list[Time], time: Time) -> None:
    downset = Downset(times)
    assert (time in downset) == any(less_equal(time, other) for other in times)
    assert downset == Downset(reversed(times))
    assert downset.insert(time) == (not any(less_equal(time, other) for other in times))
    assert time in downset


# ---- asking ahead ----


@pytest.mark.rule("E11")
def test_a_slow_stream_asks_for_nothing_ahead_and_a_fast_one_for_what_the_last_second_used() -> None:
    slow, fast = Horizon(INT, [0], []), Horizon(INT, [0], [])
    for second in range(10):
        slow.came(second, float(second))
    assert stored(slow, [0]).horizon == ()
    for step in range(300):
        fast.came(step, step / 100)
    (ahead,) = stored(fast, [0]).horizon
    assert 299 + 50 <= ahead <= 299 + 101  # type: ignore[operator]  # an int


@pytest.mark.rule("E11")
def test_epochs_that_wait_together_are_asked_for_with_as_many_after_them() -> None:
    """Else a fast writer would wait for one record an epoch until there was a pace to go by."""
    horizon = Horizon(INT, [0], [])
    for time in (0, 1, 2):
        horizon.came(time, time / 1000)
        horizon.want(time)
    assert stored(horizon, [0]).horizon == (4,)


def test_a_pace_is_measured_in_each_component_and_ends_with_a_pause() -> None:
    pace = Pace()
    assert pace.ahead() is None
    pace.moved((0, 5), 0.0)
    pace.moved((3, 5), 0.2)
    assert pace.ahead() == (3, 0)
    pace.moved((1, 9), 0.4)
    assert pace.ahead() == (3, 4)
    pace.moved((3, 9), 9.0)
    assert pace.ahead() == (3, 4), "no new epoch beyond all before says nothing of the pace"
    pace.moved((4, 9), 10.0)
    assert pace.ahead() is None


def test_a_horizon_of_many_times_is_covered_by_fewer_larger_ones() -> None:
    horizon = Horizon(PAIR, [(0, 0)], [])
    wanted = [(n, 1000 - n) for n in range(1000)]
    for time in wanted:
        horizon.want(time)
    record = stored(horizon, [(0, 0)])
    assert len(record.horizon) < 171
    assert all(map(horizon.covers, wanted))


# ---- the last record, and marks ----


@pytest.mark.rule("E11")
def test_who_stops_in_order_leaves_only_what_was_aborted_in_the_horizon() -> None:
    horizon = Horizon(INT, [2], [20])
    last = horizon.last_record(Antichain([7]), [4, 9], NONE)
    assert last == Record(0, (7,), (9,), final=True)


def test_marks_are_read_as_they_were_written_and_what_is_unknown_says_nothing() -> None:
    closed = Marks(closed=((0, 5), (3, 1)))
    for marks in (Marks(), Marks(finished=True), Marks(opened=frozenset(["a", "b:c"])), Marks(True, True), closed):
        assert Marks.from_texts(marks.to_texts()) == marks
    assert Marks.from_texts(["of a later version", "enough"]) == Marks(enough=True)
    assert Marks(enough=True, opened=frozenset(["a"])).to_texts() == ("enough",), "no longer counted"


@pytest.mark.rule("E3")
def test_a_mark_that_the_catalog_would_not_take_is_left_out() -> None:
    """Its renewal would be refused, and the publisher end with all its open epochs."""
    times: list[Time] = [(MAX_TIME,) * 14, (MAX_TIME,) * 15]
    assert [len(Marks(closed=(time,)).to_texts()) for time in times] == [1, 0]
    assert Marks(finished=True, closed=tuple(times)).to_texts() == ("finished",)
    assert all(len(text) <= 300 for text in Marks(closed=(times[0],)).to_texts())

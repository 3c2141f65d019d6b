"""What both frontiers say about epochs: latent, active, completed, aborted."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.protocol.progress import EpochState, LowerFrontier, Progress, UpperFrontier
from epochal.protocol.times import Time, TimeShape, less_equal

GRID: list[Time] = list(product(range(4), repeat=2))
TIMES = st.sampled_from(GRID)


def maximal(times):
    return sorted(t for t in set(times) if not any(o != t and less_equal(t, o) for o in times))


@pytest.mark.rule("S3")
@pytest.mark.parametrize(("text", "bottom"), [("int", 0), ("(int, (int, int))", (0, (0, 0))), ("()", ())])
def test_the_lower_frontier_begins_at_bottom_and_the_upper_one_empty(text, bottom):
    lower = LowerFrontier.at_bottom(TimeShape.parse(text))
    assert list(lower.frontier) == [bottom]
    assert lower.update([(bottom, -1)]) == [(bottom, -1)]  # counted once
    assert list(UpperFrontier()) == []


@pytest.mark.rule("S4")
def test_the_worked_example_of_a_counted_lower_frontier():
    lower = LowerFrontier([0])
    assert lower.update([(0, +1)]) == []
    assert lower.update([(1, +1)]) == []
    assert not lower.completed(0)
    assert lower.update([(0, -2)]) == [(0, -1), (1, +1)]
    assert lower.completed(0)


@pytest.mark.rule("S5")
def test_only_changes_of_the_minimal_times_are_returned():
    lower = LowerFrontier([3])
    assert lower.update([(5, +1), (4, +1)]) == []
    assert lower.update([(5, -1)]) == []
    assert lower.update([(3, +1), (3, -1)]) == []
    assert lower.update([(3, -1)]) == [(3, -1), (4, +1)]


@pytest.mark.rule("S2")
def test_being_strictly_below_no_element_is_not_enough_in_a_partial_order():
    lower = LowerFrontier([(5, 0)])
    assert lower.completed((0, 3))  # incomparable to the only element, and unreachable
    assert LowerFrontier([(0, 5), (5, 0)]).completed((4, 4))
    assert not LowerFrontier([(0, 5), (3, 0)]).completed((4, 4))
    assert LowerFrontier([]).completed((9, 9))


# ---- upper ----


@pytest.mark.rule("S6")
def test_the_upper_frontier_says_whether_it_changed():
    upper = UpperFrontier()
    assert upper.insert((1, 3))
    assert not upper.insert((1, 3))
    assert not upper.insert((0, 2))
    assert upper.insert((2, 0))
    assert list(upper) == [(1, 3), (2, 0)]
    assert upper.insert((2, 3))
    assert list(upper) == [(2, 3)]
    assert len(upper) == 1


@pytest.mark.rule("S7")
def test_a_hundred_incomparable_epochs_that_completed_leave_nothing_behind():
    progress = Progress([(0, 0)])
    for n in range(100):
        progress.upper.insert((n, 99 - n))
    assert len(progress.upper) == 100
    progress.move([((0, 0), -1), ((50, 0), +1)])
    assert len(progress.upper) == 50
    progress.move([((50, 0), -1), ((200, 200), +1)])
    assert (len(progress.upper), progress.upper.active) == (0, frozenset())


@pytest.mark.rule("S6", "S7")
@given(st.lists(st.tuples(st.booleans(), TIMES), max_size=12), st.lists(TIMES, max_size=3))
def test_the_upper_frontier_is_the_maximal_active_times(steps, lower_times):
    upper, active = UpperFrontier(), set[Time]()
    for insert, time in steps:
        before = maximal(active)
        active = active | {time} if insert else active - {time}
        changed = upper.insert(time) if insert else upper.drop(time)
        assert list(upper) == maximal(active)
        assert changed == (before != maximal(active))
        assert upper.active == active
    lower = LowerFrontier(lower_times)
    upper.drop_completed(lower)
    assert list(upper) == maximal({time for time in active if not lower.completed(time)})


# ---- states ----


@pytest.mark.rule("S1", "S11")
def test_the_states_of_the_worked_example():
    progress = Progress([3], [3, 5])
    states = [progress.state(time) for time in range(8)]
    done, active, latent = EpochState.COMPLETED, EpochState.ACTIVE, EpochState.LATENT
    assert states == [done, done, done, active, latent, active, latent, latent]
    assert list(progress.upper) == [5]


@pytest.mark.rule("S1")
def test_a_skipped_epoch_goes_from_latent_to_completed():
    progress = Progress([0])
    assert progress.state(1) is EpochState.LATENT
    progress.move([(0, -1), (2, +1)])
    assert progress.state(1) is EpochState.COMPLETED


@pytest.mark.rule("E2", "E14")
def test_an_aborted_time_is_remembered_until_it_can_no_longer_arrive():
    progress = Progress([2], [2, 4])
    assert progress.abort([4, 1, 4, 9]) == (4, 9)  # 1 is completed already
    assert progress.abort([4]) == ()
    assert progress.state(4) is EpochState.ABORTED
    assert list(progress.upper) == [2]
    progress.move([(2, -1), (4, +1)])
    assert progress.aborted == {4, 9}  # 4 can still arrive
    progress.move([(4, -1), (5, +1)])
    assert progress.aborted == {9}


@pytest.mark.rule("E2", "E11")
def test_what_was_lost_stays_aborted_until_it_can_no_longer_arrive():
    progress = Progress([(0, 0)], below=[(1, 3), (4, 1)])
    assert progress.abort([(1, 2), (2, 2)]) == ((2, 2),)  # the other one is aborted already
    progress.move([((0, 0), -1), ((1, 0), +1)])
    states = {time: progress.state(time) for time in [(0, 3), (1, 3), (4, 1), (5, 0)]}
    assert list(states.values()) == [
        EpochState.COMPLETED, EpochState.ABORTED, EpochState.ABORTED, EpochState.LATENT
    ]  # fmt: skip
    progress.move([((1, 0), -1), ((2, 0), +1)])
    assert list(progress.below) == [(4, 1)]
    progress.move([((2, 0), -1), ((0, 2), +1)])
    assert list(progress.below) == []


@pytest.mark.rule("S1")
@given(st.lists(st.tuples(st.sampled_from(["data", "move", "abort"]), TIMES), max_size=12))
def test_an_epoch_never_goes_back(steps):
    progress, states = Progress([(0, 0)]), dict.fromkeys(GRID, EpochState.LATENT)
    for step, time in steps:
        if step == "data" and progress.state(time) in (EpochState.LATENT, EpochState.ACTIVE):
            progress.upper.insert(time)
        elif step == "abort":
            progress.abort([time])
        elif step == "move" and progress.lower.frontier.less_equal(time):
            gone = [(old, -1) for old in progress.lower.frontier if less_equal(old, time)]
            progress.move([*gone, (time, +1)])
        order = [EpochState.LATENT, EpochState.ACTIVE, EpochState.ABORTED, EpochState.COMPLETED]
        for each in GRID:
            now = progress.state(each)
            assert order.index(now) >= order.index(states[each])
            states[each] = now
        assert set(progress.upper.active) == {t for t in GRID if states[t] is EpochState.ACTIVE}

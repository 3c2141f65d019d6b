"""What a joiner may deliver, and when its filter has no more to say."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.protocol.frontier import Antichain
from epochal.protocol.subscriber.join_filter import JoinFilter
from epochal.protocol.times import Time, TimeShape, less_equal

GRID: list[Time] = list(product(range(4), repeat=2))
SETS = st.lists(st.sampled_from(GRID), max_size=4)
PAIRS = TimeShape.parse("(int, int)")


@pytest.mark.rule("S11")
def test_the_worked_example_skips_the_hole_below_an_active_epoch():
    joined = JoinFilter([3], [5])
    assert [time for time in range(10) if joined.admits(time)] == [6, 7, 8, 9]


@pytest.mark.rule("S10")
def test_an_epoch_incomparable_to_all_active_ones_is_delivered():
    joined = JoinFilter([(0, 0)], [(1, 1)])
    assert joined.admits((2, 0))
    assert joined.admits((0, 2))
    assert not joined.admits((1, 0))
    assert not joined.admits((1, 1))


@pytest.mark.rule("E15", "S10")
@given(SETS, SETS, SETS)
def test_what_is_admitted(lower, upper, aborted):
    joined = JoinFilter(lower, upper, aborted)
    for time in GRID:
        possible = any(less_equal(low, time) for low in lower)
        under_way = any(less_equal(time, up) for up in upper)
        assert joined.admits(time) == (possible and not under_way and time not in aborted)


@pytest.mark.rule("S13")
def test_an_element_equal_to_a_frontier_element_stays():
    joined = JoinFilter([3], [5])
    assert joined.prune(Antichain([5]))
    assert not joined.admits(5)
    assert not joined.prune(Antichain([6]))


@pytest.mark.rule("S14")
def test_a_filter_goes_when_the_frontier_has_passed_it_incomparably():
    assert not JoinFilter([(0, 0)], [(0, 3)]).prune(Antichain([(5, 0)]))
    assert JoinFilter([(0, 0)], [(0, 3)]).prune(Antichain([(0, 3)]))
    assert JoinFilter([(0, 0)], [(0, 3)]).prune(Antichain([(5, 0), (0, 1)]))


@pytest.mark.rule("S14")
def test_a_filter_goes_when_the_stream_has_ended():
    assert not JoinFilter([3], [5], [7]).prune(Antichain())


@pytest.mark.rule("S14", "E15")
@given(SETS, SETS, SETS, SETS.filter(bool))
def test_pruning_changes_nothing_for_times_that_can_still_arrive(lower, upper, aborted, frontier):
    whole, pruned = JoinFilter(lower, upper, aborted), JoinFilter(lower, upper, aborted)
    left = pruned.prune(Antichain(frontier))
    for time in GRID:
        if any(less_equal(f, time) for f in frontier):
            assert whole.admits(time) == pruned.admits(time)
            assert left or whole.admits(time)  # what has gone did nothing any more
    if left:  # and what is left could still matter
        reach = [t for t in GRID if any(less_equal(f, t) for f in frontier)]
        outside = [f for f in frontier if not any(less_equal(low, f) for low in lower)]
        assert outside or any(not whole.admits(t) for t in reach)


@pytest.mark.rule("E16")
@given(SETS, SETS)
def test_a_filter_is_also_a_frontier(lower, upper):
    joined = JoinFilter(lower, upper)
    frontier = joined.frontier(PAIRS)
    for time in GRID:
        assert frontier.less_equal(time) == joined.admits(time)

"""Antichains against the sets of times that they stand for, on a small grid."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.protocol.frontier import Antichain, MutableAntichain
from epochal.protocol.times import Time, less_equal

GRID: list[Time] = list(product(range(4), repeat=2))
TIMES = st.sampled_from(GRID)
SETS = st.lists(TIMES, max_size=6)
CHANGES = st.lists(st.tuples(TIMES, st.integers(-2, 2)), max_size=6)


def reached(times):
    """Every time of the grid that one of `times` reaches."""
    return {t for t in GRID if any(less_equal(time, t) for time in times)}


def minimal(times):
    return sorted(t for t in set(times) if not any(o != t and less_equal(o, t) for o in times))


@given(SETS)
def test_an_antichain_is_the_minimal_times_of_what_was_inserted(times):
    antichain = Antichain()
    for n, time in enumerate(times):
        before = reached(antichain)
        assert antichain.insert(time) == (reached(times[: n + 1]) != before)
    assert list(antichain) == minimal(times)
    assert len(antichain) == len(minimal(times))
    for time in GRID:
        assert (time in antichain) == (time in minimal(times))
        assert antichain.less_equal(time) == (time in reached(times))
        assert antichain.less_than(time) == any(t != time and less_equal(t, time) for t in times)


@given(SETS, SETS, SETS)
def test_join_is_the_intersection_of_what_is_reached(a, b, c):
    joined = Antichain(a).join(Antichain(b))
    assert reached(joined) == reached(a) & reached(b)
    assert joined == Antichain(b).join(Antichain(a))
    assert joined.join(Antichain(c)) == Antichain(a).join(Antichain(b).join(Antichain(c)))
    assert Antichain(a).join(Antichain(a)) == Antichain(a)
    assert (reached(b) <= reached(a)) == Antichain(a).reaches_all(b)


@given(SETS, SETS)
def test_what_leaves_and_enters_an_antichain_makes_the_other_of_it(old, new):
    before, after = Antichain(old), Antichain(new)
    changes = after.changes_from(before)
    assert changes == [(t, -1) for t in sorted(set(before) - set(after))] + [
        (t, 1) for t in sorted(set(after) - set(before))
    ]
    assert (changes == []) == (before == after)


def test_antichains_compare_by_their_elements():
    assert Antichain([3, 5]) == Antichain([3])
    assert Antichain([(0, 3), (2, 1)]) == Antichain([(2, 1), (0, 3)])
    assert Antichain([3]) != [3]
    assert repr(Antichain([(2, 1), (0, 3)])) == "Antichain([(0, 3), (2, 1)])"


@pytest.mark.rule("S4", "S5")
@given(st.lists(CHANGES, max_size=8))
def test_a_counted_antichain_shows_the_minimal_times_of_a_plain_multiset(batches):
    counted, counts, shown = MutableAntichain(), Counter[Time](), Counter[Time]()
    for batch in batches:
        for time, delta in batch:
            counts[time] += delta
        expected = minimal([time for time, count in counts.items() if count > 0])
        before = list(counted.frontier)
        visible = counted.update(batch)
        assert list(counted.frontier) == expected
        assert bool(visible) == (before != expected)
        for time, delta in visible:
            shown[time] += delta
        assert sorted(shown.elements()) == expected  # applying what was announced gives the frontier
        assert all(counted.count(time) == counts[time] for time in GRID)
        assert all(counted.less_equal(time) == (time in reached(expected)) for time in GRID)


@pytest.mark.rule("S4")
def test_the_worked_example_of_counts_that_arrive_apart():
    counted = MutableAntichain([0])
    assert counted.update([(0, +1)]) == []
    assert counted.update([(1, +1)]) == []
    assert list(counted.frontier) == [0]
    assert counted.update([(0, -2)]) == [(0, -1), (1, +1)]


@pytest.mark.rule("S4")
def test_uncompensated_counts_keep_bottom():
    counted = MutableAntichain([0])
    counted.update([(0, +1), (1, +1)])
    assert counted.update([(0, -1)]) == []
    assert list(counted.frontier) == [0]


def test_changes_commute():
    early, late = MutableAntichain([0]), MutableAntichain([0])
    early.update([(5, +1)])
    early.update([(0, -1)])
    late.update([(0, -1)])
    late.update([(5, +1)])
    assert early.frontier == late.frontier == Antichain([5])

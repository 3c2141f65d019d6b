"""What a segment remembers of a writer's appends: which number may follow, and what an old one is answered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.protocol.messages import GROUP
from epochal.protocol.publisher.append_numbers import REMEMBERED_DENIALS, REMEMBERED_RUNS, AppendNumbers, follows


@pytest.mark.rule("E6")
@given(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3), st.integers(0, 5))
def test_numbers_have_no_holes_within_a_group(group, n, last_group, last_n):
    number, last = (group << GROUP) + n, (last_group << GROUP) + last_n
    expected = (group == last_group and n == last_n + 1) or (group > last_group and n == 0)
    assert follows(number, last) == expected


@pytest.mark.rule("E6")
def test_the_first_number_of_all_is_the_first_of_some_group():
    assert follows(0, -1)
    assert follows(5 << GROUP, -1)
    assert not follows(1, -1)


@pytest.mark.rule("E6")
def test_old_appends_are_answered_with_their_own_position():
    appends = AppendNumbers()
    for number in range(REMEMBERED_RUNS + 10):
        appends.logged(number, 2 * number, 7, 1, 0)
    assert appends.answer_again(REMEMBERED_RUNS) == 2 * REMEMBERED_RUNS
    assert appends.answer_again(0) == 2 * 10  # forgotten: the oldest known is an upper bound
    appends.refused(REMEMBERED_RUNS + 10, "capability", "why")
    assert appends.answer_again(REMEMBERED_RUNS + 10) == ("capability", "why")
    assert AppendNumbers().answer_again(0) == -1


@pytest.mark.rule("E6")
def test_refusals_are_remembered_within_bounds():
    appends = AppendNumbers()
    for number in range(REMEMBERED_DENIALS + 10):
        appends.refused(number, "capability", "why")
    assert len(appends._refused) == REMEMBERED_DENIALS

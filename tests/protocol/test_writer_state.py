"""What a segment remembers of a writer: numbers, capabilities, answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import CapabilityError
from epochal.protocol.frontier import Antichain, joint
from epochal.protocol.messages import GROUP
from epochal.protocol.publisher.writer_state import REMEMBERED_DENIALS, REMEMBERED_RUNS, WriterState, follows


def state(**known):
    return WriterState("w", 1, b"peer", None, 0.0, **known)


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


@pytest.mark.rule("S35")
def test_capabilities_only_move_forward():
    writer = state(held=Antichain([(0, 3), (2, 0)]))
    assert list(writer.hold(((2, 3), (4, 0)))) == [(2, 3), (4, 0)]
    assert list(writer.hold(((1, 3), (2, 3)))) == [(1, 3)]
    with pytest.raises(CapabilityError, match="only move forward"):
        writer.hold(((2, 3), (1, 2)))
    with pytest.raises(CapabilityError, match="until it leaves"):
        writer.hold(())


@pytest.mark.rule("E3")
def test_what_is_no_longer_held_is_left():
    writer = state(held=Antichain([4]), touched={2, 4, 6}, numbered={2, 6})
    writer.forget_left()
    assert writer.touched == {4, 6}
    assert writer.numbered == {6}
    assert (writer.reaches(3), writer.reaches(4)) == (False, True)


@pytest.mark.rule("E6")
def test_old_appends_are_answered_with_their_own_position():
    writer = state()
    for number in range(REMEMBERED_RUNS + 10):
        writer.logged(number, 2 * number, 7, 1, 0)
    assert writer.answer_again(REMEMBERED_RUNS) == 2 * REMEMBERED_RUNS
    assert writer.answer_again(0) == 2 * 10  # forgotten: the oldest known is an upper bound
    writer.refused(REMEMBERED_RUNS + 10, "capability", "why")
    assert writer.answer_again(REMEMBERED_RUNS + 10) == ("capability", "why")
    assert state().answer_again(0) == -1


@pytest.mark.rule("E6")
def test_refusals_are_remembered_within_bounds():
    writer = state()
    for number in range(REMEMBERED_DENIALS + 10):
        writer.refused(number, "capability", "why")
    assert len(writer._refused) == REMEMBERED_DENIALS


@pytest.mark.rule("E5")
def test_the_joint_capability_is_what_all_segments_reach():
    assert joint([Antichain([3]), Antichain([5]), Antichain([4])]) == Antichain([5])
    assert joint([Antichain([(0, 3), (2, 0)]), Antichain([(1, 1)])]) == Antichain([(1, 3), (2, 1)])
    assert joint([Antichain([7])]) == Antichain([7])

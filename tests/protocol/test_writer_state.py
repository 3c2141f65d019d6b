"""What a segment knows of a writer: what it holds, and what it has appended and not left."""

import pytest

from epochal.errors import CapabilityError, LocalProtocolError
from epochal.protocol.frontier import Antichain, joint
from epochal.protocol.publisher.logged_sources import LoggedSources
from epochal.protocol.publisher.writer_state import PresenceEvent, WriterIdentity, WriterState, restored_presence


def state(**known):
    return WriterState(WriterIdentity("w", 1, b"peer", None), 0.0, **known)


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
    writer = state(held=Antichain([4]), touched={2, 4, 6}, sources=LoggedSources(times={2, 6}))
    writer.forget_left()
    assert writer.touched == {4, 6}
    assert writer.sources.times == {6}
    assert (writer.reaches(3), writer.reaches(4)) == (False, True)


@pytest.mark.rule("E5")
def test_the_joint_capability_is_what_all_segments_reach():
    assert joint([Antichain([3]), Antichain([5]), Antichain([4])]) == Antichain([5])
    assert joint([Antichain([(0, 3), (2, 0)]), Antichain([(1, 1)])]) == Antichain([(1, 3), (2, 1)])
    assert joint([Antichain([7])]) == Antichain([7])


@pytest.mark.rule("E46")
def test_a_lost_writer_is_present_until_it_is_released_and_a_new_session_brings_it_back():
    writer = state()
    seen = []
    for event in (PresenceEvent.SILENT, PresenceEvent.DEPARTED, PresenceEvent.OPENED, PresenceEvent.DEPARTED):
        writer.enter(event)
        seen.append((writer.present, writer.lost))
        assert restored_presence(present=writer.present, lost=writer.lost) is writer.presence
    assert seen == [(True, True), (False, True), (True, False), (False, False)]
    with pytest.raises(LocalProtocolError, match="no transition from state 'left'"):
        writer.enter(PresenceEvent.SILENT)

"""Lost memories: what they cover stays aborted as long as anything of it can arrive."""

import pytest

from epochal.protocol.frontier import MutableAntichain
from epochal.protocol.subscriber.known_aborts import KnownAborts


@pytest.mark.rule("E11")
def test_a_lost_memory_is_forgotten_only_when_nothing_of_it_can_arrive() -> None:
    aborts, merged = KnownAborts(), MutableAntichain()
    aborts.lose([(0, 0)], [(0, 5), (5, 0)])
    merged.update([((1, 0), 1)])
    aborts.prune(merged)
    assert aborts.is_lost((3, 0)), "a part of it can still arrive"
    merged.update([((5, 1), 1), ((1, 0), -1)])
    aborts.prune(merged)
    assert not aborts.is_lost((3, 0))

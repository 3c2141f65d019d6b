"""Every state of a subscriber whose filter changes; their number is pinned, so that a smaller search is seen."""

from typing import Any

import pytest
from tests.exploration.channels import Bounds, Search, explore, limited

SMALL: list[tuple[dict[str, Any], int]] = [
    ({"logs": ("a0 b1 1", "b0 1")}, 69_654),
    ({"losses": 1, "logs": ("b0", "1")}, 21_053),
    ({"drops": 1, "logs": ("1", "1"), "before": (0, 1)}, 15_411),
    ({"firehose": True, "logs": ("b0", "1")}, 7_565),
    ({"hello_entries": 0, "logs": ("b0", "1")}, 9_440),
    ({"hello_entries": 0, "losses": 1, "logs": ("b0", "1")}, 38_225),
    ({"hello_entries": 0, "changes": 2, "logs": ("", "")}, 77_431),
    ({"changes": 0, "restarts": 1, "reads": False, "logs": ("b0 1", "a0 1"), "before": (0, 1)}, 26_706),
]
LARGE: list[tuple[dict[str, Any], int]] = [
    ({"changes": 2, "logs": ("b0 1", "1"), "before": (0, 1)}, 298_359),
    ({"drops": 1, "logs": ("a0 b1 1", "2"), "before": (0, 1)}, 117_873),
    ({"drops": 1, "logs": ("a0 1", "1"), "before": (0, 1), "history": False}, 52_645),
    ({"firehose": True, "logs": ("b0 a1 1", "2"), "before": (0, 1)}, 74_775),
    ({"logs": ("a0 b1 !1 1 2 b2 .", "b1 2")}, 306_273),
    ({"timers": 1, "logs": ("b0 1", "1"), "before": (0, 1)}, 172_346),
    ({"changes": 0, "restarts": 1, "logs": ("a0 b1 1 2 b2 .", "b0 2"), "before": (0, 1)}, 239_923),
    ({"hello_entries": 0, "timers": 1, "logs": ("b0", "1")}, 481_181),
    ({"hello_entries": 0, "changes": 2, "logs": ("1", "")}, 333_831),
    ({"hello_entries": 0, "changes": 0, "restarts": 1, "logs": ("b0 1", "a0 1"), "before": (0, 1)}, 41_973),
]


@pytest.mark.rule("F6", "F7", "F8", "F9", "F10", "E14", "E15", "E16", "E17", "E19")
@pytest.mark.parametrize(
    ("bounds", "states"), [*SMALL, *(pytest.param(*each, marks=pytest.mark.long) for each in LARGE)], ids=str
)
def test_each_topic_is_whole_in_an_epoch_or_not_in_it_and_from_every_state_a_way_leads_to_all_of_it(
    bounds: dict[str, Any], states: int
) -> None:
    found = explore(Search(Bounds(**bounds)))
    assert found.trapped == []
    assert found.states == states


@pytest.mark.rule("F8", "E14")
@pytest.mark.parametrize("bounds", [bounds for bounds, _ in SMALL[1:]], ids=str)
def test_what_is_taken_for_one_state_does_the_same(bounds: dict[str, Any]) -> None:
    """A key leaves out much of the machines: if that mattered, a state would stand for others that are not like it."""
    search = Search(Bounds(**bounds), doubts=True)
    explore(search)
    looked_at = 0
    with limited(search.bounds):
        for differences in (*(each.differences() for each in search.connections), search.readers.differences()):
            for act, before, again in differences:
                assert again == before, act
                looked_at += 1
    assert looked_at > 20

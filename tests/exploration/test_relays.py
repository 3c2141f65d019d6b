"""Every state of a reader behind relays; their number is pinned, so that a smaller search is seen."""

from typing import Any

import pytest
from tests.exploration.channels import explore
from tests.exploration.relays import Bounds, Search

CHAIN = ("a:o", "b:a", "s:b")
ASKS: dict[str, Any] = {"pulls": True, "parts": True, "lingers": False}
"""Of a reader who only asks, of relays that forget at once what he asks for."""
SMALL: list[tuple[dict[str, Any], int]] = [
    ({"restarts": 1, "log": "a0 1"}, 9_900),
    ({"restarts": 1, "log": "a0 1", "history": False}, 3_290),
    ({"drops": 1, "log": "a0 a1 1", "history": False}, 6_390),
    ({"moves": 1, "log": "a0", "lingers": False}, 4_522),
    ({"moves": 2, "log": "", "ways": ("a:oc", "b:oa", "c:b", "s:")}, 10_938),
    ({"hello_entries": 0, "late": 1, "log": "a0 1", "wanted": "a"}, 1_517),
    ({**ASKS, "changes": 1, "log": "a0", "wanted": "a"}, 7_622),
    ({"silences": 1, "log": "a0 1"}, 2_173),
]
LARGE: list[tuple[dict[str, Any], int]] = [
    ({"late": 1, "deaths": 1, "log": "a3 a5 !5 6", "before": 2, "wanted": "a"}, 23_060),
    ({"changes": 1, "log": "a0 1", "wanted": "a"}, 167_036),
    ({"moves": 1, "log": "a0 1", "ways": ("a:o", "s:ao"), "memory": 0}, 46_558),
    ({"moves": 1, "log": "a0", "ways": ("a:o", "b:ao", "s:b")}, 30_858),
    ({"restarts": 1, "log": "a0", "ways": CHAIN}, 50_668),
    ({"deaths": 1, "log": "a0", "ways": CHAIN}, 25_235),
    ({**ASKS, "restarts": 1, "log": "a0 1"}, 144_368),
    ({**ASKS, "lingers": True, "lapses": 1, "log": "a0 1", "wanted": "a"}, 236_447),
    ({"hello_entries": 0, "late": 1, "deaths": 1, "log": "a3 a5 !5 6", "before": 2, "wanted": "a"}, 39_090),
]


@pytest.mark.rule("E24", "F7", "F8", "F13", "F14", "F15", "F16", "F17")
@pytest.mark.parametrize(
    ("bounds", "states"), [*SMALL, *(pytest.param(*each, marks=pytest.mark.long) for each in LARGE)], ids=str
)
def test_who_reads_through_relays_gets_each_epoch_whole_and_once_whatever_happens_to_them(
    bounds: dict[str, Any], states: int
) -> None:
    found = explore(Search(Bounds(**bounds)))
    assert found.trapped == []
    assert found.states == states


@pytest.mark.rule("E24")
@pytest.mark.parametrize("bounds", [bounds for bounds, _ in SMALL[1:4]], ids=str)
def test_what_is_taken_for_one_state_does_the_same(bounds: dict[str, Any]) -> None:
    """A key leaves out much of the machines: if that mattered, a state would stand for others that are not like it."""
    search = Search(Bounds(**bounds), doubts=True)
    explore(search)
    looked_at = 0
    for differences in (*(each.differences() for each in search.nodes), search.readers.differences()):
        for act, before, again in differences:
            assert again == before, act
            looked_at += 1
    assert looked_at > 20

"""Every state of two small tries: the number of states is pinned, so that a smaller search is noticed."""

from typing import Any

import pytest
from tests.exploration.tries import Bounds, explore

SMALL: list[tuple[dict[str, Any], int]] = [
    ({"changes": 2}, 15_793),
    ({"changes": 2, "firehose": False}, 640),
    ({"changes": 2, "window": 1}, 4_055),
    ({"changes": 2, "hurries": True}, 1_255),
    ({"changes": 1, "copies": 1, "overtakings": 1}, 11_623),
    ({"changes": 1, "losses": 1, "restarts": 1}, 5_401),
    ({"changes": 1, "overtakings": 2, "restarts": 1}, 3_724),
    ({"alphabet": b"a", "depth": 3, "changes": 3}, 4_951),
]
LARGE: list[tuple[dict[str, Any], int]] = [
    ({"changes": 1, "losses": 1, "copies": 1}, 16_308),
    ({"depth": 3, "changes": 1, "losses": 1, "overtakings": 1}, 33_291),
    ({"changes": 2, "losses": 2}, 144_052),
    ({"changes": 1, "copies": 2, "overtakings": 1}, 71_967),
    ({"changes": 1, "losses": 2, "restarts": 2}, 16_656),
    ({"changes": 2, "losses": 1, "hurries": True}, 5_110),
    ({"changes": 1, "losses": 1, "copies": 1, "overtakings": 1, "restarts": 1}, 81_730),
    ({"alphabet": b"a", "changes": 3, "losses": 1, "copies": 1, "overtakings": 1}, 85_061),
]


@pytest.mark.rule("N8", "N14", "N16", "F1", "F2", "F3", "F4", "F5")
@pytest.mark.parametrize(
    ("bounds", "states"), [*SMALL, *(pytest.param(*each, marks=pytest.mark.long) for each in LARGE)], ids=str
)
def test_nothing_wanted_is_muted_and_from_every_state_a_way_leads_to_the_filter(
    bounds: dict[str, Any], states: int
) -> None:
    found = explore(Bounds(**bounds))
    assert found.trapped == []
    assert found.states == states

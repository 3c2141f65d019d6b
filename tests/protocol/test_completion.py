"""When a time is complete (S2), against the definition: no element of the frontier is at or before it."""

from itertools import product

import pytest

from epochal.protocol.frontier import Antichain
from epochal.protocol.progress import LowerFrontier

GRID = list(product(range(4), repeat=2))


def at_or_before(a, b):
    return a[0] <= b[0] and a[1] <= b[1]


@pytest.mark.rule("S2")
@pytest.mark.parametrize("elements", [[], [(0, 0)], [(2, 1)], [(0, 2), (2, 0)], [(0, 3), (1, 2), (3, 0)]])
def test_complete_is_what_no_element_reaches(elements):
    lower = LowerFrontier(elements)
    assert sorted(lower.frontier) == sorted(Antichain(elements))
    for time in GRID:
        assert lower.completed(time) is not any(at_or_before(element, time) for element in elements)

"""Windows of readers against a table, and places of times by search against looking at each watermark."""

import json
from bisect import bisect
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.test_cuts import lineage, position

from epochal.protocol.cuts import Lineage
from epochal.protocol.messages import Position
from epochal.protocol.segments import key_ranges
from epochal.protocol.watermarks import TimeWindow, Watermark, since, thinned, until, window

TABLE = json.loads(Path(__file__).with_name("cuts.json").read_text())["windows"]
ONE = Lineage([{"0": key_ranges(1)[0]}])
WATERMARKS = [
    Watermark(number, lower, upper, position(cut)) for number, (lower, upper, cut) in enumerate(TABLE["watermarks"])
]


@pytest.mark.rule("E32", "W30", "W31", "W34")
@pytest.mark.parametrize("row", [pytest.param(row, id=row["why"]) for row in TABLE["readers"]])
def test_a_window_reaches_from_the_last_cut_that_was_passed_to_the_first_that_is_all_ahead(row: dict[str, Any]) -> None:
    assert list(window(lineage(TABLE), WATERMARKS, position(row["at"]))) == row["window"]


@pytest.mark.rule("E32", "W1")
def test_without_watermarks_the_window_is_unknown() -> None:
    assert window(ONE, [], {"0": Position(1, 7)}) == TimeWindow(None, None)


@st.composite
def kept(draw: st.DrawFn) -> list[Watermark]:
    """Watermarks of one segment: rising lower bounds, upper bounds and cuts that do not fall."""
    lowers = sorted(draw(st.sets(st.integers(1, 60), max_size=12)))
    found, upper, seq = list[Watermark](), 0, 0
    for number, lower in enumerate(lowers):
        upper = max(upper, lower + draw(st.integers(0, 15)))
        seq += draw(st.integers(0, 3))
        found.append(Watermark(number, lower, upper, {"0": Position(1, seq)}, {"0": Position(1, seq // 2)}))
    return found


@pytest.mark.rule("E53", "W35")
@given(kept(), st.integers(0, 80))
def test_the_place_of_a_time_is_what_looking_at_each_watermark_finds(watermarks: list[Watermark], time: int) -> None:
    assert until(watermarks, time) == next((each for each in watermarks if each.lower >= time), None)
    assert since(watermarks, time) == next((each for each in reversed(watermarks) if each.upper <= time), None)


@pytest.mark.rule("E32", "W34")
@given(kept(), st.integers(-1, 40))
def test_a_reader_that_goes_on_never_sees_its_lower_bound_fall(watermarks: list[Watermark], seq: int) -> None:
    here, next_ = (window(ONE, watermarks, {"0": Position(1, each)}) for each in (seq, seq + 1))
    assert (here.lower or 0) <= (next_.lower or 0)
    passed = bisect([each.cut["0"].seq for each in watermarks], seq)
    assert here.lower == (watermarks[passed - 1].lower if passed else None)
    assert here.upper is None or here.lower is None or here.lower <= here.upper
    later = [*watermarks, Watermark(99, 99, 99, {"0": Position(1, 99)})]
    assert window(ONE, later, {"0": Position(1, seq)}).lower == here.lower, "what is ahead changes nothing behind"


@pytest.mark.rule("E53")
@given(st.integers(1, 50), st.integers(1, 60))
def test_as_many_watermarks_as_may_be_are_kept_and_the_newest_always(most: int, count: int) -> None:
    numbers: list[int] = []
    for number in range(count):
        numbers.append(number)
        gone = thinned(numbers, most)
        numbers = [each for each in numbers if each not in gone]
        assert number in numbers or most < 2
        assert len(numbers) <= max(most, 2)

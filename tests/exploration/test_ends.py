"""An end that is wrong is found: the checker judges what the search writes down."""

from typing import Any

import pytest
from tests.exploration.connections import FixedLog
from tests.exploration.ends import End, Judge, Line, Saved
from tests.exploration.readers import ALL
from tests.simulation.oracle import Violation

READY = Line((0, 0), "ready", ((0,),))
WHOLE = (("0", (b"0.0", b"0.1")), ("1", (b"1.0",)))
A, B = frozenset((b"a",)), frozenset((b"b",))


def judge(*lines: Line, frontier: tuple[int, ...] = (0,), always: Any = ALL) -> None:
    logs = {"0": FixedLog("0", "a0 b0 1 b1 !1 2", True), "1": FixedLog("1", "b0 1 b1 2 b2 3", True)}
    Judge(logs).judge(End((READY, *lines), always, Saved(frontier, ())))


def given(time: int, parts: Any, *, topics: Any = ALL, cut: tuple[int, int] = (6, 2), frontier: int = 1) -> Line:
    return Line(cut, "epoch", (time, (frontier,), parts, topics))


ABORTED = Line((6, 4), "aborted", (1, (2,)))
OVER = given(1, (("0", (b"0.3",)), ("1", (b"1.2",))), cut=(6, 4), frontier=2)
LAST = given(2, (("0", ()), ("1", (b"1.4",))), cut=(6, 6), frontier=3)


@pytest.mark.rule("E16", "E17", "F8")
def test_right_ends_are_right() -> None:
    judge()
    judge(given(0, WHOLE), frontier=(1,))
    judge(given(0, (("0", (b"0.0",)), ("1", ())), topics=A), frontier=(1,), always=A)
    judge(given(0, WHOLE), ABORTED, frontier=(2,))
    judge(Line((5, 0), "aborted", (1, (0,))), given(0, WHOLE), frontier=(1,))


@pytest.mark.rule("E2", "E16", "E17", "F8")
@pytest.mark.parametrize(
    ("lines", "frontier", "always", "rule"),
    [
        pytest.param([given(0, (("0", (b"0.0", b"0.1")), ("1", ())))], 0, ALL, "atomic", id="a part is missing"),
        pytest.param([given(0, (("0", (b"0.1", b"0.0")), ("1", (b"1.0",))))], 0, ALL, "order", id="another order"),
        pytest.param([given(0, WHOLE, topics=A)], 0, A, "invented", id="topics that are not wanted"),
        pytest.param([given(0, WHOLE, cut=(2, 0))], 0, ALL, "left", id="before the writers have left"),
        pytest.param([given(0, WHOLE), given(0, WHOLE)], 0, ALL, "duplicate", id="twice"),
        pytest.param([OVER], 0, ALL, "agree", id="aborted"),
        pytest.param([ABORTED, ABORTED], 0, ALL, "once", id="aborted twice"),
        pytest.param([Line((6, 2), "aborted", (0, (1,)))], 0, ALL, "agree", id="reported, and not aborted"),
        pytest.param([], 1, ALL, "silent", id="passed without a word"),
        pytest.param([given(0, WHOLE)], 2, A, "silent", id="an abort is not reported"),
        pytest.param([LAST, given(0, WHOLE, frontier=3)], 0, ALL, "extension", id="an earlier one after a later one"),
    ],
)
def test_an_end_that_is_wrong_is_found(lines: list[Line], frontier: int, always: Any, rule: str) -> None:
    with pytest.raises(Violation, match=f"history, {rule}"):
        judge(*lines, frontier=(frontier,), always=always)

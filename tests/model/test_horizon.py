"""Rule E11 keeps its promises under every schedule tried, and each of its clauses is needed for that.

The model is one file a part: `order`, `clauses`, `records` (the catalog), `publisher`, `writer`, `reader`, `world` (the
steps, and the oracle that judges) and `schedules`. To see a seed or a schedule at work, call `outcome` or `search`.
"""

from typing import NamedTuple

import pytest
from tests.model.clauses import Clause
from tests.model.schedules import Found, Scene, outcome, search, shrink
from tests.model.world import Step
from tests.scale import LONG

pytestmark = pytest.mark.long  # the rule and its clauses change seldom

MANY = range(20_000 * LONG)
PER_CLAUSE = 3_000
TRIES = 70

INTS = Scene(4, pairs=False, segments=2)
ONE = Scene(4, pairs=False, segments=1)
PAIRS = Scene(2, pairs=True, segments=2)


def _name(clause: Clause) -> str:
    return clause.name


def _find(seeds: range, off: tuple[Clause, ...] = ()) -> Found | None:
    found = search(seeds, off, TRIES)
    return shrink(found, off) if found else None


@pytest.mark.rule("E11", "E2", "E3", "E6", "E15", "E17")
@pytest.mark.parametrize("part", range(4))
def test_with_every_clause_no_schedule_breaks_a_promise(part: int) -> None:
    quarter = len(MANY) // 4
    found = _find(MANY[part * quarter : (part + 1) * quarter])
    assert found is None, f"\n{found}"


# ---- what refuted earlier versions of the rule, or of the program ----


def opens(*writers: str, segments: int = 2) -> list[Step]:
    """Each writer opens, at every segment, and gets the answers."""
    return [
        *(("open", writer) for writer in writers),
        *(("deliver", writer, segment) for writer in writers for segment in range(segments)),
    ]


def records(segment: int, *ahead: object) -> list[Step]:
    """A record, stored and answered."""
    return [("ask", segment, *ahead), ("arrive",), ("arrive",)]


def appends(writer: str, segment: int, time: object) -> list[Step]:
    """An append, acknowledged if the horizon covers it."""
    return [("append", writer, segment, time), ("deliver", writer, segment)]


def dies(segment: int) -> list[Step]:
    """A crash, and the next incarnation."""
    return [("crash", segment), ("start", segment)]


class Story(NamedTuple):
    """A schedule, and the clause without which it breaks a promise."""

    off: Clause
    steps: list[Step]
    scene: Scene = INTS


STORIES = {
    "what nobody recorded becomes active": Story(
        Clause.GATED,
        [*opens("a"), *appends("a", 0, 1), ("crash", 0)],
    ),
    "an open that was not recorded: the record at the catalog knows of a, not of b, who has written": Story(
        Clause.ABORTED_BELOW,
        [
            *opens("a", segments=1),
            *records(0, 1),
            *opens("b", segments=1),
            *appends("b", 0, 0),
            *dies(0),
            ("deliver", "a", 0),
            ("append", "a", 0, 0),
            ("deliver", "a", 0),
            ("join", "r"),
            ("read", "r", 0),
            ("advance", "a", 1),
            ("deliver", "a", 0),
            ("read", "r", 0),
        ],
        ONE,
    ),
    "what a replaced session had left": Story(
        Clause.ABORTED_BELOW,
        [
            *opens("a", "b", segments=1),
            *records(0, 0),
            *appends("a", 0, 0),
            ("advance", "a", 1),
            ("deliver", "a", 0),
            *opens("a", segments=1),
            *dies(0),
            ("deliver", "a", 0),
            ("deliver", "b", 0),
        ],
        ONE,
    ),
    "a second crash, before which the new horizon has forgotten the old one": Story(
        Clause.INHERITED,
        [*opens("a"), *records(0, 1), *appends("a", 0, 1), *dies(0), *records(0, 0), ("crash", 0)],
    ),
    "a second crash, before which those waited for were forgotten": Story(
        Clause.WAITED_FOR_RECORDED,
        [
            *opens("a", "b", segments=1),
            *records(0),
            *dies(0),
            *records(0, 2),
            *dies(0),
            ("deliver", "a", 0),
            ("advance", "a", 1),
            *records(0),
            ("deliver", "a", 0),
            *records(0),
            ("deliver", "b", 0),
        ],
        ONE,
    ),
    "a time that only an unrecorded frontier had completed": Story(
        Clause.COVERED,
        [
            *opens("a", segments=1),
            ("advance", "a", 1),
            ("deliver", "a", 0),
            *dies(0),
            *opens("b", segments=1),
            *records(0, 0),
            *appends("b", 0, 0),
        ],
        ONE,
    ),
    "a frontier told beyond what was recorded: (1, 0) was passed, and comes back": Story(
        Clause.COVERED,
        [
            *opens("a"),
            *records(0, (0, 0)),
            *records(1, (0, 0)),
            ("advance", "a", (0, 1)),
            ("deliver", "a", 0),
            ("deliver", "a", 1),
            *dies(0),
            *dies(1),
            *opens("b"),
            *records(0, (1, 0)),
            *records(1, (1, 0)),
            *appends("b", 0, (1, 0)),
        ],
        PAIRS,
    ),
    "a move whose answer was lost": Story(
        Clause.ABORTED_BELOW,
        [
            *opens("a", "b", segments=1),
            *records(0, 0),
            *appends("a", 0, 0),
            ("advance", "a", 1),
            ("deliver", "a", 0, "lost"),
            *dies(0),
            ("deliver", "a", 0),
            ("deliver", "b", 0),
        ],
        ONE,
    ),
    "an answer to a resume that was lost": Story(
        Clause.LOST_REPEATED,
        [
            *opens("a", segments=1),
            *records(0, 0),
            *appends("a", 0, 0),
            *dies(0),
            ("deliver", "a", 0, "lost"),
            ("deliver", "a", 0),
            ("advance", "a", 1),
            ("deliver", "a", 0),
        ],
        ONE,
    ),
    "half of an epoch, by a reader that drops its filter too early": Story(
        Clause.FILTER_KEPT,
        [
            *opens("a"),
            *records(0, 3),
            *records(1, 3),
            *appends("a", 0, 0),
            ("join", "r"),
            ("read", "r", 0),
            ("read", "r", 1),
            *appends("a", 1, 0),
            ("advance", "a", 1),
            ("deliver", "a", 0),
            ("read", "r", 0),
            ("deliver", "a", 1),
            ("read", "r", 1),
        ],
    ),
    "a loss that moved the frontier before it was recorded": Story(
        Clause.LOSSES_COVERED,
        [
            *opens("a", "b", segments=1),
            ("advance", "a", 1),
            ("deliver", "a", 0),
            ("lose", "b", 0),
            *dies(0),
            *opens("c", segments=1),
            *records(0, 0),
            *appends("c", 0, 0),
        ],
        ONE,
    ),
    "records that overtook each other": Story(
        Clause.NUMBERED,
        [
            *opens("a"),
            ("ask", 0),
            ("give_up", 0),
            ("ask", 0, 0),
            ("arrive", 1),
            ("arrive", 1),
            *appends("a", 0, 0),
            ("arrive",),
            ("crash", 0),
        ],
    ),
    "a record of the incarnation before, stored late": Story(
        Clause.FENCED,
        [
            *opens("a"),
            ("ask", 0),
            ("give_up", 0),
            ("ask", 0),
            *dies(0),
            ("deliver", "a", 0),
            ("ask", 0, 0),
            ("arrive", 2),
            ("arrive", 2),
            *appends("a", 0, 0),
            ("arrive", 1),
            ("crash", 0),
        ],
    ),
    "a horizon replaced instead of grown": Story(
        Clause.GROWN,
        [*opens("a"), *records(0, 1), ("ask", 0), ("arrive",), *appends("a", 0, 1), ("crash", 0)],
    ),
    "a frontier that its horizon has not caught up with": Story(
        Clause.TOGETHER,
        [*opens("a"), ("ask", 0, 0), ("arrive",), ("arrive", 1), *appends("a", 0, 0), ("crash", 0)],
    ),
    "a fenced session that comes back first": Story(
        Clause.SESSIONS,
        [
            *opens("a"),
            *opens("a"),
            ("advance", "a", 1),
            ("deliver", "a", 0),
            *dies(0),
            ("deliver", "a'", 0),
            ("append", "a'", 0, 1),
            *records(0, 1),
            ("deliver", "a'", 0),
        ],
    ),
    "an orderly stop: 0 was completed, and nobody had been told": Story(
        Clause.TRUE_AT_STOP,
        [
            *opens("a"),
            *records(0, 0),
            *appends("a", 0, 0),
            ("advance", "a", 2),
            ("deliver", "a", 0),
            ("stop", 0),
            ("arrive",),
            ("crash", 0),
        ],
    ),
    "an abort that the next incarnation knows nothing of": Story(
        Clause.ABORTS_GATED,
        [
            *opens("a", "b", segments=1),
            ("abort", "b", 2),
            ("deliver", "b", 0),
            *dies(0),
            ("deliver", "a", 0),
            *records(0, 2),
            *appends("a", 0, 2),
        ],
        ONE,
    ),
    "a writer that comes back to what has gone on without it": Story(
        Clause.RESUMES_WHOLE,
        [
            *opens("a", "b", segments=1),
            *dies(0),
            ("deliver", "a", 0),
            ("advance", "a", 3),
            ("deliver", "a", 0),
            *records(0),
            ("deliver", "b", 0),
            *records(0, 0),
            *appends("b", 0, 0),
        ],
        ONE,
    ),
    "an open at a frontier that the catalog says is passed": Story(
        Clause.TRUE_GRANTED,
        [
            *opens("a", segments=1),
            ("advance", "a", 1),
            ("deliver", "a", 0),
            ("ask", 0),
            ("arrive",),
            *opens("b", segments=1),
            ("arrive",),
            *records(0, 0),
            *appends("b", 0, 0),
        ],
        ONE,
    ),
    "a snapshot of the next incarnation, whose frontier is an older one": Story(
        Clause.JOINED,
        [
            *records(0, 2),
            *opens("b", segments=1),
            ("advance", "b", 2),
            ("deliver", "b", 0),
            ("join", "r"),
            ("read", "r", 0),
            *dies(0),
            ("read", "r", 0),
        ],
        ONE,
    ),
    "a stream that is complete, at a segment that had not recorded it": Story(
        Clause.COMPLETE_STANDS,
        [
            *opens("b"),
            ("open", "a"),
            ("leave", "b", "finish"),
            ("deliver", "b", 0),
            ("deliver", "b", 1),
            ("complete",),
            ("crash", 0),
        ],
    ),
    "a link that is cut while an epoch is published and completed": Story(
        Clause.GAP_FILTERS,
        [
            *opens("a"),
            *records(0, 0),
            ("join", "r"),
            ("read", "r", 0),
            ("read", "r", 1),
            *appends("a", 0, 0),
            ("crash", 0),
        ],
    ),
}


@pytest.mark.rule("E11", "E2", "E6", "E17")
@pytest.mark.parametrize("title", STORIES)
def test_what_refuted_an_earlier_rule_does_not_refute_this_one(title: str) -> None:
    off, steps, scene = STORIES[title]
    assert outcome(scene, steps) == ""
    assert outcome(scene, steps, [off]), f"not needed here: {off.value}"


# ---- every clause is needed ----

NOT_NEEDED = {
    Clause.LOST_EVERYWHERE: "the next session aborts what it finds and cannot hold everywhere (E5); E3 is only sooner",
}


SEARCHED = [c for c in Clause if c not in NOT_NEEDED and c not in {story.off for story in STORIES.values()}]
"""Those that no story above leaves out; chance finds each of them within some dozens of schedules."""


@pytest.mark.rule("E11")
@pytest.mark.parametrize("clause", SEARCHED, ids=_name)
def test_without_any_other_clause_a_promise_is_broken(clause: Clause) -> None:
    found = _find(range(PER_CLAUSE), (clause,))
    assert found is not None, f"no schedule needs it: {clause.value}"
    print(f"Without {clause.name}: {clause.value}\n{found}")  # the shortest reason for the clause; shown by pytest -rP


@pytest.mark.long
@pytest.mark.rule("E11")
@pytest.mark.parametrize("clause", NOT_NEEDED, ids=_name)
def test_what_is_said_not_to_be_needed_is_not(clause: Clause) -> None:
    found = _find(range(8_000), (clause,))
    assert found is None, f"\n{found}"


@pytest.mark.rule("E11")
def test_a_failing_schedule_is_shrunk_until_no_step_can_go() -> None:
    found = search(range(PER_CLAUSE), (Clause.GATED,), TRIES)
    assert found is not None
    least = shrink(found, (Clause.GATED,))
    for index in range(len(least.steps)):
        assert not outcome(least.scene, [*least.steps[:index], *least.steps[index + 1 :]], (Clause.GATED,))
    assert "dies" in str(least)

"""Rounds of watermarks against tables, and over random histories against an oracle that knows events and notes only."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.protocol.cuts import NOTHING, Lineage
from epochal.protocol.messages import Position
from epochal.protocol.segments import KEY_SPACE, KeyRange, key_ranges
from epochal.protocol.watermarks import AT_THE_END, Watermark
from epochal_catalog.domain.watermarks import (
    Mark,
    Part,
    Plan,
    SegmentFrontier,
    Terms,
    by_frontier,
    ended,
    part,
    round_of,
)

TABLE = json.loads(Path(__file__).with_name("watermark-rounds.json").read_text())
UNITS = 12
SEEDS = st.integers(0, 2**32)


def place(seq: int | None) -> Position:
    return NOTHING if seq is None else Position(1, seq)


def position(row: dict[str, int | None]) -> dict[str, Position]:
    return {segment: place(seq) for segment, seq in row.items()}


def lineage(name: str) -> Lineage:
    divisions = [
        {segment: KeyRange(KEY_SPACE * lo // UNITS, KEY_SPACE * hi // UNITS) for segment, (lo, hi) in division.items()}
        for division in TABLE["lineages"][name]
    ]
    return Lineage(divisions)


class Kept:
    """The rows of one stream: marks by writer, and the last watermark."""

    def __init__(self, lineage: Lineage, terms: Terms) -> None:
        self.lineage, self.terms = lineage, terms
        self.marks: dict[str, Mark] = {}
        self.last: Watermark | None = None

    def note(self, writer: str, time: int, position: dict[str, Position], at: float, *, left: bool = False) -> None:
        """As the catalog accepts a mark: the positions of one writer only grow."""
        known = self.marks.get(writer)
        behind = None if known is None else known.behind
        self.marks[writer] = Mark(writer, time, position, at, behind, left)

    def round(self, at: float, *, grace: bool = False, number: int = 0) -> Plan:
        plan = round_of(
            list(self.marks.values()), self.last, self.lineage, at, self.terms, grace=grace, number=number
        )  # fmt: skip
        for mark in plan.removed:
            del self.marks[mark.writer]
        self.marks.update({mark.writer: mark for mark in plan.behind})
        self.last = plan.watermark or self.last
        return plan


@pytest.mark.rule("E25", "E29", "E30", "E51", "W7", "W8", "W9", "W10", "W11", "W12", "W13", "W14", "W18", "W24")
@pytest.mark.parametrize("table", [pytest.param(table, id=table["why"]) for table in TABLE["tables"]])
def test_rounds_are_as_in_the_tables(table: dict[str, Any]) -> None:
    kept = Kept(lineage(table["lineage"]), Terms(table["interval"], table["timeout"], table["minWriters"]))
    for step in table["steps"]:
        at = step["at"]
        for writer, (time, where) in step.get("note", {}).items():
            kept.note(writer, time, position(where), at)
        for writer in step.get("leave", ()):
            kept.marks[writer] = replace(kept.marks[writer], left=True, heard=at)
        if "round" not in step:
            continue
        plan = kept.round(at, grace=step.get("grace", False))
        found = plan.watermark and [plan.watermark.lower, plan.watermark.upper, plan.watermark.cut]
        expected = step["round"] and [*step["round"][:2], position(step["round"][2])]
        assert found == expected, f"at {at}"
        if "holds" in step:
            assert sorted(plan.holds or ()) == step["holds"], f"at {at}"
        if "marks" in step:
            assert sorted(kept.marks) == step["marks"], f"at {at}"
        if "starts" in step:
            assert plan.starts == step["starts"], f"at {at}"


@pytest.mark.rule("E51")
def test_the_part_of_each_writer_is_said() -> None:
    last = Watermark(7, 100, 120, {"0": Position(1, 5)})
    terms = Terms(5, 30)
    mark = Mark("a", 100, {"0": Position(1, 5)}, heard=0.0, behind=2.0)
    assert part(mark, None, 3.0, terms) is Part.TAKES_PART
    assert part(replace(mark, time=101), last, 3.0, terms) is Part.TAKES_PART
    assert part(mark, last, 3.0, terms) is Part.STANDS
    assert part(replace(mark, time=99), last, 31.9, terms) is Part.LATE
    assert part(replace(mark, time=99), last, 32.0, terms) is Part.IGNORED
    assert part(replace(mark, time=99), last, 32.0, terms, grace=True) is Part.LATE
    assert part(replace(mark, time=99, behind=None), last, 99.0, terms) is Part.LATE
    assert part(replace(mark, left=True), last, 3.0, terms) is Part.LEFT


@pytest.mark.rule("E12", "E51")
def test_a_number_is_above_the_last_one_and_not_below_the_clock() -> None:
    kept = Kept(lineage("one"), Terms(5, 30))
    kept.note("a", 1, {"0": Position(1, 1)}, 0.0)
    kept.round(0.0)
    first = kept.round(5.0, number=1_000).watermark
    kept.note("a", 2, {"0": Position(1, 1)}, 6.0)
    second = kept.round(10.0, number=900).watermark
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1_000, 1_001)


# ---- by the frontier ----


def at(lower: int | None, seq: int) -> SegmentFrontier:
    return SegmentFrontier(lower, Position(1, seq))


@pytest.mark.rule("E52", "E53")
def test_by_the_frontier_the_watermark_is_the_merged_frontier_and_the_last_one_says_that_the_stream_is_complete() -> (
    None
):
    halves = Lineage([{str(n): span for n, span in enumerate(key_ranges(2))}])
    assert by_frontier({"0": at(0, 4), "1": at(0, -1)}, None, halves) is None, "nothing is over"
    assert by_frontier({"0": at(3, 4), "1": at(0, 2)}, None, halves) is None
    first = by_frontier({"0": at(3, 4), "1": at(2, 5)}, None, halves, number=9)
    assert first == Watermark(9, 2, 3, {"0": Position(1, 4), "1": Position(1, 5)})
    assert by_frontier({"0": at(5, 6), "1": at(2, 7)}, first, halves) is None, "only the upper bound has moved"
    second = by_frontier({"0": at(None, 8), "1": at(3, 6)}, first, halves, number=9)
    assert second == Watermark(10, 3, 3, {"0": Position(1, 8), "1": Position(1, 6)})
    lost = by_frontier({"0": at(None, 8), "1": SegmentFrontier(4, Position(2, 0))}, second, halves)
    assert lost == Watermark(11, 4, 4, {"0": Position(1, 8), "1": Position(2, 0)}), "an event of a later incarnation"
    last = by_frontier({"0": at(None, 8), "1": SegmentFrontier(None, Position(2, 1))}, lost, halves)
    assert last is not None
    assert (last.lower, last.upper) == (AT_THE_END, AT_THE_END)
    assert by_frontier({"0": at(None, 8), "1": SegmentFrontier(None, Position(2, 1))}, last, halves) is None


@pytest.mark.rule("E53")
def test_a_complete_stream_with_marks_gets_one_last_watermark() -> None:
    one = lineage("one")
    last = ended(None, one, {"0": Position(1, 7)}, number=3)
    assert last == Watermark(3, AT_THE_END, AT_THE_END, {"0": Position(1, 7)})
    assert ended(last, one, {"0": Position(1, 7)}) is None
    after = ended(Watermark(5, 1, 2, {"0": Position(1, 9)}), one, {"0": Position(1, 7)}, number=3)
    assert after == Watermark(6, AT_THE_END, AT_THE_END, {"0": Position(1, 9)}), "a cut never falls"


@pytest.mark.rule("E52")
@given(SEEDS)
def test_by_the_frontier_no_watermark_is_above_it_and_nothing_moves_back(seed: int) -> None:
    random = Random(seed)
    names = [str(n) for n in range(random.randint(1, 3))]
    lineage = Lineage([dict(zip(names, key_ranges(len(names)), strict=True))])
    lower: dict[str, int | None] = dict.fromkeys(names, 0)
    seqs = dict.fromkeys(names, -1)
    last: Watermark | None = None
    for _ in range(30):
        name = random.choice(names)
        now = lower[name]
        if now is not None:
            lower[name] = None if random.random() < 0.05 else now + random.choice((0, 1, 3))
            seqs[name] += 1
        found = by_frontier({name: at(lower[name], seqs[name]) for name in names}, last, lineage)
        merged = min((time for time in lower.values() if time is not None), default=AT_THE_END)
        assert found is not None or (last.lower if last is not None else 0) == merged
        if found is not None:
            assert found.lower == merged <= found.upper
            assert last is None or (found.upper >= last.upper and lineage.is_past(found.cut, last.cut))
            last = found


# ---- random histories, and an oracle that knows who appended what, and when who noted which time ----


class History:
    """Writers append to the segments of a stream and note rising times; some are silent, leave or return."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        names = [str(n) for n in range(self.random.randint(1, 3))]
        self.lineage = Lineage([dict(zip(names, key_ranges(len(names)), strict=True))])
        self.terms = Terms(5, self.random.choice((10, 30)), self.random.randint(1, 2))
        self.kept = Kept(self.lineage, self.terms)
        self.seqs = dict.fromkeys(names, -1)
        self.clock = {f"w{n}": self.random.randint(0, 50) for n in range(self.random.randint(1, 4))}
        self.appended: dict[str, list[tuple[float, str, int]]] = defaultdict(list)
        self.noted: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.left: set[str] = set()
        self.now = 0.0

    def step(self) -> None:
        random, writer = self.random, self.random.choice(sorted(self.clock))
        self.now += random.choice((0.0, 0.5, 2.0, 6.0))
        if random.random() < 0.6:
            segment = random.choice(sorted(self.seqs))
            self.seqs[segment] += 1
            self.appended[writer].append((self.now, segment, self.seqs[segment]))
            return
        self.clock[writer] += random.choice((0, 1, 10))
        left = random.random() < 0.1
        where = {segment: place(seq) for segment, seq in self.seqs.items()}
        self.kept.note(writer, self.clock[writer], where, self.now, left=left)
        self.noted[writer].append((self.now, self.clock[writer]))
        self.left = self.left | {writer} if left else self.left - {writer}

    def judge(self, found: Watermark, before: Watermark | None, counted: set[str]) -> None:
        if before is not None:
            assert found.lower > before.lower
            assert found.upper >= before.upper
            assert self.lineage.is_past(found.cut, before.cut)
        assert found.lower <= found.upper
        for writer in counted:
            _, time = self.noted[writer][-1]
            assert found.lower <= time, f"{writer} noted {time}"
            first = min(at for at, time in self.noted[writer] if time >= found.lower)
            for when, segment, seq in self.appended[writer]:
                if when < first:
                    assert found.cut[segment] >= Position(1, seq), f"{writer} appended it before it noted {found.lower}"
        assert found.floor is not None
        assert self.lineage.is_past(found.cut, found.floor)


@pytest.mark.rule("E25", "E51", "W13", "W14", "W18")
@given(SEEDS)
def test_what_a_watermark_says_holds_for_every_writer_that_still_notes(seed: int) -> None:
    history = History(seed)
    due = 5.0
    for _ in range(history.random.randint(5, 80)):
        history.step()
        while history.now >= due:
            before = history.kept.last
            marks = dict(history.kept.marks)
            plan = history.kept.round(due)
            recent = {writer for writer, mark in marks.items() if due - mark.heard < history.terms.timeout}
            if plan.watermark is not None:
                counted = {
                    writer
                    for writer, mark in marks.items()
                    if mark.time > (before.lower if before else -1)
                    or (writer in recent and before and mark.time == before.lower and not mark.left)
                }
                history.judge(plan.watermark, before, counted)
            for writer in set(marks) - set(history.kept.marks):
                assert marks[writer].left or writer not in recent, f"{writer} was heard {marks[writer].heard}"
            due += 5.0
    last = history.kept.last
    greatest = max(
        [*(mark.time for mark in history.kept.marks.values()), *([last.lower] if last else [])], default=None
    )
    for _ in range(40):  # once nobody notes any more, all are left out, and the greatest note is reached
        history.kept.round(due)
        due += 5.0
    assert (history.kept.last.lower if history.kept.last else None) == greatest

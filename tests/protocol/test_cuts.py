"""Stream cuts against tables, and over random lineages against the sets of events that they have before them."""

import json
from itertools import pairwise, permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import LocalProtocolError
from epochal.protocol.cuts import EVERYTHING, NOTHING, Lineage, Side
from epochal.protocol.messages import Position
from epochal.protocol.segments import KEY_SPACE, KeyRange

TABLE = json.loads(Path(__file__).with_name("cuts.json").read_text())
UNITS = 12
"""Into so many equal parts the tables, and the random lineages, divide the keys."""
EVENTS = 3
"""How many events each segment of a random lineage has."""


def ranges(division: dict[str, list[int]]) -> dict[str, KeyRange]:
    return {
        segment: KeyRange(KEY_SPACE * lo // UNITS, KEY_SPACE * hi // UNITS) for segment, (lo, hi) in division.items()
    }


def place(value: Any) -> Position:
    if value is None:
        return NOTHING
    if value == "all":
        return EVERYTHING
    return Position(*value) if isinstance(value, list) else Position(1, value)


def position(row: dict[str, Any]) -> dict[str, Position]:
    return {segment: place(value) for segment, value in row.items()}


def rows(kind: str) -> list[Any]:
    return [pytest.param(row, id=f"{row['lineage']}: {row['why']}") for row in TABLE[kind]]


def lineage(row: dict[str, Any]) -> Lineage:
    return Lineage([ranges(division) for division in TABLE["lineages"][row["lineage"]]])


@pytest.mark.rule("E30", "W31")
@pytest.mark.parametrize("row", rows("sides"))
def test_a_reader_is_past_a_cut_where_it_is_at_or_beyond_it_for_every_key(row: dict[str, Any]) -> None:
    there = lineage(row)
    sides = there.sides(position(row["reader"]), position(row["cut"]))
    found = "before" if Side.BEYOND not in sides else "mixed"
    assert row["is"] == ("past" if Side.BEFORE not in sides else found)
    assert there.is_past(position(row["reader"]), position(row["cut"])) == (row["is"] == "past")


@pytest.mark.rule("E30", "W15", "W16", "W17")
@pytest.mark.parametrize("row", rows("upper"))
def test_positions_of_several_writers_are_joined_to_a_cut_in_any_order(row: dict[str, Any]) -> None:
    for order in permutations(row["positions"]):
        found = lineage(row).upper_bound(map(position, order))
        assert found == position(row["cut"])
        assert lineage(row).is_cut(found)


@pytest.mark.rule("E30")
@pytest.mark.parametrize("row", rows("lower"))
def test_the_lower_bound_is_the_mirror(row: dict[str, Any]) -> None:
    for order in permutations(row["positions"]):
        assert lineage(row).lower_bound(map(position, order)) == position(row["cut"])


@pytest.mark.parametrize(
    ("divisions", "wrong"),
    [
        ([], "at least the division"),
        ([{"0": [0, 6]}], "leaves a hole"),
        ([{"0": [0, 6], "1": [5, 12]}], "overlaps"),
        ([{"0": [0, 12]}, {"0": [0, 6], "1": [6, 12]}], "another key range"),
        ([{"0": [0, 12]}, {"1": [0, 12]}, {"0": [0, 12]}], "comes back"),
    ],
)
def test_what_is_no_lineage_is_refused(divisions: list[dict[str, list[int]]], wrong: str) -> None:
    with pytest.raises(LocalProtocolError, match=wrong):
        Lineage([ranges(division) for division in divisions])


# ---- random lineages, and an oracle that knows events only ----


def drawn(random: Random) -> list[dict[str, list[int]]]:
    """Divisions of one stream: in each step one or more neighbours are replaced by others."""
    bounds = sorted({0, UNITS, *random.sample(range(1, UNITS), random.randint(0, 3))})
    division = {str(n): [lo, hi] for n, (lo, hi) in enumerate(pairwise(bounds))}
    divisions, used = [division], len(division)
    for _ in range(random.randint(0, 3)):
        kept = sorted(divisions[-1].items(), key=lambda item: item[1])
        first = random.randrange(len(kept))
        last = random.randint(first, min(first + 2, len(kept) - 1))
        lo, hi = kept[first][1][0], kept[last][1][1]
        inner = random.sample(range(lo + 1, hi), min(random.randint(0, 2), hi - lo - 1))
        edges = sorted({lo, hi, *inner})
        new = {str(used + n): [a, b] for n, (a, b) in enumerate(pairwise(edges))}
        used += len(new)
        divisions.append(dict([*kept[:first], *new.items(), *kept[last + 1 :]]))
    return divisions


class Events:
    """The events of a stream's whole life: (unit of the keys, number of the segment in its line, event)."""

    def __init__(self, divisions: list[dict[str, list[int]]]) -> None:
        self.divisions = divisions
        self.lines: list[list[str]] = []
        """For each unit the segments that had it, oldest first."""
        for unit in range(UNITS):
            line: list[str] = []
            for division in divisions:
                segment = next(name for name, (lo, hi) in division.items() if lo <= unit < hi)
                if segment not in line:
                    line.append(segment)
            self.lines.append(line)

    def before(self, cut: dict[str, Position]) -> set[tuple[int, int, int]]:
        """What a cut has before it: in each line all segments before the one that it names, and a part of that."""
        found = set()
        for unit, line in enumerate(self.lines):
            (at,) = [n for n, segment in enumerate(line) if segment in cut]
            for n, _ in enumerate(line[: at + 1]):
                last = EVENTS - 1 if n < at else min(cut[line[at]].seq, EVENTS - 1)
                found |= {(unit, n, event) for event in range(last + 1)}
        return found

    def of_writer(self, position: dict[str, Position]) -> set[tuple[int, int, int]]:
        """What a position has before it, of which not every key need be named: nothing in lines of which none is."""
        named = {
            unit: max(n for n, segment in enumerate(line) if segment in position)
            for unit, line in enumerate(self.lines)
            if set(line) & set(position)
        }
        found = set()
        for unit, at in named.items():
            line = self.lines[unit]
            for n in range(at + 1):
                last = EVENTS - 1 if n < at else position[line[at]].seq
                found |= {(unit, n, event) for event in range(last + 1)}
        return found


def some_position(random: Random, divisions: list[dict[str, list[int]]], *, whole: bool) -> dict[str, Position]:
    """Of a writer that knows one of the divisions; without `whole` it wrote to some segments only."""
    names = list(random.choice(divisions))
    if not whole:
        names = random.sample(names, random.randint(1, len(names)))
    return {name: Position(1, random.randint(-1, EVENTS - 1)) for name in names}


SEEDS = st.integers(0, 2**32)


@pytest.mark.rule("E30", "W15", "W16", "W18")
@given(SEEDS)
def test_an_upper_bound_has_all_before_it_that_the_positions_have(seed: int) -> None:
    random = Random(seed)
    divisions = drawn(random)
    lineage, events = Lineage(list(map(ranges, divisions))), Events(divisions)
    positions = [some_position(random, divisions, whole=False) for _ in range(random.randint(1, 4))]
    cut = lineage.upper_bound(positions)
    assert lineage.is_cut(cut)
    there = events.before(cut)
    for each in positions:
        assert events.of_writer(each) <= there
    random.shuffle(positions)
    assert lineage.upper_bound(positions) == cut
    later = lineage.upper_bound([cut, some_position(random, divisions, whole=False)])
    assert events.before(later) >= there
    assert lineage.is_past(later, cut)
    assert lineage.upper_bound([cut]) == cut


@pytest.mark.rule("E30")
@given(SEEDS)
def test_a_lower_bound_has_nothing_before_it_that_one_of_the_positions_has_not(seed: int) -> None:
    random = Random(seed)
    divisions = drawn(random)
    lineage, events = Lineage(list(map(ranges, divisions))), Events(divisions)
    positions = [some_position(random, divisions, whole=True) for _ in range(random.randint(1, 4))]
    floor = lineage.lower_bound(positions)
    assert lineage.is_cut(floor)
    for each in positions:
        assert events.before(floor) <= events.before(each)
    random.shuffle(positions)
    assert lineage.lower_bound(positions) == floor
    assert lineage.is_past(lineage.upper_bound(positions), floor)


@pytest.mark.rule("E30", "W31")
@given(SEEDS)
def test_a_reader_is_past_a_cut_exactly_if_it_has_read_all_before_it(seed: int) -> None:
    random = Random(seed)
    divisions = drawn(random)
    lineage, events = Lineage(list(map(ranges, divisions))), Events(divisions)
    reader = lineage.upper_bound([some_position(random, divisions, whole=False)])
    cut = lineage.upper_bound([some_position(random, divisions, whole=False)])
    if lineage.is_past(reader, cut):
        assert events.before(reader) >= events.before(cut)
    elif Side.BEYOND not in lineage.sides(reader, cut):
        assert events.before(reader) <= events.before(cut)
    if set(reader) <= set(cut):  # elsewhere, where a segment begins and where its ancestor ends are the same events
        assert lineage.is_past(reader, cut) == (events.before(reader) >= events.before(cut))

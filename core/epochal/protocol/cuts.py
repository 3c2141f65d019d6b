"""Stream cuts: positions that cover every key once, and how positions of many become one (E30).

Pure algebra over the lineage of a stream's segments: no writers, no watermarks, no catalog. A stream that never scaled
has one division of its keys and no ancestors, and all of this is a maximum or minimum segment by segment.

Sources: PDP-33 watermarking, W15-W18, W31; E30.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import TypeAlias

from epochal.errors import LocalProtocolError
from epochal.protocol.messages import NOTHING_YET, Position
from epochal.protocol.segments import KEY_SPACE, KeyRange
from epochal.protocol.times import MAX_TIME

StreamPosition: TypeAlias = Mapping[str, Position]
"""Segment id -> the last event of it that is before the position. It need not cover every key."""

NOTHING = Position(0, NOTHING_YET)
"""Before all events of a segment, in whichever incarnation it began."""
EVERYTHING = Position(MAX_TIME, MAX_TIME)
"""After all events of a segment that no longer takes any."""


class Side(IntEnum):
    """Where a position is, seen from another one of the same keys."""

    BEFORE = -1
    AT = 0
    BEYOND = 1


class Lineage:
    """The divisions of a stream's keys, oldest first: which segments there were together, and their key ranges.

    A segment that a later division no longer has is a predecessor of the new segments whose ranges overlap its own.
    Ancestors are predecessors and their ancestors. Raises `LocalProtocolError` for a division that does not cover every
    key once, and for a segment that comes back or whose range changes.

    >>> halves = {"0": KeyRange(0, 2**63), "1": KeyRange(2**63, KEY_SPACE)}
    >>> lineage = Lineage([halves, {"2": halves["0"], "1": halves["1"]}])
    >>> sorted(lineage.ancestors("2")), sorted(lineage.descendants("1"))
    (['0'], [])
    """

    __slots__ = ("_ancestors", "_descendants", "_divisions", "_first", "_last", "_ranges")

    def __init__(self, divisions: Sequence[Mapping[str, KeyRange]]) -> None:
        if not divisions:
            raise LocalProtocolError("a lineage has at least the division that its stream began with")
        self._divisions = divisions
        self._ranges: dict[str, KeyRange] = {}
        self._first: dict[str, int] = {}
        """Segment id -> the number of the first division that has it."""
        self._last: dict[str, int] = {}
        """... and of the last one."""
        for number, division in enumerate(divisions):
            _check_division(division)
            for segment, span in division.items():
                if self._ranges.setdefault(segment, span) != span:
                    raise LocalProtocolError(f"segment {segment} has another key range in division {number}")
                if self._last.get(segment, number - 1) != number - 1 and segment in self._first:
                    raise LocalProtocolError(f"segment {segment} comes back in division {number}")
                self._first.setdefault(segment, number)
                self._last[segment] = number
        self._ancestors: dict[str, frozenset[str]] = dict.fromkeys(divisions[0], frozenset())
        for before, after in pairwise(divisions):
            closed = {segment: span for segment, span in before.items() if segment not in after}
            for segment, span in after.items():
                if segment not in self._ancestors:
                    parents = [parent for parent, other in closed.items() if _overlap(span, other)]
                    self._ancestors[segment] = frozenset(parents).union(*map(self._ancestors.__getitem__, parents))
        self._descendants: dict[str, set[str]] = {segment: set() for segment in self._ranges}
        for segment, ancestors in self._ancestors.items():
            for ancestor in ancestors:
                self._descendants[ancestor].add(segment)

    def __contains__(self, segment: str) -> bool:
        """Whether the stream ever had this segment."""
        return segment in self._ranges

    @property
    def scaled(self) -> bool:
        """Whether it has more than the division that the stream began with."""
        return len(self._divisions) > 1

    def ancestors(self, segment: str) -> frozenset[str]:
        """All segments from which the keys of `segment` came, in any number of steps."""
        return self._ancestors[segment]

    def descendants(self, segment: str) -> frozenset[str]:
        """All segments to which keys of `segment` went."""
        return frozenset(self._descendants[segment])

    def holes(self, segments: Iterable[str]) -> list[KeyRange]:
        """The keys that none of `segments` has, as ranges in order. Segments may overlap."""
        found, covered = [], 0
        for span in sorted(map(self._ranges.__getitem__, segments)):
            if span.lo > covered:
                found.append(KeyRange(covered, span.lo))
            covered = max(covered, span.hi)
        if covered < KEY_SPACE:
            found.append(KeyRange(covered, KEY_SPACE))
        return found

    def is_cut(self, position: StreamPosition) -> bool:
        """Whether it covers every key once, and has no ancestor of another of its segments (E30)."""
        known = set(position)
        size = sum(self._ranges[segment].hi - self._ranges[segment].lo for segment in known)
        return size == KEY_SPACE and not self.holes(known) and not any(self._ancestors[each] & known for each in known)

    def upper_bound(self, positions: Iterable[StreamPosition]) -> dict[str, Position]:
        """The cut at or after each of `positions`, of which there is at least one (E30).

        Its keys that no position names are filled from the newest division of which a segment is named, with "nothing
        yet". The result does not depend on the order of `positions`.

        >>> lineage = Lineage([{"0": KeyRange(0, 2**63), "1": KeyRange(2**63, KEY_SPACE)}])
        >>> lineage.upper_bound([{"0": Position(1, 7)}, {"0": Position(2, 3)}]) == {"0": (2, 3), "1": NOTHING}
        True
        """
        found = _joined(positions, max)
        if not self.scaled:
            return {segment: found.get(segment, NOTHING) for segment in self._ranges}
        newest = self._divisions[max(self._first[segment] for segment in found)]
        return self._filled(found, newest, self._ancestors, NOTHING)

    def lower_bound(self, positions: Iterable[StreamPosition]) -> dict[str, Position]:
        """The mirror of `upper_bound`: the cut at or before each of `positions`, where these name their segments.

        Descendants of what is named are left out, and keys that no position names are filled from the oldest division
        of which a segment is named, with all of its segments.
        """
        found = _joined(positions, min)
        if not self.scaled:
            return {segment: found.get(segment, EVERYTHING) for segment in self._ranges}
        oldest = self._divisions[min(self._last[segment] for segment in found)]
        return self._filled(found, oldest, self._descendants, EVERYTHING)

    def _filled(
        self,
        found: dict[str, Position],
        division: Mapping[str, KeyRange],
        covered: Mapping[str, Iterable[str]],
        fill: Position,
    ) -> dict[str, Position]:
        """Leave out what others have `covered`, fill the holes from `division`; again until there are none.

        Each turn adds segments of `division` that were not there, and none of these is ever left out: so it ends.
        """
        while True:
            over = {other for segment in found for other in covered[segment]}
            found = {segment: place for segment, place in found.items() if segment not in over}
            holes = self.holes(found)
            if not holes:
                return found
            for segment, span in division.items():
                if any(_overlap(span, hole) for hole in holes):
                    found[segment] = fill

    def sides(self, position: StreamPosition, cut: StreamPosition) -> set[Side]:
        """Where `position` is, seen from `cut`, over all keys (E30). Both cover every key.

        It is past the cut exactly if `BEFORE` is not among them, and nowhere beyond it if `BEYOND` is not.
        """
        if not self.scaled:
            return {_side(place, cut[segment]) for segment, place in position.items()}
        return set(self._sides(position, cut))

    def _sides(self, position: StreamPosition, cut: StreamPosition) -> Iterator[Side]:
        for segment, place in position.items():
            for other, there in cut.items():
                if segment == other:
                    yield _side(place, there)
                elif _overlap(self._ranges[segment], self._ranges[other]):
                    yield Side.BEYOND if other in self._ancestors[segment] else Side.BEFORE

    def is_past(self, position: StreamPosition, cut: StreamPosition) -> bool:
        """Whether `position` is at or beyond `cut` for every key: exactly at the cut is past it (W31)."""
        return Side.BEFORE not in self.sides(position, cut)


def _check_division(division: Mapping[str, KeyRange]) -> None:
    covered = 0
    for span in sorted(division.values()):
        if span.lo != covered or span.hi <= span.lo:
            raise LocalProtocolError(f"a division leaves a hole or overlaps in the key space at {covered}")
        covered = span.hi
    if covered != KEY_SPACE:
        raise LocalProtocolError(f"a division leaves a hole in the key space at {covered}")


def _overlap(one: KeyRange, other: KeyRange) -> bool:
    return one.lo < other.hi and other.lo < one.hi


def _joined(
    positions: Iterable[StreamPosition], choose: Callable[[Position, Position], Position]
) -> dict[str, Position]:
    """Segment by segment, the later or the earlier; a later incarnation is above an earlier one."""
    found: dict[str, Position] = {}
    for position in positions:
        for segment, place in position.items():
            found[segment] = choose(found[segment], place) if segment in found else place
    return found


def _side(place: Position, there: Position) -> Side:
    """It is past only with the incarnation and the number: those of a log that lives on are counted from its start."""
    if place == there or (place.seq == there.seq == NOTHING_YET and NOTHING in (place, there)):
        return Side.AT
    return Side.BEYOND if place.incarnation >= there.incarnation and place.seq >= there.seq else Side.BEFORE

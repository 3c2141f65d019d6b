"""The newest outcomes of a stream for one filter, and where among them a reader goes on.

A machine without I/O, which does not look into what it keeps. An outcome is what a subscription hands out: a complete
or an aborted epoch, or the notice of a gap. Between any two there is a boundary, where a reader can stand.

Sources: rules E15-E18, F9, F18.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from epochal.protocol.frontier import Antichain
from epochal.protocol.subscriber.cursor import Cursor, digest
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter

T = TypeVar("T")

MOST_ID = 6 * 1024
"""Bytes of a cursor that is given as an id: it must fit into a header of the request that comes back with it."""

CURSOR_BYTES, POSITION_BYTES, TIME_BYTES = 2048, 200, 200
"""What a boundary costs in memory: in itself, a segment, and a time in its cursor, roughly measured."""


def text_of(cursor: Cursor) -> str:
    """A cursor as readers are given it: a filter that would make it too long for an id is there as its digest (F9)."""
    text = cursor.to_json()
    if len(text) > MOST_ID and isinstance(cursor.topics, TopicFilter):
        text = replace(cursor, topics=digest(cursor.topics)).to_json()
    return text


@dataclass(frozen=True, slots=True)
class Standing:
    """What a cursor says, ready to be compared.

    `frontier` reaches every epoch that is not yielded, `seen_from` those of them that can be whole. `aborted` are not
    reported any more, `unreported_aborts` are still to be reported. `topics` is a digest, and what is not whole of
    them in every epoch; None for all.
    """

    frontier: Antichain
    seen_from: Antichain
    aborted: frozenset[Time]
    unreported_aborts: tuple[Time, ...]
    topics: str | None

    @classmethod
    def of(cls, cursor: Cursor) -> "Standing":
        """What `cursor` says."""
        frontier = Antichain(cursor.frontier)
        seen_from = frontier if cursor.seen_from is None else Antichain(cursor.seen_from)
        topics = digest(cursor.topics) if isinstance(cursor.topics, TopicFilter) else cursor.topics
        if cursor.new_topics:
            topics = f"{topics} {cursor.new_topics!r}"
        return cls(frontier, seen_from, frozenset(cursor.aborted), cursor.unreported_aborts, topics)


class Boundary:
    """Between two outcomes: from just after the one until just before the other is handed out.

    Meanwhile the frontier can move over times at which there is nothing to hand out; so a boundary has two ends.
    """

    __slots__ = ("cursor", "first", "last", "text")

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        """The newest cursor here."""
        self.text = text_of(cursor)
        """The oldest one, as it is given to readers."""
        self.first = self.last = Standing.of(cursor)

    def move(self, cursor: Cursor) -> bool:
        """The subscription stands at `cursor` now; returns whether that is somewhere else."""
        if cursor == self.cursor:
            return False
        self.cursor, self.last = cursor, Standing.of(cursor)
        return True

    def admits(self, reader: Standing) -> bool:
        """Whether one who stands there, and whose frontier `first` reaches, gets from here on all that he lacks, once.

        Nothing is left out: what he can see whole, the ring's subscription could when it came here, and can still
        where it has not passed it since. Nothing comes twice: what it can still hand out he can see whole and has not
        had. And both keep silent about the same aborts (E15-E17).
        """
        first, last = self.first, self.last
        return (
            not reader.unreported_aborts
            and reader.topics == first.topics == last.topics
            and first.seen_from.reaches_all(reader.seen_from)
            and last.seen_from.reaches_all(reader.seen_from.join(last.frontier))
            and reader.seen_from.reaches_all(last.seen_from)
            and reader.frontier.reaches_all(last.unreported_aborts)
            and {time for time in first.aborted if reader.frontier.less_equal(time)} == reader.aborted >= last.aborted
        )

    @property
    def bytes(self) -> int:
        """What it takes in memory, about."""
        cursor = self.cursor
        times = len(cursor.frontier) + len(cursor.aborted) + len(cursor.unreported_aborts)
        return CURSOR_BYTES + POSITION_BYTES * len(cursor.positions) + TIME_BYTES * times + len(self.text)


class Ring(Generic[T]):
    """Outcomes `first` to `end` (without it), numbered in the order in which they were handed out.

    Made and fed by `Rings`. Boundary n is before outcome n; `end` is the newest one. `place` is O(log n).
    """

    def __init__(self, start: Cursor) -> None:
        self.stream = start.stream
        self.first = self.end = 0
        self.complete = False
        """Whether nothing follows the newest boundary."""
        self._outcomes: dict[int, tuple[T, int]] = {}
        self._boundaries = {0: Boundary(start)}
        self._numbers = {self._boundaries[0].text: 0}
        """By the text of a boundary's first cursor."""

    def __contains__(self, number: int) -> bool:
        return number in self._outcomes

    def __getitem__(self, number: int) -> T:
        """Outcome `number`; raises `KeyError` if it is not here, or not here any more."""
        return self._outcomes[number][0]

    @property
    def newest(self) -> Boundary:
        """The boundary after all outcomes."""
        return self._boundaries[self.end]

    def boundary(self, number: int) -> Boundary:
        """Boundary `number`; raises `KeyError` as for outcomes."""
        return self._boundaries[number]

    def moved(self, cursor: Cursor) -> bool:
        """The subscription has handed out nothing since, and stands at `cursor`; returns whether that is new."""
        return self.newest.move(cursor)

    def place(self, cursor: Cursor, text: str = "") -> int | None:
        """The boundary where one who stands at `cursor` goes on, None if there is none.

        `text`: the cursor as this ring gave it, if it did.
        """
        given = self._numbers.get(text)
        if given is not None:
            return given
        if cursor.stream != self.stream:
            return None
        reader = Standing.of(cursor)
        numbers = range(self.first, self.end + 1)
        passed = bisect_left(numbers, True, key=lambda number: not self._reaches(number, reader))
        if not passed:
            return None
        last = numbers[passed - 1]  # nothing that he lacks came before it, and least of all comes after it
        return last if self._boundaries[last].admits(reader) else None

    def _reaches(self, number: int, reader: Standing) -> bool:
        return self._boundaries[number].first.frontier.reaches_all(reader.frontier)

    def _append(self, outcome: T, size: int, after: Cursor) -> int:
        """Returns the bytes that it takes."""
        boundary = Boundary(after)
        size += boundary.bytes
        self._outcomes[self.end] = outcome, size
        self.end += 1
        self._boundaries[self.end] = boundary
        self._numbers[boundary.text] = self.end
        return size

    def _drop_first(self) -> int:
        _, size = self._outcomes.pop(self.first)
        gone = self._boundaries.pop(self.first)
        if self._numbers.get(gone.text) == self.first:
            del self._numbers[gone.text]
        self.first += 1
        return size


class Rings(Generic[T]):
    """All rings together keep at most `most_bytes`: the oldest outcome of all goes first.

    The newest one stays, however large it is, since all who follow its ring are about to take it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._order: deque[Ring[T]] = deque()
        """The ring of each outcome that is kept, the oldest first."""
        self.bytes = 0

    def open(self, start: Cursor) -> Ring[T]:
        """A ring whose subscription stands at `start`."""
        return Ring(start)

    def append(self, ring: Ring[T], outcome: T, size: int, after: Cursor) -> None:
        """The subscription of `ring` has handed out an outcome of `size` bytes, and stands at `after` now."""
        self.bytes += ring._append(outcome, size, after)
        self._order.append(ring)
        while self.bytes > self._most and len(self._order) > 1:
            self.bytes -= self._order.popleft()._drop_first()

    def close(self, ring: Ring[T]) -> None:
        """Drop a ring with all that it keeps."""
        self._order = deque(other for other in self._order if other is not ring)
        while ring.first < ring.end:
            self.bytes -= ring._drop_first()

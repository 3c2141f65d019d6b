"""The newest outcomes of a stream for one filter, and the boundary among them at which a reader can continue.

An outcome is what a subscription hands out: a complete epoch, an aborted epoch, or the notice of a gap. The ring does
not look into its outcomes. Between two outcomes there is a boundary, and each reader is at one.

Sources: rules E15-E18, F9, F18.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from epochal.protocol.frontier import Antichain
from epochal.protocol.subscriber.cursor import Cursor, digest
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter

T = TypeVar("T")

MOST_ID = 6 * 1024
"""The most bytes of a cursor that is given out as an id, which must fit into a header of the reader's next request."""

CURSOR_BYTES, POSITION_BYTES, TIME_BYTES = 2048, 200, 200
"""Measured roughly: the memory of a boundary by itself, of each segment in its cursor, and of each time there."""


def text_of(cursor: Cursor) -> str:
    """A cursor as readers get it, with a digest in place of a filter that would make it too long for an id (F9)."""
    text = cursor.to_json()
    if len(text) > MOST_ID and isinstance(cursor.topics, TopicFilter):
        text = replace(cursor, topics=digest(cursor.topics)).to_json()
    return text


@dataclass(frozen=True, slots=True)
class CursorView:
    """A cursor in a form that can be compared with others.

    `frontier` reaches every epoch that was not handed out yet. `seen_from` reaches those of them that the subscription
    can still see whole. The aborts of `aborted` were handed out, those of `unreported_aborts` were not. `topics` is a
    digest of the filter and of the topics that are not whole in every epoch; None is everything.
    """

    frontier: Antichain
    seen_from: Antichain
    aborted: frozenset[Time]
    unreported_aborts: tuple[Time, ...]
    topics: str | None

    @classmethod
    def of(cls, cursor: Cursor) -> "CursorView":
        """The view of `cursor`."""
        frontier = Antichain(cursor.frontier)
        seen_from = frontier if cursor.seen_from is None else Antichain(cursor.seen_from)
        topics = digest(cursor.topics) if isinstance(cursor.topics, TopicFilter) else cursor.topics
        if cursor.new_topics:
            topics = f"{topics} {cursor.new_topics!r}"
        return cls(frontier, seen_from, frozenset(cursor.aborted), cursor.unreported_aborts, topics)


class Boundary:
    """The state of the ring's subscription between two outcomes.

    It has two ends, because the frontier also passes times at which there is nothing to hand out: `first` is the state
    just after the outcome before it, `last` is the newest state before the outcome after it.
    """

    __slots__ = ("cursor", "first", "last", "text")

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        """Where a reader that is here resumes: the cursor of `last`, or one before the gap whose notice comes next."""
        self.text = text_of(cursor)
        """The cursor of `first`, as readers get it."""
        self.first = CursorView.of(cursor)
        self.last = self.first

    def move(self, cursor: Cursor) -> bool:
        """Extend the boundary to `cursor`; returns whether that changes anything."""
        if cursor == self.cursor:
            return False
        self.cursor, self.last = cursor, CursorView.of(cursor)
        return True

    def admits(self, reader: CursorView) -> bool:
        """Whether a reader with this cursor can continue at this boundary without missing or repeating an outcome.

        The frontier of `first` must reach the reader's frontier; the caller checks that (E17).
        """
        first, last = self.first, self.last
        return (
            not reader.unreported_aborts
            and reader.topics == first.topics == last.topics
            # Nothing is missed. The ring could see whole all that the reader can see whole, when it came here ...
            and first.seen_from.reaches_all(reader.seen_from)
            # ... and it still can, at the times that it has not passed since: a gap may have come in between.
            and last.seen_from.reaches_all(reader.seen_from.join(last.frontier))
            # Nothing is repeated. What the ring can still hand out, as an epoch or as an abort, the reader has not had.
            and reader.seen_from.reaches_all(last.seen_from)
            and reader.frontier.reaches_all(last.unreported_aborts)
            # The reader's frontier does not move back, even if the ring could hand out nothing that the reader has had.
            and reader.frontier.reaches_all(last.frontier)
            # Both leave out the same aborted times, in so far as these can still come for the reader.
            and {time for time in first.aborted if reader.frontier.less_equal(time)} == reader.aborted
            and reader.aborted >= last.aborted
        )

    @property
    def bytes(self) -> int:
        """An estimate of its memory."""
        cursor = self.cursor
        times = len(cursor.frontier) + len(cursor.aborted) + len(cursor.unreported_aborts)
        return CURSOR_BYTES + POSITION_BYTES * len(cursor.positions) + TIME_BYTES * times + len(self.text)


class EpochRing(Generic[T]):
    """The outcomes from number `first` up to `end` (exclusive), in the order in which they were handed out.

    Boundary n is before outcome n, and boundary `end` is the newest. `EpochRings` opens and fills rings. `place` takes
    O(log n) comparisons of frontiers.
    """

    def __init__(self, start: Cursor) -> None:
        self.stream = start.stream
        self.first = 0
        self.end = 0
        self.complete = False
        """Whether nothing can follow the newest boundary."""
        self._outcomes: dict[int, tuple[T, int]] = {}
        """Each outcome with its size in bytes, its boundary included."""
        self._boundaries = {0: Boundary(start)}
        self._numbers = {self._boundaries[0].text: 0}
        """Boundaries by the text of their first cursor."""

    def __contains__(self, number: int) -> bool:
        return number in self._outcomes

    def __getitem__(self, number: int) -> T:
        """Outcome `number`. Raises `KeyError` if the ring does not have it, or has dropped it."""
        return self._outcomes[number][0]

    @property
    def newest(self) -> Boundary:
        """The boundary after all outcomes."""
        return self._boundaries[self.end]

    def boundary(self, number: int) -> Boundary:
        """Boundary `number`. Raises `KeyError` if the ring does not have it, or has dropped it."""
        return self._boundaries[number]

    def place(self, cursor: Cursor, text: str = "") -> int | None:
        """The number of the boundary at which a reader with this cursor can continue, or None.

        `text` is the cursor as the reader sent it. If this ring gave it out, no comparison is needed.
        """
        given = self._numbers.get(text)
        if given is not None:
            return given
        if cursor.stream != self.stream:
            return None
        reader = CursorView.of(cursor)
        numbers = range(self.first, self.end + 1)
        reaching = bisect_left(numbers, True, key=lambda number: not self._reaches(number, reader))
        if not reaching:
            return None
        # Frontiers only move forward, so the boundaries whose frontier reaches the reader's come first. The last of
        # these is the only candidate: epochs before it are at times that the reader has passed, and at a later boundary
        # the ring has passed times that the reader has not.
        last = numbers[reaching - 1]
        return last if self._boundaries[last].admits(reader) else None

    def _reaches(self, number: int, reader: CursorView) -> bool:
        return self._boundaries[number].first.frontier.reaches_all(reader.frontier)

    def _append(self, outcome: T, size: int, after: Cursor) -> int:
        """Add an outcome and the boundary after it; returns the bytes of both."""
        boundary = Boundary(after)
        size += boundary.bytes
        self._outcomes[self.end] = outcome, size
        self.end += 1
        self._boundaries[self.end] = boundary
        self._numbers[boundary.text] = self.end
        return size

    def _drop_first(self) -> int:
        """Drop the oldest outcome and the boundary before it; returns the bytes that were counted for the outcome."""
        _, size = self._outcomes.pop(self.first)
        dropped = self._boundaries.pop(self.first)
        if self._numbers.get(dropped.text) == self.first:
            del self._numbers[dropped.text]
        self.first += 1
        return size


class EpochRings(Generic[T]):
    """All rings of a process, which keep at most `most_bytes` together: the oldest outcome of all is dropped first.

    The newest outcome is kept whatever its size, because the readers of its ring are about to take it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._order: deque[EpochRing[T]] = deque()
        """The ring of each outcome that is kept, oldest outcome first."""
        self.bytes = 0

    def open(self, start: Cursor) -> EpochRing[T]:
        """A ring without outcomes, for a subscription that is at `start`."""
        return EpochRing(start)

    def move(self, ring: EpochRing[T], cursor: Cursor, gaps: Iterable[tuple[T, int]] = ()) -> bool:
        """Record that the subscription of `ring` is at `cursor`, and has handed out nothing but these gaps.

        A gap is (outcome, bytes). Returns whether there is anything new for readers.
        """
        before = ring.newest.cursor
        moved = ring.newest.move(cursor)
        # The cursor has passed the gaps. Readers that are at this boundary have not: they get the notices from here on.
        # One that ends before the last notice must find the gaps again, so its cursor is the one before them (E17).
        for gap, size in gaps:
            ring.newest.cursor = before
            self.append(ring, gap, size, cursor)
            moved = True
        return moved

    def append(self, ring: EpochRing[T], outcome: T, size: int, after: Cursor) -> None:
        """Add an outcome of `size` bytes, which the subscription of `ring` has handed out and which ends at `after`."""
        self.bytes += ring._append(outcome, size, after)
        self._order.append(ring)
        while self.bytes > self._most and len(self._order) > 1:
            self.bytes -= self._order.popleft()._drop_first()

    def close(self, ring: EpochRing[T]) -> None:
        """Drop all that `ring` keeps."""
        self._order = deque(other for other in self._order if other is not ring)
        while ring.first < ring.end:
            self.bytes -= ring._drop_first()

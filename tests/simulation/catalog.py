"""The catalog as far as the protocol needs it: sessions, incarnations, reported frontiers, the record of completion.

The simulated counterpart of the catalog service. Only its promises count here, not how it keeps them.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

from tests.simulation.scenario import Scenario

from epochal.protocol.messages import FIRST_SESSION
from epochal.protocol.publisher.horizon import Record
from epochal.protocol.times import Time


@dataclass(slots=True)
class _Entry:
    incarnation: int = 0
    lower: tuple[Time, ...] | None = None
    horizon: tuple[Time, ...] | None = None
    record: int = -1
    marks: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    finishing: bool = False
    number: int = -1


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a publisher that registers: where its incarnation starts (E11)."""

    incarnation: int
    lower: tuple[Time, ...] | None
    horizon: tuple[Time, ...] | None
    writers: tuple[str, ...]
    sessions: dict[str, int]
    complete: bool
    finishing: bool
    marks: tuple[str, ...]


@dataclass(slots=True)
class Catalog:
    """One stream's entry."""

    scenario: Scenario
    complete: bool = False
    """Whether completion is recorded (E7); never undone."""
    clock: Callable[[], float] = lambda: 0.0
    """The time in seconds, below which no number is given out where older copies are put back (E12)."""
    away: bool = False
    """Whether it answers nobody at present."""
    restored: int = 0
    """How often an older copy was put back, each time by another process."""
    _segments: dict[str, _Entry] = field(default_factory=dict)
    _sessions: dict[str, int] = field(default_factory=dict)
    _copies: list[tuple[dict[str, _Entry], dict[str, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Declare the segments."""
        self._segments = {name: _Entry() for name in self.scenario.names}

    def session(self, writer: str) -> int | None:
        """The next session number of `writer`; None once the stream is complete (E6)."""
        if self.complete:
            return None
        self._sessions[writer] = max(self._sessions.get(writer, 0) + 1, self._least())
        return self._sessions[writer]

    def register(self, segment: str) -> Grant:
        """Begin an incarnation of `segment`."""
        entry = self._segments[segment]
        entry.incarnation = max(entry.incarnation + 1, self._least())
        entry.number = entry.record = -1  # each incarnation numbers its own; what they say outlives it
        again = {writer: number for writer, number in self._sessions.items() if number > FIRST_SESSION}
        return Grant(
            entry.incarnation, entry.lower, entry.horizon, entry.writers, again, self.complete, entry.finishing,
            entry.marks,
        )  # fmt: skip

    def report(self, segment: str, incarnation: int, lower: tuple[Time, ...], writers: tuple[str, ...]) -> bool:
        """Note what a publisher with a log reports; returns whether the stream is complete."""
        entry = self._segments[segment]
        if entry.incarnation == incarnation:
            entry.lower, entry.writers, entry.horizon = lower, writers, None
        return self.complete

    def forget_horizon(self, segment: str) -> None:
        """As if the last publisher had been of a version that recorded none."""
        self._segments[segment].horizon = None

    def store(self, segment: str, incarnation: int, record: Record) -> int:
        """Store a record, unless a later one of the incarnation is stored; returns the number of the one that is (E11).

        -1 for a publisher that is superseded.
        """
        entry = self._segments[segment]
        if entry.incarnation != incarnation:
            return -1
        if record.number > entry.record:
            entry.lower, entry.horizon, entry.record = record.lower, record.horizon, record.number
            entry.writers, entry.marks = record.writers, record.marks
        return entry.record

    def finish(self, segment: str, incarnation: int, number: int, finishing: bool) -> bool:
        """Record a finishing mark; when every segment has one, the stream is complete, for ever (E7)."""
        entry = self._segments[segment]
        if entry.incarnation == incarnation and number > entry.number and not self.complete:
            entry.finishing, entry.number = finishing, number
            self.complete = all(other.finishing for other in self._segments.values())
        return self.complete

    # ---- copies of its database ----

    def _least(self) -> int:
        """What a number that is given out now must reach, with room for several in one millisecond (E12)."""
        return int(self.clock() * 1000) * 16 if self.scenario.catalog_restored_rate else 0

    def copy(self) -> None:
        """Take a copy, as those who run a catalog do now and then."""
        self._copies.append(deepcopy((self._segments, self._sessions)))

    def restore(self, which: int) -> None:
        """Put a copy back; what was on its way to the catalog until then is lost with its process."""
        self.restored += 1
        self._segments, self._sessions = deepcopy(self._copies[which])

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self._copies)

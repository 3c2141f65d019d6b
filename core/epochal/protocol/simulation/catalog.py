"""The catalog as far as the protocol needs it: sessions, incarnations, reported frontiers, the record of completion.

Apart from the real service because here only its promises count, not how it keeps them.
"""

from dataclasses import dataclass, field

from epochal.protocol.horizon import Record
from epochal.protocol.sessions import FIRST_SESSION
from epochal.protocol.simulation.scenario import Scenario
from epochal.protocol.times import Time


@dataclass(slots=True)
class _Entry:
    incarnation: int = 0
    lower: tuple[Time, ...] | None = None
    horizon: tuple[Time, ...] | None = None
    record: int = -1
    writers: tuple[str, ...] = ()
    finishing: bool = False
    number: int = -1


@dataclass(frozen=True, slots=True)
class Grant:
    """What a publisher is told as it registers: where its incarnation starts (E11)."""

    incarnation: int
    lower: tuple[Time, ...] | None
    horizon: tuple[Time, ...] | None
    writers: tuple[str, ...]
    sessions: dict[str, int]
    complete: bool
    finishing: bool


@dataclass(slots=True)
class Catalog:
    """One stream's entry."""

    scenario: Scenario
    complete: bool = False
    """Whether completion is recorded (E7); never undone."""
    away: bool = False
    """Whether it answers nobody at present."""
    _segments: dict[str, _Entry] = field(default_factory=dict)
    _sessions: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Declare the segments."""
        self._segments = {name: _Entry() for name in self.scenario.names}

    def session(self, writer: str) -> int | None:
        """The next session number of `writer`; None once the stream is complete (E6)."""
        if self.complete:
            return None
        self._sessions[writer] = self._sessions.get(writer, 0) + 1
        return self._sessions[writer]

    def register(self, segment: str) -> Grant:
        """Begin an incarnation of `segment`."""
        entry = self._segments[segment]
        entry.incarnation += 1
        entry.number = entry.record = -1  # each incarnation numbers its own; what they say outlives it
        again = {writer: number for writer, number in self._sessions.items() if number > FIRST_SESSION}
        return Grant(
            entry.incarnation, entry.lower, entry.horizon, entry.writers, again, self.complete, entry.finishing
        )

    def report(self, segment: str, incarnation: int, lower: tuple[Time, ...], writers: tuple[str, ...]) -> bool:
        """Note what a publisher with a log reports; returns whether the stream is complete."""
        entry = self._segments[segment]
        if entry.incarnation == incarnation:
            entry.lower, entry.writers = lower, writers
        return self.complete

    def store(self, segment: str, incarnation: int, record: Record, writers: tuple[str, ...]) -> int:
        """Store a record, unless a later one of the incarnation is stored; returns the number of the one that is (E11).

        -1 for a publisher that is superseded.
        """
        entry = self._segments[segment]
        if entry.incarnation != incarnation:
            return -1
        if record.number > entry.record:
            entry.lower, entry.horizon, entry.record = record.lower, record.horizon, record.number
            entry.writers = writers
        return entry.record

    def finish(self, segment: str, incarnation: int, number: int, finishing: bool) -> bool:
        """Record a finishing mark; when every segment has one, the stream is complete, for ever (E7)."""
        entry = self._segments[segment]
        if entry.incarnation == incarnation and number > entry.number and not self.complete:
            entry.finishing, entry.number = finishing, number
            self.complete = all(other.finishing for other in self._segments.values())
        return self.complete

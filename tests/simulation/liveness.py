"""What must come of what was asked for, and soon, while faults still go on: nothing may wait for ever for its turn.

Separate from the checks at the end of a run, where all is calm and whatever starved has been fed. What a publisher
waits for is the catalog's answers and its disk; these are counted, and their absence is no fault of it.

Sources: rules E5, E7, E11.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tests.simulation.oracle import Times, Violation
from tests.simulation.order import reached

from epochal.protocol.times import Time

REPORTED_WITHIN = 1.0
"""Seconds within which a frontier that the catalog has recorded must be reported to readers."""
OPENED_WITHIN = 3.0
"""Seconds, with nothing in the way, within which a writer that asks to open must be answered ..."""
RECORDS = 5
"""... if the catalog has answered so many records since."""


@dataclass(slots=True)
class _Open:
    since: float
    answers: int


class Liveness:
    """What one incarnation of a segment's publisher owes; `records` says that the catalog keeps records of it."""

    def __init__(self, segment: str, *, records: bool) -> None:
        self._segment, self._records = segment, records
        self._recorded: deque[tuple[float, Times]] = deque()
        """Frontiers that are recorded and perhaps not reported yet, oldest first."""
        self._opens: dict[bytes, _Open] = {}
        self._answers = 0

    def asks(self, peer: bytes, now: float) -> None:
        """A writer asks to open."""
        self._opens[peer] = _Open(now, self._answers)

    def answered(self, peer: bytes) -> None:
        """The writer was answered, or its connection is gone."""
        self._opens.pop(peer, None)

    def recorded(self, lower: Iterable[Time], now: float) -> None:
        """The publisher hears that the catalog has a record with the frontier `lower`."""
        self._answers += 1
        self._recorded.append((now, frozenset(lower)))

    def excused(self, now: float) -> None:
        """Something was in the way until now: what is owed is owed from now on."""
        self._recorded = deque((now, lower) for _, lower in self._recorded)
        self.opens_excused(now)

    def opens_excused(self, now: float) -> None:
        """Something that only an open waits for was in the way."""
        for ask in self._opens.values():
            ask.since, ask.answers = now, self._answers

    def judge(self, reported: Iterable[Time], now: float) -> None:
        """Raise for what is owed and late, `reported` being the frontier that readers know."""
        recorded = self._recorded
        while recorded and all(reached(recorded[0][1], time) for time in reported):
            recorded.popleft()
        if recorded and now - recorded[0][0] > REPORTED_WITHIN:
            since, lower = recorded[0]
            what = f"segment {self._segment} reports {sorted(reported)}, and {sorted(lower)} is recorded"
            raise Violation(f"liveness, E11: {what} for {now - since:.1f} s")
        for ask in self._opens.values():
            enough = not self._records or self._answers - ask.answers >= RECORDS
            if enough and now - ask.since > OPENED_WITHIN:
                answers = self._answers - ask.answers
                what = f"segment {self._segment} leaves an open without an answer for {now - ask.since:.1f} s"
                raise Violation(f"liveness, E5: {what}, in which the catalog answered {answers} records")

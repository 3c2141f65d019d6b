"""How a segment becomes complete: it is parked as finishing until the catalog agrees, or until an open cancels that.

    state      on                                          next
    active     the last writer finished: `report(True)`    finishing
    finishing  an open: `wait` keeps it, `report(False)`   finishing, until the catalog answers
    finishing  the catalog answers that report: not yet    active; the opens go on (`cancelled`)
    finishing  the catalog records completion              complete; the opens are refused (`completed`)

Reports are numbered, and only the answer to the last one counts: an older answer may have been given before the open.
Separate from the publisher because this is the part that waits for the catalog.

Sources: rules S20, E7.
"""

from dataclasses import dataclass, field
from typing import Self

from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import Reply, ReportFinishing
from epochal.protocol.publisher.journal import PublisherIs


@dataclass(slots=True)
class SegmentCompletion:
    """How far an incarnation of a segment is, from its last writer's `finish` to the completion of the stream."""

    complete: bool
    """Whether the catalog has recorded that the stream is complete. This never changes back."""
    finishing: bool
    """Whether the segment is parked as finishing, or the catalog has not confirmed yet that it no longer is."""
    early: bool = False
    """Whether the last writer here finished while others were awaited: without those, the segment is finishing."""
    finished: bool = False
    """Whether a writer has finished here. If the others are lost after that, the segment is finishing (E47)."""
    _number: int = 0
    _unanswered: bool = False
    _unconfirmed: list[Reply] = field(default_factory=list)
    _waiting: list[tuple[bytes, m.Open]] = field(default_factory=list)

    @classmethod
    def restored(cls, note: PublisherIs) -> Self:
        """As the log on disk has it."""
        return cls(
            note.complete, finishing=note.finishing and not note.complete, early=note.early, finished=note.finished
        )

    def report(self, finishing: bool) -> ReportFinishing:
        """Report to the catalog that the segment is finishing, or that a writer wants to open after all."""
        self._number += 1
        self.finishing = self._unanswered = True
        return ReportFinishing(self._number, finishing)

    def confirm_later(self, done: Reply) -> bool:
        """Keep `done` if it has to wait, and return whether: a finish is confirmed only once the catalog knows of it.

        Otherwise a crash in between could lose a finish that was confirmed to its writer.
        """
        if self._unanswered:
            self._unconfirmed.append(done)
        return self._unanswered

    def wait(self, peer: bytes, ask: m.Open) -> ReportFinishing | None:
        """Keep an open until the catalog has decided whether it came before completion was recorded."""
        self._waiting.append((peer, ask))
        return self.report(False) if len(self._waiting) == 1 else None

    @property
    def waiting(self) -> list[m.Open]:
        """The opens that wait."""
        return [ask for _, ask in self._waiting]

    def keeps(self, peer: bytes) -> bool:
        """Whether an open of `peer` waits."""
        return any(of == peer for of, _ in self._waiting)

    def answered(self, number: int) -> list[Reply]:
        """The catalog answered report `number`; returns the confirmations that waited for it, if it was the last."""
        if number != self._number:
            return []
        self._unanswered = False
        confirmed, self._unconfirmed = self._unconfirmed, []
        return confirmed

    def cancelled(self, number: int) -> list[tuple[bytes, m.Open]]:
        """The catalog answered report `number`: not complete. Returns the opens that may go on now."""
        if number != self._number or not self._waiting:
            return []
        self.finishing = False
        return self._take_waiting()

    def completed(self) -> list[tuple[bytes, m.Open]]:
        """The stream is complete; returns the opens that came too late."""
        self.complete = True
        self.finishing = False
        return self._take_waiting()

    def _take_waiting(self) -> list[tuple[bytes, m.Open]]:
        waiting, self._waiting = self._waiting, []
        return waiting

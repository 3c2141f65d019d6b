"""How a segment comes to be complete: parked as finishing, agreed on by the catalog, cancelled by an open before that.

Apart from the publisher, which decides who may leave and open, because this is the part that waits for another party.

Sources: rules S20; E7, with the interleavings that it prevents.
"""

from dataclasses import dataclass, field

from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import Reply, ReportFinishing


@dataclass(slots=True)
class SegmentCompletion:
    """Where one incarnation of a segment stands between its last writer's `finish` and the completion of the stream."""

    complete: bool
    """Whether the catalog has recorded that the stream is complete; for ever."""
    stands: bool
    """Whether the segment is parked as finishing, or the catalog has not agreed yet that it no longer is."""
    early: bool = False
    """Whether the last writer here finished while others were awaited: if those never come, it was over."""
    asked: bool = False
    """Whether a writer has finished here: when the others are lost, the segment is finishing all the same (E47)."""
    _number: int = 0
    _unanswered: bool = False
    _unconfirmed: list[Reply] = field(default_factory=list)
    _waiting: list[tuple[bytes, m.Open]] = field(default_factory=list)

    def report(self, finishing: bool) -> ReportFinishing:
        """Tell the catalog that the segment is finishing, or that a writer wants to open after all."""
        self._number += 1
        self.stands = self._unanswered = True
        return ReportFinishing(self._number, finishing)

    def confirm_later(self, done: Reply) -> bool:
        """Whether `done` has to wait: a finish is confirmed once the catalog knows of it.

        Else a crash in between could lose what its writer was told.
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

    def answered(self, number: int) -> list[Reply]:
        """The catalog answered report `number`; returns the confirmations that waited for it, if it was the last."""
        if number != self._number:
            return []
        self._unanswered = False
        confirmed, self._unconfirmed = self._unconfirmed, []
        return confirmed

    def cancelled(self, number: int) -> list[tuple[bytes, m.Open]]:
        """The answer to report `number` was that the stream is not complete; returns the opens that may proceed now."""
        if number != self._number or not self._waiting:
            return []
        self.stands = False
        return self._take_waiting()

    def completed(self) -> list[tuple[bytes, m.Open]]:
        """The stream is complete; returns the opens that came too late."""
        self.complete, self.stands = True, False
        return self._take_waiting()

    def _take_waiting(self) -> list[tuple[bytes, m.Open]]:
        waiting, self._waiting = self._waiting, []
        return waiting

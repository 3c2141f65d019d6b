"""How a segment becomes complete: it is parked as finishing until the catalog agrees, or until an open cancels that.

Reports to the catalog are numbered, and only the answer to the last one counts: an older answer may have been given
before the open.

Sources: rules S20, E7.
"""

from enum import StrEnum
from typing import Self

from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import Reply, ReportFinishing
from epochal.protocol.publisher.journal import PublisherIs
from epochal.protocol.transitions import Transitions


class CompletionState(StrEnum):
    """How far an incarnation of a segment is from completion."""

    ACTIVE = "active"
    """Writers hold capabilities, or may come to hold some."""
    FINISHING = "finishing"
    """Every writer has finished here. The capability is parked, and opens wait for the catalog."""
    COMPLETE = "complete"
    """The catalog has recorded that the stream is complete: the frontier is empty."""


class CompletionEvent(StrEnum):
    """An event that moves a segment towards completion, or back."""

    LAST_FINISHED = "the last writer has finished, or was lost after another had finished (E47): it is reported"
    OPEN_WAITS = "a writer opens: it waits, and the first one is reported"
    CANCELLED = "the catalog answers the last report: the stream is not complete, and the opens that wait go on"
    RECORDED = "the catalog has recorded completion: opens that wait are refused"
    RESTORED = "the publisher was restored: it reports again, as the catalog may not have had the report"


_S, _E = CompletionState, CompletionEvent

COMPLETION_TRANSITIONS = Transitions(
    _S.ACTIVE,
    {
        _S.ACTIVE: {_E.LAST_FINISHED: _S.FINISHING, _E.RECORDED: _S.COMPLETE},
        _S.FINISHING: {
            _E.LAST_FINISHED: _S.FINISHING,
            _E.OPEN_WAITS: _S.FINISHING,
            _E.CANCELLED: _S.ACTIVE,
            _E.RECORDED: _S.COMPLETE,
            _E.RESTORED: _S.FINISHING,
        },
        _S.COMPLETE: {_E.RESTORED: _S.COMPLETE},
    },
)


class SegmentCompletion:
    """How far an incarnation of a segment is, from its last writer's `finish` to the completion of the stream."""

    __slots__ = ("_number", "_reports_again", "_unanswered", "_unconfirmed", "_waiting", "early", "finished", "state")

    def __init__(self, complete: bool, *, finishing: bool, early: bool = False, finished: bool = False) -> None:
        self.state = _S.COMPLETE if complete else _S.FINISHING if finishing else COMPLETION_TRANSITIONS.start
        self.early = early
        """Whether the last writer finished while others were awaited. If these are lost, the segment is finishing."""
        self.finished = finished
        """Whether a writer has finished here. If the others are lost after that, the segment is finishing (E47)."""
        self._reports_again = False
        """Whether a segment that was restored as complete has reported that once more."""
        self._number = 0
        self._unanswered = False
        self._unconfirmed: list[Reply] = []
        self._waiting: list[tuple[bytes, m.Open]] = []

    @classmethod
    def restored(cls, note: PublisherIs) -> Self:
        """Restore the state from the note in the log on disk."""
        return cls(
            note.complete, finishing=note.finishing and not note.complete, early=note.early, finished=note.finished
        )

    def _enter(self, event: CompletionEvent) -> None:
        self.state = COMPLETION_TRANSITIONS.after(self.state, event)

    @property
    def complete(self) -> bool:
        """Whether the catalog has recorded that the stream is complete. This never changes back."""
        return self.state is CompletionState.COMPLETE

    @property
    def finishing(self) -> bool:
        """Whether the segment is reported as finishing: parked, or restored as complete and reported once more."""
        return self.state is CompletionState.FINISHING or self._reports_again

    def last_finished(self) -> ReportFinishing:
        """No writer is left, and one has finished: report to the catalog that the segment is finishing."""
        self._enter(CompletionEvent.LAST_FINISHED)
        return self._report(True)

    def report_again(self) -> ReportFinishing:
        """Report as before the crash."""
        self._enter(CompletionEvent.RESTORED)
        self._reports_again = self.complete
        return self._report(True)

    def _report(self, finishing: bool) -> ReportFinishing:
        self._number += 1
        self._unanswered = True
        return ReportFinishing(self._number, finishing)

    def confirm_later(self, done: Reply) -> bool:
        """Keep `done` while a report is unanswered; returns whether it is kept.

        A finish is confirmed only once the catalog knows of it. Otherwise a crash in between could lose a finish that
        was confirmed to its writer.
        """
        if self._unanswered:
            self._unconfirmed.append(done)
        return self._unanswered

    def wait(self, peer: bytes, ask: m.Open) -> ReportFinishing | None:
        """Keep an open until the catalog has decided whether it came before completion was recorded."""
        self._enter(CompletionEvent.OPEN_WAITS)
        self._waiting.append((peer, ask))
        return self._report(False) if len(self._waiting) == 1 else None

    @property
    def waiting(self) -> list[m.Open]:
        """The opens that wait."""
        return [ask for _, ask in self._waiting]

    def keeps(self, peer: bytes) -> bool:
        """Whether an open from `peer` waits."""
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
        self._enter(CompletionEvent.CANCELLED)
        return self._take_waiting()

    def completed(self) -> list[tuple[bytes, m.Open]]:
        """The stream is complete; returns the opens that came too late."""
        self._enter(CompletionEvent.RECORDED)
        return self._take_waiting()

    def _take_waiting(self) -> list[tuple[bytes, m.Open]]:
        waiting, self._waiting = self._waiting, []
        return waiting

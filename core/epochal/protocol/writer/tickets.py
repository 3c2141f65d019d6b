"""The outcomes of a writer's appends and operations: each has a ticket, and is reported once.

Which failures stop later moves (E1) is one small rule: a failure that nobody awaits is kept, and no move is sent before
it has been raised.
"""

from epochal.errors import EpochalError
from epochal.protocol.writer.effects import Failed, WriterReport


class Outcomes:
    """The tickets of one writer, and what was reported of them."""

    def __init__(self) -> None:
        self._last = 0
        self._awaited: set[int] = set()
        """Tickets whose caller awaits them and gets a failure itself."""
        self._reports: list[WriterReport] = []
        self.failure: EpochalError | None = None
        """The first failure that nobody awaited, and that was not raised yet."""

    def ticket(self, *, awaited: bool = False) -> int:
        """A new ticket, above all before."""
        self._last += 1
        if awaited:
            self._awaited.add(self._last)
        return self._last

    @property
    def last(self) -> int:
        """The newest ticket."""
        return self._last

    def is_awaited(self, ticket: int) -> bool:
        """Whether the caller of `ticket` will get its failure itself."""
        return ticket in self._awaited

    def unheard(self, ticket: int) -> None:
        """The caller of `ticket` went away: its failure is one that nobody awaits."""
        self._awaited.discard(ticket)

    def take(self) -> list[WriterReport]:
        """What was reported since the last call, in order."""
        reports, self._reports = self._reports, []
        return reports

    def report(self, report: WriterReport) -> None:
        """Report something that concerns no ticket, or not only one."""
        self._reports.append(report)

    def succeeded(self, ticket: int, report: WriterReport) -> None:
        """`ticket` took effect."""
        self._awaited.discard(ticket)
        self._reports.append(report)

    def failed(self, ticket: int, error: EpochalError, *, quiet: bool = False) -> None:
        """`ticket` failed; unless its caller awaits it, or `quiet`, the failure stops later moves."""
        if ticket not in self._awaited and not quiet:
            self.remember(error)
        self._awaited.discard(ticket)
        self._reports.append(Failed(ticket, error))

    def remember(self, error: EpochalError) -> None:
        """Keep a failure that nobody awaits, if it is the first."""
        if self.failure is None:
            self.failure = error

    def raise_failure(self) -> None:
        """Raise the failure that is kept, once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

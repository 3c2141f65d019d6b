"""What becomes of the things that a writer was asked to do: each has a ticket, and is told of once.

Apart from the writer's machine because who is told what, and which failures stop later moves (E1), is one small rule:
a failure that nobody awaits is kept, and no move is sent before it has been raised.
"""

from epochal.errors import EpochalError
from epochal.protocol.writer.effects import Failed, WriterTold


class Outcomes:
    """The tickets of one writer, and what was told of them."""

    def __init__(self) -> None:
        self._last = 0
        self._awaited: set[int] = set()
        """Tickets whose caller awaits them and is told of a failure itself."""
        self._told: list[WriterTold] = []
        self.failure: EpochalError | None = None
        """The first failure that nobody awaited and nobody was shown yet."""

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
        """Whether the caller of `ticket` will be told of its failure itself."""
        return ticket in self._awaited

    def unheard(self, ticket: int) -> None:
        """The caller of `ticket` went away: its failure is one that nobody awaits."""
        self._awaited.discard(ticket)

    def take(self) -> list[WriterTold]:
        """What was told since the last call, in order."""
        told, self._told = self._told, []
        return told

    def tell(self, told: WriterTold) -> None:
        """Tell of something that concerns no ticket, or not only one."""
        self._told.append(told)

    def succeeded(self, ticket: int, told: WriterTold) -> None:
        """`ticket` took effect."""
        self._awaited.discard(ticket)
        self._told.append(told)

    def failed(self, ticket: int, error: EpochalError, *, quiet: bool = False) -> None:
        """`ticket` failed; unless its caller awaits it, or `quiet`, the failure stops later moves."""
        if ticket not in self._awaited and not quiet:
            self.remember(error)
        self._awaited.discard(ticket)
        self._told.append(Failed(ticket, error))

    def remember(self, error: EpochalError) -> None:
        """Keep a failure that nobody awaits, if it is the first."""
        if self.failure is None:
            self.failure = error

    def raise_failure(self) -> None:
        """Raise the failure that is kept, once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

"""Source numbers of a writer: where its program's own source goes on after a restart (E50 sources).

The program numbers what it publishes. A segment keeps the highest number that it logged, and takes what is not above it
for a repeat. With several segments the least of these says how far all is published. But a segment that few keys fall
into has an old one, and then much is read again. So a move also says up to which number all is in epochs that the
writer has left by earlier moves, which every segment has confirmed.

A number says nothing of epochs that were aborted while the writer held them: what was in these is logged, and no one is
given it. Segments remember that, and then the writer does not say where to go on: the program's owner has to decide.

Sources: rule E50; E1, E3, E4.
"""

from collections.abc import Iterable

from epochal.errors import EpochAbortedError, EpochalError, UsageError
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.times import MAX_TIME, Time


class SourceNumbers:
    """The source numbers of one session.

    >>> numbers = SourceNumbers()
    >>> numbers.begin([])
    >>> numbers.appended(7, 10), numbers.appended(8, 11)
    (None, None)
    >>> numbers.moves(1, Antichain([8])), numbers.whole, numbers.confirmed(1), numbers.whole
    (None, -1, None, 10)
    """

    def __init__(self) -> None:
        self.whole = -1
        """Up to here all is in epochs that were left at every segment; -1 for nothing."""
        self._resume_from: int | None = None
        self._has_some = False
        """Whether some segment has logged a number that may be in an epoch which is open."""
        self._torn = False
        """Whether epochs with some of the numbers were aborted while the writer held them."""
        self._refused: tuple[int, EpochalError] | None = None
        """The first number that was refused in this session, and why."""
        self._last = -1
        self._first: dict[Time, int] = {}
        """The first number at each time that the writer may still hold."""
        self._moving: dict[int, tuple[int, Antichain]] = {}
        """Ticket of a move -> what `whole` is once it is confirmed, and what is held then."""

    @property
    def resume_from(self) -> int:
        """Up to here all was published when the session opened, -1 for nothing.

        Raises `UsageError` where a publisher keeps no source numbers, and `EpochAbortedError` where that is not known.
        """
        if self._resume_from is None:
            raise UsageError("a publisher of this stream keeps no source numbers")
        if self._torn:
            raise EpochAbortedError(
                "an epoch in which this writer had published by source numbers was aborted, so they do not say what"
                " readers have; see which epochs are missing, and publish from there under another writer_id"
            )
        return self._resume_from

    def begin(self, answers: Iterable[m.Opened]) -> None:
        """All segments have answered the open."""
        answers = list(answers)
        sources = [answer.source for answer in answers if answer.source is not None]
        if len(sources) < len(answers):
            return
        self.whole = max((answer.whole for answer in answers), default=-1)
        self._torn = any(answer.torn for answer in answers)
        self._has_some = max(sources, default=-1) > self.whole
        self._resume_from = max(self.whole, min(sources, default=-1))
        # The first numbers of what an earlier session has begun are not known here, only that they are above `whole`.
        self._first = {time: self.whole + 1 for answer in answers for time in answer.touched}

    def given_up(self) -> None:
        """Opening aborts epochs of an earlier session (E3 lost writers); if there are numbers, some may be in these."""
        self._torn = self._torn or self._has_some

    def aborted(self, times: Iterable[Time]) -> None:
        """Epochs are aborted that the writer may have appended at, and still holds."""
        if (self._has_some or self._last >= 0) and any(time in self._first for time in times):
            self._torn = True

    def check(self, number: object) -> int:
        """The number, if an append may have it; else raises `UsageError`, or as `resume_from`."""
        _ = self.resume_from
        if self._refused is not None:
            refused, error = self._refused
            raise UsageError(
                f"source number {refused} was refused ({error}): leave the writer, open it again, and go on after its"
                " resume_from"
            )
        if type(number) is not int or not 0 <= number <= MAX_TIME:
            raise UsageError(f"source= is a whole number from 0 to 2^63-1, not {number!r}")
        if number <= self._last:
            raise UsageError(f"source numbers rise: {number} comes after {self._last}")
        return number

    def appended(self, time: Time, number: int) -> None:
        """An append at `time` has `number`."""
        self._last = number
        self._first.setdefault(time, number)

    def repeated(self, number: int) -> None:
        """What has `number` was published by an earlier session."""
        self._last = number

    def refused(self, number: int, error: EpochalError) -> None:
        """A publisher has refused the append of `number`."""
        if self._refused is None:
            self._refused = number, error

    def moves(self, ticket: int, held: Antichain) -> None:
        """A move is asked for, to `held`."""
        if self._resume_from is not None:
            still = [first - 1 for time, first in self._first.items() if held.less_equal(time)]
            self._moving[ticket] = min([self._last, *still]), held

    def cancelled(self, tickets: Iterable[int]) -> None:
        """These moves are not made."""
        for ticket in tickets:
            self._moving.pop(ticket, None)

    def confirmed(self, ticket: int) -> None:
        """Every segment has carried the move out."""
        whole, held = self._moving.pop(ticket, (-1, None))
        self.whole = max(self.whole, whole)
        if held is not None:
            self._first = {time: first for time, first in self._first.items() if held.less_equal(time)}

"""A writer's operations: holds, aborts and leaves, sent to every segment and confirmed by each; and their outcomes.

The machine knows the session's phases; this module knows when an operation is sent, and when it has taken effect
everywhere. A move (a change of capabilities, or a close or finish) waits until every append before it is acknowledged
(E1 barrier); an abort does not wait.

Every append and operation has a ticket, and its outcome is reported once. A failure that no one awaits is kept, and no
move is sent before it has been raised (E1 barrier).

Sources: rules E1, E5, E7.
"""

from collections.abc import Callable, Iterable, Mapping

from epochal.errors import EpochalError
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain, joint
from epochal.protocol.times import Time
from epochal.protocol.writer.capabilities import Move, Moves
from epochal.protocol.writer.effects import Failed, Moved, Send, WriterReport
from epochal.protocol.writer.segment_session import SegmentSession, WriterOperation


class Outcomes:
    """The tickets of one writer, and what was reported of them."""

    def __init__(self) -> None:
        self._last = 0
        self._awaited: set[int] = set()
        """Tickets whose caller awaits them and gets a failure itself."""
        self._reports: list[WriterReport] = []
        self.failure: EpochalError | None = None
        """The first failure that no one awaited, and that was not raised yet."""

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
        """The caller of `ticket` went away: its failure is one that no one awaits."""
        self._awaited.discard(ticket)

    def take(self) -> list[WriterReport]:
        """The reports since the last call, in order."""
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
        """Keep a failure that no one awaits, if it is the first."""
        if self.failure is None:
            self.failure = error

    def raise_failure(self) -> None:
        """Raise the failure that is kept, once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


class Operations:
    """The operations of one session; `last` is the highest number that an earlier one used on the same connections."""

    def __init__(
        self, segments: Mapping[str, SegmentSession], moves: Moves, outcomes: Outcomes, *, last: int = 0
    ) -> None:
        self._segments = segments
        self._moves = moves
        self._outcomes = outcomes
        self.last = last
        """The number of the last question to a publisher."""
        self._unconfirmed: dict[int, int] = {}
        """Ticket of an operation that was sent -> how many segments have not confirmed it."""
        self._left: tuple[int, m.Leaving | None] = (0, None)
        """The leave that was sent, of several the first: its ticket, and how."""

    def __len__(self) -> int:
        """How many are sent and not confirmed by every segment."""
        return len(self._unconfirmed)

    def number(self) -> int:
        """A new number for a question to a publisher."""
        self.last += 1
        return self.last

    # ---- sending ----

    def start(self, ticket: int, message: Callable[[int, str], WriterOperation]) -> None:
        """Send an operation to every segment, written to or not (E5)."""
        self._unconfirmed[ticket] = len(self._segments)
        for name, segment in self._segments.items():
            op = self.number()
            segment.send(op, ticket, message(op, name))

    def abort_all(self, ticket: int) -> None:
        """Leave every segment by an exception, at once (E4)."""
        self._leaves(ticket, m.Leaving.ABORT)
        self.start(ticket, lambda op, name: m.Leave(op, name, m.Leaving.ABORT))

    def leave_where_asked(self, ticket: int) -> None:
        """Leave, also where the open is not answered yet: it comes there first.

        Where the connection is lost, the open may have arrived: the next connection leaves there (`connected`).
        """
        self._leaves(ticket, m.Leaving.ABORT)
        asked = [segment for segment in self._segments.values() if segment.asked]
        self._unconfirmed[ticket] = len(asked)
        for segment in asked:
            op = self.number()
            leave = m.Leave(op, segment.name, m.Leaving.ABORT)
            segment.operations[op] = (ticket, leave)
            if segment.connected:
                segment.effects.append(Send(segment.name, leave))

    def _leaves(self, ticket: int, how: m.Leaving) -> None:
        if self._left[1] is None:
            self._left = (ticket, how)

    def release_moves(self) -> bool:
        """Send the moves whose earlier appends are all acknowledged; fail those after an append that failed.

        Returns whether a leave failed with them, so that the writer has not left.
        """
        failure = self._outcomes.failure
        stays = failure is not None and len(self._moves) > 0 and self._fail_moves(failure)
        oldest = [segment.oldest for segment in self._segments.values() if segment.oldest]
        for move in self._moves.take(min(oldest, default=self._outcomes.last + 1)):
            self._send_move(move)
        return stays

    def _fail_moves(self, failure: EpochalError) -> bool:
        """Nothing is sent; the writer holds what it held before, and those who await one of the moves get the error."""
        awaited = any(self._outcomes.is_awaited(move.ticket) for move in self._moves)
        stays = any(move.how is not None for move in self._moves)
        self.cancel_moves(failure)
        if awaited:
            self._outcomes.failure = None
        return stays

    def _send_move(self, move: Move) -> None:
        held, how, whole = move.held, move.how, self._moves.sources.whole
        if held is None and how is None and self._unconfirmed:
            # Nothing changes, but the move that brought the writer here may not have taken effect yet. Its caller is
            # answered when it has: the same is asked once more.
            held = Antichain(move.capabilities)
        if held is not None:
            self.start(move.ticket, lambda op, name: m.Hold(op, name, tuple(held), whole))
        elif how is not None:
            self._leaves(move.ticket, how)
            self.start(move.ticket, lambda op, name: m.Leave(op, name, how))
        else:
            self._outcomes.succeeded(move.ticket, Moved(move.ticket))

    def cancel_moves(self, error: EpochalError) -> None:
        """Fail the moves that are not sent yet; the writer holds what it held before."""
        for move in self._moves.cancel():
            self._outcomes.failed(move.ticket, error, quiet=True)

    # ---- answers ----

    def confirmed(self, segment: SegmentSession, op: int) -> int:
        """The publisher of `segment` has carried out `op`; the ticket if no other segment has to confirm it, else 0."""
        ticket, operation = segment.operations.pop(op, (0, None))
        if operation is None:
            return 0
        segment.confirm(operation)
        if ticket not in self._unconfirmed:
            return 0
        self._unconfirmed[ticket] -= 1
        if self._unconfirmed[ticket]:
            return 0
        del self._unconfirmed[ticket]
        return ticket

    def drop(self, ticket: int) -> None:
        """Wait for no more answers to `ticket`: one segment has refused it, or needs not answer."""
        self._unconfirmed.pop(ticket, None)

    def unanswered(self, segment: SegmentSession) -> list[int]:
        """Wait for no more answers from `segment`; returns the tickets that fail with that."""
        tickets = [ticket for ticket, _ in segment.operations.values() if ticket in self._unconfirmed]
        segment.operations.clear()
        for ticket in tickets:
            self.drop(ticket)
        return tickets

    def drop_all(self) -> list[int]:
        """Wait for no more answers; returns the tickets that had none from every segment."""
        dropped = list(self._unconfirmed)
        self._unconfirmed.clear()
        return dropped

    # ---- leaving ----

    def has_left(self, segment: SegmentSession) -> bool:
        """Whether the leave has taken effect there, or is not needed: then it is not to be opened again.

        To open again would cancel a finish (E7 finish), and after an open that was withdrawn no one would leave once
        more.
        """
        ticket, how = self._left
        return how is not None and all(ticket != of for of, _ in segment.operations.values())

    @property
    def finishing(self) -> int:
        """The ticket of a finish that was sent and that some segment has not confirmed; 0 if there is none."""
        ticket, how = self._left
        return ticket if how is m.Leaving.FINISH and ticket in self._unconfirmed else 0


class Joining:
    """How one session takes its capability: what all segments can give, at all of them, before it is used (E5).

    What an earlier session left decides here what comes next; `first` says that none of this writer has left anything.
    """

    def __init__(
        self,
        segments: Mapping[str, SegmentSession],
        moves: Moves,
        operations: Operations,
        outcomes: Outcomes,
        *,
        first: bool,
    ) -> None:
        self._segments = segments
        self._moves = moves
        self._operations = operations
        self._outcomes = outcomes
        self._first = first
        self.given_up: tuple[Time, ...] = ()
        """The epochs that opening aborts, because some segment did so or gave them up."""
        self._aborting = 0
        """The ticket by which epochs that were given up are aborted; 0 if there are none."""
        self.ticket = 0
        """The ticket of the last operation that joining needed; 0 before."""

    def goes_on(self) -> bool | None:
        """Whether an earlier session left something that this one goes on with; None while that is not known."""
        segments = self._segments.values()
        if self._first:
            return False
        if any(segment.opened is None for segment in segments):
            return None
        return not all(segment.granted and not segment.touched for segment in segments)

    def start(self) -> bool:
        """All segments have answered: join; returns whether nothing is to be confirmed."""
        self._moves.begin(joint(segment.held for segment in self._segments.values()))
        given_up = self.given_up = tuple(self._given_up())
        if not given_up:
            return self._hold()
        self._moves.sources.given_up()
        # Nothing is released before every segment has aborted them, or a next session would not know (E3 lost writers).
        self.ticket = self._aborting = self._outcomes.ticket()
        self._operations.start(self.ticket, lambda op, name: m.Abort(op, name, self._held_at(name, given_up)))
        return False

    def confirmed(self, ticket: int) -> bool:
        """All segments have confirmed `ticket`; returns whether the session has joined now."""
        return self._hold() if ticket == self._aborting else ticket == self.ticket

    def _given_up(self) -> list[Time]:
        """Epochs appended at and not left, whose capability a segment took and granted again (E3 lost writers).

        A segment where the earlier session closed or finished took nothing away: that session had all its appends
        acknowledged everywhere before it left there (E1 barrier), and it was about to leave here too.
        """
        touched = set[Time]().union(*(segment.touched for segment in self._segments.values()))
        took_away = [segment for segment in self._segments.values() if segment.granted and not segment.closed]
        return sorted(time for time in touched if any(not segment.held.less_equal(time) for segment in took_away))

    def _held_at(self, name: str, times: Iterable[Time]) -> tuple[Time, ...]:
        """Those of `times` that the writer holds at segment `name`; the others are decided there."""
        held = self._segments[name].held
        return tuple(sorted(time for time in times if held.less_equal(time)))

    def _hold(self) -> bool:
        held = tuple(self._moves.held)
        if any(segment.held != self._moves.held for segment in self._segments.values()):
            self.ticket = self._outcomes.ticket()
            self._operations.start(self.ticket, lambda op, name: m.Hold(op, name, held))
            return False
        return True

"""A writer of any number of segments: its session, its numbered appends, and how it opens and ends.

A machine without I/O: the client owns sockets and futures. So the E1 barrier (a move is sent only after every earlier
append is acknowledged, at every segment) can be tested against every order of messages.

Its states, and what leads from one to another, are the table in `session_states`. `appends` numbers what the program
appends, `operations` sends what every segment must confirm; here is what opens, moves and ends the session.

Sources: rules S35; E1, E3-E7, E10-E12, E48, E50.
"""

from collections.abc import Callable, Mapping, Sequence

from epochal.errors import (
    AppendsLost,
    CapabilityError,
    EpochalError,
    NoPublisher,
    RemoteProtocolError,
    StreamComplete,
    StreamGone,
    WriterClosed,
    WriterLost,
    from_code,
)
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.messages import FIRST_SESSION
from epochal.protocol.times import Time, TimeShape
from epochal.protocol.writer.appends import SessionAppends
from epochal.protocol.writer.capabilities import Moves
from epochal.protocol.writer.effects import (
    Moved,
    Over,
    Reconnect,
    Send,
    SessionReady,
    WriterEffect,
    WriterReport,
)
from epochal.protocol.writer.operations import Joining, Operations, Outcomes
from epochal.protocol.writer.segment_session import SegmentSession
from epochal.protocol.writer.session_states import WriterSessionEvent, WriterSessionLife, WriterSessionState


class WriterMachine:
    """One session of one writer.

    Call `connected(name)` for each connection; `SessionReady` is reported once all segments have answered.

    `under` names the writer whose capability this one uses; it then holds nothing itself and its loss aborts nothing.
    `shared` says that others use this one's, at publishers that may lose what they had appended: it ends with
    `AppendsLost` where one starts again. `seen` are the highest incarnations that an earlier session of this writer
    has seen (E12 fencing). `after` is what that one had `asked`, if this one goes on with its connections: answers up
    to that number are for the earlier session. `sources`: it may number what it appends by a source of its own
    (E50 sources). `heartbeat` is in seconds.
    """

    def __init__(
        self,
        stream: str,
        shape: TimeShape,
        segments: Sequence[str],
        writer: str,
        session: int,
        *,
        now: float,
        first: bool | None = None,
        under: str | None = None,
        shared: bool = False,
        seen: Mapping[str, int] | None = None,
        after: int = 0,
        sources: bool = False,
        heartbeat: float = 1.0,
    ) -> None:
        self.stream = stream
        self.shape = shape
        self.writer = writer
        self.session = session
        self.under = under
        self.shared = shared
        self._sources = sources
        self.wrong_addresses = 0
        """How often a publisher served another stream, or another life of this one, or not the segment (E48)."""
        self._heartbeat = heartbeat
        self._beaten = now
        self.life = WriterSessionLife(writer)
        self._effects: list[WriterEffect] = []
        self._segments = {
            name: SegmentSession(name, self._effects, least_incarnation=(seen or {}).get(name, 0)) for name in segments
        }
        self._outcomes = Outcomes()
        self._moves = Moves()
        self._operations = Operations(self._segments, self._moves, self._outcomes, last=after)
        self._earlier = after
        """Answers to questions up to this number are for the earlier session."""
        is_first = session == FIRST_SESSION if first is None else first
        self._joining = Joining(self._segments, self._moves, self._operations, self._outcomes, first=is_first)
        self._withdrawal = 0
        """The ticket of `withdraw`, 0 before."""
        self.appends = SessionAppends(
            self._segments, self._moves, self._outcomes, self.life, writer=writer, shape=shape, under=under
        )
        """What the program appends goes straight there: a call fewer for each batch."""

    # ---- the shell's side ----

    @property
    def asked(self) -> int:
        """The number of the last question to a publisher; the next session on the same connections begins after it."""
        return self._operations.last

    def take(self) -> list[WriterEffect]:
        """What to do since the last call, in order."""
        effects = self._effects.copy()
        self._effects.clear()  # the segments put into the same list
        return effects

    def reports(self) -> list[WriterReport]:
        """What happened since the last call, in order."""
        return self._outcomes.take()

    @property
    def held(self) -> Antichain:
        """The capability as of the last move asked for."""
        return self._moves.held

    @property
    def over(self) -> bool:
        """Whether the session has ended, in whatever way."""
        return self.life.over

    @property
    def pending_epochs(self) -> tuple[Time, ...]:
        """Times appended at and not left, by this session or the one before.

        What a restarted writer must finish or abort (E6 sessions).
        """
        return tuple(sorted(set().union(*(segment.touched for segment in self._segments.values()))))

    @property
    def resume_from(self) -> int:
        """Up to this source number all was published when the session opened, -1 for nothing (E50 sources).

        Raises `UsageError` where a publisher keeps none, and `EpochAbortedError` where that cannot be known.
        """
        return self._moves.sources.resume_from

    @property
    def seen(self) -> dict[str, int]:
        """The highest incarnation of each segment that was seen so far (E12 fencing)."""
        return {name: segment.least_incarnation for name, segment in self._segments.items()}

    @property
    def outstanding(self) -> int:
        """How many appends are not acknowledged yet."""
        return sum(len(segment.unacked) + len(segment.unsent) for segment in self._segments.values())

    @property
    def answers(self) -> tuple[int, ...]:
        """Changes with each confirmation of a publisher: a shell sees by it whether any comes."""
        acked = sum(segment.acked for segment in self._segments.values())
        return acked, len(self._moves), len(self._operations), self.outstanding

    @property
    def busy(self) -> bool:
        """Whether an append or a move is not confirmed yet."""
        return bool(len(self._moves) or len(self._operations) or self.outstanding)

    def owed(self, name: str) -> bool:
        """Whether the publisher of segment `name` owes an answer."""
        segment = self._segments[name]
        waits = segment.opened is None and not self._operations.has_left(segment)
        return segment.connected and (waits or bool(segment.unacked) or bool(segment.operations))

    def is_open_at(self, name: str) -> bool:
        """Whether the publisher of segment `name` has answered this session's open."""
        return self._segments[name].opened is not None

    def give_up(self, error: EpochalError, *, leaves: bool) -> None:
        """The shell cannot go on, or waits no longer: the session is over.

        `leaves`: no later session goes on with it, so it leaves by an exception where it is open (E4), and no publisher
        waits for it as lost. Not where it withdraws: then an earlier session may have left something.
        """
        if not self.over:
            leaves = leaves and self.life.state is not WriterSessionState.WITHDRAWING
            self._end(error, WriterSessionEvent.GIVEN_UP, except_segment="", leaves=leaves)

    def number(self, name: str) -> int:
        """The last acknowledged append number at segment `name`; -1 for none."""
        return self._segments[name].acked

    def raise_failure(self) -> None:
        """Raise the first failure of an append or move that no one awaited, once.

        Later moves are possible again then (E1 barrier).
        """
        self._outcomes.raise_failure()

    def tick(self, now: float) -> None:
        """Send heartbeats when they are due."""
        if now - self._beaten >= self._heartbeat and not self.over:
            self._beaten = now
            for name, segment in self._segments.items():
                if segment.opened is not None:
                    self._effects.append(Send(name, m.Alive(name)))

    # ---- connections ----

    def connected(self, name: str) -> None:
        """There is a connection to the publisher of segment `name`: open, or resume (E6 sessions)."""
        if self.over:
            return
        segment = self._segments[name]
        segment.connected, segment.opened = True, None
        if self._operations.has_left(segment):
            return
        segment.asked = True
        resume = segment.resume(self.appends.aborted) if segment.ever_opened else None
        op = self._operations.number()
        ask = m.Open(op, self.stream, name, self.writer, self.session, self.under, resume, self._sources)
        self._effects.append(Send(name, ask))
        if self._withdrawn:
            self._effects += [Send(name, operation) for _, operation in segment.operations.values()]

    @property
    def _withdrawn(self) -> bool:
        """Whether the session leaves because its open was given up."""
        return self._withdrawal > 0 and self.life.state is WriterSessionState.LEAVING

    def disconnected(self, name: str) -> None:
        """The connection is gone; what was unacknowledged is sent again after the next `connected`.

        Not where the writer has left already: there nothing is opened again, so what the leave overtook has failed.
        """
        segment = self._segments[name]
        segment.connected, segment.opened = False, None
        if not self.over and self._operations.has_left(segment):
            for ticket in self._operations.unanswered(segment):
                self._outcomes.failed(ticket, WriterClosed("the writer left before this was confirmed"), quiet=True)
            self._over_if_left()

    def receive(self, name: str, message: m.Message) -> None:
        """A message of the publisher of segment `name`.

        Raises `RemoteProtocolError` for one that a publisher does not send here.
        """
        if self.over:
            return
        segment = self._segments[name]
        match message:
            case m.Opened() | m.Done() | m.Refused() if 0 < message.op <= self._earlier:
                return  # answers an earlier session of this writer on the same connection
            case m.Ack():
                self.appends.acknowledged(segment, message)
                self._release_moves()
            case m.AppendRefused():
                self.appends.refused(segment, message)
                self._release_moves()
            case m.Opened():
                self._opened(name, segment, message)
            case m.Done():
                self._done(segment, message.op)
            case m.Refused():
                self._refused(name, segment, message)
            case m.Lost():
                self._lost(name, segment, message)
            case _:
                raise RemoteProtocolError(f"a publisher does not send a writer {type(message).__name__}")

    # ---- opening (E5) ----

    def _opened(self, name: str, segment: SegmentSession, opened: m.Opened) -> None:
        if opened.incarnation < segment.least_incarnation:
            self._effects.append(Reconnect(name, f"a stale publisher answered (incarnation {opened.incarnation})"))
            return
        restarted = segment.take_answer(opened)
        news = [time for time in opened.lost if time not in self.appends.aborted]
        if news:
            self.appends.epochs_lost(name, news)
        if restarted and self.shared:
            # Nobody here knows what the writers under this one had appended there: no epoch may be called whole
            # (E11 horizon).
            detail = f"the publisher of segment {name} restarted without its history"
            lost = AppendsLost(
                f"{detail} while others wrote under {self.writer!r}; the epochs that were open are aborted"
            )
            self._end(lost, except_segment="")
            return
        if self.life.state is WriterSessionState.OPENING:
            if all(other.opened is not None for other in self._segments.values()):
                self._join()
        elif self.life.state is WriterSessionState.WITHDRAWING:
            self._withdraw_once_known()
        elif not self._withdrawn:  # it has sent its leave after the open
            self._send_again(name, segment)

    def _join(self) -> None:
        """All segments have answered."""
        self._moves.sources.begin(segment.opened for segment in self._segments.values() if segment.opened is not None)
        if self.under is not None:
            self._ready(WriterSessionEvent.ANSWERED_UNDER)
            return
        self.life.enter(WriterSessionEvent.ANSWERED)
        joined = self._joining.start()
        self.appends.aborted.update(self._joining.given_up)
        if joined:
            self._ready(WriterSessionEvent.JOINED)

    def _ready(self, event: WriterSessionEvent) -> None:
        self.life.enter(event)
        self._outcomes.report(SessionReady(tuple(self._moves.held)))

    def _send_again(self, name: str, segment: SegmentSession) -> None:
        """After a reconnect: what the segment has not answered, in an order that keeps the E1 barrier.

        A move waited for all appends before it, so none of the unacknowledged appends was before a move that was sent:
        operations go first, and appends after them.
        """
        for op, (_, operation) in list(segment.operations.items()):
            if segment.took_effect(operation):
                held = segment.held  # the publisher's newest word; the lost answer is older
                self._done(segment, op)
                segment.held = held
            else:
                self._effects.append(Send(name, operation))
        self.appends.send_again(segment)

    # ---- moves, aborts and leaves ----

    def advance(self, time: object, *, awaited: bool = False) -> int:
        """Downgrade every capability to `time`.

        Where all are after it already, nothing is moved: a program that starts again repeats its moves (E50 sources).
        """
        self.life.check_open()
        if self.under is None and self._moves.is_done(self.shape.check(time)):
            return self._move(lambda ticket, _: self._moves.stay(ticket), self.shape.check(time), awaited)
        return self._move(self._moves.advance, self._reachable(time), awaited)

    def hold(self, time: object, *, awaited: bool = False) -> int:
        """Hold `time` as a further capability, so that others can be released."""
        return self._move(self._moves.hold, self._reachable(time), awaited)

    def release(self, time: object, *, awaited: bool = False) -> int:
        """Give one held capability up; the last one can only be given up by leaving."""
        self.life.check_open()
        return self._move(self._moves.release, self._moves.check_release(self.writer, time), awaited)

    def abort(self, time: object, *, awaited: bool = False) -> int:
        """Abort the epoch `time` at every segment, at once (E4)."""
        at = self._reachable(time)
        ticket = self._outcomes.ticket(awaited=awaited)
        self._moves.sources.aborted((at,))
        self.appends.abort(at)
        self._operations.start(ticket, lambda op, name: m.Abort(op, name, (at,)))
        return ticket

    def leave(self, how: m.Leaving, *, awaited: bool = False) -> int:
        """End the session: close and finish wait for all appends (E1 barrier), abort does not wait, nor for them."""
        if not (how is m.Leaving.ABORT and self.life.state is WriterSessionState.LEAVING):
            self.life.check_open()
        ticket = self._outcomes.ticket(awaited=awaited)
        if how is m.Leaving.ABORT:
            self.life.enter(WriterSessionEvent.LEFT_BY_EXCEPTION)
            self._operations.cancel_moves(WriterClosed("the writer left by an exception"))
            self.appends.drop_unsent()
            self._operations.abort_all(ticket)
        else:
            self.life.enter(WriterSessionEvent.LEFT)
            self._moves.leave(ticket, how)
            self._release_moves()
        return ticket

    def withdraw(self) -> int | None:
        """Undo an open that its caller gave up, so that nothing waits for this writer's time-out.

        Returns a ticket, or None where no publisher can have heard of the session. What an earlier session left is not
        touched: publishers keep it until a next session comes for it, or their time-out (E6 sessions).
        """
        if self.over or not any(segment.asked for segment in self._segments.values()):
            return None
        self.life.enter(WriterSessionEvent.WITHDRAWN)
        self._withdrawal = self._outcomes.ticket(awaited=True)
        self._operations.drop_all()
        for segment in self._segments.values():
            segment.operations.clear()
        self._withdraw_once_known()
        return self._withdrawal

    def _withdraw_once_known(self) -> None:
        """Leave as soon as it is known whether the session goes on with what an earlier one left."""
        goes_on = self._joining.goes_on()
        if goes_on:
            # To leave would abort what the earlier session appended (E3 lost writers), which its next session may still
            # complete.
            self.life.enter(WriterSessionEvent.SOMETHING_LEFT)
            self._outcomes.succeeded(self._withdrawal, Moved(self._withdrawal))
        elif goes_on is not None:
            self.life.enter(WriterSessionEvent.NOTHING_LEFT)
            self._operations.leave_where_asked(self._withdrawal)

    def _reachable(self, time: object) -> Time:
        self.life.check_open()
        at = self.shape.check(time)
        if self.under is not None:
            raise CapabilityError(f"writer {self.writer!r} writes under {self.under!r} and holds nothing to move")
        if not self._moves.held.less_equal(at):
            raise CapabilityError(
                f"writer {self.writer!r} holds {list(self._moves.held)!r}, which does not reach {time!r}; "
                "capabilities only move forward"
            )
        return at

    def _move(self, move: Callable[[int, Time], None], time: Time, awaited: bool) -> int:
        ticket = self._outcomes.ticket(awaited=awaited)
        move(ticket, time)
        self._release_moves()
        return ticket

    def _release_moves(self) -> None:
        if self._operations.release_moves():
            self.life.enter(WriterSessionEvent.LEAVE_FAILED)  # with the moves before it: the writer has not left

    def _done(self, segment: SegmentSession, op: int) -> None:
        ticket = self._operations.confirmed(segment, op)
        if not ticket:
            return
        if self.life.state is WriterSessionState.JOINING:
            if self._joining.confirmed(ticket):
                self._ready(WriterSessionEvent.JOINED)
        else:
            self._moves.sources.confirmed(ticket)
            self._outcomes.succeeded(ticket, Moved(ticket))
            self._over_if_left()

    def _over_if_left(self) -> None:
        """The session is over once it has left and everything that was asked for before is answered."""
        leaving = self.life.state is WriterSessionState.LEAVING
        if leaving and not len(self._operations) and not len(self._moves):
            self.life.enter(WriterSessionEvent.CONFIRMED)

    # ---- failures ----

    def _refused(self, name: str, segment: SegmentSession, refused: m.Refused) -> None:
        error = from_code(refused.code, refused.detail)
        ticket, operation = segment.operations.pop(refused.op, (0, None))
        if ticket and ticket == self._joining.ticket:
            self._end(error, except_segment=name)
        elif operation is not None:
            self._operations.drop(ticket)
            self._moves.sources.cancelled((ticket,))
            self._outcomes.failed(ticket, error)
            if not isinstance(operation, m.Leave):
                self._over_if_left()
        elif segment.opened is None and type(error) in (StreamGone, NoPublisher, RemoteProtocolError):
            # It serves something else, or understands no writers: only the catalog's answer ends a session (E48).
            self.wrong_addresses += 1
            self._effects.append(Reconnect(name, f"its address is that of another publisher at present: {error}"))
        elif error.retryable and not isinstance(error, WriterLost):
            self._effects.append(Reconnect(name, str(error)))
        else:
            self._end(error, except_segment=name)

    def _lost(self, name: str, segment: SegmentSession, lost: m.Lost) -> None:
        if segment.opened is None:
            return  # of the session before, on the same connection: what answers this one's open comes after it
        error = from_code(lost.code, lost.detail)
        segment.opened = None
        again = error.retryable and not isinstance(error, WriterLost)
        if again or isinstance(error, RemoteProtocolError | StreamGone):  # the catalog knows whether it is gone (E48)
            self._effects.append(Reconnect(name, str(error)))
        else:
            self._end(error, except_segment=name)

    def _end(
        self,
        error: EpochalError,
        event: WriterSessionEvent = WriterSessionEvent.FAILED,
        *,
        except_segment: str,
        leaves: bool = False,
    ) -> None:
        """The session is over everywhere; where it is still open its epochs are aborted, if it was lost or leaves.

        One that leaves does so also where its open is not answered yet: no one would leave there later.
        """
        finishing = self._operations.finishing
        if isinstance(error, StreamComplete) and finishing:
            # It finished, and so did all other writers, before the answer came.
            self._operations.drop(finishing)
            self._outcomes.succeeded(finishing, Moved(finishing))
            self.life.enter(WriterSessionEvent.COMPLETED)
            return
        if leaves or isinstance(error, WriterLost | AppendsLost):
            for name, segment in self._segments.items():
                is_open = segment.opened is not None or (leaves and self.owed(name))
                if name != except_segment and is_open:
                    leave = m.Leave(self._operations.number(), name, m.Leaving.ABORT)
                    self._effects.append(Send(name, leave))
        self.life.enter(event)
        self._operations.cancel_moves(error)
        self.appends.fail_all(error)
        for ticket in self._operations.drop_all():
            self._outcomes.failed(ticket, error, quiet=True)
        self._outcomes.report(Over(error))

    def unheard(self, ticket: int) -> None:
        """Nobody awaits `ticket` any longer: if it fails, the next move or flush raises that (E1 barrier)."""
        self._outcomes.unheard(ticket)

    def fail_quietly(self, error: EpochalError) -> None:
        """Remember a failure that no one awaits; E1 barrier: no move is sent before it has been raised."""
        self._outcomes.remember(error)

"""The opening of sessions: which writer may open or come back, what it may have held, and which capability it gets.

An open is answered at once unless one of these must decide first:

- the catalog, whether the stream is complete, when every writer here had finished (E7 finish);
- the catalog's record, when a returning writer names appends that this incarnation never had: their epochs must be
  aborted, and no abort may be published that a crash could undo (E11 horizon);
- the other known writers, when nothing is known of the last incarnation (`LostHorizon`).

Sources: rules E5, E6, E7, E10, E11, E47, E50.
"""

from collections.abc import Collection, Iterable, Mapping

from epochal.errors import (
    EpochalError,
    LimitExceeded,
    StreamComplete,
    StreamGone,
    Unavailable,
    WriterFenced,
    WriterLost,
)
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain, Downset
from epochal.protocol.publisher.completion import SegmentCompletion
from epochal.protocol.publisher.event_log import EventLog
from epochal.protocol.publisher.limits import MAX_WAITING_OPENS, MAX_WRITERS
from epochal.protocol.publisher.reserved_capability import ReservedCapability
from epochal.protocol.publisher.writer_sessions import WriterSessions
from epochal.protocol.publisher.writer_state import Connection, PresenceEvent, WriterIdentity, WriterState
from epochal.protocol.times import Time


class LostHorizon:
    """What the last incarnation may have had when no one recorded it: its known writers report it when they come back.

    The catalog then has a frontier of the segment but no horizon: the last incarnation had a log that is gone. Nothing
    is served and no writer is admitted until all known writers have requested to open or have timed out. Then every
    time at which one of them may have appended is aborted (E11 horizon).
    """

    def __init__(self, log: EventLog, *, pending: bool) -> None:
        self._log = log
        self.pending = pending
        """Whether the publisher still waits for the known writers."""
        self.times: Downset | None = None
        """What may be lost; it has to be recorded. None until all known writers have asked to open or timed out."""

    def learn(self, opens: Iterable[m.Open], awaited: Collection[str], *, overdue: bool) -> bool:
        """Gather what may be lost from the opens of returning writers; returns whether this call completed that.

        `overdue`: the writers that are still `awaited` have timed out. A writer may have appended at every time that it
        no longer holds, and at the touched times that it still holds.
        """
        opens = list(opens)
        heard_all = overdue or not set(awaited) - {ask.writer for ask in opens}
        if self.times is not None or not heard_all:
            return False
        log = self._log
        lost = Downset()
        for resume in [ask.resume for ask in opens if ask.resume is not None]:
            for time in (*log.settings.shape.not_reached(resume.held), *resume.touched):
                lost.insert(time)
        lost.drop_passed(log.progress.lower.frontier)
        if log.horizon is not None:
            for time in lost:
                log.horizon.want(time)
        self.times = lost
        return True

    def begin(self, incarnation: int) -> bool:
        """Begin the log once all that may be lost is recorded, and abort it. Returns whether it began.

        A complete stream needs no record: this incarnation starts after every time, and so will the next one. What
        writers that have left had appended in the last incarnation is not known, so none of it may count as whole.
        """
        log, lost, complete = self._log, self.times, self._log.completion.complete
        recorded = None if log.horizon is None or complete else log.horizon.recorded
        if lost is None or not (recorded is None or all(time in recorded for time in lost)):
            return False
        self.pending = False
        lower = () if complete else tuple(log.progress.lower.frontier)
        log.begin_again(lower, () if complete else lost if recorded is None else recorded, incarnation)
        return True


class SessionOpener:
    """Answers `Open` at one segment of a stream.

    `newest`: the newest session that the catalog has given each writer; a writer in its first may be left out.
    """

    def __init__(
        self,
        stream: str,
        incarnation: int,
        log: EventLog,
        sessions: WriterSessions,
        own: ReservedCapability,
        completion: SegmentCompletion,
        lost_horizon: LostHorizon,
        newest: Mapping[str, int],
    ) -> None:
        self._stream = stream
        self._incarnation = incarnation
        self._log = log
        self._sessions = sessions
        self._own = own
        self._completion = completion
        self._lost_horizon = lost_horizon
        self._newest = newest
        self._writers = log.writers
        self.waiting: dict[Connection, m.Open] = {}
        """By connection, the opens that wait until the catalog has stored a record (E11 horizon)."""
        self._leaving: dict[Connection, m.Leave] = {}
        """By connection, the leaves of sessions whose open waits."""
        self._to_answer = 0
        """How many of the opens that are being answered together are still to come; their writers are not lost."""
        self._put_off = False
        """Whether the segment becomes finishing if none of the waiting opens is admitted."""

    def open(self, peer: Connection, ask: m.Open, now: float) -> None:
        """Admit one session, refuse it, or let it wait."""
        if ask.stream != self._stream:
            self._log.refuse(peer, ask.op, StreamGone("the stream was deleted and created again; look it up again"))
        elif self._has_left(ask) or self._is_fenced(ask) or self._was_lost(ask):
            self._admit(peer, ask, now)  # refused, or left already: no writer comes back, so no finishing is cancelled
        elif self._completion.complete:
            self.refuse_complete(peer, ask.op)
        elif self._completion.finishing and len(self._completion.waiting) >= MAX_WAITING_OPENS:
            self._log.refuse(peer, ask.op, Unavailable("too many writers wait to open; try again"))
        elif self._completion.finishing:
            report = self._completion.wait(peer, ask)
            if report is not None:
                self._log.effects.append(report)
        elif not self._must_wait(peer, ask):
            self._admit(peer, ask, now)

    def open_all(self, asks: Iterable[tuple[Connection, m.Open]], now: float) -> None:
        """Answer the opens that waited. If none is admitted, the finish that was put off for them counts now."""
        waited = list(asks)
        self._to_answer = len(waited)
        for peer, ask in waited:
            self._to_answer -= 1
            self.open(peer, ask, now)
        if self._put_off:
            self.settle()

    def open_waiting(self, now: float) -> None:
        """A record was stored: try all opens that waited for one once more."""
        opens, self.waiting = self.waiting, {}
        self.open_all(opens.items(), now)

    def leave_later(self, peer: Connection, leave: m.Leave) -> bool:
        """Keep `leave` if the open before it still waits, and return whether.

        Its writer may be gone by the time that the open is answered, and no one else would leave then.
        """
        waits = self._waits(peer)
        if waits:
            self._leaving[peer] = leave
        return waits

    def opens_again(self, peer: Connection) -> None:
        """A later session opens on the connection: forget the leave of the one before it."""
        self._leaving.pop(peer, None)

    def take_leaves(self) -> list[tuple[Connection, m.Leave]]:
        """The leaves whose opens are answered now."""
        due = [(peer, leave) for peer, leave in self._leaving.items() if not self._waits(peer)]
        for peer, _ in due:
            del self._leaving[peer]
        return due

    def _waits(self, peer: Connection) -> bool:
        return peer in self.waiting or self._completion.keeps(peer)

    def refuse_complete(self, peer: Connection, op: int) -> None:
        """Refuse an open because the stream is complete."""
        detail = "every writer has finished this stream; nothing more can be published"
        self._log.refuse(peer, op, StreamComplete(detail))

    def settle(self, *, lost: bool = False) -> None:
        """Release the publisher's own capability once the writers that must be counted are there (E5).

        `lost`: some of them were given up just now. If no writer is left then, they were the last holders, and an
        earlier finish decides (E47), but only once every open that waits is answered: a writer that waits for the
        catalog is not lost.
        """
        lost, self._put_off = lost or self._put_off, False
        if not self._own.may_go:
            return
        holders = any(len(w.held) for w in self._writers)
        alone = lost and not holders
        over = self._completion.early or (alone and self._completion.finished)
        waits = self.waiting or self._to_answer or self._completion.waiting or self._lost_horizon.pending
        if (alone or over) and waits:
            self._put_off = True
            return
        if alone:
            self._log.move(self._own.catch_up())
        if over:
            self._completion.early = False
            self._log.effects.append(self._completion.last_finished())
        elif holders:
            self._log.move(self._own.release())

    # ---- who may open, and who must wait ----

    def _must_wait(self, peer: Connection, ask: m.Open) -> bool:
        """Whether an open waits for the catalog's record (E11 horizon)."""
        log = self._log
        touched = () if ask.resume is None else ask.resume.touched
        if ask.resume is not None and not all(map(log.limits.fits, (*touched, *ask.resume.held))):
            return False  # `_admit` refuses it
        uncovered = log.uncovered(touched)
        if not (self._lost_horizon.pending or uncovered):
            return False
        if len(self.waiting) >= MAX_WAITING_OPENS:
            log.refuse(peer, ask.op, Unavailable("too many writers wait to open; try again"))
            return True
        if log.horizon is not None and not self._lost_horizon.pending:
            for time in uncovered:
                log.horizon.want(time)
        self.waiting[peer] = ask
        return True

    def _has_left(self, ask: m.Open) -> bool:
        """Whether this same session has closed or finished here. It opens again if the answer to that was lost."""
        state = self._writers.get(ask.writer)
        return state is not None and state.identity.session == ask.session and not state.present and not state.lost

    def _was_lost(self, ask: m.Open) -> bool:
        """Whether this same session was given up here. It hears of that also of a complete stream (E3 lost writers).

        Else a finish under way when the writer was given up would succeed, though what it had begun was aborted.
        """
        state = self._writers.get(ask.writer)
        return state is not None and state.lost and state.identity.session == ask.session

    def _is_fenced(self, ask: m.Open) -> bool:
        """Whether a newer session of the writer has opened here, or may have opened before a crash (E6 sessions)."""
        state = self._writers.get(ask.writer)
        if state is None:
            return ask.session < self._newest.get(ask.writer, 0)
        return ask.session < state.identity.session

    def _check(self, ask: m.Open, *, known: bool) -> None:
        """Raise for an open with which the segment would have to keep, or to send, more than its limits allow."""
        log = self._log
        if not m.is_id(ask.writer):
            raise LimitExceeded(
                f"a writer's id is 1 to {m.MAX_ID} printable characters, not {ask.writer[: m.MAX_ID]!r}"
            )
        if not known and self._writers.present >= MAX_WRITERS:
            raise Unavailable(f"{MAX_WRITERS} writers have this segment open; try again when some have left")
        if ask.resume is not None:
            log.limits.check_times(ask.resume.held, len(log.progress.lower.frontier))
            log.limits.check_times(ask.resume.touched, len(log.progress.aborted.difference(ask.resume.touched)))

    # ---- admission ----

    def _admit(self, peer: Connection, ask: m.Open, now: float) -> None:
        log = self._log
        state = self._writers.get(ask.writer)
        if self._is_fenced(ask):
            log.refuse(peer, ask.op, WriterFenced(f"a newer session of writer {ask.writer!r} has opened"))
            return
        if self._was_lost(ask):
            log.refuse(peer, ask.op, WriterLost(f"this session of writer {ask.writer!r} was given up; open a new one"))
            return
        try:
            self._check(ask, known=state is not None)
        except EpochalError as error:
            log.refuse(peer, ask.op, error)
            return
        if state is not None and ask.resume is not None and state.identity.session < ask.session:
            self._evict(state, ask)
            state = None
        if state is None and self._went_on_without(ask.resume):
            detail = f"this publisher restarted and went on without writer {ask.writer!r}"
            log.refuse(peer, ask.op, WriterLost(detail))
            return
        returns = state is not None
        if state is None:
            state = WriterState(WriterIdentity(ask.writer, ask.session, peer, ask.under), now)
            self._writers.add(state)
        fresh = self._take_session(state, peer, ask, now)
        lost = self._resume(state, ask.resume, known=returns)
        if ask.under is None and fresh:
            self._grant(state, ask.resume if not returns else None)
            state.granted = ask.resume is None
        log.note(state)
        opened = m.Opened(
            ask.op, log.segment, self._incarnation, tuple(log.progress.lower.frontier), tuple(state.held),
            state.appends.last, tuple(sorted(state.touched)), lost, log.settings.window, state.granted,
            closed=state.granted and state.closed,
        )  # fmt: skip
        log.reply(peer, self._with_sources(opened, state) if ask.sources else opened)
        self.settle()

    @staticmethod
    def _with_sources(opened: m.Opened, state: WriterState) -> m.Opened:
        """The answer to an open that asks for source numbers (E50 sources)."""
        sources = state.sources
        return opened._replace(source=sources.highest, at=sources.seq, whole=sources.whole, torn=sources.torn)

    def _evict(self, state: WriterState, ask: m.Open) -> None:
        """Undo what an older session did at this incarnation before the newer session came back to it.

        Only a log could have known that the older one was fenced. Its appends are aborted and its numbers forgotten:
        the newer session has used the same numbers for appends of its own, which must not be taken for those
        (E6 sessions).
        """
        self._sessions.dismiss_session(state, WriterFenced(f"a newer session of writer {ask.writer!r} has opened"))
        self._sessions.depart(state, abort=True, finish=False, replaced=True)
        self._sessions.take_waiting(state)
        if self._writers.get(state.identity.writer) is state:
            self._writers.forget(state)
            self._log.note_forgotten(state.identity.writer)

    def _went_on_without(self, resume: m.Resume | None) -> bool:
        """Whether a returning writer is unknown here, and this incarnation went past what it holds or has lost its log.

        A log knows every writer that ever opened. So with a log, an unknown writer means that the log was lost, and
        with it what others had appended under this writer. Aborts the epochs of its appends that can still be aborted
        (E11 horizon).
        """
        if resume is None:
            return False
        if self._log.journal is None:  # every time at which it appended is over, or aborted by the horizon
            return not self._log.held.frontier.reaches_all(resume.held)
        self._log.abort(resume.touched)
        return True

    def _take_session(self, state: WriterState, peer: Connection, ask: m.Open, now: float) -> bool:
        """Bind `peer` to the writer; returns whether it needs a capability because it is new here, or had left."""
        log = self._log
        log.admitted.clear()
        self._sessions.take_waiting(state)
        if ask.session > state.identity.session and state.identity.peer != peer:
            self._sessions.dismiss_session(state, WriterFenced(f"a newer session of writer {ask.writer!r} has opened"))
        if ask.session > state.identity.session:
            state.sources.refusing = False
        left_for_good = self._has_left(ask)
        needs = not len(state.held) and not left_for_good
        state.identity.session, state.identity.under = ask.session, ask.under
        state.heard = now
        if not left_for_good:
            state.enter(PresenceEvent.OPENED)
        self._writers.bind(state, peer)
        return needs

    def _resume(self, state: WriterState, resume: m.Resume | None, *, known: bool) -> tuple[Time, ...]:
        """Take over from a returning writer what this incarnation has lost: its last number and its touched times.

        Aborts the times at which it had appends that were lost, and returns them.
        """
        if resume is None:
            return ()
        if not known or resume.number > state.appends.last:
            state.appends.last = max(state.appends.last, resume.number)
            state.answered_lost |= {time for time in resume.touched if not self._log.progress.lower.completed(time)}
            self._log.abort(state.answered_lost)
        return tuple(sorted(state.answered_lost))

    def _grant(self, state: WriterState, resume: m.Resume | None) -> None:
        """Give a writer its capability.

        It gets back what it says it held, as far as that is still possible here, else the frontier of all that is held
        (E5). That frontier can be past the reported one. It is used nevertheless, because the catalog may have recorded
        it already: a time that no one holds any more is never given out again (E11 horizon).
        """
        held = Antichain(self._log.held.frontier)
        if resume is not None and resume.held:
            held = held.join(Antichain(resume.held))
        self._log.move_held(state, held)
        self._own.came(state.identity.writer)
        self._completion.early = False

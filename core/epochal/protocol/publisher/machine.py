"""The publisher of one segment: who may append, what enters the log, what is pushed, and what writers are answered.

A machine without I/O: `receive` takes one message from a writer, `tick` lets time pass, `take` returns what must be
done, in order. It hands each message to the part that knows its rules: `session_opening`, `appends`,
`writer_sessions`. All of them write to one `EventLog`. `server` answers subscribers from the same log.

The state of a segment is that of its parts, which change independently of each other:

- `completion` has a table that runs: active, finishing, complete (E7 finish).
- `writer_state` has one for each writer: present, lost, left, released.
- `reserved_capability` holds a capability of the segment's own until enough writers have opened and all awaited ones
  are back (E5). It holds one again once the last writer has left or was lost (E3 lost writers). In between the writers'
  capabilities are the frontier (S4).
- `LostHorizon.pending`: nothing of all this is served or logged before the known writers have said what may be lost,
  where the catalog has no horizon of the last incarnation (E11 horizon).
- `_stopped`: the last record was made, and the machine ignores everything after it.

Sources: rules S1-S7, S20, S35; E1-E8, E11, E12.
"""

from collections.abc import Iterable, Mapping, Sequence

from epochal.errors import CapabilityError, EpochalError, RemoteProtocolError, StreamGone, WriterLost
from epochal.protocol import messages as m
from epochal.protocol.blockers import MOST_HOLDERS, Holder, HolderKind
from epochal.protocol.frontier import Downset
from epochal.protocol.log.history import History, SegmentState
from epochal.protocol.progress import Progress
from epochal.protocol.publisher.appends import AppendHandler
from epochal.protocol.publisher.completion import SegmentCompletion
from epochal.protocol.publisher.effects import AskRecord, Log, PublisherEffect, Reply
from epochal.protocol.publisher.event_log import EventLog
from epochal.protocol.publisher.horizon import Marks, Record
from epochal.protocol.publisher.journal import Note, PublisherIs, Restored, checkpoint_notes
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.reserved_capability import ReservedCapability
from epochal.protocol.publisher.session_opening import LostHorizon, SessionOpener
from epochal.protocol.publisher.writer_sessions import WriterSessions
from epochal.protocol.publisher.writer_state import Connection, WriterPresence, WriterState
from epochal.protocol.times import Time


class SegmentPublisher:
    """One incarnation of a segment's publisher.

    - `lower`: the frontier from which it starts, as the catalog has recorded it; None for a new segment, which starts
      at bottom.
    - `horizon`: without a log, every time in it is aborted (E11 horizon). None means that the catalog has none, because
      the last incarnation had a log; then the publisher waits for the writers first.
    - `known_writers`: those that had the segment open when the last incarnation ended. Nothing completes before each of
      them is back or timed out (E11 horizon).
    - `sessions`: the newest session that the catalog has given each writer; a writer in its first session may be left
      out. No older session is admitted (E6 sessions).
    - `finishing`: the segment was parked as finishing. An open is admitted only after the catalog has cancelled that
      (E7 finish).
    - `marks`: the marks of the last record.
    - `restored`: the state that the log has kept, from which the publisher continues. Then only two of the arguments
      above are used: `complete`, and `sessions` for writers that the log does not know, because it may be a new log
      after the loss of its volume.
    - `incarnations`: with a log, all incarnations that it knows, including this one, each with its first event.
    """

    def __init__(
        self,
        stream: str,
        segment: str,
        settings: PublisherSettings,
        *,
        incarnation: int,
        now: float,
        lower: Iterable[Time] | None = None,
        horizon: Iterable[Time] | None = (),
        known_writers: Iterable[str] = (),
        sessions: Mapping[str, int] | None = None,
        complete: bool = False,
        finishing: bool = False,
        marks: Iterable[str] = (),
        restored: Restored | None = None,
        incarnations: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.stream = stream
        self.segment = segment
        self.settings = settings
        self.incarnation = incarnation
        bottom = (settings.shape.bottom,)
        start = () if complete else tuple(bottom if lower is None else lower)
        lost = () if complete or horizon is None else tuple(horizon)
        known = Marks.from_texts(marks)
        if restored is None:
            self._completion = SegmentCompletion(
                complete, finishing=finishing and not complete, finished=known.finished
            )
            self._own = ReservedCapability.at(
                start,
                tuple(known_writers),
                settings.min_writers,
                now,
                opened=known.opened,
                enough=known.enough or start != bottom,
                closed=known.closed,
            )
        else:
            self._completion = SegmentCompletion.restored(restored.publisher)
            self._own = ReservedCapability.restored(restored.publisher, settings.min_writers, now)
        self._log = EventLog(segment, settings, self._completion, start=start, lost=lost, now=now)
        self._writers = self._log.writers
        self._sessions = WriterSessions(self._log, self._own, self._completion)
        self._appends = AppendHandler(self._log, self._sessions)
        gathering = horizon is None and lower is not None and restored is None and not complete
        self._lost_horizon = LostHorizon(self._log, pending=gathering)
        newest = dict(sessions or {})
        self._opener = SessionOpener(
            stream, incarnation, self._log, self._sessions, self._own, self._completion, self._lost_horizon, newest
        )
        self._unrecorded_finishes: dict[Connection, tuple[str, Reply]] = {}
        """By peer: the writer that has finished, and its confirmation, which waits for a record (`_forgettable`)."""
        self._asked_for_record = False
        self._started = now
        self._stopped = False
        """Whether the last record was made; a later change would be missing from it."""
        if restored is not None:
            self._restore(restored, complete, now)
        self.history.incarnations = list(incarnations) or [(incarnation, self.seq + 1)]
        # Without a log, an event may follow only a record: of its time in H, or of its frontier in F (E11 horizon). F
        # never goes back, and H keeps all times that F still reaches. So F at bottom and an empty H mean an empty log.
        self.history.pristine = (
            not (settings.durable or gathering or lost or complete) and restored is None and start == bottom
        )

    def _restore(self, restored: Restored, complete: bool, now: float) -> None:
        """Continue where the log ends. Every writer gets a full time-out to come back (E8)."""
        self._log.restore(restored)
        for writer in restored.writers:
            writer.heard = now
            writer.held_since = dict.fromkeys(writer.held, now)
            self._writers.add(writer)
            if not writer.present:
                self._writers.departed(writer)
        if complete:
            self.completed()
        elif restored.publisher.finishing or restored.publisher.complete:
            # The crash may have come before the catalog had the report.
            self._log.effects.append(self._completion.report_again())

    # ---- what the shell sees ----

    @property
    def progress(self) -> Progress:
        """Frontiers, active and aborted times according to the events of the log."""
        return self._log.progress

    @property
    def history(self) -> History:
        """The events in memory."""
        return self._log.history

    @property
    def seq(self) -> int:
        """The last event of the log; -1 for none."""
        return self._log.history.last

    @property
    def path(self) -> tuple[str, ...]:
        """No relay is on the way to a publisher."""
        return ()

    @property
    def complete(self) -> bool:
        """Whether every writer has finished the stream (E7 finish)."""
        return self._completion.complete

    @property
    def gathering(self) -> bool:
        """Whether the publisher still waits for the known writers to report what the last incarnation may have had."""
        return self._lost_horizon.pending

    @property
    def ignored_meta(self) -> int:
        """How many optional fields of batches were left out because they break the protocol."""
        return self._appends.ignored_meta

    @property
    def records(self) -> int:
        """How many records were logged."""
        return self._appends.records

    @property
    def untaken_bytes(self) -> int:
        """Bytes of appends that wait for `take`; at least what they take in the log."""
        return self._appends.untaken_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of requests that wait for the catalog; at least what they take in memory (E11 horizon)."""
        return self._sessions.waiting_bytes

    @property
    def writers(self) -> list[str]:
        """Ids of the writers that hold a capability here, sorted, then ids of the awaited ones.

        They are reported to the catalog so that the next incarnation waits for them.
        """
        present = [state.identity for state in self._writers if state.present]
        return sorted(who.writer for who in present if who.under is None) + sorted(self._own.awaited)

    def holders(self, now: float) -> list[Holder]:
        """The holders of each element of the lower frontier, and every lost writer that is still awaited.

        Lost writers come first (E46 hold), then holders by how long they have held; at most `MOST_HOLDERS`.
        """
        log = self._log
        frontier = log.held.frontier
        found = [
            Holder(
                time,
                HolderKind.LOST if state.lost else HolderKind.WRITER,
                state.identity.writer,
                now - state.held_since[time],
                now - state.heard,
            )
            for state in self._writers
            for time in state.held
            if state.lost or time in frontier
        ]
        overdue = self.settings.hold_lost and now - self._started >= self.settings.writer_timeout
        found += self._own.holders(now, finishing=self._completion.finishing, overdue=overdue)
        if log.lags:
            passed = set(self.progress.lower.frontier) - set(frontier)
            found += [Holder(time, HolderKind.RECORDING, None, now - log.lags_since, None) for time in passed]
        found.sort(key=lambda held: (held.kind != HolderKind.LOST, -held.seconds, held.time, held.writer or ""))
        return found[:MOST_HOLDERS]

    def state(self) -> SegmentState:
        """The state exactly after the last event."""
        return SegmentState.of(self.seq, self.progress)

    @property
    def quiet_since(self) -> SegmentState | None:
        """The state since which only the frontier has moved; None if a batch or an abort was last (E13 retention)."""
        return self._log.quiet_since

    def emit(self, effect: PublisherEffect) -> None:
        """Queue an effect after everything queued so far; that order is what makes joins atomic (S9)."""
        self._log.effects.append(effect)

    def take(self) -> list[PublisherEffect]:
        """The effects since the last call, to be carried out in order; consecutive acknowledgements are merged."""
        log = self._log
        for peer in list(log.acks):
            log.flush_ack(peer)
        effects, log.effects = log.effects, []
        if log.horizon is not None and log.horizon.urgent and not self._asked_for_record:
            self._asked_for_record = True
            effects.append(AskRecord())
        self._appends.untaken_bytes = 0
        self._sessions.effects_taken()
        if self._lost_horizon.pending:
            return effects
        entry = None if log.journal is None else log.journal.take(self._publisher_is())
        if entry is not None:
            effects.append(Log(*entry))
        return effects

    def checkpoint(self) -> list[Note]:
        """The notes that the next incarnation needs besides `state()`; call it right after `take`."""
        return checkpoint_notes(self._publisher_is(), self._writers, self._log.limits.sizes)

    def _publisher_is(self) -> PublisherIs:
        return PublisherIs(
            tuple(self._own.held), self._own.enough, tuple(sorted(self._own.awaited)),
            () if self._own.enough else tuple(sorted(self._own.opened)),
            self._completion.finishing, self._completion.early, self._completion.complete, self._completion.finished,
            self._own.closed_past(self._log.held.frontier),
        )  # fmt: skip

    # ---- time and messages ----

    def tick(self, now: float) -> None:
        """Let time pass. Call it only after everything received so far was passed to `receive` (E8)."""
        if self._stopped:
            return
        stalled = now - self._log.now > self.settings.stall
        self._log.now = now
        if stalled:
            self._started = now
            for state in self._writers:
                state.heard = now
            return
        if self._lost_horizon.pending:
            self._gather_when_all_ask(now)
        for ask in self._opener.waiting.values():  # a writer that waits for the catalog is not silent
            if (known := self._writers.get(ask.writer)) is not None:
                known.heard = now
        deadline = now - self.settings.writer_timeout
        for state in [w for w in self._writers if w.presence is WriterPresence.PRESENT and w.heard <= deadline]:
            silent = f"nothing was heard of writer {state.identity.writer!r} for {self.settings.writer_timeout:g} s"
            self._sessions.lose(state, WriterLost(silent))
        if self._own.awaited and self._started <= deadline and not self.settings.hold_lost:
            self._own.awaited.clear()
            self._opener.settle(lost=True)
        self.history.trim(now)

    def receive(self, peer: Connection, message: m.Message, now: float) -> None:
        """Handle one message from a writer. Raises `RemoteProtocolError` for a message that no writer may send."""
        if self._stopped:
            return
        match message:
            case m.Append():
                if (state := self._sessions.at(peer, now)) is None:
                    return
                if state.waiting is None:
                    self._appends.take(state, message)
                else:
                    self._appends.wait_in_line(state, state.waiting, message)
            case m.Alive():
                self._sessions.at(peer, now)
            case m.Open():
                self._opener.opens_again(peer)
                self._opener.open(peer, message, now)
            case m.Leave() if self._opener.leave_later(peer, message):
                pass
            case m.Hold() | m.Abort() | m.Leave():
                self._operate(peer, message, now)
            case _:
                raise RemoteProtocolError(f"a writer does not send {type(message).__name__}")

    def release(self, released: Mapping[str, int]) -> None:
        """Release each lost writer in `released`, unless it has a later session than the given one (E46 hold)."""
        lost = False
        for writer, session in released.items():
            state = self._writers.get(writer)
            if state is None and writer in self._own.awaited:
                self._own.awaited.discard(writer)
                lost = True
            elif state is not None and state.lost and state.present and state.identity.session <= session:
                self._sessions.depart(state, abort=True, finish=False)
                lost = True
        if lost:
            self._opener.settle(lost=True)

    def deleted(self) -> None:
        """The stream was deleted: notify every writer."""
        for peer in self._writers.peers():
            self._sessions.dismiss(peer, StreamGone(f"stream {self.stream} was deleted"))

    def drain(self) -> None:
        """The publisher stops.

        Without a log, active epochs can never complete after that, so they are aborted.
        """
        if not self.settings.durable:
            self._log.abort(self.progress.upper.active)

    def doubt(self) -> tuple[Time, ...]:
        """Abort every active epoch, because the log may lack acknowledged appends of any of them (E11 horizon).

        Returns their times. Call it before anything else.
        """
        active = tuple(sorted(self.progress.upper.active))
        self._log.abort(active)
        return active

    # ---- what a writer requests within its session ----

    def _operate(self, peer: Connection, ask: m.Hold | m.Abort | m.Leave, now: float) -> None:
        state = self._sessions.at(peer, now)
        if state is None:
            return
        # A writer sends a move only when its earlier appends are acknowledged (E1 barrier). So the appends that wait
        # here were made after this request and need not come first. Operations that wait were requested before it.
        at_once = isinstance(ask, m.Leave) and ask.how is m.Leaving.ABORT  # E4
        if at_once:
            for each in self._sessions.take_waiting(state).messages:
                if type(each) is not m.Append:
                    self._sessions.wait(state, each)  # it still gets an answer, even if only a refusal
        if state.waiting is not None and state.waiting.operations and not at_once:
            self._sessions.wait(state, ask)
        else:
            self._take_operation(state, ask)

    def _take_operation(self, state: WriterState, ask: m.Hold | m.Abort | m.Leave) -> None:
        log = self._log
        peer = state.identity.peer
        if isinstance(ask, m.Abort) and (uncovered := log.uncovered(filter(log.limits.fits, ask.times))):
            self._sessions.wait(state, ask, *uncovered)
            return
        try:
            match ask:
                case m.Hold():
                    log.limits.check_times(ask.times, len(self.progress.lower.frontier))
                    held = state.hold(ask.times)
                    state.sources.published_up_to(ask.whole, log.seq)
                    log.move_held(state, held)
                    state.granted = state.closed = False
                case m.Abort():
                    self._abort_for(state, ask.times)
                case m.Leave() if state.present:
                    self._sessions.depart(state, abort=ask.how is m.Leaving.ABORT, finish=ask.how is m.Leaving.FINISH)
        except EpochalError as error:
            log.refuse(peer, ask.op, error)
            return
        log.note(state)
        done = Reply(peer, m.Done(ask.op, self.segment))
        if isinstance(ask, m.Leave) and ask.how is m.Leaving.FINISH:
            self._finish_done(state.identity.writer, done)
        else:
            log.reply(*done)

    def _abort_for(self, state: WriterState, times: Sequence[Time]) -> None:
        self._log.limits.check_times(times, len(self.progress.aborted))
        for time in times:
            over = self.progress.is_aborted(time) or self.progress.lower.completed(time)  # e.g. sent again
            if not over and not state.reaches(time):
                raise CapabilityError(
                    f"writer {state.identity.writer!r} holds {list(state.held)!r} and cannot abort {time!r}"
                )
        self._log.abort(times)

    # ---- E7 finish ----

    def _finish_done(self, writer: str, done: Reply) -> None:
        """Confirm that `writer` has finished, once no crash can undo it: it never repeats a confirmed finish."""
        log = self._log
        if log.horizon is not None and not self.complete and self._forgettable(writer, log.horizon.marks):
            log.horizon.urgent = True
            self._unrecorded_finishes[done.peer] = writer, done
            return
        log.flush_ack(done.peer)
        if not self._completion.confirm_later(done):
            log.effects.append(done)

    def _forgettable(self, writer: str, recorded: Marks) -> bool:
        """Whether a crash now would lose that a writer has finished (E47), or that `writer` has opened."""
        counts = self._own.enough or writer in self._own.opened
        return (self._completion.finished and not recorded.finished) or (
            counts and not (recorded.enough or writer in recorded.opened)
        )

    def finishing_answered(self, number: int, complete: bool, now: float) -> None:
        """The catalog answered report `number`.

        Either the stream is complete, or this segment waits for others, or its finishing was cancelled.
        """
        self._log.effects += self._completion.answered(number)
        if complete:
            self.completed()
            return
        self._opener.open_all(self._completion.cancelled(number), now)
        self._leave_as_asked(now)

    def _leave_as_asked(self, now: float) -> None:
        """End the sessions whose writers left while their opens waited; those opens are answered now (E4)."""
        for peer, leave in self._opener.take_leaves():
            if self._writers.at(peer) is not None:
                self._operate(peer, leave, now)

    def completed(self) -> None:
        """The catalog recorded that the stream is complete: empty the frontier, and refuse the opens that waited."""
        if self.complete:
            return
        waiting = self._completion.completed()
        if self._lost_horizon.pending:
            self._log.held.update(self._own.release())  # not logged: the log starts after it
            self._gather(self._log.now)
        else:
            self._log.move(self._own.release())
        for peer, ask in waiting:
            self._opener.refuse_complete(peer, ask.op)
        self._leave_as_asked(self._log.now)

    # ---- what the catalog must have recorded first (E11 horizon) ----

    def record(self, *, final: bool = False) -> Record | None:
        """The record that the catalog should store for this segment now.

        None while it is not known what the last incarnation had. With a log also None, because the log keeps all this
        itself, except for the last record. `final`: the last record of a publisher that stops in order, after `drain`;
        the machine ignores everything after it.
        """
        progress, frontier = self.progress, self._log.held.frontier
        own, writers = self._own, self.writers
        marks = Marks(self._completion.finished, own.enough, frozenset(own.opened), own.closed_past(frontier))
        lost = (*progress.aborted, *progress.below)
        self._stopped = self._stopped or final
        if self._lost_horizon.pending:
            if self._lost_horizon.times is None:
                return None  # the next incarnation does not know it either
            lost = tuple(self._lost_horizon.times)
        if self._log.horizon is None:  # a last record only: the next incarnation may have no log
            lost = (*progress.upper.active, *lost)
            return (
                Record(0, tuple(frontier), tuple(Downset(lost)), final, marks.to_texts(), tuple(writers))
                if final
                else None
            )
        self._asked_for_record = False
        if final:
            return self._log.horizon.last_record(frontier, lost, marks, writers)
        return self._log.horizon.record(frontier, marks, writers)

    def recorded(self, number: int, now: float) -> None:
        """The catalog has stored record `number`, and none after it: continue what waited for that."""
        if self._log.horizon is None or self._stopped or not self._log.horizon.answered(number):
            return
        self._asked_for_record = False
        if self._lost_horizon.pending:
            self._gather(now)
        else:
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        """Do what waited: the frontier first, then finishes and other requests, then opens.

        An open comes last because it may need the effects of a request that came before it.
        """
        self._log.publish()
        finishes, self._unrecorded_finishes = self._unrecorded_finishes, {}
        for writer, done in finishes.values():
            self._finish_done(writer, done)
        for state in [state for state in self._writers if state.waiting]:
            self._retry(state)
        self._opener.open_waiting(now)
        self._leave_as_asked(now)

    def _retry(self, state: WriterState) -> None:
        """Carry out the writer's waiting requests, in order, up to the first one that still has to wait."""
        line = self._sessions.take_waiting(state)
        messages = line.messages
        while messages and self._writers.at(state.identity.peer) is state:
            message = messages[0]
            if type(message) is m.Append:
                self._appends.take(state, message)
            else:
                self._take_operation(state, message)  # type: ignore[arg-type]  # the other kinds that wait
            if state.waiting is not None:  # still waiting: keep the rest of the line as it is, without copying it
                self._sessions.take_waiting(state)
                state.waiting = line
                self._sessions.waiting_bytes += line.bytes
                return
            line.drop_first()

    def _gather_when_all_ask(self, now: float) -> None:
        """Let the log begin once every known writer has asked to open, or has timed out."""
        asks = [*self._opener.waiting.values(), *self._completion.waiting]
        overdue = now - self._started >= self.settings.writer_timeout
        if self._lost_horizon.learn(asks, self._own.awaited, overdue=overdue):
            self._gather(now)

    def _gather(self, now: float) -> None:
        if self._lost_horizon.begin(self.incarnation):
            self._go_on(now)

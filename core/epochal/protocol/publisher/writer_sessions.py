"""The open sessions at one segment: how they are found by connection, what waits in them, and how they end.

A session ends when its writer leaves, is lost, or is fenced by a newer session. The order is always the same: epochs
are aborted first, then the capability is released. Otherwise the frontier could pass an epoch that is about to be
aborted, and readers would take half of an epoch for a whole one.

Sources: rules E3, E4, E6, E7, E11, E46, E47.
"""

from epochal.errors import EpochalError, RemoteProtocolError, WriterLost
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.publisher.completion import SegmentCompletion
from epochal.protocol.publisher.effects import Reply
from epochal.protocol.publisher.event_log import EventLog
from epochal.protocol.publisher.reserved_capability import ReservedCapability
from epochal.protocol.publisher.writer_state import Connection, PresenceEvent, QueuedMessage, WaitingLine, WriterState
from epochal.protocol.times import Time


class WriterSessions:
    """The connections of writers at one segment, what waits on each, and how a session ends."""

    __slots__ = ("_answered", "_completion", "_log", "_own", "_writers", "waiting_bytes")

    def __init__(self, log: EventLog, own: ReservedCapability, completion: SegmentCompletion) -> None:
        self._log = log
        self._own = own
        self._completion = completion
        self._writers = log.writers
        self._answered: set[Connection] = set()
        """Peers that were answered "open a session first" since effects were last taken."""
        self.waiting_bytes = 0

    def at(self, peer: Connection, now: float) -> WriterState | None:
        """The writer that speaks on `peer`, marked as heard now. A peer without one is answered that it must open."""
        state = self._writers.at(peer)
        if state is None:
            if peer not in self._answered:  # one answer, however much it sends: answers must not flood either
                self._answered.add(peer)
                lost = m.Lost(self._log.segment, RemoteProtocolError.code, "open a session first")
                self._log.effects.append(Reply(peer, lost))
            return None
        state.heard = now
        return state

    def effects_taken(self) -> None:
        """Effects were taken: a peer without a session may get an answer again."""
        self._answered.clear()

    # ---- what waits for the catalog's record (E11 horizon) ----

    def wait(self, state: WriterState, message: QueuedMessage, *times: Time) -> None:
        """Keep a request until the catalog has recorded a horizon that covers `times`."""
        log = self._log
        assert log.horizon is not None
        for time in times:
            log.horizon.want(time)
        line = state.waiting = state.waiting or WaitingLine()
        if line.payload_bytes > 2 * log.settings.window and type(message) is m.Append:
            self.take_waiting(state)
            detail = f"more than {log.settings.window} bytes are unacknowledged; wait for acknowledgements"
            self.dismiss(state.identity.peer, RemoteProtocolError(detail))
            return
        before = line.bytes
        line.add(message)
        self.waiting_bytes += line.bytes - before

    def take_waiting(self, state: WriterState) -> WaitingLine:
        """Remove and return all that waits of one writer."""
        waiting, state.waiting = state.waiting or WaitingLine(), None
        self.waiting_bytes -= waiting.bytes
        return waiting

    # ---- the end of a session ----

    def dismiss(self, peer: Connection, error: EpochalError) -> None:
        """Notify a peer that its session is over here. Forgets the connection, not the writer."""
        if self._writers.unbind(peer):
            self._log.reply(peer, m.Lost(self._log.segment, error.code, str(error)))

    def dismiss_session(self, state: WriterState, error: EpochalError) -> None:
        """Dismiss the connection of a session, if the session still uses it.

        A session that has left is not notified: its connection may serve another writer by now, which would take the
        message for the end of its own session.
        """
        if self._writers.at(state.identity.peer) is state:
            if state.present:
                self.dismiss(state.identity.peer, error)
            else:
                self._writers.unbind(state.identity.peer)

    def lose(self, state: WriterState, error: WriterLost) -> None:
        """A writer is lost: abort the epochs that it appended to and holds, and release it (E3 lost writers).

        With `whenLost: hold`, keep its epochs and its capability instead (E46 hold).
        """
        self.dismiss_session(state, error)
        state.enter(PresenceEvent.SILENT)
        if self._log.settings.hold_lost and len(state.held):
            self._log.note(state)
        else:
            self.depart(state, abort=True, finish=False)

    def depart(self, state: WriterState, *, abort: bool, finish: bool, replaced: bool = False) -> None:
        """A writer leaves: its capability is released, or parked if it was the last (E3 lost writers).

        `abort`: it was lost, or leaves by an exception. As the last writer it then leaves what it would have left
        before the writer that closed last (`ReservedCapability.left_by`), unless it is `replaced` by a later session
        that holds the same.

        In a complete stream nothing is parked. A writer can still be there: a catalog that was restored from an older
        copy may not know that it had opened again. Its epochs end with the stream.
        """
        log = self._log
        if abort:
            log.abort(state.touched)
        log.admitted.clear()
        state.enter(PresenceEvent.REPLACED if replaced else PresenceEvent.DEPARTED)
        state.granted = False
        state.closed = not abort and state.identity.under is None
        held = state.held
        if len(held) and not abort:
            self._own.closed = held
            if log.horizon is not None and self._own.closed_past(log.held.frontier):
                log.horizon.urgent = True  # the next incarnation needs `closed` if the last writer is lost there
        last = (
            len(held) > 0
            and not self._completion.complete
            and not any(len(w.held) for w in self._writers if w is not state)
        )
        self._completion.finished = self._completion.finished or finish
        over = finish or (abort and self._completion.finished)  # a loss does not undo an earlier finish (E47)
        # Park first: while the writer's own counts are still there, the frontier cannot move in between.
        if last and not len(self._own.held):
            left = self._own.left_by(held) if abort and not replaced else held
            log.move(self._own.park(left, log.now))
            if over:
                log.effects.append(self._completion.last_finished())
        elif last:
            self._completion.early = over
        log.move_held(state, Antichain())
        log.note(state)
        for forgotten in self._writers.departed(state):
            self.take_waiting(forgotten)
            log.note_forgotten(forgotten.identity.writer)

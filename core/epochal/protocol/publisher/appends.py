"""Appends, the hot path of a publisher: an append becomes an event of the log, or is refused, or waits.

An append is checked in this order: its number, its checksum, the right to its time, the limits, and whether the catalog
has recorded that its time may become active (E11 horizon). A number that was answered before gets its first answer
again.

Sources: rules E1, E6, E10, E11, E49, E50.
"""

import google_crc32c

from epochal.errors import (
    CapabilityError,
    EpochAbortedError,
    EpochalError,
    RemoteProtocolError,
    RepeatDiffers,
    TimeShapeError,
    UsageError,
)
from epochal.protocol import messages as m
from epochal.protocol.log.history import EVENT_OVERHEAD
from epochal.protocol.publisher.append_numbers import fingerprint, follows
from epochal.protocol.publisher.effects import Push, Reply
from epochal.protocol.publisher.event_log import EventLog
from epochal.protocol.publisher.limits import MAX_DETAIL
from epochal.protocol.publisher.writer_sessions import WriterSessions
from epochal.protocol.publisher.writer_state import QueuedMessage, WaitingLine, WriterState
from epochal.protocol.times import Time

_NO_META = m.Meta()
_EARLIER_REFUSED = UsageError("an earlier source number of this session was refused; open the writer again")


class AppendHandler:
    """Takes the appends of open sessions."""

    __slots__ = ("_log", "_sessions", "_writers", "ignored_meta", "records", "untaken_bytes")

    def __init__(self, log: EventLog, sessions: WriterSessions) -> None:
        self._log = log
        self._sessions = sessions
        self._writers = log.writers
        self.ignored_meta = 0
        self.records = 0
        self.untaken_bytes = 0

    def take(self, state: WriterState, append: m.Append) -> None:
        """Log one append, refuse it, or keep it until its time is recorded."""
        log = self._log
        who, numbers, sources = state.identity, state.appends, state.sources
        peer = who.peer
        number, time, payload, last = append.number, append.time, append.payload, numbers.last
        if number <= last:
            self._answer_again(state, append)
            return
        if number != last + 1 and not follows(number, last):
            self._sessions.dismiss(
                peer, RemoteProtocolError(f"append {number} leaves a hole after {last}; resume from there")
            )
            return
        if google_crc32c.value(payload) != append.crc:
            self._sessions.dismiss(
                peer, RemoteProtocolError(f"the payload of append {number} arrived damaged; send it again")
            )
            return
        meta = append.meta
        source = None if meta is None or who.under is not None else meta.source
        if source is not None and source <= sources.highest:
            self._skip(state, number)
            return
        holder = state if who.under is None else self._writers.get(who.under)
        admitted = log.admitted.get(peer) == time
        size, topic = len(payload), len(append.topic)
        if meta is not None:
            if meta.ignored:
                meta = self._without_ignored(meta)
            topic += 0 if meta is None else meta.size
        refusal = (None if admitted else self._refusal(holder, time)) or log.limits.refuses(time, size, topic)
        if source is not None and (sources.refusing or refusal is not None):
            sources.refusing = True
            log.note(state)
            refusal = refusal or _EARLIER_REFUSED
        if refusal is not None or holder is None:
            self._refuse_append(state, number, refusal or CapabilityError(f"writer {who.under!r} has not opened"))
            return
        # A time may become active only once the catalog has recorded it: else a crash would forget an epoch that was
        # acknowledged, and the next incarnation could report it as complete without these records.
        if not admitted and log.horizon is not None and not log.horizon.covers(time):
            log.horizon.came(time, log.now)
            self._sessions.wait(state, append, time)
            return
        history = log.history
        seq = history.last + 1
        if not admitted:
            if log.horizon is not None and time not in log.progress.upper:
                log.horizon.came(time, log.now)
            log.progress.upper.insert(time)
            if time not in holder.touched:
                holder.touched.add(time)
                log.note(holder)  # acknowledged only once on disk: a loss after a crash aborts it (E3 lost writers)
            log.admitted[peer] = time
        log.limits.logged(time, size + topic)
        self.untaken_bytes += size + topic + EVENT_OVERHEAD
        self.records += append.records
        # Both are made as plain tuples: calling the NamedTuple takes twice as long.
        data = tuple.__new__(m.Data, (seq, seq - 1, time, append.topic, append.records, append.crc, payload, meta))
        history.append(data, log.now)
        log.quiet_since = None
        log.effects.append(tuple.__new__(Push, (data,)))
        numbers.logged(number, seq, time, append.records, append.crc)
        if source is not None:
            sources.highest, sources.seq = source, seq
            if time not in sources.times:
                sources.times.add(time)
                log.note(state)
        acks = log.acks
        known = acks.get(peer)
        if known is not None and known[0] + 1 == number and known[1] + 1 == seq:
            acks[peer] = (number, seq, known[2] + 1, known[3])
        else:
            log.flush_ack(peer)
            acks[peer] = (number, seq, 1, who.writer)

    def _without_ignored(self, meta: m.Meta) -> m.Meta | None:
        """The part of `meta` that is stored; counts the fields that were ignored when it was decoded."""
        self.ignored_meta += meta.ignored
        rest = meta._replace(ignored=0)
        return None if rest == _NO_META else rest

    def wait_in_line(self, state: WriterState, line: WaitingLine, message: QueuedMessage) -> None:
        """Keep a message that came after a waiting one of the same writer.

        The time of an append is requested for the horizon at once, so that one record covers both.
        """
        log = self._log
        wanted: list[Time] = []
        if type(message) is m.Append and message.time != line.newest:  # else its time was requested already
            holder = state if state.identity.under is None else self._writers.get(state.identity.under)
            wanted = [] if self._refusal(holder, message.time) is not None else log.uncovered((message.time,))
            if wanted and log.horizon is not None:
                log.horizon.came(message.time, log.now)
        self._sessions.wait(state, message, *wanted)

    def _refusal(self, holder: WriterState | None, time: Time) -> EpochalError | None:
        log = self._log
        try:
            log.settings.shape.check(time)
        except TimeShapeError as error:
            return error
        if log.progress.is_aborted(time):
            return EpochAbortedError(f"epoch {time!r} was aborted; it can never complete")
        if holder is None or not holder.present:
            return CapabilityError("the writer whose capability this append uses is not open")
        if not holder.reaches(time):
            return CapabilityError(
                f"writer {holder.identity.writer!r} holds {list(holder.held)!r}, which does not reach {time!r}"
            )
        if time not in log.progress.upper:
            return log.limits.refuses_another(log.progress.under_way)
        return None

    def _answer_again(self, state: WriterState, append: m.Append) -> None:
        """Answer an old number as the first time, if this is the same append (E49)."""
        log = self._log
        peer = state.identity.peer
        log.flush_ack(peer)
        number = append.number
        answer = state.appends.answer_again(number)
        mark = fingerprint(append.time, append.records, append.crc)
        if type(answer) is int and state.was_a_repeat(append):
            answer = state.sources.seq
        elif type(answer) is int and not state.appends.repeats(number, mark):
            answer = RepeatDiffers.code, str(RepeatDiffers.of(state.identity.writer, log.segment, number))
        match answer:
            case int(seq):
                log.effects.append(Reply(peer, m.Ack(log.segment, number, seq, 1)))
            case (code, detail):
                log.effects.append(Reply(peer, m.AppendRefused(log.segment, number, code, detail)))

    def _skip(self, state: WriterState, number: int) -> None:
        """Acknowledge append `number`, which is a repeat by its source number, and log nothing (E50 sources)."""
        log = self._log
        state.appends.last = number
        self.untaken_bytes += EVENT_OVERHEAD
        log.note(state)
        log.reply(state.identity.peer, m.Ack(log.segment, number, state.sources.seq, 1))

    def _refuse_append(self, state: WriterState, number: int, error: EpochalError) -> None:
        log = self._log
        detail = str(error)[:MAX_DETAIL]
        state.appends.refused(number, error.code, detail)
        self.untaken_bytes += EVENT_OVERHEAD
        if log.journal is not None:
            log.journal.denied(state.identity.writer, number, error.code, detail)
        log.reply(state.identity.peer, m.AppendRefused(log.segment, number, error.code, detail))

"""The publisher of one segment: who may append, what enters the log, what is pushed, and what writers are answered.

A machine without I/O: `receive` takes one message from a writer, `tick` lets time pass, `take` returns what must be
done, in order. Separate from `server`, which answers subscribers from the same log, so that each can be read alone.

States of a segment. `gathering` and `stopped` can be true together with another one:

    state      meaning                                                ends with
    gathering  waits for the known writers: the catalog has no        `_gather`, once what may be lost is recorded
               horizon of the last incarnation (E11)
    opening    holds its own capability until `min_writers` writers   `_settle`
               have opened and all awaited ones are back (E5, E11)
    running    the writers' capabilities are the frontier (S4)        `_depart` of the last writer
    parked     holds what the last writer held (E3)                   the next open: `_settle`
    finishing  parked after a finish; opens wait for the catalog      `finishing_answered`: complete, or open again (E7)
    complete   the frontier is empty; every new open is refused       never
    stopped    the last record was made; nothing happens any more     never

States of a writer at a segment: present -> departed when it leaves; present -> lost when it is silent for too long, and
then departed at once, or with `hold_lost` when it is released (E46). A new session makes it present again.

Sources: rules S1-S7, S20, S35; E1-E8, E11, E12.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import google_crc32c

from epochal.errors import (
    CapabilityError,
    EpochAbortedError,
    EpochalError,
    LimitExceeded,
    RemoteProtocolError,
    RepeatDiffers,
    StreamComplete,
    StreamGone,
    TimeShapeError,
    Unavailable,
    WriterFenced,
    WriterLost,
)
from epochal.protocol import messages as m
from epochal.protocol.blockers import MOST_HOLDERS, Holder, HolderKind
from epochal.protocol.frontier import Antichain, Change, Downset, MutableAntichain
from epochal.protocol.log.history import EVENT_OVERHEAD, History, SegmentState, empty_state
from epochal.protocol.progress import Progress
from epochal.protocol.publisher.completion import SegmentCompletion
from epochal.protocol.publisher.effects import AskRecord, Log, PublisherEffect, Push, Reply
from epochal.protocol.publisher.horizon import Horizon, Marks, Record
from epochal.protocol.publisher.journal import Journal, Note, PublisherIs, Restored, checkpoint_notes
from epochal.protocol.publisher.limits import MAX_DETAIL, MAX_WAITING_OPENS, MAX_WRITER_ID, MAX_WRITERS, SegmentLimits
from epochal.protocol.publisher.reserved_capability import ReservedCapability
from epochal.protocol.publisher.sessions import (
    KnownWriters,
    QueuedMessage,
    WaitingLine,
    WriterState,
    fingerprint,
    follows,
)
from epochal.protocol.times import Time, TimeShape

Connection: TypeAlias = bytes
"""The connection of a writer: its routing id on `ingest`."""

_NO_META = m.Meta()

ABORTS_AN_EVENT = 128
"""Most times in one abort event: as many as surely fit a header, even for times of the largest shape."""


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """What a stream's manifest says about its publishers; times in seconds."""

    shape: TimeShape
    min_writers: int = 1
    writer_timeout: float = 30.0
    hold_lost: bool = False
    """Whether what a lost writer held is kept for its next session instead of being released (E46)."""
    stall: float = 1.0
    """A longer pause of the loop does not count as a writer's silence: all time-outs start again (E8)."""
    window: int = 8 * 2**20
    """Bytes that one writer may have unacknowledged."""
    max_payload: int = 16 * 2**20
    retention_bytes: int = 256 * 2**20
    """Bytes of history that are kept; 0 keeps none."""
    retention_age: float = 3600.0
    memory_bytes: int | None = None
    """Bytes of history that are kept in memory when more is on disk; None for all."""
    durable: bool = False
    """Whether there is a log on disk. The effect `Log` then says what it must hold beside the events."""


class SegmentPublisher:
    """One incarnation of a segment's publisher.

    - `lower`: where it starts. None means bottom, for a new segment; else it is the frontier that the catalog has
      recorded.
    - `horizon`: without a log, every time in it is aborted (E11). None means that the catalog has none, because the
      last incarnation had a log or was of a version that recorded none; then the publisher waits for the writers first.
    - `known_writers`: those that had the segment open when the last incarnation ended. Nothing completes before each of
      them is back or timed out (E11).
    - `sessions`: the newest session that the catalog has given each writer; a writer in its first session may be left
      out. No older session is admitted (E6, E11).
    - `finishing`: the segment was parked as finishing. An open is admitted only after the catalog has cancelled that
      (E7).
    - `marks`: those of the last record.
    - `restored`: what the log has kept; the publisher goes on from there. Of the arguments above only `complete` is
      used then, and `sessions` for writers that the log does not know: the log may be new, after its volume was lost.
    - `incarnations`: with a log, all that it knows, this one included, each with its first event.
    """

    __slots__ = (
        "_acks", "_admitted", "_asked_for_record", "_effects", "_finishing", "_gathered", "_held", "_horizon",
        "_journal", "_lags_since", "_limits", "_own", "_put_off", "_sessions", "_started", "_stopped", "_ticked",
        "_told_to_open", "_unrecorded_finishes", "_waiting_opens", "_writers", "gathering", "history", "ignored_meta",
        "incarnation", "progress", "segment", "settings", "stream", "untaken_bytes", "waiting_bytes",
    )  # fmt: skip
    # Slots, because with 30 attributes or more in a dictionary every call of a method of its own would take longer.

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
        self._limits = SegmentLimits(
            settings.shape, max_payload=settings.max_payload, retention_bytes=settings.retention_bytes
        )
        lost = () if complete or horizon is None else tuple(horizon)
        self.progress = Progress(start, below=lost)
        self._held = MutableAntichain(start)
        """What all capabilities together hold. The frontier in `progress` is what of that is reported (E11)."""
        self._horizon = None if settings.durable else Horizon(settings.shape, start, lost)
        self._asked_for_record = False
        self._lags_since = now
        """When the held frontier went past what may be reported, while it is past that; publisher's clock, seconds."""
        kept = settings.retention_bytes
        self.history = History(
            empty_state(start, tuple(self.progress.below)),
            max_bytes=kept if settings.memory_bytes is None else min(kept, settings.memory_bytes),
            max_age=settings.retention_age,
        )
        known = Marks.from_texts(marks)
        self._own = ReservedCapability.at(
            start,
            tuple(known_writers),
            settings.min_writers,
            now,
            opened=known.opened,
            enough=known.enough or start != bottom,
        )
        self._writers = KnownWriters()
        self._sessions = dict(sessions or {})
        self._waiting_opens: dict[Connection, m.Open] = {}
        """Opens that wait until the catalog has stored a record (E11)."""
        self.gathering = horizon is None and lower is not None and restored is None and not complete
        """Whether the publisher still waits for the known writers to say what the last incarnation may have had.

        The catalog has no horizon of that incarnation: it had a log that is gone, or was of a version that recorded
        none.
        """
        self._gathered: Downset | None = None
        """What may be lost; it has to be recorded. None until all known writers have asked to open or timed out."""
        self._finishing = SegmentCompletion(complete, stands=finishing and not complete, asked=known.finished)
        self._put_off = False
        """Whether the segment becomes finishing if none of the opens that wait is admitted."""
        self._unrecorded_finishes: dict[Connection, tuple[str, Reply]] = {}
        """By peer, one each: who finished, and the confirmation, which waits for a record (`_forgettable`)."""
        self._effects: list[PublisherEffect] = []
        self.ignored_meta = 0
        """How many optional fields of batches were left out, because they were not as the protocol has them."""
        self.untaken_bytes = 0
        """Bytes of appends that wait for `take`; at least what they take in the log."""
        self.waiting_bytes = 0
        """Bytes of requests that wait for the catalog; at least what they take in memory (E11)."""
        self._acks: dict[Connection, tuple[int, int, int, str]] = {}
        self._told_to_open: set[Connection] = set()
        """Peers that have had the answer "open a session first" since effects were last taken."""
        self._admitted: dict[Connection, Time] = {}
        """The time of each writer's last append: a run of appends at one time is checked once.

        Cleared by all that can change who may append: moves, aborts, sessions, departures.
        """
        self._started = self._ticked = now
        self._stopped = False
        """Whether the last record was made: nothing may happen any more that is not in it."""
        self._journal = Journal() if settings.durable else None
        if restored is not None:
            self._restore(restored, complete, now)
        self.history.incarnations = list(incarnations) or [(incarnation, self.seq + 1)]

    def _restore(self, restored: Restored, complete: bool, now: float) -> None:
        """Go on where the log ends. Every writer has the whole time-out again to come back (E8)."""
        state, own = restored.state, restored.publisher
        held = [time for writer in restored.writers for time in writer.held]
        self.progress = state.progress()
        self._held = MutableAntichain([*own.held, *held])
        self.history = self.history.empty_behind(state)
        self.history.told = state.seq  # what is logged from here on is on no disk yet
        self._own = ReservedCapability.restored(own, self.settings.min_writers, now)
        self._finishing = SegmentCompletion(
            own.complete, stands=own.finishing and not own.complete, early=own.early, asked=own.asked
        )
        self._limits.restore(restored.sizes)
        for writer in restored.writers:
            writer.heard = now
            writer.held_since = dict.fromkeys(writer.held, now)
            self._writers.add(writer)
            if not writer.present:
                self._writers.departed(writer)
        if complete:
            self.completed()
        elif own.finishing or own.complete:
            self._effects.append(
                self._finishing.report(True)
            )  # the crash may have come before the catalog had the report

    # ---- what the shell sees ----

    @property
    def complete(self) -> bool:
        """Whether every writer has finished the stream (E7)."""
        return self._finishing.complete

    @property
    def seq(self) -> int:
        """The last event of the log; -1 for none."""
        return self.history.last

    @property
    def writers(self) -> list[str]:
        """Ids of the writers that hold a capability here, sorted, then of those awaited.

        Reported to the catalog, so that the next incarnation waits for them.
        """
        return sorted(w.writer for w in self._writers if w.present and w.under is None) + sorted(self._own.awaited)

    def holders(self, now: float) -> list[Holder]:
        """Who holds the elements of the lower frontier, and every lost writer that is still waited for.

        Lost writers first (E46), then those that have held the longest; at most `MOST_HOLDERS`.
        """
        frontier = self._held.frontier
        found = [
            Holder(
                time,
                HolderKind.LOST if state.lost else HolderKind.WRITER,
                state.writer,
                now - state.held_since[time],
                now - state.heard,
            )
            for state in self._writers
            for time in state.held
            if state.lost or time in frontier
        ]
        overdue = self.settings.hold_lost and now - self._started >= self.settings.writer_timeout
        found += self._own.holders(now, finishing=self._finishing.stands, overdue=overdue)
        if self._lags:
            passed = set(self.progress.lower.frontier) - set(frontier)
            found += [Holder(time, HolderKind.RECORDING, None, now - self._lags_since, None) for time in passed]
        found.sort(key=lambda held: (held.kind != HolderKind.LOST, -held.seconds, held.time, held.writer or ""))
        return found[:MOST_HOLDERS]

    def state(self) -> SegmentState:
        """The state exactly after the last event."""
        return SegmentState.of(self.seq, self.progress)

    def take(self) -> list[PublisherEffect]:
        """The effects since the last call, to be carried out in order; consecutive acknowledgements are merged."""
        for peer in list(self._acks):
            self._flush_ack(peer)
        effects, self._effects = self._effects, []
        if self._horizon is not None and self._horizon.urgent and not self._asked_for_record:
            self._asked_for_record = True
            effects.append(AskRecord())
        self.untaken_bytes = 0
        self._told_to_open.clear()
        if self.gathering:
            return effects
        entry = None if self._journal is None else self._journal.take(self._publisher_is())
        if entry is not None:
            effects.append(Log(*entry))
        return effects

    def checkpoint(self) -> list[Note]:
        """All that the next incarnation must know beside `state()`; call it right after `take`."""
        return checkpoint_notes(self._publisher_is(), self._writers, self._limits.sizes)

    def _publisher_is(self) -> PublisherIs:
        return PublisherIs(
            tuple(self._own.held), self._own.enough, tuple(sorted(self._own.awaited)),
            () if self._own.enough else tuple(sorted(self._own.opened)),
            self._finishing.stands, self._finishing.early, self._finishing.complete, self._finishing.asked,
        )  # fmt: skip

    def _forgot(self, writer: str) -> None:
        if self._journal is not None:
            self._journal.forgot(writer)

    def _note(self, state: WriterState) -> None:
        """Have the log record the writer as it is at the next take."""
        if self._journal is not None:
            self._journal.changed(state)

    def emit(self, effect: PublisherEffect) -> None:
        """Queue an effect after everything queued so far; that order is what makes joins atomic (S9)."""
        self._effects.append(effect)

    def tick(self, now: float) -> None:
        """Let time pass. Call it only after everything received so far was passed to `receive` (E8)."""
        if self._stopped:
            return
        stalled = now - self._ticked > self.settings.stall
        self._ticked = now
        if stalled:
            self._started = now
            for state in self._writers:
                state.heard = now
            return
        if self.gathering:
            self._gather_when_all_ask(now)
        for ask in self._waiting_opens.values():  # a writer that waits for the catalog is not silent
            if (known := self._writers.get(ask.writer)) is not None:
                known.heard = now
        deadline = now - self.settings.writer_timeout
        for state in [w for w in self._writers if w.present and not w.lost and w.heard <= deadline]:
            self._lose(
                state,
                WriterLost(f"nothing was heard of writer {state.writer!r} for {self.settings.writer_timeout:g} s"),
            )
        if self._own.awaited and self._started <= deadline and not self.settings.hold_lost:
            self._own.awaited.clear()
            self._settle(lost=True)
        self.history.trim(now)

    def receive(self, peer: Connection, message: m.Message, now: float) -> None:
        """Handle one message from a writer. Raises `RemoteProtocolError` for a message that no writer may send."""
        if self._stopped:
            return
        match message:
            case m.Append():
                if (state := self._session(peer, now)) is None:
                    return
                if state.waiting is None:
                    self._take_append(state, message)
                else:
                    self._wait_in_line(state, state.waiting, message)
            case m.Alive():
                self._session(peer, now)
            case m.Open():
                self._open(peer, message, now)
            case m.Hold() | m.Abort() | m.Leave():
                self._operate(peer, message, now)
            case _:
                raise RemoteProtocolError(f"a writer does not send {type(message).__name__}")

    def deleted(self) -> None:
        """The stream was deleted: notify every writer."""
        for peer in self._writers.peers():
            self._dismiss(peer, StreamGone(f"stream {self.stream} was deleted"))

    def drain(self) -> None:
        """The publisher stops.

        Without a log, active epochs can never complete after that, so they are aborted.
        """
        if not self.settings.durable:
            self._abort(self.progress.upper.active)

    # ---- what the catalog must have recorded first (E11) ----

    def record(self, *, final: bool = False) -> Record | None:
        """What the catalog is to store of this segment now.

        None while it is not known what the last incarnation had. None also with a log, which keeps all that itself,
        except for the last record. `final`: the last record of a publisher that stops in order, after `drain`; from
        then on nothing happens here any more.
        """
        progress, frontier = self.progress, self._held.frontier
        marks, writers = Marks(self._finishing.asked, self._own.enough, frozenset(self._own.opened)), self.writers
        lost = (*progress.aborted, *progress.below)
        self._stopped = self._stopped or final
        if self.gathering:
            if self._gathered is None:
                return None  # the next incarnation does not know it either
            lost = tuple(self._gathered)
        if self._horizon is None:  # a last record only: the next incarnation may have no log
            lost = (*progress.upper.active, *lost)
            return (
                Record(0, tuple(frontier), tuple(Downset(lost)), final, marks.to_texts(), tuple(writers))
                if final
                else None
            )
        self._asked_for_record = False
        if final:
            return self._horizon.last_record(frontier, lost, marks, writers)
        return self._horizon.record(frontier, marks, writers)

    def recorded(self, number: int, now: float) -> None:
        """The catalog has stored record `number`, and none after it: continue what waited for that."""
        if self._horizon is None or self._stopped or not self._horizon.answered(number):
            return
        self._asked_for_record = False
        if self.gathering:
            self._gather(now)
        else:
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        self._publish()
        finishes, self._unrecorded_finishes = self._unrecorded_finishes, {}
        for writer, done in finishes.values():
            self._finish_done(writer, done)
        for state in [state for state in self._writers if state.waiting]:
            self._retry(state)
        opens, self._waiting_opens = self._waiting_opens, {}
        self._open_all(opens.items(), now)

    def _retry(self, state: WriterState) -> None:
        """Do what the writer has requested, in order, up to the first request that still has to wait."""
        line = self._take_waiting(state)
        messages = line.messages
        while messages and self._writers.at(state.peer) is state:
            message = messages[0]
            if type(message) is m.Append:
                self._take_append(state, message)
            else:
                self._take_operation(state, message)  # type: ignore[arg-type]  # the other kinds that wait
            if state.waiting is not None:  # still waiting: keep the rest of the line as it is, without copying it
                self._take_waiting(state)
                state.waiting = line
                self.waiting_bytes += line.bytes
                return
            line.drop_first()

    def _take_waiting(self, state: WriterState) -> WaitingLine:
        """Remove and return all that waits of one writer."""
        waiting, state.waiting = state.waiting or WaitingLine(), None
        self.waiting_bytes -= waiting.bytes
        return waiting

    def _wait(self, state: WriterState, message: QueuedMessage, *times: Time) -> None:
        """Keep a request until the catalog has recorded a horizon that covers `times`."""
        assert self._horizon is not None
        for time in times:
            self._horizon.want(time)
        line = state.waiting = state.waiting or WaitingLine()
        if line.payload_bytes > 2 * self.settings.window and type(message) is m.Append:
            self._take_waiting(state)
            detail = f"more than {self.settings.window} bytes are unacknowledged; wait for acknowledgements"
            self._dismiss(state.peer, RemoteProtocolError(detail))
            return
        before = line.bytes
        line.add(message)
        self.waiting_bytes += line.bytes - before

    def _uncovered(self, times: Iterable[Time]) -> list[Time]:
        """Those of `times` that may become active or aborted here only after the catalog has recorded them."""
        if self._horizon is None:
            return []
        progress, covers = self.progress, self._horizon.covers
        return [t for t in times if not (covers(t) or progress.is_aborted(t) or progress.lower.completed(t))]

    @property
    def _lags(self) -> bool:
        """Whether the held frontier is past the one that may be reported."""
        return self._horizon is not None and self._held.frontier != self.progress.lower.frontier

    def _publish(self) -> None:
        """Log the frontier of all that is held. If the catalog must record that first, log the one that it has."""
        frontier, reported = self._held.frontier, self.progress.lower.frontier
        if frontier == reported:
            return
        if self._horizon is not None and not self.complete and not self._horizon.allows(frontier):
            if not self._horizon.urgent:
                self._lags_since = self._ticked
            self._horizon.urgent = True
            # What is held may move again before each answer. Reporting the recorded one makes progress all the same.
            frontier = self._horizon.lower
            if frontier == reported or not reported.reaches_all(frontier):
                return
        changes = frontier.changes_from(reported)
        self.progress.move(changes)
        self._log(m.Frontier(self.seq + 1, self.seq, tuple(changes)))
        self._limits.keep_only(self.progress.upper)

    # ---- when nothing is recorded of the last incarnation ----

    def _gather_when_all_ask(self, now: float) -> None:
        """Once every known writer has asked to open, or has timed out, abort what may be lost.

        A writer may have appended at every time that it no longer holds, and at the touched times that it still holds.
        """
        asks = [*self._waiting_opens.values(), *self._finishing.waiting]
        asking = {ask.writer for ask in asks}
        heard_all = not self._own.awaited - asking or now - self._started >= self.settings.writer_timeout
        if self._gathered is not None or not heard_all:
            return
        lost = Downset()
        for resume in [ask.resume for ask in asks if ask.resume is not None]:
            for time in (*self.settings.shape.not_reached(resume.held), *resume.touched):
                lost.insert(time)
        lost.drop_passed(self.progress.lower.frontier)
        if self._horizon is not None:
            for time in lost:
                self._horizon.want(time)
        self._gathered = lost
        self._gather(now)

    def _gather(self, now: float) -> None:
        """Begin once all that may be lost is recorded, and abort it.

        A complete stream needs no record: this incarnation starts after every time, and so will the next one. What
        writers that have left had appended in the last incarnation is not known, so none of it may count as whole.
        """
        lost = self._gathered
        recorded = None if self._horizon is None or self.complete else self._horizon.recorded
        if lost is None or not (recorded is None or all(time in recorded for time in lost)):
            return
        self.gathering = False
        lower, told = () if self.complete else tuple(self.progress.lower.frontier), self.history.told
        self.progress = Progress(lower, below=() if self.complete else lost if recorded is None else recorded)
        self.history = self.history.empty_behind(empty_state(lower, tuple(self.progress.below)))
        self.history.told, self.history.incarnations = told, [(self.incarnation, 0)]
        self._go_on(now)

    def doubt(self) -> tuple[Time, ...]:
        """Abort every active epoch, because the log may lack acknowledged appends of any of them (E11).

        Returns their times. Call it before anything else.
        """
        active = tuple(sorted(self.progress.upper.active))
        self._abort(active)
        return active

    # ---- appends: the hot path ----

    def _take_append(self, state: WriterState, append: m.Append) -> None:
        peer = state.peer
        number, time, payload, last = append.number, append.time, append.payload, state.number
        if number <= last:
            self._answer_again(state, append)
            return
        if number != last + 1 and not follows(number, last):
            self._dismiss(
                peer, RemoteProtocolError(f"append {number} leaves a hole after {state.number}; resume from there")
            )
            return
        if google_crc32c.value(payload) != append.crc:
            self._dismiss(peer, RemoteProtocolError(f"the payload of append {number} arrived damaged; send it again"))
            return
        holder = state if state.under is None else self._writers.get(state.under)
        admitted = self._admitted.get(peer) == time
        size, topic, meta = len(payload), len(append.topic), append.meta
        if meta is not None:
            if meta.ignored:
                meta = self._without_ignored(meta)
            topic += 0 if meta is None else meta.size
        refusal = (None if admitted else self._refusal(holder, time)) or self._limits.refuses(time, size, topic)
        if refusal is not None or holder is None:
            self._refuse_append(state, number, refusal or CapabilityError(f"writer {state.under!r} has not opened"))
            return
        if not admitted and self._horizon is not None and not self._horizon.covers(time):
            self._horizon.came(time, self._ticked)
            self._wait(state, append, time)
            return
        seq = self.history.last + 1
        if not admitted:
            if self._horizon is not None and time not in self.progress.upper:
                self._horizon.came(time, self._ticked)
            self.progress.upper.insert(time)
            if time not in holder.touched:
                holder.touched.add(time)
                self._note(holder)  # on disk before the append is acknowledged (E10), so that E3 holds after a crash
            self._admitted[peer] = time
        self._limits.logged(time, size + topic)
        self.untaken_bytes += size + topic + EVENT_OVERHEAD
        # Both are made as plain tuples: calling the NamedTuple takes twice as long.
        data = tuple.__new__(m.Data, (seq, seq - 1, time, append.topic, append.records, append.crc, payload, meta))
        self.history.append(data, self._ticked)
        self._effects.append(tuple.__new__(Push, (data,)))
        state.logged(number, seq, time, append.records, append.crc)
        known = self._acks.get(peer)
        if known is not None and known[0] + 1 == number and known[1] + 1 == seq:
            self._acks[peer] = (number, seq, known[2] + 1, known[3])
        else:
            self._flush_ack(peer)
            self._acks[peer] = (number, seq, 1, state.writer)

    def _without_ignored(self, meta: m.Meta) -> m.Meta | None:
        """The part of `meta` that is stored; counts the fields that were left out in reading."""
        self.ignored_meta += meta.ignored
        rest = meta._replace(ignored=0)
        return None if rest == _NO_META else rest

    def _wait_in_line(self, state: WriterState, line: WaitingLine, message: QueuedMessage) -> None:
        """Keep a message that came after one that waits.

        The time of an append is requested for the horizon at once, so that one record covers both.
        """
        wanted: list[Time] = []
        if type(message) is m.Append and message.time != line.newest:  # else it is requested already
            holder = state if state.under is None else self._writers.get(state.under)
            wanted = [] if self._refusal(holder, message.time) is not None else self._uncovered((message.time,))
            if wanted and self._horizon is not None:
                self._horizon.came(message.time, self._ticked)
        self._wait(state, message, *wanted)

    def _refusal(self, holder: WriterState | None, time: Time) -> EpochalError | None:
        try:
            self.settings.shape.check(time)
        except TimeShapeError as error:
            return error
        if self.progress.is_aborted(time):
            return EpochAbortedError(f"epoch {time!r} was aborted; it can never complete")
        if holder is None or not holder.present:
            return CapabilityError("the writer whose capability this append uses is not open")
        if not holder.reaches(time):
            return CapabilityError(
                f"writer {holder.writer!r} holds {list(holder.held)!r}, which does not reach {time!r}"
            )
        if time not in self.progress.upper:
            return self._limits.refuses_another(self.progress.under_way)
        return None

    def _answer_again(self, state: WriterState, append: m.Append) -> None:
        """Give an old number the answer that it had first, if this is the same append (E6, E49)."""
        self._flush_ack(state.peer)
        number = append.number
        answer = state.answer_again(number)
        if type(answer) is int and not state.repeats(number, fingerprint(append.time, append.records, append.crc)):
            answer = RepeatDiffers.code, str(RepeatDiffers.of(state.writer, self.segment, number))
        match answer:
            case int(seq):
                self._effects.append(Reply(state.peer, m.Ack(self.segment, number, seq, 1)))
            case (code, detail):
                self._effects.append(Reply(state.peer, m.AppendRefused(self.segment, number, code, detail)))

    def _refuse_append(self, state: WriterState, number: int, error: EpochalError) -> None:
        detail = str(error)[:MAX_DETAIL]
        state.refused(number, error.code, detail)
        self.untaken_bytes += EVENT_OVERHEAD
        if self._journal is not None:
            self._journal.denied(state.writer, number, error.code, detail)
        self._reply(state.peer, m.AppendRefused(self.segment, number, error.code, detail))

    # ---- sessions ----

    def _open(self, peer: Connection, ask: m.Open, now: float) -> None:
        if ask.stream != self.stream:
            self._refuse(peer, ask.op, StreamGone("the stream was deleted and created anew; look it up again"))
        elif self._has_left(ask) or self._is_fenced(ask):
            self._admit(peer, ask, now)  # neither brings a writer back, so neither cancels anything
        elif self.complete:
            self._refuse_complete(peer, ask.op)
        elif self._finishing.stands and len(self._finishing.waiting) >= MAX_WAITING_OPENS:
            self._refuse(peer, ask.op, Unavailable("too many writers wait to open; try again"))
        elif self._finishing.stands:
            report = self._finishing.wait(peer, ask)
            if report is not None:
                self._effects.append(report)
        elif not self._must_wait(peer, ask):
            self._admit(peer, ask, now)

    def _open_all(self, asks: Iterable[tuple[Connection, m.Open]], now: float) -> None:
        """Answer the opens that waited. If none is admitted, the finish that was put off for them counts now."""
        for peer, ask in asks:
            self._open(peer, ask, now)
        if self._put_off:
            self._settle()

    def _must_wait(self, peer: Connection, ask: m.Open) -> bool:
        """Whether an open waits for the catalog's record (E11)."""
        touched = () if ask.resume is None else ask.resume.touched
        if ask.resume is not None and not all(map(self._fits, (*touched, *ask.resume.held))):
            return False  # `_admit` refuses it
        uncovered = self._uncovered(touched)
        if not (self.gathering or uncovered):
            return False
        if len(self._waiting_opens) >= MAX_WAITING_OPENS:
            self._refuse(peer, ask.op, Unavailable("too many writers wait to open; try again"))
            return True
        if self._horizon is not None and not self.gathering:
            for time in uncovered:
                self._horizon.want(time)
        self._waiting_opens[peer] = ask
        return True

    def _fits(self, time: Time) -> bool:
        try:
            self.settings.shape.check(time)
        except TimeShapeError:
            return False
        return True

    def _has_left(self, ask: m.Open) -> bool:
        """Whether this very session has closed or finished here. It opens again if the answer to that was lost."""
        state = self._writers.get(ask.writer)
        return state is not None and state.session == ask.session and not state.present and not state.lost

    def _is_fenced(self, ask: m.Open) -> bool:
        """Whether a newer session of the writer has opened here, or may have before memory was lost (E6, E11)."""
        state = self._writers.get(ask.writer)
        if state is None:
            return ask.session < self._sessions.get(ask.writer, 0)
        return ask.session < state.session

    def _admit(self, peer: Connection, ask: m.Open, now: float) -> None:
        state = self._writers.get(ask.writer)
        if self._is_fenced(ask):
            self._refuse(peer, ask.op, WriterFenced(f"a newer session of writer {ask.writer!r} has opened"))
            return
        if state is not None and state.lost and ask.session == state.session:
            self._refuse(
                peer, ask.op, WriterLost(f"this session of writer {ask.writer!r} was given up; open a new one")
            )
            return
        try:
            self._check_open(ask, known=state is not None)
        except EpochalError as error:
            self._refuse(peer, ask.op, error)
            return
        if state is not None and ask.resume is not None and state.session < ask.session:
            self._evict(state, ask)
            state = None
        if state is None and self._went_on_without(ask.resume):
            detail = f"this publisher restarted and went on without writer {ask.writer!r}"
            self._refuse(peer, ask.op, WriterLost(detail))
            return
        returns = state is not None
        if state is None:
            state = WriterState(ask.writer, ask.session, peer, ask.under, now)
            self._writers.add(state)
        fresh = self._take_session(state, peer, ask, now)
        lost = self._resume(state, ask.resume, known=returns)
        if ask.under is None and fresh:
            self._grant(state, ask.resume if not returns else None)
            state.anew = ask.resume is None
        self._note(state)
        self._reply(
            peer,
            m.Opened(
                ask.op, self.segment, self.incarnation, tuple(self.progress.lower.frontier), tuple(state.held),
                state.number, tuple(sorted(state.touched)), lost, self.settings.window, state.anew,
            ),
        )  # fmt: skip
        self._settle()

    def _check_open(self, ask: m.Open, *, known: bool) -> None:
        """Raise for an open that would make the segment keep more than it can, or more than a message can hold."""
        if not 1 <= len(ask.writer) <= MAX_WRITER_ID:
            raise LimitExceeded(f"a writer's id has 1 to {MAX_WRITER_ID} characters, not {len(ask.writer)}")
        if not known and self._writers.present >= MAX_WRITERS:
            raise Unavailable(f"{MAX_WRITERS} writers have this segment open; try again when some have left")
        if ask.resume is not None:
            self._limits.check_times(ask.resume.held, len(self.progress.lower.frontier))
            self._limits.check_times(ask.resume.touched, len(self.progress.aborted.difference(ask.resume.touched)))

    def _evict(self, state: WriterState, ask: m.Open) -> None:
        """Undo what an older session did at this incarnation before the newer session came back to it.

        Only a log could have known that the older one was fenced. Its appends are aborted and its numbers forgotten:
        the newer session has used the same numbers for appends of its own, which must not be taken for those (E6).
        """
        self._dismiss_session(state, WriterFenced(f"a newer session of writer {ask.writer!r} has opened"))
        self._depart(state, abort=True, finish=False)
        self._take_waiting(state)
        if self._writers.get(state.writer) is state:
            self._writers.forget(state)
            self._forgot(state.writer)

    def _went_on_without(self, resume: m.Resume | None) -> bool:
        """Whether this incarnation does not know a returning writer and went past what it holds, or has lost its log.

        A log knows every writer that ever opened, so with a log an unknown one means that the log was lost. Then it is
        not known either what others had appended under this writer. Aborts what can still be aborted of its appends
        (E11).
        """
        if resume is None:
            return False
        if self._journal is None:  # every time at which it appended is over, or aborted by the horizon
            return not self._held.frontier.reaches_all(resume.held)
        self._abort(resume.touched)
        return True

    def _take_session(self, state: WriterState, peer: Connection, ask: m.Open, now: float) -> bool:
        """Bind `peer` to the writer; returns whether it needs a capability: it is new here, or was gone."""
        self._admitted.clear()
        self._take_waiting(state)
        if ask.session > state.session and state.peer != peer:
            self._dismiss_session(state, WriterFenced(f"a newer session of writer {ask.writer!r} has opened"))
        left_for_good = self._has_left(ask)
        needs = not len(state.held) and not left_for_good
        state.session, state.under, state.heard, state.lost = ask.session, ask.under, now, False
        state.present = not left_for_good
        self._writers.bind(state, peer)
        return needs

    def _resume(self, state: WriterState, resume: m.Resume | None, *, known: bool) -> tuple[Time, ...]:
        """Believe a returning writer where this incarnation cannot know better.

        Aborts the times at which appends of it were lost, and returns them.
        """
        if resume is None:
            return ()
        if not known or resume.number > state.number:
            state.number = max(state.number, resume.number)
            state.answered_lost |= {time for time in resume.touched if not self.progress.lower.completed(time)}
            self._abort(state.answered_lost)
        return tuple(sorted(state.answered_lost))

    def _grant(self, state: WriterState, resume: m.Resume | None) -> None:
        """Give a writer its capability.

        It gets what it says it held, as far as that can still be reached here, else the frontier of all that is held
        (E5, E11). That frontier can be past the reported one, and the catalog may have recorded it already, so a time
        that no one holds any more is never given out again.
        """
        held = Antichain(self._held.frontier)
        if resume is not None and resume.held:
            held = held.join(Antichain(resume.held))
        self._move_held(state, held)
        self._own.came(state.writer)
        self._finishing.early = False

    def _settle(self, *, lost: bool = False) -> None:
        """Release the publisher's own capability once the writers that must be counted are there (E5, E11).

        `lost`: some of them were given up just now. If no writer is left then, an earlier finish decides (E47), but
        only once every open that waits is answered: a writer that waits for the catalog is not lost.
        """
        lost, self._put_off = lost or self._put_off, False
        if not self._own.may_go:
            return
        holders = any(len(w.held) for w in self._writers)
        over = self._finishing.early or (lost and self._finishing.asked and not holders)
        if over and (self._waiting_opens or self._finishing.waiting):
            self._put_off = True
        elif over:
            self._finishing.early = False
            self._effects.append(self._finishing.report(True))
        elif holders:
            self._move(self._own.release())

    def _session(self, peer: Connection, now: float) -> WriterState | None:
        """The writer that speaks on `peer`, marked as heard now. A peer without one is answered that it must open."""
        state = self._writers.at(peer)
        if state is None:
            if peer not in self._told_to_open:  # one answer, however much it sends: answers must not flood either
                self._told_to_open.add(peer)
                lost = m.Lost(self.segment, RemoteProtocolError.code, "open a session first")
                self._effects.append(Reply(peer, lost))
            return None
        state.heard = now
        return state

    def _dismiss(self, peer: Connection, error: EpochalError) -> None:
        """Notify a peer that its session is over here. Forgets the connection, not the writer."""
        if self._writers.unbind(peer):
            self._reply(peer, m.Lost(self.segment, error.code, str(error)))

    def _dismiss_session(self, state: WriterState, error: EpochalError) -> None:
        """The same for the connection of a session, if the session still uses it.

        A session that has left is not notified: its connection may serve another writer by now, which would take the
        message for the end of its own session.
        """
        if self._writers.at(state.peer) is state:
            if state.present:
                self._dismiss(state.peer, error)
            else:
                self._writers.unbind(state.peer)

    def _lose(self, state: WriterState, error: WriterLost) -> None:
        """E3: abort the epochs that the writer appended to and still holds, then release it; or keep all that (E46)."""
        self._dismiss_session(state, error)
        state.lost = True
        if self.settings.hold_lost and len(state.held):
            self._note(state)
        else:
            self._depart(state, abort=True, finish=False)

    def release(self, released: Mapping[str, int]) -> None:
        """Give up the lost writers in `released` as E3 says, if they have no later session than the one given (E46)."""
        lost = False
        for writer, session in released.items():
            state = self._writers.get(writer)
            if state is None and writer in self._own.awaited:
                self._own.awaited.discard(writer)
                lost = True
            elif state is not None and state.lost and state.present and state.session <= session:
                self._depart(state, abort=True, finish=False)
                lost = True
        if lost:
            self._settle(lost=True)

    # ---- operations ----

    def _operate(self, peer: Connection, ask: m.Hold | m.Abort | m.Leave, now: float) -> None:
        state = self._session(peer, now)
        if state is None:
            return
        # A writer sends a move only when its earlier appends are acknowledged (E1). So appends that wait here were
        # made after this request, and it does not wait for them; only for operations that came before it.
        at_once = isinstance(ask, m.Leave) and ask.how is m.Leaving.ABORT  # E4
        if at_once:
            for each in self._take_waiting(state).messages:
                if type(each) is not m.Append:
                    self._wait(state, each)  # it still gets an answer, even if only a refusal
        if state.waiting is not None and state.waiting.operations and not at_once:
            self._wait(state, ask)
        else:
            self._take_operation(state, ask)

    def _take_operation(self, state: WriterState, ask: m.Hold | m.Abort | m.Leave) -> None:
        peer = state.peer
        if isinstance(ask, m.Abort) and (uncovered := self._uncovered(filter(self._fits, ask.times))):
            self._wait(state, ask, *uncovered)
            return
        try:
            match ask:
                case m.Hold():
                    self._limits.check_times(ask.times, len(self.progress.lower.frontier))
                    self._move_held(state, state.hold(ask.times))
                    state.anew = False
                case m.Abort():
                    self._abort_for(state, ask.times)
                case m.Leave() if state.present:
                    self._depart(state, abort=ask.how is m.Leaving.ABORT, finish=ask.how is m.Leaving.FINISH)
        except EpochalError as error:
            self._refuse(peer, ask.op, error)
            return
        self._note(state)
        done = Reply(peer, m.Done(ask.op, self.segment))
        if isinstance(ask, m.Leave) and ask.how is m.Leaving.FINISH:
            self._finish_done(state.writer, done)
        else:
            self._reply(*done)

    def _finish_done(self, writer: str, done: Reply) -> None:
        """Confirm that `writer` has finished, once no crash can undo it: a confirmed writer never says so again."""
        if self._horizon is not None and not self.complete and self._forgettable(writer, self._horizon.marks):
            self._horizon.urgent = True
            self._unrecorded_finishes[done.peer] = writer, done
            return
        self._flush_ack(done.peer)
        if not self._finishing.confirm_later(done):
            self._effects.append(done)

    def _forgettable(self, writer: str, recorded: Marks) -> bool:
        """Whether the next incarnation would not know of a finish (E47), or that `writer` has opened (E5)."""
        counts = self._own.enough or writer in self._own.opened
        return (self._finishing.asked and not recorded.finished) or (
            counts and not (recorded.enough or writer in recorded.opened)
        )

    def _abort_for(self, state: WriterState, times: Sequence[Time]) -> None:
        self._limits.check_times(times, len(self.progress.aborted))
        for time in times:
            over = self.progress.is_aborted(time) or self.progress.lower.completed(time)  # e.g. sent again
            if not over and not state.reaches(time):
                raise CapabilityError(f"writer {state.writer!r} holds {list(state.held)!r} and cannot abort {time!r}")
        self._abort(times)

    def _depart(self, state: WriterState, *, abort: bool, finish: bool) -> None:
        """A writer leaves: its capability is released, or parked if it was the last (E3, E4, E7).

        In a complete stream nothing is parked. A catalog restored from an older copy, which had lost that a writer
        opened again, may complete the stream while that writer is there; its epochs end with it.
        """
        if abort:
            self._abort(state.touched)
        self._admitted.clear()
        state.present = False
        held = state.held
        last = len(held) > 0 and not self.complete and not any(len(w.held) for w in self._writers if w is not state)
        self._finishing.asked = self._finishing.asked or finish
        over = finish or (abort and self._finishing.asked)  # a loss does not undo an earlier finish (E47)
        # Parked before the writer's own counts go below, so that the frontier never moves in between.
        if last and not len(self._own.held):
            self._move(self._own.park(held, self._ticked))
            if over:
                self._effects.append(self._finishing.report(True))
        elif last:
            self._finishing.early = over
        self._move_held(state, Antichain())
        self._note(state)
        for forgotten in self._writers.departed(state):
            self._take_waiting(forgotten)
            self._forgot(forgotten.writer)

    # ---- finish (E7) ----

    def finishing_answered(self, number: int, complete: bool, now: float) -> None:
        """The catalog answered report `number`.

        Either the stream is complete, or this segment waits for others, or its finishing was cancelled.
        """
        self._effects += self._finishing.answered(number)
        if complete:
            self.completed()
            return
        self._open_all(self._finishing.cancelled(number), now)

    def completed(self) -> None:
        """The catalog recorded that the stream is complete: empty the frontier, and refuse the opens that waited."""
        if self.complete:
            return
        waiting = self._finishing.completed()
        if self.gathering:
            self._held.update(self._own.release())  # not logged: the log starts after it
            self._gather(self._ticked)
        else:
            self._move(self._own.release())
        for peer, ask in waiting:
            self._refuse_complete(peer, ask.op)

    def _refuse_complete(self, peer: Connection, op: int) -> None:
        detail = "every writer has finished this stream; nothing more can be published"
        self._refuse(peer, op, StreamComplete(detail))

    # ---- the log ----

    def _move_held(self, state: WriterState, held: Antichain) -> None:
        changes: list[Change] = [(time, 1) for time in held]
        changes += [(time, -1) for time in state.held]
        state.move(held, self._ticked)
        self._move(changes)

    def _move(self, changes: Iterable[Change]) -> None:
        self._admitted.clear()
        if self._held.update(changes):
            self._publish()

    def _abort(self, times: Iterable[Time]) -> None:
        self._admitted.clear()
        fresh = self.progress.abort(times)
        for start in range(0, len(fresh), ABORTS_AN_EVENT):
            self._log(m.Aborted(self.seq + 1, self.seq, fresh[start : start + ABORTS_AN_EVENT]))
        self._limits.keep_only(self.progress.upper)
        for time in fresh:
            for state in self._writers:
                state.touched.discard(time)

    def _log(self, event: m.Frontier | m.Aborted) -> None:
        if self._journal is not None:
            self._journal.secure()
        self.history.append(event, self._ticked)
        self._effects.append(Push(event))

    def _flush_ack(self, peer: Connection) -> None:
        ack = self._acks.pop(peer, None)
        if ack is not None:
            number, seq, run, writer = ack
            if self._journal is not None:
                self._journal.ran(writer, number, seq, run)
            self._effects.append(Reply(peer, m.Ack(self.segment, number, seq, run)))

    def _reply(self, peer: Connection, message: m.Message) -> None:
        self._flush_ack(peer)
        self._effects.append(Reply(peer, message))

    def _refuse(self, peer: Connection, op: int, error: EpochalError) -> None:
        self._reply(peer, m.Refused(op, error.code, str(error)))

"""The appends of one session: which may be made, their numbers, and what the segments answer.

An append concerns one segment, and is the hot path; what moves all segments together is in `machine`.

Sources: rules S35; E2, E5, E6, E10, E49, E50.
"""

from collections.abc import Iterable, Mapping

import google_crc32c

from epochal.errors import (
    AppendsLost,
    CapabilityError,
    EpochAbortedError,
    EpochalError,
    RepeatDiffers,
    from_code,
)
from epochal.protocol import messages as m
from epochal.protocol.messages import GROUP
from epochal.protocol.times import Time, TimeShape
from epochal.protocol.writer.capabilities import Moves
from epochal.protocol.writer.effects import Acked, Send
from epochal.protocol.writer.operations import Outcomes
from epochal.protocol.writer.segment_session import SegmentSession, SentAppend
from epochal.protocol.writer.session_states import WriterSessionLife


class SessionAppends:
    """What one session appends. `under` names the writer whose capability it uses."""

    def __init__(
        self,
        segments: Mapping[str, SegmentSession],
        moves: Moves,
        outcomes: Outcomes,
        life: WriterSessionLife,
        *,
        writer: str,
        shape: TimeShape,
        under: str | None,
    ) -> None:
        self._segments = segments
        self._moves = moves
        self._outcomes = outcomes
        self._life = life
        self._writer = writer
        self._shape = shape
        self._under = under
        self.aborted: set[Time] = set()
        """Times at which nothing can be appended any more, because the epoch is aborted."""
        self.own_aborts: set[Time] = set()
        """The times in `aborted` that this writer aborted itself."""
        self.waiting_bytes = 0
        """Bytes of appends that no window has room for yet; the shell stops taking more above its own bound."""

    # ---- what the program appends ----

    def start_group(self, group: int) -> None:
        """Number the next appends from the start of `group`, to recognise a task that runs again (E6 sessions)."""
        for segment in self._segments.values():
            segment.next = group << GROUP

    def append(
        self,
        name: str,
        time: object,
        topic: bytes,
        records: int,
        payload: bytes,
        meta: m.Meta | None = None,
        *,
        awaited: bool = False,
    ) -> int:
        """Queue one batch.

        Returns its ticket. Raises `TimeShapeError`, `CapabilityError`, `EpochAbortedError`, `WriterClosed`, or
        `UsageError` for a source number that does not rise or follows a refused one, and then sends nothing.

        `awaited` says that the caller will look at this ticket's outcome; otherwise a failure is raised by the next
        move or flush.
        """
        segment = self._segments[name]
        if meta is not None and meta.source is not None:
            if self._is_repeat(segment, meta.source):
                return self._repeated(segment, awaited=awaited)
            at = self.check(time)
            self._moves.sources.appended(at, meta.source)
        else:
            at = self.check(time)
        ticket = self._outcomes.ticket(awaited=awaited)
        crc = google_crc32c.value(payload)
        # As a tuple: a call of a NamedTuple takes twice as long.
        append = tuple.__new__(m.Append, (name, segment.next, at, topic, records, crc, payload, meta))
        segment.unsent.append(SentAppend(ticket, append))
        self.waiting_bytes += len(payload)
        segment.next += 1
        self.waiting_bytes -= segment.fill()
        return ticket

    def check(self, time: object) -> Time:
        """Return `time`, or raise what `append` at `time` would raise (S35)."""
        self._life.check_open()
        at = self._shape.check(time)
        if at in self.aborted:
            raise EpochAbortedError(f"epoch {time!r} was aborted; it can never complete")
        if self._under is None and not self._moves.held.less_equal(at):
            raise CapabilityError(
                f"writer {self._writer!r} holds {list(self._moves.held)!r}, which does not reach {time!r}; append "
                "before advancing past a time"
            )
        return at

    def _is_repeat(self, segment: SegmentSession, source: int) -> bool:
        """Whether the segment had `source` when this session opened; its time may be one that was left since."""
        self._life.check_open()
        self._moves.sources.check(source)
        if source > segment.source:
            return False
        self._moves.sources.repeated(source)
        return True

    def _repeated(self, segment: SegmentSession, *, awaited: bool) -> int:
        ticket = self._outcomes.ticket(awaited=awaited)
        position = m.Position(segment.incarnation, segment.source_at)
        self._outcomes.succeeded(ticket, Acked(ticket, segment.name, position))
        return ticket

    def abort(self, time: Time) -> None:
        """The program aborts an epoch: nothing more can be appended there."""
        self.aborted.add(time)
        self.own_aborts.add(time)
        for segment in self._segments.values():
            segment.touched.discard(time)

    # ---- what the publishers answer ----

    def acknowledged(self, segment: SegmentSession, ack: m.Ack) -> None:
        """Appends are logged: report where."""
        for ticket, append in segment.acknowledged(ack.number):
            if append.time not in self.aborted:
                segment.touched.add(append.time)
            back = min(ack.number - append.number, ack.run - 1)
            position = m.Position(segment.incarnation, ack.seq - back)
            self._outcomes.succeeded(ticket, Acked(ticket, segment.name, position))
        self.waiting_bytes -= segment.fill()

    def refused(self, segment: SegmentSession, refused: m.AppendRefused) -> None:
        """An append was refused: it failed, and so do the moves after it (E1 barrier)."""
        sent = segment.refused(refused.number)
        if sent is None:
            return
        error = from_code(refused.code, refused.detail)
        if sent.append.meta is not None and sent.append.meta.source is not None:
            self._moves.sources.refused(sent.append.meta.source, error)
        if isinstance(error, RepeatDiffers):  # it names what this side knows
            error = RepeatDiffers(refused.detail, self._writer, refused.segment, refused.number)
        asked_for = False
        if isinstance(error, EpochAbortedError):
            self.aborted.add(sent.append.time)
            asked_for = sent.append.time in self.own_aborts  # so it stops no move
        self._outcomes.failed(sent.ticket, error, quiet=asked_for)
        if len(self._moves) and not asked_for:
            # E1 barrier: also when its own caller gets the error, who did not know of it when the move was made.
            self._outcomes.remember(error)
        self.waiting_bytes -= segment.fill()

    def epochs_lost(self, name: str, lost: Iterable[Time]) -> None:
        """The publisher of segment `name` has aborted epochs, because it does not have what was appended there."""
        times = tuple(lost)
        self.aborted.update(times)
        for segment in self._segments.values():
            segment.touched.difference_update(times)
        self._outcomes.remember(
            AppendsLost(
                f"the publisher of segment {name} restarted without its history; epochs {list(times)!r} are "
                "aborted, publish them under later times"
            )
        )

    def send_again(self, segment: SegmentSession) -> None:
        """The segment was opened again: send what it has not acknowledged, and what there is room for."""
        for sent in segment.unacked:
            segment.effects.append(Send(segment.name, sent.append))
        self.waiting_bytes -= segment.fill()

    # ---- the end ----

    def drop_unsent(self) -> None:
        """Forget what is not sent; its tickets get no outcome."""
        for segment in self._segments.values():
            segment.unsent.clear()
        self.waiting_bytes = 0

    def fail_all(self, error: EpochalError) -> None:
        """Every append that is not acknowledged fails; no later move has to wait for that."""
        for segment in self._segments.values():
            for sent in segment.drop_appends():
                self._outcomes.failed(sent.ticket, error, quiet=True)
        self.waiting_bytes = 0

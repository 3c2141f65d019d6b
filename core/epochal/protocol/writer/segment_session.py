"""One segment as a writer knows it: the connection's state, what was appended there, what is held there.

The machine moves all segments together; this is what differs between them.

Sources: rules E3, E5, E6, E10-E12.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.times import Time
from epochal.protocol.writer.effects import Send, WriterEffect

WriterOperation: TypeAlias = m.Hold | m.Abort | m.Leave
"""An operation that is sent to every segment and confirmed by each."""


class SentAppend(NamedTuple):
    """An append, and the ticket by which the caller knows it."""

    ticket: int
    append: m.Append


@dataclass(slots=True)
class SegmentSession:
    """One segment of a writer's session.

    `effects` is the machine's list: what is sent goes to its end, after what other segments send.
    """

    name: str
    effects: list[WriterEffect]
    connected: bool = False
    asked: bool = False
    """Whether this session was ever asked for here: from then on it may be open, whatever becomes of the answer."""
    opened: m.Opened | None = None
    """The answer to this connection's `Open`; None while there is none."""
    ever_opened: bool = False
    granted: bool = False
    """Whether any answer to this session's `Open` was a new grant; an answer to a resume no longer says so."""
    closed: bool = False
    """Whether an earlier session has closed or finished there, and this one got the new grant after that."""
    incarnation: int = 0
    least_incarnation: int = 0
    """The highest that an earlier session has seen; the publisher of a lower one is stale (E12 fencing)."""
    window: int = 0
    next: int = 0
    acked: int = -1
    held: Antichain = field(default_factory=Antichain)
    """What the publisher confirmed that the writer holds there."""
    touched: set[Time] = field(default_factory=set)
    """Times appended at and not left."""
    source: int = -1
    """Up to this source number, what the segment takes was logged when the session opened (E50 sources)."""
    source_at: int = -1
    """The event of that, or a later one."""
    unacked: deque[SentAppend] = field(default_factory=deque)
    unsent: deque[SentAppend] = field(default_factory=deque)
    in_flight: int = 0
    """Payload bytes of what is unacked."""
    operations: dict[int, tuple[int, WriterOperation]] = field(default_factory=dict)
    """op -> (ticket, message), in the order sent; sent again after a reconnect."""

    @property
    def oldest(self) -> int:
        """The ticket of the oldest append that is not acknowledged; 0 if there is none."""
        waiting = self.unacked or self.unsent
        return waiting[0].ticket if waiting else 0

    # ---- opening ----

    def take_answer(self, opened: m.Opened) -> bool:
        """The answer to this connection's `Open`; returns whether the publisher has restarted since the last one."""
        restarted = opened.incarnation > self.incarnation > 0
        if not self.ever_opened:
            self.acked = opened.number
            self.next = opened.number + 1
            self.touched = set(opened.touched)
            if opened.source is not None:
                self.source, self.source_at = opened.source, opened.at
        self.opened = opened
        self.ever_opened = True
        self.incarnation = self.least_incarnation = opened.incarnation
        self.window = opened.window
        self.held = Antichain(opened.held)
        self.granted = self.granted or opened.granted
        self.closed = self.closed or opened.closed
        return restarted

    def resume(self, aborted: set[Time]) -> m.Resume:
        """The facts for a publisher that may have lost its memory.

        Aborted times are among them, so that they stay aborted in its next incarnation (E11 horizon).
        """
        still = {time for time in aborted if self.held.less_equal(time)}
        return m.Resume(self.acked, tuple(self.held), tuple(sorted(self.touched | still)))

    # ---- appends ----

    def fill(self) -> int:
        """Send what the window has room for, and return its bytes; one append always fits, however large."""
        sent_bytes = 0
        while self.unsent and self.opened is not None and (self.in_flight < self.window or not self.unacked):
            sent = self.unsent.popleft()
            self.unacked.append(sent)
            size = len(sent.append.payload)
            self.in_flight += size
            sent_bytes += size
            # As a tuple: a call of a NamedTuple takes twice as long.
            self.effects.append(tuple.__new__(Send, (self.name, sent.append)))
        return sent_bytes

    def acknowledged(self, number: int) -> Iterator[SentAppend]:
        """Take off the appends up to `number`, in order."""
        while self.unacked and self.unacked[0].append.number <= number:
            sent = self.unacked.popleft()
            self.in_flight -= len(sent.append.payload)
            self.acked = sent.append.number
            yield sent

    def refused(self, number: int) -> SentAppend | None:
        """Take off append `number`; None if it was not under way."""
        sent = next((sent for sent in self.unacked if sent.append.number == number), None)
        if sent is not None:
            if sent is self.unacked[0]:
                self.acked = max(self.acked, number)
            self.unacked.remove(sent)
            self.in_flight -= len(sent.append.payload)
        return sent

    def drop_appends(self) -> list[SentAppend]:
        """Take off all appends that are not acknowledged."""
        dropped = [*self.unacked, *self.unsent]
        self.unacked.clear()
        self.unsent.clear()
        return dropped

    # ---- operations ----

    def send(self, op: int, ticket: int, operation: WriterOperation) -> None:
        """Send an operation, now or after the answer to `Open`."""
        self.operations[op] = (ticket, operation)
        if self.opened is not None:
            self.effects.append(Send(self.name, operation))

    def took_effect(self, operation: WriterOperation) -> bool:
        """Whether a publisher that opened again has carried `operation` out, and its answer was lost.

        It then holds less than the operation needs: the move took effect, or one after it did. Sent again, it would be
        refused as a move back (S35).
        """
        return isinstance(operation, m.Hold | m.Abort) and not self.held.reaches_all(operation.times)

    def confirm(self, operation: WriterOperation) -> None:
        """The publisher has carried `operation` out."""
        match operation:
            case m.Hold():
                self.held = Antichain(operation.times)
                self.touched = {time for time in self.touched if self.held.less_equal(time)}
            case m.Abort():
                self.touched.difference_update(operation.times)

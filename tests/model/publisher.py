"""A publisher without memory, for one segment and one incarnation: rule E11 as it is to be implemented.

It keeps the *true* frontier (all that is held) and the *told* frontier (the last one that it has published). The second
lags behind the first until what the catalog has recorded allows it to follow.

Both gates (E11 a and b) keep one promise. Take any record that the catalog may hold when this process dies, and any
time that its frontier reaches and its horizon does not cover. At this time the process has logged nothing, and it has
published no frontier that has passed it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tests.model.clauses import Clause
from tests.model.order import NONE, Order, Time, Times
from tests.model.records import Asked, Record, Row


class Witness(Protocol):
    """An observer that sees all that publishers do (the oracle)."""

    def logged(self, segment: int, time: Time, record: int, writer: str, session: int) -> None: ...
    def told(self, segment: int, reach: Times) -> None: ...
    def aborted(self, segment: int, times: Times) -> None: ...
    def gone(self, segment: int, writer: str) -> None: ...
    def turned_away(self, segment: int, writer: str, held: Times, first: Times) -> None: ...


class Event(NamedTuple):
    """One event of the log, as readers get it: data, an abort, or a frontier."""

    kind: str
    time: Time | None = None
    record: int = 0
    reach: Times = NONE


class Snapshot(NamedTuple):
    """What a reader begins with: the told frontier, the times that it may still see whole, and where it reads on."""

    reach: Times
    admits: Times
    next: int
    """The place in the log of the first event that it does not hold."""


class Opened(NamedTuple):
    """The answer to an open or a resume."""

    held: Times
    touched: Times
    lost: Times


@dataclass(slots=True)
class Known:
    """A writer as this incarnation knows it."""

    session: int
    held: Times
    touched: set[Time] = field(default_factory=set)
    """Appended at and not left."""
    present: bool = True
    lost: Times = NONE
    """What was reported to it as lost when it resumed; the answer may not have arrived."""


class Resume(NamedTuple):
    """What a resuming writer reports: what it holds here, and the times at which it appended here and has not left."""

    held: Times
    touched: Times


class Publisher:
    """One incarnation, from its registration to its death."""

    def __init__(
        self,
        order: Order,
        segment: int,
        row: Row,
        sessions: Mapping[str, int],
        off: frozenset[Clause],
        send: Callable[[Asked], None],
        witness: Witness,
    ) -> None:
        self.order, self.segment, self.off, self._send, self._witness = order, segment, off, send, witness
        self.incarnation = row.incarnation
        self.first = row.reach
        self.below = NONE if Clause.ABORTED_BELOW in off else row.horizon
        self.born_below = self.below
        self.told = row.reach
        self.held = row.reach
        """What the publisher itself holds: parked, or kept for the writers that it waits for."""
        self.finishing = False
        self.awaited = set() if Clause.WAITS in off else set(row.writers)
        self.floors = {} if Clause.SESSIONS in off else dict(sessions)
        self.writers: dict[str, Known] = {}
        self.log: list[Event] = []
        self.records: set[int] = set()
        self.data: set[Time] = set()
        self.aborted: set[Time] = set()
        self.waiting: set[Time] = set()
        self.recorded = Record(-1, row.reach, row.horizon, row.writers)
        self.sent: dict[int, Record] = {}
        self.number = -1
        self.outstanding: int | None = None
        self.horizon = NONE if Clause.INHERITED in off else row.horizon
        """That of the last record that was sent to the catalog."""
        self.stopping = False
        if self.below:
            witness.aborted(segment, self.below & self.told)

    # ---- state ----

    @property
    def true(self) -> Times:
        """The frontier of all that is held."""
        return self.held.union(*(w.held for w in self.writers.values() if w.present))

    @property
    def active(self) -> Times:
        return frozenset(t for t in self.data if t in self.told and t not in self.aborted)

    def snapshot(self) -> Snapshot:
        """The state after the last event (E14), with what it lets a reader deliver (E15)."""
        barred = self.order.under(self.active) | self.aborted
        if Clause.BELOW_TOLD not in self.off:
            barred |= self.below
        return Snapshot(self.told, self.told - barred, len(self.log))

    def opening(self) -> Snapshot:
        """The same, before the first event: where `since=start` begins (E13)."""
        barred = NONE if Clause.BELOW_TOLD in self.off else self.born_below
        return Snapshot(self.first, self.first - barred, 0)

    def reach_at(self, index: int) -> Times:
        """The told frontier before event `index`: every answer to `since` begins with it (E13)."""
        return next((event.reach for event in reversed(self.log[:index]) if event.kind == "frontier"), self.first)

    # ---- the record at the catalog ----

    def ask(self, ahead: Time | None = None) -> bool:
        """Request a record of the present state from the catalog, with a horizon that covers `ahead` too."""
        if self.stopping or self.outstanding is not None:
            return False
        times = {*self.data, *self.aborted, *self.waiting} | (set() if ahead is None else {ahead})
        if Clause.GROWN not in self.off:
            times |= self.horizon
        elif Clause.INHERITED not in self.off:
            times |= self.below  # the clause is left out: only what this incarnation needs now
        wanted = self.order.still(self.order.under(frozenset(times & self.order.all)), self.true)
        writers = frozenset(w for w, known in self.writers.items() if known.present)
        if Clause.WAITED_FOR_RECORDED not in self.off:
            writers |= self.awaited
        last = self.sent.get(self.number, self.recorded)
        if last == self.recorded and (self.true, wanted, writers) == last[1:4]:
            return False
        self._record(self.true, wanted, writers)
        return True

    def _record(self, reach: Times, horizon: Times, writers: frozenset[str], *, final: bool = False) -> None:
        self.number += 1
        self.outstanding, self.horizon = self.number, horizon
        record = self.sent[self.number] = Record(self.number, reach, horizon, writers, final)
        if Clause.TOGETHER in self.off:
            self._send(Asked(self.segment, self.incarnation, record._replace(horizon=None)))
            self._send(Asked(self.segment, self.incarnation, record._replace(reach=None)))
        else:
            self._send(Asked(self.segment, self.incarnation, record))
        if Clause.ANSWERED in self.off:
            self.answered(self.number)

    def give_up(self) -> bool:
        """No answer came in time. The next request has a higher number, because this one may still arrive."""
        given_up, self.outstanding = self.outstanding, None
        return given_up is not None

    def answered(self, number: int) -> None:
        """The catalog answers which record it has now."""
        if number > self.recorded.number and number in self.sent:
            self.recorded = self.sent[number]
            if self.outstanding is not None and self.outstanding <= number:
                self.outstanding = None
            self.settle()

    def _covers(self, time: Time) -> bool:
        assert self.recorded.horizon is not None
        return time in self.recorded.horizon

    def settle(self) -> None:
        """Let the told frontier follow the true one, as far as the record allows (E11 b)."""
        assert self.recorded.reach is not None
        assert self.recorded.horizon is not None
        true = self.true
        # If this process died now, the next incarnation would begin at the recorded frontier, and so reach again the
        # times that the true frontier has passed since. It accepts no records at those that the horizon covers.
        if Clause.COVERED in self.off or self.recorded.reach - true <= self.recorded.horizon:
            self._tell(true)
        elif self.recorded.reach < self.told:
            self._tell(self.recorded.reach)

    def _tell(self, reach: Times) -> None:
        if reach == self.told:
            return
        self.told = reach
        self.log.append(Event("frontier", reach=reach))
        self._witness.told(self.segment, reach)
        # `reach` is closed upwards: if it holds no maximal element of `below`, it holds no element of `below` at all.
        passed = not self.order.maximal(self.below) & reach
        if passed or Clause.BELOW_KEPT in self.off:
            self.below = NONE

    # ---- writers ----

    def open(self, writer: str, session: int, resume: Resume | None) -> Opened | str:
        """A session opens, for the first time or again; returns what it holds here, or `lost`, `fenced`, `complete`."""
        known = self.writers.get(writer)
        if session < max(self.floors.get(writer, 0), known.session if known else 0):
            return "fenced"
        if known and known.session == session:
            again = NONE if Clause.LOST_REPEATED in self.off else known.lost
            return Opened(known.held, frozenset(known.touched), again) if known.present else "lost"
        if not self.true:
            return "complete"
        if resume is not None:
            self.awaited.discard(writer)
            if not resume.held <= self.true and Clause.RESUMES_WHOLE not in self.off:
                self._witness.turned_away(self.segment, writer, resume.held, self.first)
                self.writers[writer] = Known(session, NONE, present=False)
                self._admit()
                return "lost"
            self.writers[writer] = Known(session, resume.held)
            if Clause.LOST_TOLD not in self.off:
                self.writers[writer].lost = resume.touched
        elif known and known.present:
            self.writers[writer] = Known(session, known.held, known.touched)  # continues the previous session
        else:
            self.writers[writer] = Known(session, self.told if Clause.TRUE_GRANTED in self.off else self.true)
        self.awaited.discard(writer)
        self.finishing = False
        self._admit()
        state = self.writers[writer]
        return Opened(state.held, frozenset(state.touched), state.lost)

    def _admit(self) -> None:
        """Give up what the publisher itself holds, once it waits for no writer and at least one is present."""
        if not self.awaited and any(w.present for w in self.writers.values()):
            self.held = NONE
        self.settle()

    def refuses(self, writer: str, session: int) -> str | None:
        """Why a message of this session is refused; None if it is not."""
        known = self.writers.get(writer)
        if known is None or known.session != session:
            return "fenced"
        return None if known.present else "lost"

    def append(self, writer: str, session: int, time: Time, record: int) -> str:
        """`ok`, `aborted`, or `wait` while the recorded horizon does not cover the time (E11 a)."""
        if record in self.records:
            return "ok"
        if time in self.aborted or time in self.below:
            return "aborted"
        if not self._covers(time) and Clause.GATED not in self.off:
            self.waiting.add(time)
            return "wait"
        self.records.add(record)
        self.data.add(time)
        self.writers[writer].touched.add(time)
        self.log.append(Event("data", time, record))
        self._witness.logged(self.segment, time, record, writer, session)
        return "ok"

    def hold(self, writer: str, held: Times) -> str:
        """The writer keeps only what it holds of `held`; at times that it leaves, its part of the epoch is whole."""
        known = self.writers[writer]
        known.held &= held
        known.touched &= known.held
        self.settle()
        return "ok"

    def abort(self, writer: str, time: Time) -> str:
        """Abort one epoch, as the writer requests (E4)."""
        known = self.writers[writer]
        if time in known.held and time not in self.aborted | self.below:
            if not self._covers(time) and Clause.ABORTS_GATED not in self.off:
                self.waiting.add(time)
                return "wait"
            self._abort(time)
        known.touched.discard(time)
        return "ok"

    def _abort(self, time: Time) -> None:
        if time in self.told and time not in self.aborted:
            self.aborted.add(time)
            self.log.append(Event("abort", time))
            self._witness.aborted(self.segment, frozenset({time}))

    def leave(self, writer: str, how: str) -> str:
        """`close`, `finish`, or `abort`: with what it appended at and still holds (E3, E4, E7)."""
        known = self.writers[writer]
        if how == "abort":
            for time in sorted(known.touched):
                self._abort(time)
        self._witness.gone(self.segment, writer)
        known.present, known.touched = False, set()
        if not self.true:
            self.held, self.finishing = known.held, how == "finish"
        known.held = NONE
        self.settle()
        return "ok"

    def lose(self, writer: str) -> bool:
        """Its time-out is over (E3)."""
        if writer in self.awaited:
            self._witness.gone(self.segment, writer)
            self.awaited.discard(writer)
            self._admit()
        elif (known := self.writers.get(writer)) and known.present:
            self.leave(writer, "abort")
        else:
            return False
        if Clause.LOSSES_COVERED in self.off:
            self._tell(self.true)
        return True

    # ---- ends ----

    def complete(self) -> None:
        """The catalog has recorded that the stream is complete (E7)."""
        self.awaited.clear()
        self.held = NONE
        self.settle()

    def stop(self) -> None:
        """An orderly stop: abort what is active, and record what is true; nothing is accepted from here on."""
        true = self.true
        for time in sorted(self.active & true):
            self._abort(time)
        horizon = self.order.still(self.order.under(frozenset(self.aborted)) | self.below, true)
        self._record(self.told if Clause.TRUE_AT_STOP in self.off else true, horizon, self._all_writers(), final=True)
        self.stopping = True

    def _all_writers(self) -> frozenset[str]:
        return frozenset(w for w, known in self.writers.items() if known.present) | self.awaited

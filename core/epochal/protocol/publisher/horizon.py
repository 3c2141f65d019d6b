"""What the catalog records of a segment without a log, so that a crash aborts each open epoch as a whole (E11 horizon).

The catalog keeps a frontier F and a horizon H, a downward-closed set of times. After a crash the next incarnation
begins at F, and every time in H that F reaches is aborted. Two conditions make that safe; this module checks them:

- A time becomes active, or is aborted, only when it is in the recorded H. So everything that was acknowledged or
  reported is in H, and is aborted after a crash.
- A frontier f is reported only if every time that the recorded F reaches and f does not reach is in the recorded H. So
  an epoch that was reported complete cannot get other records after a crash.

The publisher sends F and H together as a numbered `Record`, one at a time. Only what the catalog has confirmed counts
as recorded. A crash finds the catalog with the confirmed record, or with the one under way, and both are safe: each
record has all of the one before that can still matter.

- The publisher's frontier never moves back. So a time that a later record's F reaches was reached by every earlier one.
- H loses only elements that the new F does not reach, and with them only times that it does not reach (`record`). So a
  time which is active, and thus reached, stays in H, also one that became active while the record was under way.
- A frontier that the confirmed record allows, the one under way allows too: its F reaches no more, its H lacks nothing
  of that.

The publisher, not this module, decides what waits.

Sources: rule E11.
"""

import json
from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

from epochal.protocol.frontier import Antichain, Downset
from epochal.protocol.times import MAX_TIME, Time, TimeShape, from_json, join, to_json

MOST_TEXT = 300
"""Characters of a mark that the catalog takes."""

MOST_BYTES = 3_750
"""Most bytes that the times of a horizon take in a message; a larger horizon is coarsened to fewer, larger times."""
MOST_CORNERS = 8
"""Most elements of a frontier for which `allows` computes what it has passed; a larger one is always recorded first."""
PACE_SECONDS = 1.0
"""The period over which `Pace` measures how far times move."""


class Record(NamedTuple):
    """What the catalog is to store of one segment. `final`: of a publisher that stops in order.

    `marks` is what else the next incarnation must know (see `Marks`); `writers` are those that it waits for.
    """

    number: int
    lower: tuple[Time, ...]
    horizon: tuple[Time, ...]
    final: bool = False
    marks: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()


class Marks(NamedTuple):
    """Facts about a segment that stay true over a crash. The catalog stores them as texts and does not read them.

    `finished`: some writer has finished there (E47). `enough`: `progress.minWriters` writers have opened the segment;
    until then `opened` names those that have (E5). `closed`: what the last writer to close had held, while others hold
    less (E3 lost writers).
    """

    finished: bool = False
    enough: bool = False
    opened: frozenset[str] = frozenset()
    closed: tuple[Time, ...] = ()

    def to_texts(self) -> tuple[str, ...]:
        """The form that is stored."""
        flags = [name for name, true in (("finished", self.finished), ("enough", self.enough)) if true]
        opened = [f"opened:{writer}" for writer in sorted(self.opened) if not self.enough]
        closed = [f"closed:{json.dumps(to_json(time), separators=(',', ':'))}" for time in self.closed]
        if any(len(text) > MOST_TEXT for text in closed):  # then a lost writer leaves what it held (E3 lost writers)
            closed = []
        return (*flags, *opened, *closed)

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> "Marks":
        """Read what is stored. Marks that only a later version knows are ignored."""
        known = set(texts)
        opened = frozenset(text.removeprefix("opened:") for text in known if text.startswith("opened:"))
        closed = sorted(from_json(json.loads(text[len("closed:") :])) for text in known if text.startswith("closed:"))
        return cls("finished" in known, "enough" in known, opened, tuple(closed))


class Pace:
    """How far the maximal times of a segment moved within the last second, in each component.

    For rare epochs `ahead` is None: times recorded ahead are aborted by a crash, which would cost more than it saves.
    """

    __slots__ = ("_began", "_count", "_first", "_last", "_used")

    def __init__(self) -> None:
        self._began = 0.0
        self._count = 0
        self._first: Time | None = None
        self._last: Time | None = None
        self._used: Time | None = None
        """How far times moved in the second before this one."""

    def moved(self, time: Time, now: float) -> None:
        """An append at `time` has come."""
        last = time if self._last is None else join(self._last, time)
        if last == self._last:
            return
        passed = now - self._began
        if self._first is None or passed >= PACE_SECONDS:
            recent = self._count > 1 and passed < 2 * PACE_SECONDS
            self._used = _difference(self._last, self._first) if recent else None
            self._began = now
            self._first = last if self._last is None else self._last
            self._count = 0
        self._count += 1
        self._last = last

    def ahead(self) -> Time | None:
        """How far ahead of a time to record; None for not at all."""
        this = _difference(self._last, self._first) if self._count > 1 else None
        if this is None or self._used is None:
            return this or self._used
        return join(this, self._used)


class Horizon:
    """F and H of one segment: what is recorded, what is to be recorded, and the record that is under way."""

    def __init__(self, shape: TimeShape, lower: Iterable[Time], horizon: Iterable[Time]) -> None:
        self._shape = shape
        self._most = max(shape.most_times(MOST_BYTES), 1)
        self._lower = Antichain(lower)
        self._recorded = Downset(horizon)
        self._wanted = Downset(horizon)
        """H of the next record: all that is recorded or was requested, without what the last record's F had passed."""
        self._pace = Pace()
        self._made: Record | None = None
        """The last record that was made; it may be stored already, or not."""
        self._number = self._answered = -1
        self.marks = Marks()
        """The marks of the newest record of this publisher that the catalog has confirmed."""
        self.urgent = False
        """Whether something waits for a record, or soon will, and no record has been made since."""

    @property
    def lower(self) -> Antichain:
        """F as the catalog has it."""
        return self._lower

    @property
    def recorded(self) -> Downset:
        """H as the catalog has it."""
        return self._recorded

    def covers(self, time: Time) -> bool:
        """Whether `time` is in the recorded horizon."""
        return time in self._recorded

    def want(self, time: Time) -> None:
        """The next record must cover `time`, because something waits for that."""
        if self._wanted.insert(time):  # otherwise a record that covers it is under way or already wanted
            self.urgent = True
            if len(self._wanted) > 2 * self._most:  # not at once: coarsening at each further time would cost too much
                self._coarsen()

    def came(self, time: Time, now: float) -> None:
        """An append at `time` came. Where times move fast, later ones are recorded ahead, so that fewer must wait.

        A larger H is always safe: it only lets a crash abort more.
        """
        self._pace.moved(time, now)
        ahead = self._pace.ahead()
        # Requested again when half of it is used up, so that the answer comes before the rest is.
        if ahead is not None and _sum(time, ahead, halved=True) not in self._wanted:
            self._wanted.insert(_sum(time, ahead))
            self.urgent = True

    def allows(self, frontier: Antichain) -> bool:
        """Whether `frontier` may be reported now.

        All times that it has passed and that F reaches must be in the recorded horizon. In a partial order their
        maximal ones usually have an unbounded component, and then the frontier itself must be recorded first.
        """
        if frontier == self._lower:  # it has passed nothing that F reaches
            return True
        if len(frontier) > MOST_CORNERS:
            return False
        # Only the maximal times that the frontier does not reach need a look. Each time t that it has passed is at or
        # before such a corner c; if F reaches t, it reaches c, because c is not before t; and if c is in H, which is
        # closed downwards, so is t. The corners that F does not reach have no such t below them. For ints the one
        # corner is f - 1, so that f may be up to one above the largest time of H.
        passed = self._shape.not_reached(frontier)
        return all(time in self._recorded for time in passed if self._lower.less_equal(time))

    def record(self, frontier: Antichain, marks: Marks, writers: Iterable[str] = ()) -> Record:
        """The record to store now; `frontier` is what all capabilities together hold.

        Elements of H that `frontier` does not reach are left out: after a restart at `frontier`, nothing at or below
        them can arrive.
        """
        # If `frontier` reached a time at or below an element, it would reach the element. So an element that goes takes
        # with it only times that were completed or aborted for good, and that the next incarnation begins after. One
        # that is reached stays as it is, even where part of what is below it has been passed: that part is harmless.
        self._wanted.drop_passed(frontier)
        if len(self._wanted) > self._most:
            self._coarsen()
        return self._next(frontier, self._wanted, marks, writers, final=False)

    def _coarsen(self) -> None:
        """Replace groups of neighbours by one larger time each, so that at most half of the allowed number is left.

        The join of a group is at or after each of its times, so H loses nothing; a crash may abort more than it had to.
        """
        times = list(self._wanted)
        each = -(-len(times) // max(self._most // 2, 1))
        self._wanted = Downset(reduce(join, times[at : at + each]) for at in range(0, len(times), each))

    def last_record(
        self, frontier: Antichain, aborted: Iterable[Time], marks: Marks, writers: Iterable[str] = ()
    ) -> Record:
        """The record of a publisher that stops in order: nothing is active, and H holds only what was aborted."""
        # This H may lack what the one before had and F reaches, because nothing of that was used: what became active is
        # complete, and passed by F, or aborted. Nothing becomes active after this record (`SegmentPublisher.record`).
        horizon = Downset(aborted)
        horizon.drop_passed(frontier)
        return self._next(frontier, horizon, marks, writers, final=True)

    def _next(
        self, frontier: Antichain, horizon: Downset, marks: Marks, writers: Iterable[str], *, final: bool
    ) -> Record:
        self.urgent = False
        made = Record(self._number, tuple(frontier), tuple(horizon), final, marks.to_texts(), tuple(writers))
        if self._made is None or made[1:] != self._made[1:]:  # otherwise there is nothing new to store
            self._number += 1
            self._made = made._replace(number=self._number)
        return self._made

    def answered(self, number: int) -> bool:
        """The catalog has answered that record `number` is its newest one; returns whether that is news.

        An answer about an older record is ignored: a later one was sent since, and may be stored or lost. What counts
        as recorded is taken from the newest, which that answer does not confirm.
        """
        made = self._made
        if made is None or made.number != number or number <= self._answered:
            return False
        self._answered = number
        self._lower = Antichain(made.lower)
        self._recorded = Downset(made.horizon)
        self.marks = Marks.from_texts(made.marks)
        return True


def _difference(later: Time | None, earlier: Time | None) -> Time | None:
    if later is None or earlier is None or later == earlier:
        return None
    if isinstance(later, int):
        return later - earlier  # type: ignore[operator]  # of one shape
    return tuple(_difference(a, b) or _zero(a) for a, b in zip(later, earlier, strict=True))  # type: ignore[arg-type]


def _zero(time: Time) -> Time:
    return 0 if isinstance(time, int) else tuple(map(_zero, time))


def _sum(time: Time, more: Time, *, halved: bool = False) -> Time:
    if isinstance(time, int):
        return min(time + ((more + 1) // 2 if halved else more), MAX_TIME)  # type: ignore[operator]  # of one shape
    return tuple(_sum(a, b, halved=halved) for a, b in zip(time, more, strict=True))  # type: ignore[arg-type]

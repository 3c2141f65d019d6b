"""The subscriber of both segments, and its application, which writes down what it is given.

What was given is judged by the checker of the chaos tests (`ends`), each line as it is written. What no application can
see is judged here, event by event: an oracle knows both logs, what the user wants, and where each segment was joined.
The followers report that, and it holds their reports against the logs. It never looks into the machine.

Sources: rules E14-E19; F8-F10.
"""

import pickle
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.exploration.canonical import Names, plain
from tests.exploration.connections import SHAPE, STREAM, FixedLog, Reports
from tests.exploration.ends import End, Judge, Line, Logs, Saved
from tests.simulation.oracle import Standing
from tests.simulation.order import covered, reached
from tests.simulation.stories import Topics
from tests.simulation.widenings import Widenings, agrees

from epochal.errors import CursorError, HistoryTruncated
from epochal.protocol import messages as m
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.subscriber.effects import Began, Broke, EpochBatches, EpochWasAborted, Moved, Reached, Rejoined
from epochal.protocol.subscriber.epoch_state import OpenEpoch
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter

ALL = Topics((b"a", b"b"))


def filter_of(topics: Topics) -> TopicFilter | None:
    """The filter of these topics."""
    return None if topics == ALL else TopicFilter(topics)


@dataclass(slots=True)
class Reader:
    """The machine, and what the application knows and must be given."""

    machine: SubscriberMachine
    topics: Topics
    """What it wants."""
    always: Topics
    """What it has wanted all the time, and could have whole."""
    widenings: Widenings
    times: frozenset[Time]
    """All that there are."""
    joined: frozenset[Time]
    """The times that every join admits but those after a gap (E15)."""
    rejoined: frozenset[Time]
    """The times that those after a gap admit. Only the key needs them: the checker sees where a gap was."""
    lines: tuple[Line, ...] = ()
    """What it has written down. Only the times are in the key: each line is judged as it is written."""
    torn: frozenset[Time] = frozenset()
    """Those of which it had a part when a gap came (E17)."""
    arrived: frozenset[Time] = frozenset()
    """Those of which something has arrived in this life."""
    frontier: frozenset[Time] = frozenset((0,))
    over: bool = False
    """Whether it ended: what its cursor asked for is gone."""
    resumed: tuple[Topics, Widenings] | None = None
    """What was wanted, and promised, when the cursor was taken that it has resumed from."""

    @property
    def yielded(self) -> frozenset[Time]:
        """The times of the epochs that it was given."""
        return frozenset(line.what[0] for line in self.lines if line.does == "epoch")

    @property
    def aborted(self) -> frozenset[Time]:
        """The times that were reported as aborted."""
        return frozenset(line.what[0] for line in self.lines if line.does == "aborted")

    # ---- what happens ----

    def take(self, segment: str, reports: Reports, judge: Judge, *, reads: bool, relayed: bool = False) -> None:
        """The follower of `segment` reports; with `reads` the application takes at once what there is.

        `relayed`: a relay has answered it.
        """
        log, was_ready = judge.logs[segment], self.machine.ready
        for told in reports:
            match told:
                case Began():
                    self._began(log, told, relayed=relayed)
                case Rejoined():
                    standing = _standing(log, told, relayed=relayed)
                    assert agrees(told.state, standing), f"E14: goes on with {told.state}; it was {standing}"
                    self.widenings.begin(segment, standing, told.topics)
                    self.machine.rejoined(segment, told)
                case Reached():
                    self.machine.reached(segment, told.seq)
                case Moved():
                    self._moved(log, told)
                case Broke(error):
                    self._broke(log, error)
                case _:
                    self._event(log, told)
            self._look()
            if self.machine.ready and not was_ready:
                self._write(judge.logs, "ready", tuple(self.machine.frontier))
                was_ready = True
            if isinstance(told, Began) and told.gap:
                self._write(judge.logs, "truncated")
        while reads and self._reads(judge.logs):
            pass
        self._judge(judge)

    def _began(self, log: FixedLog, began: Began, *, relayed: bool) -> None:
        segment, standing = log.segment, _standing(log, began, relayed=relayed)
        assert agrees(began.state, standing), f"E14: begins with {began.state}; it was {standing}"
        if began.gap:
            known = self.machine.position(segment)
            unknown = began.incarnation != known.incarnation
            lost = not log.is_kept and (unknown or log.log.quiet_since(began.state.seq) > known.seq)
            assert lost, f"I2: a gap after {known}, which is retained, or nothing after it was lost"
            self.torn |= {time for time in self.arrived if reached(self.frontier, time)}
            self.rejoined = frozenset(filter(standing.admits, self.rejoined))
        elif began.filters:
            self.joined = frozenset(filter(standing.admits, self.joined))
        self.widenings.begin(segment, standing, began.topics)
        self.machine.began(segment, began)

    def _broke(self, log: FixedLog, error: Exception) -> None:
        if getattr(error, "retryable", False):
            return
        assert isinstance(error, HistoryTruncated), f"cannot follow {log.segment}: {error!r}"
        assert not log.is_kept, f"I2: {error!r}"
        self.over = True

    def _event(self, log: FixedLog, event: m.Event) -> None:
        known = self.machine.position(log.segment)
        assert event.seq > known.seq, f"Q10: event {event.seq} after {known}"
        if isinstance(event, m.Data):
            self.arrived |= {event.time}
        self.machine.event(log.segment, event)

    def _moved(self, log: FixedLog, moved: Moved) -> None:
        """Only the frontier moved in the events that are gone (E13)."""
        known, there = self.machine.position(log.segment), log.standings[moved.seq + 1]
        right = log.log.quiet_since(moved.seq) <= known.seq and there.lower == frozenset(moved.lower)
        assert right, f"E13: {moved} after {known}"
        self.machine.event(log.segment, moved)

    def _look(self) -> None:
        """The merged frontier never goes back (E17)."""
        if not self.machine.ready:
            return
        frontier = frozenset(self.machine.frontier)
        assert all(reached(self.frontier, time) for time in frontier), f"I6: back from {self.frontier} to {frontier}"
        self.frontier = frontier
        self.arrived = frozenset(time for time in self.arrived if reached(frontier, time))

    def change(self, topics: Topics) -> bool:
        """The user wants other topics; returns whether some are new."""
        self.widenings.change(self.topics, topics)
        self.topics, self.always = topics, self.always & topics
        return self.machine.change(filter_of(topics))

    def restart(self, topics: Topics, logs: Logs) -> dict[str, m.Position] | None:
        """The process ends, and begins again from its cursor with `topics`: where; None where there is no cursor."""
        try:
            cursor = Cursor.from_json(self.machine.cursor().to_json())
        except CursorError:
            return None
        assert not isinstance(cursor.topics, str), "F9: a digest of a small filter"
        if self.machine.ready:
            self.resumed = self.topics, pickle.loads(pickle.dumps(self.widenings))
            self._write(logs, "saves", len(self.lines), cursor.frontier, cursor.unreported_aborts)
        saves = [line.what[0] for line in self.lines if line.does == "saves"]
        self._write(logs, "resumes", saves[-1])
        assert self.resumed is not None
        wanted, promised = self.resumed
        named = ALL if cursor.topics is None else Topics(filter(cursor.topics.wants, ALL))
        assert named == wanted, f"F9: {set(wanted)} was wanted, and the cursor says {set(named)}"
        self.widenings, carried = promised.resumed(wanted, ALL, topics)
        self.topics, self.arrived = topics, frozenset()
        self.always &= self.widenings.always(carried) & topics
        self.widenings.change(carried, topics)
        self.frontier = frozenset(cursor.frontier)
        self.machine = machine(logs, topics, cursor)
        return dict(cursor.positions)

    # ---- what the application is given ----

    def read(self, judge: Judge) -> bool:
        """The application takes one epoch; returns whether there was one."""
        is_given = self._reads(judge.logs)
        self._judge(judge)
        return is_given

    def _reads(self, logs: Logs) -> bool:
        epoch = self.machine.next_epoch()
        if epoch is None:
            return False
        time, frontier = epoch.time, tuple(self.machine.frontier)
        if isinstance(epoch, EpochWasAborted):
            is_aborted = any(_aborts(log, time) for log in logs.values())
            assert is_aborted or time in self.torn, f"E17: {time} was not aborted"
            self._write(logs, "aborted", time, frontier)
            return True
        assert time in self.joined, f"E15: {time} was under way at a join"
        assert epoch.batches, f"E18: {time} has no data"
        parts = {segment: [data.payload for of, data in epoch.batches if of == segment] for segment in logs}
        whole = self.widenings.whole_in(time, self.topics)
        self._write(logs, "epoch", time, frontier, tuple((name, tuple(part)) for name, part in parts.items()), whole)
        return True

    def check(self, standings: dict[str, Standing]) -> None:
        """Nothing is past that a segment still accepts."""
        if self.over or not self.machine.ready or self.machine.waiting_epochs:
            return
        for segment, standing in standings.items():
            late = [time for time in standing.lower if not reached(self.frontier, time)]
            assert not late, f"E16: at {set(self.frontier)}, while segment {segment} still accepts {late}"

    # ---- what it writes down ----

    def _write(self, logs: Logs, does: str, *what: Any) -> None:
        cut = tuple(self.machine.position(segment).seq + 1 for segment in logs)
        self.lines = (*self.lines, Line(cut, does, what))

    def _judge(self, judge: Judge) -> None:
        saved = None
        if self.machine.ready:
            cursor = self.machine.cursor()
            saved = Saved(cursor.frontier, cursor.unreported_aborts)
        judge.judge(End(self.lines, self.always, saved))

    # ---- as a value ----

    def key(self) -> Hashable:
        """Equal for readers that do the same from now on, whatever is reported to them."""
        left = self.times - self.yielded - self.aborted
        seen = [(each, frozenset(filter(each.admits, left))) for each in self.widenings.all]
        return (
            _machine(self.machine),
            self.topics,
            self.always,
            tuple((each.before, each.after, frozenset(each.awaited), admitted)
                  for each, admitted in seen if each.awaited or admitted != left),
            self.joined & left, self.rejoined & left, self.torn & left,
            self.yielded, self.aborted, self.arrived, self.frontier, self.over,
            None if self.machine.ready or self.resumed is None else
            (self.resumed[0], tuple((each.before, frozenset(each.awaited), frozenset(filter(each.admits, left)))
                                    for each in self.resumed[1].all)),
        )  # fmt: skip

    def dump(self) -> bytes:
        """All of it, to be read back with `load`."""
        return pickle.dumps(self)


def load(dumped: bytes) -> Reader:
    """The reader that was dumped."""
    reader = pickle.loads(dumped)
    assert isinstance(reader, Reader)
    return reader


def machine(logs: Iterable[str], topics: Topics, cursor: Cursor | None = None) -> SubscriberMachine:
    """A subscriber whose epochs are read."""
    made = SubscriberMachine(STREAM, SHAPE, logs, cursor=cursor, topics=filter_of(topics))
    made.only_epochs()
    return made


def start(logs: Logs, topics: Topics) -> Reader:
    """A reader of which nothing has begun."""
    times = frozenset(time for log in logs.values() for time in log.data)
    return Reader(machine(logs, topics), topics, topics, Widenings(logs), times, times, times)


def _standing(log: FixedLog, told: Began | Rejoined, *, relayed: bool) -> Standing:
    """How the segment stands where the follower goes on, as far as who answered it can know.

    F14: a relay may know more times as active than are, but only such as have begun; and it knows all that have begun
    of the topics for which it is asked.
    """
    there = log.log.begins(told.state.seq, told.state.lower)  # or where a lull began that is gone (E13)
    if not relayed:
        return there
    begun = [event for event in log.events[: told.state.seq + 1] if isinstance(event, m.Data)]
    known = frozenset(time for time in told.state.upper if reached(there.lower, time))
    assert known <= {event.time for event in begun}, f"F14: {set(known)} are active, of which some have not begun"
    for event in begun:
        asked = told.topics is None or told.topics.wants(event.topic)
        open_still = reached(there.lower, event.time) and event.time not in there.aborted
        assert not (asked and open_still) or covered(event.time, known), f"F14: {event.time} is active, beside {known}"
    return there._replace(active=known)


def _aborts(log: FixedLog, time: Time) -> bool:
    return any(isinstance(event, m.Aborted) and time in event.times for event in log.events)


_NOT_OF_A_MACHINE = frozenset(
    ("stream", "shape", "buffered_bytes", "waiting_bytes", "_unjudged_bytes", "_max_buffer", "_shape", "seen_from",
     "_before", "_remembered", "open", "_ready", "complete", "_topics", "_segments", "_resumed", "_queue", "_aborts",
     "_seen")
)  # fmt: skip
"""What does not change, bytes, of which there is no bound here, and what only `saw_whole` reads; or put in below."""
_NOT_OF_AN_EVENT = frozenset(("prev", "time", "topic", "records", "crc", "payload", "meta", "changes", "times"))
"""The log says all of it by the event's number."""


def _machine(machine: SubscriberMachine) -> Hashable:
    """Of an epoch, and of what waits, the order counts within each segment only."""
    topics, queue, names = machine._topics, machine._queue, Names()
    values = {name: value for name, value in vars(machine).items() if name not in _NOT_OF_A_MACHINE}
    for part in (queue, machine._aborts, machine._seen):
        values |= {name: getattr(part, name) for name in part.__slots__ if name not in _NOT_OF_A_MACHINE}
    return plain(
        (
            values,
            machine._segments,
            None if machine.ready else machine._resumed,
            [(time, _epoch(epoch)) for time, epoch in sorted(queue.open.items())],
            [(each.time, isinstance(each, EpochBatches)) for each in queue._ready],
            [(time, _epoch(epoch)) for time, epoch in queue.complete.items()],
            topics.filter,
            [
                (each.before, each.after, each._awaited, each._joins, _in_segments(each.held))
                for each in topics.widenings
            ],
        ),
        names,
        _NOT_OF_AN_EVENT,
    )


def _epoch(epoch: OpenEpoch) -> Any:
    return (
        _in_segments(epoch.batches), sorted(epoch.before.items()), sorted(epoch.last.items()), sorted(epoch.aborted),
    )  # fmt: skip


def _in_segments(batches: list[tuple[str, m.Data]]) -> list[tuple[str, m.Data]]:
    return sorted(batches, key=lambda batch: batch[0])

"""What really happened: appends asked for, events logged, sessions; and the rules that each new one must keep.

It never reads the machines' own records: it sees what they send and what the application does. It shares no algebra
with them either (`order` has its own), so that a mistake there cannot excuse itself.
"""

import hashlib
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import NamedTuple

from tests.simulation.order import covered, is_antichain, reached
from tests.simulation.retention import Retention
from tests.simulation.scenario import Scenario

from epochal.protocol import messages as m
from epochal.protocol.times import Time

Times = frozenset[Time]
TOPICS = (b"a", b"b", b"bb")


def meta_of(payload: bytes) -> m.Meta | None:
    """What the batch with that payload says of itself: made from it, so that one who has both can compare.

    Only what has a fixed length and does not count for retention, so that it changes no run.
    """
    crc = zlib.crc32(payload)
    if crc % 2:
        return None
    trace = hashlib.blake2b(payload, digest_size=25).digest() if crc % 3 else None
    return m.Meta(trace, published=crc)


def digest_of(payload: bytes) -> int:
    """A checksum, which shows that a record arrived as it was sent."""
    return zlib.crc32(payload)


def topic_of(payload: bytes) -> bytes:
    """The topic of the batch with that payload: made from it, too."""
    return TOPICS[zlib.crc32(payload) // 7 % len(TOPICS)]


class Violation(Exception):  # what it is, not how it ends
    """A rule was broken; the message names the rule."""


class Outcome(StrEnum):
    """What was reported to the application of an append."""

    OPEN = "open"
    ACKED = "acked"
    FAILED = "failed"


@dataclass(slots=True)
class Asked:
    """One append that the application asked for; `payload` is unique."""

    payload: bytes
    session: "Session"
    segment: str
    time: Time
    order: int
    """Its place among all that its session asked for."""
    outcome: Outcome = Outcome.OPEN
    incarnation: int = 0
    """Of the segment that acknowledged it."""


@dataclass(slots=True)
class Session:
    """One session of one writer, as its application sees it."""

    writer: str
    number: int
    held: Times | None = None
    """What it held when it became ready; None before."""
    appends: list[Asked] = field(default_factory=list)
    sent: list[Times] = field(default_factory=list)
    """What it said it holds from then on, each time that it said so to some segment."""
    order: int = 0
    aborted_all: bool = False
    """Whether it left by an exception."""

    def declared(self, time: Time) -> bool:
        """Whether it has said of `time`, which it held, that what was appended there is whole."""
        if self.held is None or not reached(self.held, time):
            return False
        return any(not reached(held, time) for held in self.sent)

    def latest(self) -> Times:
        """The furthest that it has said it holds, but for the end, when it holds nothing."""
        assert self.held is not None
        latest = self.held
        for held in self.sent:
            if held and all(reached(latest, time) for time in held):
                latest = held
        return latest


@dataclass(slots=True)
class Closing:
    """One session's close or finish at one segment: when it asked for it first, and when it was confirmed."""

    held: Times
    asked: float
    confirmed: float | None = None


class Standing(NamedTuple):
    """A log just after some event."""

    lower: Times
    active: Times
    aborted: Times
    below: Times
    """Every time at most one of these is aborted (E11)."""

    def covers(self, time: Time) -> bool:
        """Whether `time` was aborted with a lost memory."""
        return covered(time, self.below)

    def is_aborted(self, time: Time) -> bool:
        """Whether `time` can never complete here."""
        return time in self.aborted or self.covers(time)

    def admits(self, time: Time) -> bool:
        """E15: whether who joins here is given `time` whole, as far as this segment goes."""
        return reached(self.lower, time) and not covered(time, self.active) and not self.is_aborted(time)


@dataclass(slots=True)
class Log:
    """The log of one incarnation of a segment; of all its incarnations where it is on disk."""

    segment: str
    incarnation: int
    start: Times
    below: Times = frozenset()
    """Every time at most one of these was aborted as it began (E11)."""
    began: float = 0.0
    fenced: dict[str, int] = field(default_factory=dict)
    """Writer -> its newest session when the log began."""
    lower: set[Time] = field(default_factory=set)
    last: int = m.NOTHING_YET
    data: dict[Time, list[bytes]] = field(default_factory=dict)
    aborted: set[Time] = field(default_factory=set)
    payloads: set[bytes] = field(default_factory=set)
    sessions: dict[str, int] = field(default_factory=dict)
    """Writer -> its newest session that was opened here."""
    orders: dict[tuple[str, int], int] = field(default_factory=dict)
    events: list[m.Event] = field(default_factory=list)
    retention: Retention = field(default_factory=lambda: Retention(m.NOTHING_YET, inf, inf))
    lives: list[tuple[int, int]] = field(default_factory=list)
    """Its incarnations, each with the last event of the log when it began."""
    lost: dict[int, list[m.Event]] = field(default_factory=dict)
    """Incarnation -> the events that were lost with the machine on which it ran (E10)."""
    closings: dict[tuple[str, int], Closing] = field(default_factory=dict)
    """(writer, session) -> its close."""
    closed_before: Times | None = None
    """What the last writer to close had held, as the catalog told the first of its lives."""
    repeated: set[Time] = field(default_factory=set)
    """Times with data of which no writer heard that it is logged: if it is lost, the writers send it again."""

    def is_aborted(self, time: Time) -> bool:
        """Whether `time` can never complete here: it was aborted, or lost, and not complete before that."""
        return time in self.aborted or (covered(time, self.below) and reached(self.start, time))

    def knows(self, incarnation: int) -> bool:
        """Whether it is one of its lives."""
        return any(incarnation == life for life, _ in self.lives)

    def survived(self, position: m.Position) -> int:
        """The last event at or before `position` that is in the log: what came after it was lost with a machine."""
        return min([position.seq, *(last for incarnation, last in self.lives if incarnation > position.incarnation)])

    def whole(self, time: Time) -> bool:
        """Whether this incarnation has completed `time`, and began before it."""
        return reached(self.start, time) and not reached(self.lower, time) and not self.is_aborted(time)

    def events_of(self, incarnation: int | None) -> list[m.Event]:
        """The events as this life had them: none of a later one, and those that were lost with it. None: as they are.

        A relay serves what a life had until it follows the next one.
        """
        later = [last for life, last in self.lives if incarnation is not None and life > incarnation]
        if incarnation is None or not later:
            return self.events
        return [event for event in self.events if event.seq <= min(later)] + self.lost.get(incarnation, [])

    def quiet_since(self, seq: int, incarnation: int | None = None) -> int:
        """The last event up to `seq` that is a batch or an abort; since then only the frontier moved (E13)."""
        events = reversed(self.events_of(incarnation))
        return next((each.seq for each in events if each.seq <= seq and type(each) is not m.Frontier), m.NOTHING_YET)

    def begins(self, seq: int, lower: Iterable[Time], incarnation: int | None = None) -> Standing:
        """How it stood where a reader begins: after event `seq`, or where the lull began in which that is (E13)."""
        there = self.standing(seq, incarnation)
        if frozenset(lower) == there.lower:
            return there
        return self.standing(self.quiet_since(seq, incarnation), incarnation)

    def standing(self, seq: int, incarnation: int | None = None) -> Standing:
        """The state just after event `seq`, from the start on, event by event."""
        lower, active, aborted = set(self.start), set[Time](), set[Time]()
        for event in self.events_of(incarnation):
            if event.seq > seq:
                break
            match event:
                case m.Data():
                    active.add(event.time)
                case m.Frontier():
                    lower = moved(lower, event.changes)
                case m.Aborted():
                    aborted.update(event.times)
        active = {time for time in active - aborted if reached(lower, time)}
        aborted = {time for time in aborted if reached(lower, time)}
        below = {time for time in self.below if reached(lower, time)}
        return Standing(frozenset(lower), frozenset(active), frozenset(aborted), frozenset(below))


def moved(lower: Iterable[Time], changes: Iterable[tuple[Time, int]]) -> set[Time]:
    """A frontier after visible changes."""
    changes = list(changes)
    left = {time for time, count in changes if count < 0}
    return (set(lower) - left) | {time for time, count in changes if count > 0}


class Oracle:
    """The ground truth of one run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.appends: dict[bytes, Asked] = {}
        self.at: dict[Time, list[Asked]] = {}
        """The appends by their times."""
        self.lately: deque[Asked] = deque(maxlen=50)
        """The newest of them."""
        self.sessions: dict[str, list[Session]] = {}
        self.logs: dict[str, list[Log]] = {name: [] for name in scenario.names}
        self._ever_opened: dict[str, set[str]] = {name: set() for name in scenario.names}
        self._incarnations: dict[str, int] = dict.fromkeys(scenario.names, 0)
        self.lost: set[bytes] = set()
        """Appends that a disk did not keep."""
        self._untold: set[Time] = set()
        """Times of which something was lost without a record, and nobody was left who could say so."""
        self._unrecorded: list[tuple[Log, Log]] = []
        """Each log that was lost so, and the one after it."""

    def log_of(self, segment: str, incarnation: int) -> Log:
        """The log that an event of `incarnation` is in: a volume has one for all of its incarnations."""
        return next(log for log in self.logs[segment] if log.knows(incarnation))

    def may_be_gone(self, log: Log, position: m.Position, now: float) -> bool:
        """Whether `log` may no longer have the events after `position` (I2, E10, E13).

        They were in a memory or on a volume that is lost, or are more than what must be kept. Where only the frontier
        moved, nothing is gone but its moves, and the publisher says where it is by now.
        """
        if not log.knows(position.incarnation) and not (position.seq == m.NOTHING_YET and self._is_first(log)):
            return True
        return log.survived(position) < log.quiet_since(log.retention.kept_behind(now))

    def _is_first(self, log: Log) -> bool:
        """Whether a memory without a record of anything began after lives in which nothing had happened (E11)."""
        if self.scenario.durable or log.below or log.start != {self.scenario.time_shape.bottom}:
            return False
        earlier = self.logs[log.segment][: self.logs[log.segment].index(log)]
        unknown = any(log is later for _, later in self._unrecorded)
        return not unknown and not any(each.events for each in earlier)

    def wanted_may_be_gone(self, log: Log, wanted: Iterable[Time], now: float) -> bool:
        """Whether some epoch that one of `wanted` reaches may have begun before what must be kept of `log` (E20).

        What is aborted there may have been under way when the publisher answered.
        """
        there, wanted = log.standing(log.quiet_since(log.retention.kept_behind(now))), tuple(wanted)
        over = not all(reached(there.lower, time) for time in wanted)
        return over or any(reached(wanted, time) for time in there.active | there.aborted | there.below)

    # ---- lives of which nothing was recorded (E11) ----

    def gathered(self, log: Log, start: Iterable[Time], below: Iterable[Time], heard: set[tuple[str, int]]) -> None:
        """A publisher that knew nothing of the last life begins, having heard these sessions, with `below` aborted.

        Whatever was acknowledged to one of them is aborted, or was complete. Of what others had there it cannot know.
        """
        log.start, log.lower, log.below = frozenset(start), set(start), frozenset(below)
        for lost in self.logs[log.segment]:
            if lost is log:
                continue
            self._unrecorded.append((lost, log))
            for time, payloads in lost.data.items():
                if not reached(log.start, time) or log.is_aborted(time):
                    continue
                appends = [self.appends[payload] for payload in payloads]
                theirs = [each for each in appends if (each.session.writer, each.session.number) in heard]
                for append in theirs:
                    if append.outcome is Outcome.ACKED:
                        where = f"segment {log.segment}, incarnation {log.incarnation}, begins with {sorted(below)}"
                        raise Violation(f"E11: {where}; acknowledged to who asked was {append.payload!r} at {time!r}")
                if len(theirs) == len(appends):
                    lost.repeated.add(time)
                else:
                    self._untold.add(time)

    def unknowable(self, time: Time) -> bool:
        """Whether a life without a record may have had something of `time`, or decided it, and nobody could say so.

        That was the promise of the version that records nothing, and is all that is left of a volume that is lost.
        """
        if time in self._untold:
            return True
        return any(
            reached(log.start, time)
            and not log.is_aborted(time)
            and (lost.is_aborted(time) or not reached(lost.lower, time))
            for lost, log in self._unrecorded
        )

    @property
    def enough_opened(self) -> bool:
        """Whether so many writers have opened each segment that something may complete (E5)."""
        return all(len(writers) >= self.scenario.min_writers for writers in self._ever_opened.values())

    # ---- writers ----

    def session(self, writer: str, number: int) -> Session:
        """A session begins."""
        sessions = self.sessions.setdefault(writer, [])
        if sessions and number <= sessions[-1].number:
            raise Violation(f"E12: session {number} of {writer} was given out after {sessions[-1].number}")
        session = Session(writer, number)
        sessions.append(session)
        return session

    def asked(self, append: Asked) -> None:
        """The application appends."""
        append.session.appends.append(append)
        self.appends[append.payload] = append
        self.at.setdefault(append.time, []).append(append)
        self.lately.append(append)

    def acknowledged(self, append: Asked, incarnation: int) -> None:
        """The application gets the report that its append is in the log."""
        if append.outcome is not Outcome.OPEN:
            raise Violation(f"E1: {append.payload!r} is acknowledged, and was {append.outcome} before")
        append.outcome, append.incarnation = Outcome.ACKED, incarnation
        known = {payload for log in self.logs[append.segment] for payload in log.payloads} | self.lost
        if append.payload not in known:
            raise Violation(f"E9: {append.payload!r} was acknowledged, and is in no log of segment {append.segment}")

    # ---- writers that close, and what the others leave (E3) ----

    def closing(self, log: Log, writer: str, number: int, now: float) -> None:
        """A publisher is asked to let a session go that says that all is whole."""
        session = next(each for each in self.sessions[writer] if each.number == number)
        log.closings.setdefault((writer, number), Closing(session.latest(), now))

    def closed(self, log: Log, writer: str, number: int, now: float) -> None:
        """The publisher confirms that, perhaps again."""
        closing = log.closings[writer, number]
        closing.confirmed = closing.confirmed or now

    def all_are_gone(self, log: Log) -> None:
        """No writer is left, however each of them went: then nothing holds back what the last one to close completed.

        Of those that closed at the same time, any may have been the last; also one that was never told that it had.
        """
        if len(log.sessions) < self.scenario.min_writers:
            return  # nothing may complete yet (E5)
        closings = list(log.closings.values())
        last_asked = max((each.asked for each in closings if each.confirmed is not None), default=None)
        last = [each.held for each in closings if last_asked is None or (each.confirmed or inf) >= last_asked]
        if last_asked is None:
            if log.closed_before is None:
                return
            last.append(log.closed_before)
        if not any(all(reached(held, time) for time in log.lower) for held in last):
            where = f"segment {log.segment} is left at {sorted(log.lower)}"
            raise Violation(f"E3: {where}, and the last writer to close had held {[sorted(held) for held in last]}")

    # ---- logs ----

    def incarnation(
        self,
        segment: str,
        incarnation: int,
        start: Iterable[Time],
        last: int,
        *,
        below: Iterable[Time] = (),
        now: float = 0.0,
        fresh: bool = False,
        kept_bytes: float | None = None,
        kept_seconds: float | None = None,
    ) -> Log:
        """A publisher begins, `last` being the last event of its log; what is on disk is one log, unless it is `fresh`.

        `below` is what was aborted with a lost memory (E11). Of its events so many bytes must be kept, for so long; by
        default what the manifest says.
        """
        logs, times = self.logs[segment], frozenset(start)
        if incarnation <= self._incarnations[segment]:
            raise Violation(f"E12: incarnation {incarnation} of segment {segment} after {self._incarnations[segment]}")
        self._incarnations[segment] = incarnation
        if self.scenario.durable and logs and not fresh:
            log = logs[-1]
            if self.scenario.interval:
                self._rewind(log, last)
            if log.last != last or log.lower != set(times):
                where = f"segment {segment} comes back at {last}, {sorted(times)}"
                raise Violation(f"E10: {where}; logged was {log.last}, {sorted(log.lower)}")
            log.lives.append((incarnation, last))
            return log
        newest = {writer: sessions[-1].number for writer, sessions in self.sessions.items()}
        scenario = self.scenario
        log = Log(segment, incarnation, times, frozenset(below), now, newest, set(times), last)
        log.lives.append((incarnation, last))
        log.retention = Retention(
            last,
            scenario.retention_bytes if kept_bytes is None else kept_bytes,
            scenario.retention_age if kept_seconds is None else kept_seconds,
        )
        logs.append(log)
        return log

    def _rewind(self, log: Log, last: int) -> None:
        """E10: what a crash may lose is data of epochs that were active before, nothing else."""
        while log.events and log.events[-1].seq > last:
            event = log.events.pop()
            log.lost.setdefault(log.lives[-1][0], []).insert(0, event)
            if not isinstance(event, m.Data) or log.data[event.time] == [event.payload]:
                raise Violation(f"E10: segment {log.segment} has lost {event}")
            log.data[event.time].remove(event.payload)
            log.payloads.remove(event.payload)
            log.retention.lost()
            self.lost.add(event.payload)
            log.last = event.prev
        log.orders.clear()
        for asked in (self.appends[event.payload] for event in log.events if isinstance(event, m.Data)):
            log.orders[asked.session.writer, asked.session.number] = asked.order

    def opened(self, log: Log, writer: str, session: int) -> None:
        """A publisher has opened a session."""
        if session < log.sessions.get(writer, 0):
            raise Violation(f"E6: segment {log.segment} opened session {session} of {writer} after a newer one")
        if session < log.fenced.get(writer, 0):
            where = f"segment {log.segment}, incarnation {log.incarnation}, opened session {session} of {writer}"
            raise Violation(f"E11: {where}, which had session {log.fenced[writer]} when the incarnation began")
        log.sessions[writer] = session
        self._ever_opened[log.segment].add(writer)

    def counted(self, segment: str, writer: str) -> None:
        """A writer opened, and the log says so, but its answer was lost: it counts for `minWriters` (E5)."""
        self._ever_opened[segment].add(writer)

    def logged(self, log: Log, event: m.Event, at: float = 0.0) -> None:
        """A publisher has put an event into its log, at time `at` of its clock."""
        if event.seq != log.last + 1 or event.prev != log.last:
            raise Violation(f"E14: event {event.seq} (prev {event.prev}) of segment {log.segment} after {log.last}")
        log.last = event.seq
        log.events.append(event)
        log.retention.logged(event, at)
        match event:
            case m.Data():
                self._logged_data(log, event)
            case m.Frontier():
                self._logged_frontier(log, event)
            case m.Aborted():
                for time in event.times:
                    if not reached(log.lower, time) or log.is_aborted(time):
                        raise Violation(f"E2: {time!r} aborted at segment {log.segment} after it was decided")
                    log.aborted.add(time)

    def _logged_data(self, log: Log, event: m.Data) -> None:
        asked = self.appends[event.payload]
        session, where = asked.session, f"at segment {log.segment}: {event.payload!r}"
        if event.payload in log.payloads:
            raise Violation(f"E6: logged twice {where}")
        if asked.time != event.time or asked.segment != log.segment:
            raise Violation(f"S34: logged at {event.time!r}, asked for at {asked.time!r} {where}")
        if event.meta != meta_of(event.payload):
            raise Violation(f"S34: logged with {event.meta!r} {where}")
        if log.sessions.get(session.writer) != session.number:
            raise Violation(f"E6: session {session.number} is not the newest ({log.sessions}) {where}")
        if not reached(log.lower, event.time) or log.is_aborted(event.time):
            raise Violation(f"S35, E2: data at {event.time!r}, which was decided, {where}")
        for earlier in self.logs[log.segment]:
            if earlier is not log and not self.unknowable(event.time):
                self._not_decided(earlier, event.time, where)
        key = (session.writer, session.number)
        if asked.order <= log.orders.get(key, -1):
            raise Violation(f"E6: logged out of order {where}")
        log.orders[key] = asked.order
        log.payloads.add(event.payload)
        log.data.setdefault(event.time, []).append(event.payload)

    def _judge_left(self, log: Log, time: Time) -> None:
        """E3, E4: each writer with something in an epoch that completes, or its successor, has said it is whole."""
        for asked in [self.appends[payload] for payload in log.data[time]]:
            sessions = self.sessions[asked.session.writer]
            where = f"epoch {time!r} at segment {log.segment}"
            for holder in sessions[sessions.index(asked.session) :]:
                if holder.held is None:
                    continue
                if not reached(holder.held, time):
                    raise Violation(f"E3: session {holder.number} of {holder.writer} could not finish {where}")
                if holder.declared(time):
                    break
            else:
                raise Violation(f"E3: session {asked.session.number} of {asked.session.writer} never left {where}")

    def _not_decided(self, earlier: Log, time: Time, where: str) -> None:
        """E11: what an earlier incarnation has completed or aborted, or had data at, nobody can add to."""
        if not reached(earlier.lower, time):
            fate = "completed"
        elif earlier.is_aborted(time):
            fate = "aborted"
        elif time in earlier.data and time not in earlier.repeated:
            fate = "taken data at"
        else:
            return
        raise Violation(f"E11: data at {time!r}, which incarnation {earlier.incarnation} had {fate}, {where}")

    def _logged_frontier(self, log: Log, event: m.Frontier) -> None:
        before = set(log.lower)
        left = {time for time, count in event.changes if count < 0}
        came = {time for time, count in event.changes if count > 0}
        after = moved(before, event.changes)
        if not left <= before or came & before or left & came or not left | came or not is_antichain(after):
            was, where = sorted(before), f"at segment {log.segment}"
            raise Violation(f"S5: {event.changes!r} is not what changed from {was} {where}")
        if not all(reached(before, time) for time in after):
            where = f"from {sorted(before)} to {sorted(after)}"
            raise Violation(f"I6: the frontier of segment {log.segment} went back {where}")
        log.lower = after
        for time in [time for time in log.data if reached(before, time) and log.whole(time)]:
            self._judge_left(log, time)
        if len(self._ever_opened[log.segment]) < self.scenario.min_writers:
            raise Violation(f"E5: segment {log.segment} moved before {self.scenario.min_writers} writers had opened")

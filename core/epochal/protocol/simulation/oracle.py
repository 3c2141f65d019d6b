"""What really happened: appends asked for, events logged, sessions; and the rules that each new one must keep.

Apart from the machines, whose own records it never reads: it sees what they send and what the application asks for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain, MutableAntichain
from epochal.protocol.simulation.scenario import Scenario
from epochal.protocol.times import Time


class Violation(Exception):  # what it is, not how it ends
    """A rule was broken; the message names the rule."""


class Outcome(StrEnum):
    """What the application was told of an append."""

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
class Leave:
    """A move that gave times up: from `order` on, the session holds only what `held` reaches."""

    ticket: int
    order: int
    held: Antichain


@dataclass(slots=True)
class Session:
    """One session of one writer, as its application sees it."""

    writer: str
    number: int
    held: Antichain | None = None
    """What it held when it became ready; None before."""
    appends: list[Asked] = field(default_factory=list)
    leaves: list[Leave] = field(default_factory=list)
    order: int = 0
    ended: bool = False
    aborted_all: bool = False
    """Whether it left by an exception."""

    def left(self, time: Time) -> Leave | None:
        """The first move that gave `time` up, if any did."""
        return next((leave for leave in self.leaves if not leave.held.less_equal(time)), None)


@dataclass(slots=True)
class Log:
    """The log of one incarnation of a segment."""

    segment: str
    incarnation: int
    start: Antichain
    lower: MutableAntichain
    last: int = m.NOTHING_YET
    data: dict[Time, list[bytes]] = field(default_factory=dict)
    aborted: set[Time] = field(default_factory=set)
    payloads: set[bytes] = field(default_factory=set)
    sessions: dict[str, int] = field(default_factory=dict)
    """Writer -> its newest session that was opened here."""
    resumed: dict[str, set[int]] = field(default_factory=dict)
    """Writer -> all its sessions that were opened here."""
    orders: dict[tuple[str, int], int] = field(default_factory=dict)
    events: list[m.Event] = field(default_factory=list)

    def whole(self, time: Time) -> bool:
        """Whether this incarnation has completed `time`, and began before it."""
        return self.start.less_equal(time) and not self.lower.less_equal(time) and time not in self.aborted


class Oracle:
    """The ground truth of one run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.appends: dict[bytes, Asked] = {}
        self.sessions: dict[str, list[Session]] = {}
        self.logs: dict[str, list[Log]] = {name: [] for name in scenario.names}
        self._ever_opened: dict[str, set[str]] = {name: set() for name in scenario.names}
        self.crashed: set[str] = set()
        """Segments that had more than one incarnation."""
        self.lost: dict[bytes, bool] = {}
        """Appends that a disk did not keep -> whether their session has come back since, to tell what it had."""
        self.rewound: set[Time] = set()
        """Their times: who was pushed them is told that these are aborted."""

    def log_of(self, incarnation: int) -> int:
        """The incarnation whose log an event of `incarnation` is in."""
        return 1 if self.scenario.durable else incarnation

    # ---- writers ----

    def session(self, writer: str, number: int) -> Session:
        """A session begins."""
        session = Session(writer, number)
        self.sessions.setdefault(writer, []).append(session)
        return session

    def asked(self, append: Asked) -> None:
        """The application asks for an append."""
        append.session.appends.append(append)
        self.appends[append.payload] = append

    # ---- logs ----

    def incarnation(self, segment: str, incarnation: int, start: Iterable[Time], last: int) -> Log:
        """A publisher begins, `last` being the last event of its log; what is on disk is one log, the first one's."""
        logs, times = self.logs[segment], list(start)
        if self.scenario.durable and logs:
            self.crashed.add(segment)
            (log,) = logs
            if self.scenario.interval:
                self._rewind(log, last)
            if (log.last, log.lower.frontier) != (last, Antichain(times)):
                where = f"segment {segment} comes back at {last}, {times}"
                raise Violation(f"E10: {where}; logged was {log.last}, {log.lower.frontier}")
            return log
        if logs:
            self.crashed.add(segment)
            if incarnation <= logs[-1].incarnation:
                raise Violation(f"E12: incarnation {incarnation} of segment {segment} after {logs[-1].incarnation}")
        log = Log(segment, incarnation, Antichain(times), MutableAntichain(times))
        logs.append(log)
        return log

    def _rewind(self, log: Log, last: int) -> None:
        """E10: what a crash may lose is data of epochs that were active before, nothing else."""
        while log.events and log.events[-1].seq > last:
            event = log.events.pop()
            if not isinstance(event, m.Data) or log.data[event.time] == [event.payload]:
                raise Violation(f"E10: segment {log.segment} has lost {event}")
            log.data[event.time].remove(event.payload)
            log.payloads.remove(event.payload)
            self.lost[event.payload] = False
            self.rewound.add(event.time)
            log.last = event.prev
        log.orders.clear()
        for asked in (self.appends[event.payload] for event in log.events if isinstance(event, m.Data)):
            log.orders[asked.session.writer, asked.session.number] = asked.order

    def opened(self, log: Log, writer: str, session: int) -> None:
        """A publisher has opened a session."""
        if session < log.sessions.get(writer, 0):
            raise Violation(f"E6: segment {log.segment} opened session {session} of {writer} after a newer one")
        log.sessions[writer] = session
        log.resumed.setdefault(writer, set()).add(session)
        self._ever_opened[log.segment].add(writer)
        for payload in self.lost:
            asked = self.appends[payload]
            if (asked.segment, asked.session.writer, asked.session.number) == (log.segment, writer, session):
                self.lost[payload] = True

    def logged(self, log: Log, event: m.Event) -> None:
        """A publisher has put an event into its log."""
        if event.seq != log.last + 1 or event.prev != log.last:
            raise Violation(f"E14: event {event.seq} (prev {event.prev}) of segment {log.segment} after {log.last}")
        log.last = event.seq
        log.events.append(event)
        match event:
            case m.Data():
                self._logged_data(log, event)
            case m.Frontier():
                self._logged_frontier(log, event)
            case m.Aborted():
                for time in event.times:
                    if not log.lower.less_equal(time) or time in log.aborted:
                        raise Violation(f"E2: {time!r} aborted at segment {log.segment} after it was decided")
                    log.aborted.add(time)

    def _logged_data(self, log: Log, event: m.Data) -> None:
        asked = self.appends[event.payload]
        session, where = asked.session, f"at segment {log.segment}: {event.payload!r}"
        if event.payload in log.payloads:
            raise Violation(f"E6: logged twice {where}")
        if asked.time != event.time or asked.segment != log.segment:
            raise Violation(f"S34: logged at {event.time!r}, asked for at {asked.time!r} {where}")
        if log.sessions.get(session.writer) != session.number:
            raise Violation(f"E6: session {session.number} is not the newest ({log.sessions}) {where}")
        if not log.lower.less_equal(event.time) or event.time in log.aborted:
            raise Violation(f"S35, E2: data at {event.time!r}, which was decided, {where}")
        key = (session.writer, session.number)
        if asked.order <= log.orders.get(key, -1):
            raise Violation(f"E6: logged out of order {where}")
        log.orders[key] = asked.order
        log.payloads.add(event.payload)
        log.data.setdefault(event.time, []).append(event.payload)

    def _logged_frontier(self, log: Log, event: m.Frontier) -> None:
        before = set(log.lower.frontier)
        old = log.lower.frontier
        log.lower.update(event.changes)
        new = log.lower.frontier
        left = {time for time, count in event.changes if count < 0}
        came = {time for time, count in event.changes if count > 0}
        if left != before - set(new) or came != set(new) - before or not left | came:
            raise Violation(f"S5: {event.changes!r} is not what changed from {old!r} at segment {log.segment}")
        if not old.reaches_all(new):
            raise Violation(f"I6: the frontier of segment {log.segment} went back from {old!r} to {new!r}")
        enough = len(self._ever_opened[log.segment]) >= self.scenario.min_writers
        if not enough:
            raise Violation(f"E5: segment {log.segment} moved before {self.scenario.min_writers} writers had opened")

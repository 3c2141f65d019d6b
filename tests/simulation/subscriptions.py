"""One process of an application that reads: a `SubscriberMachine` over all segments, judged at every event.

The simulated counterpart of the client's subscription. What the application was given outlives it, as a `Memory`.
"""

from copy import deepcopy
from typing import NamedTuple

from tests.simulation.history import Diary
from tests.simulation.nodes import Node
from tests.simulation.oracle import TOPICS, Log, Oracle, Standing, Times, Violation, meta_of
from tests.simulation.order import at_most, maximal, reached
from tests.simulation.reader_links import Link, filter_of
from tests.simulation.relays import RelayNode
from tests.simulation.scenario import Scenario
from tests.simulation.stories import ALL, Join, Memory, Topics
from tests.simulation.widenings import Widenings, agrees
from tests.simulation.world import World

from epochal.errors import EpochalError, HistoryTruncated
from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.log.history import SegmentState
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.subscriber.effects import (
    Arrived,
    Began,
    EpochBatches,
    EpochWasAborted,
    FrontierMoved,
    GapFound,
    Happened,
    Moved,
    Rejoined,
    RewoundTo,
)
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.subscriber.since import Begin, From
from epochal.protocol.times import Time

Gathered = dict[Time, dict[str, list[tuple[int, bytes]]]]
"""By time and segment, the events of which an application has some and not yet all: (seq, payload)."""
TICK = 0.5
SOON = 6.0
"""Seconds: twice what a join may take. A relay that was lost may take as long to be back, and to be found out."""


class Stored(NamedTuple):
    """What an application stores with its cursor."""

    widenings: Widenings
    topics: Topics


def take(memory: Memory, epoch: EpochBatches | EpochWasAborted) -> None:
    """The application gets an epoch, or the report that one is aborted."""
    time = epoch.time
    if any(time == before for before, _ in memory.yields) or time in memory.aborted:
        raise Violation(f"E16: {memory.name} gets the report of epoch {time!r} twice")
    if isinstance(epoch, EpochWasAborted):
        memory.aborted.add(time)
        return
    if any(at_most(time, before) for before, _ in memory.yields):
        raise Violation(f"E18: {memory.name} is given epoch {time!r} after a later one")
    if not epoch.batches:
        raise Violation(f"E18: {memory.name} is given epoch {time!r} without data")
    payloads: dict[str, list[bytes]] = {}
    for segment, data in epoch.batches:
        judge_meta(memory, data)
        payloads.setdefault(segment, []).append(data.payload)
    memory.yields.append((time, payloads))


def judge_meta(memory: Memory, data: m.Data) -> None:
    """S34: a batch comes with what its writer said of it."""
    if data.meta != meta_of(data.payload):
        raise Violation(f"S34: {memory.name} is given {data.payload!r} with {data.meta!r}")


class Life:
    """One process of a reading application."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        nodes: dict[str, Node],
        relays: dict[str, list[RelayNode]],
        oracle: Oracle,
        memory: Memory,
        cursor: Cursor | None,
        stored: Stored | None = None,
    ) -> None:
        self.world, self.scenario, self.nodes, self.oracle, self.memory = world, scenario, nodes, oracle, memory
        self.relays = relays
        self.machine = SubscriberMachine(
            "uid", scenario.time_shape, scenario.names, partial=memory.partial, cursor=cursor,
            wanted=memory.wanted if cursor is None else None, topics=filter_of(memory.topics),
        )  # fmt: skip
        self.diary = Diary(world.history, memory.name) if memory.in_history else None
        self.widenings = Widenings(scenario.names)
        self._widening_since = world.now
        """Since when new topics are awaited in peace."""
        self._before_changes: list[tuple[Times, Topics]] = []
        """At each change, the frontier, and what could be had whole until then."""
        self._go_on(cursor, stored)
        self.pushes = memory.pushed
        if memory.reads_epochs:
            self.machine.only_epochs()
        else:
            self.machine.only_events()
        self.ended = False
        self._is_known_ready = False
        memory.lives += 1
        self._joins(cursor)
        self._frontier: Times | None = None if cursor is None else frozenset(cursor.frontier)
        self._frontier_told: Times | None = None
        self._arrived: set[Time] = set()
        """The times of which something has arrived."""
        self._incarnations = {} if cursor is None else {name: at.incarnation for name, at in cursor.positions.items()}
        self._seen: object = None
        self._epoch_in_hand: EpochBatches | EpochWasAborted | None = None
        self._event_in_hand: Happened | None = None
        """What an interrupted call has fetched, for the next one to hand out; the cursor has not passed it (E16)."""
        self.gaps: list[str] = []
        """The segments that have lost something, for a reader over HTTP, which takes their notices from here (E17)."""
        self._gathered: Gathered = {}
        self._seqs: dict[str, int] = {}
        origin = EpochQuery(memory.wanted) if memory.wanted is not None else From.START if memory.start else From.LIVE
        self.links = [Link(self, name, origin if cursor is None else cursor.positions[name]) for name in scenario.names]
        world.after(TICK, self._ticks)

    # ---- the history, which the checker of real processes judges ----

    def _joins(self, cursor: Cursor | None) -> None:
        memory, diary = self.memory, self.diary
        if diary is None:
            return
        diary.life = memory.lives
        if cursor is not None:
            diary.resumes(memory.saves)
        else:
            # Where history is dropped, what is there begins anywhere.
            since = "start" if memory.start and not any(node.forgets for node in self.nodes.values()) else None
            diary.joins(since, memory.wanted or [self.scenario.time_shape.bottom], partial=memory.partial)
            self._writes_always()
        diary.wants(memory.topics)

    def _writes_always(self) -> None:
        if self.diary is not None:
            self.diary.always(self.memory.always)

    def _writes_epoch(self, time: Time, payloads: dict[str, list[bytes]]) -> None:
        if self.diary is not None:
            self.diary.epoch(time, self.machine.frontier, payloads, self.memory.given_topics.get(time, ALL))

    def save(self) -> tuple[Cursor, Stored]:
        """Where to go on after a crash, and what is to be known then."""
        cursor = self.machine.cursor()
        self.memory.saves += 1
        if self.diary is not None:
            self.diary.saves(self.memory.saves, cursor.frontier, cursor.unreported_aborts)
        return cursor, Stored(deepcopy(self.widenings), self.memory.topics)

    # ---- topics ----

    def _go_on(self, cursor: Cursor | None, stored: Stored | None) -> None:
        """What was promised of new topics when the cursor was stored still holds; others are judged anew (F9)."""
        memory = self.memory
        if cursor is None or stored is None:
            return
        before, topics = stored
        assert not isinstance(cursor.topics, str), "F9: a digest of a small filter"
        wanted = ALL if cursor.topics is None else Topics(filter(cursor.topics.wants, TOPICS))
        if wanted != topics:
            raise Violation(f"F9: {memory.name} wanted {sorted(topics)}, and its cursor says {sorted(wanted)}")
        if memory.partial:
            memory.always &= topics
            return
        self.widenings, carried = before.resumed(topics, ALL, memory.topics)
        memory.always &= self.widenings.always(carried)
        self._writes_always()
        self.widenings.change(carried, memory.topics)

    def change(self, topics: Topics) -> None:
        """Want other topics."""
        memory, before = self.memory, self.memory.topics
        self.world.count("changed")
        self.world.note(f"{memory.name}: wants {sorted(topics)}")
        memory.topics, memory.always = topics, memory.always & topics
        self._writes_always()
        if self.diary is not None:
            self.diary.wants(topics)
        if not memory.partial:
            before = self.widenings.change(before, topics)
            if not topics <= before:
                self.world.count("widened")
        if self.machine.ready:
            self._before_changes.append((frozenset(self.machine.frontier), before))
        widens = self.machine.change(filter_of(topics))
        for link in self.links:
            link.want(widens=widens)

    def rejoined(self, segment: str, rejoined: Rejoined, *, relayed: bool) -> None:
        """A segment is followed on another channel."""
        self.world.count("rejoined")
        incarnation = self._incarnations[segment]
        standing = self.oracle.log_of(segment, incarnation).standing(rejoined.state.seq, incarnation)
        if relayed:
            standing = self._as_relays_know(rejoined.state, standing)
        if not agrees(rejoined.state, standing):
            raise Violation(f"E14: {self.memory.name} goes on with {rejoined.state} at {segment}; it was {standing}")
        self.widenings.begin(segment, standing, rejoined.topics)
        self.machine.rejoined(segment, rejoined)
        self.look()

    # ---- time ----

    def _ticks(self) -> None:
        if not self.ended:
            for link in self.links:
                link.tick()
            self._judge_widening()
            self.world.after(TICK, self._ticks)

    def _judge_widening(self) -> None:
        """F8: where nothing goes wrong any more, each publisher soon says from where on new topics come."""
        served = all(node.serves for node in self.nodes.values())
        reads = not any(link.paused for link in self.links)
        if not (self.world.calm and served and reads and self.machine.ready and self.machine.widening):
            self._widening_since = self.world.now
        elif self.world.now - self._widening_since > SOON * (1 + 2 * self.scenario.relays + self.scenario.tells_first):
            raise Violation(f"F8: {self.memory.name} waits for its new topics since {self._widening_since:.3f}")

    def end(self) -> None:
        """The process is gone."""
        self.ended = True
        for link in self.links:
            link.close()

    def resume(self) -> None:
        """Read again."""
        self._widening_since = self.world.now  # a join that was answered meanwhile, in vain, begins again
        for link in self.links:
            link.resume()

    def follow_pushes(self, follow: bool) -> None:
        """Follow pushes, or pull only."""
        self.world.note(f"{self.memory.name}: pushes={follow}")
        self.pushes = follow
        for link in self.links:
            link.follow_pushes(follow)

    # ---- from the links ----

    def _as_relays_know(self, state: SegmentState, there: Standing) -> Standing:
        """F14: a relay knows more times as active than are, maximal ones of its own join, and none of other topics.

        That it may only leave out too much: each that is active in what is wanted is covered, if what has begun of it
        is of those topics; that is judged by what is yielded.
        """
        more = frozenset(time for time in state.upper if reached(there.lower, time))
        self.world.counts["relays know more"] += maximal(more) != maximal(there.active)
        return there._replace(active=more)

    def began(self, segment: str, began: Began, before: m.Position, *, relayed: bool) -> None:
        """A segment began; judge whether a gap or a rewind was called for."""
        if self.world.tracing:
            self.world.note(f"{self.memory.name}: {segment} {began}")
        if began.gap:
            self._judge_gap(segment, before, began.incarnation)
            self.world.count("gaps")
            if self.diary is not None and self.nodes[segment].forgets:
                self.diary.truncated()
            self.gaps.append(segment)
        if began.incarnation < self._incarnations.get(segment, 0):
            known = self._incarnations[segment]
            raise Violation(
                f"E12: {self.memory.name} goes back to {began.incarnation} of {segment}, having seen {known}"
            )
        self._incarnations[segment] = began.incarnation
        if self.diary is not None:
            self.diary.follows(segment, began.incarnation)
        log = self.oracle.log_of(segment, began.incarnation)
        standing = log.begins(began.state.seq, began.state.lower, began.incarnation)
        if relayed:
            standing = self._as_relays_know(began.state, standing)
        if not agrees(began.state, standing):
            raise Violation(f"E14: {self.memory.name} begins {segment} with {began.state}; it was {standing}")
        if began.filters and not began.gap and self.memory.start:
            self._judge_start(log, began.state.seq)
        self.memory.joins.append(Join(segment, began.incarnation, began.gap))
        self.widenings.begin(segment, standing, began.topics)
        self.machine.began(segment, began)
        self.look()

    def _judge_gap(self, segment: str, before: m.Position, incarnation: int) -> None:
        log = self.oracle.log_of(segment, incarnation)
        if not self.oracle.may_be_gone(log, before, self.world.now):
            raise Violation(f"I2: {self.memory.name} reports a gap at {segment} after {before}, which is retained")

    def _judge_start(self, log: Log, seq: int) -> None:
        """It asked for all that there is, or for all that its times reach."""
        kept_behind = log.quiet_since(log.retention.kept_behind(self.world.now))
        if self.memory.wanted is not None:
            self.world.counts["skipped"] += seq > m.NOTHING_YET
        elif seq > kept_behind:
            where = f"{self.memory.name} begins {log.segment} after event {seq}"
            raise Violation(f"E13: {where}, and all after event {kept_behind} must be kept")

    def event(self, segment: str, event: m.Event) -> None:
        """The next event of a segment."""
        known = self.machine.position(segment)
        log = self._log(segment, known)
        lull = type(event) is m.Frontier and log.quiet_since(event.seq, known.incarnation) <= known.seq  # of a relay
        hole = event.seq != known.seq + 1 and not lull
        if event.seq <= known.seq or (hole and self.memory.topics == ALL == self.memory.always):
            raise Violation(f"I2: {self.memory.name} is given event {event.seq} of {segment} after {known}")
        if type(event) is m.Data:
            self._arrived.add(event.time)
        self.machine.event(segment, event)
        self.look()

    def _log(self, segment: str, position: m.Position) -> Log:
        return self.oracle.log_of(segment, position.incarnation)

    def moved(self, segment: str, moved: Moved) -> None:
        """The frontier moved, and the events that said so are gone (E13): nothing else was among them."""
        known = self.machine.position(segment)
        self.world.count("lulls")
        log = self._log(segment, known)
        there = log.standing(moved.seq, known.incarnation)
        if log.quiet_since(moved.seq, known.incarnation) > known.seq or there.lower != frozenset(moved.lower):
            raise Violation(f"E13: {self.memory.name} is given {moved} of {segment} after {known}")
        self.machine.event(segment, moved)
        self.look()

    def look(self) -> None:
        """The merged frontier never goes back, and passes no time at which a segment accepts records (I6, E11, E16)."""
        if not self.machine.ready:
            return
        frontier = self.machine.frontier
        if frontier is not self._seen:
            self._seen, told = frontier, frozenset(frontier)
            if not self._is_known_ready:
                self._is_known_ready = True
                if self.diary is not None:
                    self.diary.ready(told)
            if self._frontier is not None:
                self._judge_frontier(self._frontier, told)
            self._frontier = told
            self._judge_completeness(told)

    def _judge_frontier(self, before: Times, after: Times) -> None:
        if not all(reached(before, time) for time in after):
            where = f"from {sorted(before)} to {sorted(after)}"
            raise Violation(f"I6: the frontier of {self.memory.name} went back {where}")

    def _judge_completeness(self, frontier: Times) -> None:
        """E11 (b), E16: no segment accepts records at a time that the frontier has passed, also after a resume."""
        for segment, logs in self.oracle.logs.items():
            log = logs[-1]
            if self.nodes[segment].publisher.gathering:
                continue  # where it begins is not known yet
            for time in log.lower:
                if not reached(frontier, time) and not log.is_aborted(time) and not self.oracle.unknowable(time):
                    where = f"segment {segment} is still at {sorted(log.lower)}"
                    raise Violation(f"E16: {self.memory.name} has the frontier {sorted(frontier)}, and {where}")

    def claim(self, time: Time) -> None:
        """Ask whether `time` was seen whole, and write down a yes, to be judged by what comes to light later (E18)."""
        if not self.machine.saw_whole(time):
            return
        self.world.counts["claims"] += time in self._arrived
        if self.diary is not None:
            passed = (topics for frontier, topics in self._before_changes if not reached(frontier, time))
            self.diary.whole(time, self.machine.frontier, next(passed, self.memory.topics))

    def ends(self) -> None:
        """The run is over."""
        if self.machine.complete and self.diary is not None:
            self.diary.ends()

    def failed(self, error: EpochalError, segment: str, position: Begin) -> None:
        """A link asked for the events after `position`, and got an error that no retry mends."""
        if not (isinstance(error, HistoryTruncated) and self._may_be_gone(segment, position)):
            raise Violation(f"I2: {self.memory.name} cannot follow {segment}: {error!r}")
        self.world.note(f"{self.memory.name}: {error}")
        self.world.count("gaps")
        self.memory.over = True
        self.end()

    def _may_be_gone(self, segment: str, position: Begin) -> bool:
        """Whether the publisher, as it is now, need not have what is asked for."""
        log = self.oracle.logs[segment][-1]
        if isinstance(position, EpochQuery):
            return self.oracle.wanted_may_be_gone(log, position.times, self.world.now)
        return isinstance(position, m.Position) and self.oracle.may_be_gone(log, position, self.world.now)

    # ---- the application ----

    def read(self, most: int, interrupts: float = 0.0) -> None:
        """Take what there is, up to `most`; a share `interrupts` of it is fetched by a call that does not return."""
        for _ in range(most):
            if not (self._read_epoch(interrupts) if self.memory.reads_epochs else self._read_event(interrupts)):
                return

    def _interrupted(self, interrupts: float) -> bool:
        interrupted = interrupts > 0 and self.world.chance(interrupts)
        self.world.counts["interrupts"] += interrupted
        return interrupted

    def _read_epoch(self, interrupts: float) -> bool:
        if not self.fetch_epoch() or self._interrupted(interrupts):
            return False
        self.take_epoch()
        return True

    def fetch_epoch(self) -> bool:
        """Whether there is an epoch to take; the cursor has not passed it."""
        if self._epoch_in_hand is None:
            self._epoch_in_hand = epoch = self.machine.hand_out_epoch()
            if epoch is not None:
                self.memory.given_topics[epoch.time] = self.widenings.whole_in(epoch.time, self.memory.topics)
        return self._epoch_in_hand is not None

    def take_epoch(self) -> EpochBatches | EpochWasAborted:
        """The epoch that was fetched; the cursor passes it."""
        epoch, self._epoch_in_hand = self._epoch_in_hand, None
        assert epoch is not None, "it was fetched"
        self.machine.pass_epoch(epoch)
        self._take(epoch)
        return epoch

    def _take(self, epoch: EpochBatches | EpochWasAborted) -> None:
        memory, time = self.memory, epoch.time
        self.world.note(f"{memory.name}: yields {type(epoch).__name__} {time!r}")
        take(memory, epoch)
        if isinstance(epoch, EpochWasAborted):
            if self.diary is not None:
                self.diary.aborted(time, self.machine.frontier)
        else:
            self._writes_epoch(time, memory.yields[-1][1])

    def _read_event(self, interrupts: float) -> bool:
        happened, self._event_in_hand = self._event_in_hand or self.machine.hand_out_event(), None
        if happened is None:
            return False
        if self._interrupted(interrupts):
            self._event_in_hand = happened
            return False
        self.machine.pass_event(happened)
        self._hear(happened)
        return True

    def _hear(self, happened: Happened) -> None:
        match happened:
            case Arrived():
                self._take_event(happened)
            case FrontierMoved():
                self._frontier_moved(frozenset(happened.frontier))
            case EpochWasAborted():
                self._gathered.pop(happened.time, None)
                self._take(happened)
            case GapFound():
                self._seqs.pop(happened.segment, None)
            case RewoundTo():
                self._rewound(happened)
            case _:
                pass

    def _rewound(self, rewound: RewoundTo) -> None:
        """What it has of later events counts for nothing."""
        segment = rewound.segment
        self._seqs[segment] = rewound.seq
        for parts in self._gathered.values():
            parts[segment] = [event for event in parts.get(segment, ()) if event[0] <= rewound.seq]

    def _take_event(self, arrived: Arrived) -> None:
        segment, data = arrived.segment, arrived.data
        last = self._seqs.get(segment)
        if last is not None and data.seq <= last:
            raise Violation(f"Q10: {self.memory.name} is given event {data.seq} of {segment} after {last}")
        self._seqs[segment] = data.seq
        judge_meta(self.memory, data)
        self._gathered.setdefault(data.time, {}).setdefault(segment, []).append((data.seq, data.payload))

    def _frontier_moved(self, frontier: Times) -> None:
        if self._frontier_told is not None:
            self._judge_frontier(self._frontier_told, frontier)
        self._frontier_told = frontier
        for time in sorted(time for time in self._gathered if not reached(frontier, time)):
            gathered = self._gathered.pop(time)
            payloads = {name: [payload for _, payload in part] for name, part in gathered.items() if part}
            if any(time == before for before, _ in self.memory.yields):
                raise Violation(f"E16: {self.memory.name} is given epoch {time!r} twice")
            self.memory.given_topics[time] = self.widenings.whole_in(time, self.memory.topics)
            self.memory.yields.append((time, payloads))
            self._writes_epoch(time, payloads)

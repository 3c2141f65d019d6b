"""Readers of whole epochs over HTTP: they share a ring, are overtaken by it, disconnect, and come back with an id.

The simulated counterpart of a relay's HTTP side: one subscription that fills a ring, and for each reader the machine
that says what it is given, with a subscription of its own where the ring does not have that.
"""

from copy import deepcopy
from dataclasses import dataclass, replace

from tests.simulation.history import Diary
from tests.simulation.nodes import Node
from tests.simulation.oracle import Oracle, Times, Violation
from tests.simulation.order import reached
from tests.simulation.readers import FILTERS
from tests.simulation.relays import RelayNode
from tests.simulation.scenario import Scenario
from tests.simulation.stories import ALL, Join, Memory
from tests.simulation.subscriptions import Life, take
from tests.simulation.world import World

from epochal.protocol.epochs.reader import ReaderStep, RingReader, Since
from epochal.protocol.epochs.ring import EpochRing, EpochRings, text_of
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.subscriber.effects import EpochBatches, EpochWasAborted
from epochal.protocol.subscriber.since import From

TICK = 0.3
OUTCOME, GAP = 200, 100
"""Bytes that the ring counts for an outcome, and for the notice of a gap, beside those of their boundaries."""


@dataclass(frozen=True, slots=True)
class Given:
    """An outcome in the ring."""

    epoch: EpochBatches | EpochWasAborted | None
    """None for the notice of a gap."""
    id: str
    """The cursor after it; empty for the notice of a gap."""
    joins_before: int
    """How many joins of the ring's subscription came before the boundary at which readers take it ..."""
    joins: int
    """... and how many until they take it."""


class Feed:
    """The subscription that fills a ring, through all lives of the relay."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        nodes: dict[str, Node],
        relays: dict[str, list[RelayNode]],
        oracle: Oracle,
    ) -> None:
        self.world, self.scenario, self.nodes, self.relays, self.oracle = world, scenario, nodes, relays, oracle
        self.topics = world.random.choice(FILTERS)
        self.memories: list[Memory] = []
        """What the subscriptions were given: they are readers like others."""
        self._begin()
        world.after(TICK, self._ticks)

    def _begin(self) -> None:
        self.memory = self.new_memory(f"feed{len(self.memories)}", start=False, in_history=True)
        self.memories.append(self.memory)
        self.life = self.live(self.memory, None)
        self.rings = EpochRings[Given](self.scenario.ring_bytes)
        self.ring: EpochRing[Given] | None = None
        self.joins: list[Join] = []
        """The joins of the subscription at all boundaries so far."""
        self.joins_before = 0
        """How many of them came before the newest boundary."""

    def new_memory(self, name: str, *, start: bool, in_history: bool = False) -> Memory:
        """The memory of a reader that begins now, with nothing in it. One over HTTP writes its history itself."""
        return Memory(
            name, start, reads_epochs=True, partial=False, topics=self.topics,
            always=self.topics, whole_filter=self.scenario.whole_filter, in_history=in_history,
        )  # fmt: skip

    def live(self, memory: Memory, cursor: Cursor | None) -> Life:
        """A subscription of the relay."""
        return Life(self.world, self.scenario, self.nodes, self.relays, self.oracle, memory, cursor)

    def _ticks(self) -> None:
        world = self.world
        if self.life.ended or (not world.calm and world.chance(self.scenario.relay_faults * TICK)):
            world.count("feeds ended")
            world.note(f"{self.memory.name}: ends")
            self.life.end()
            self._begin()
        elif self.life.machine.ready:
            self._follow()
        world.after(TICK, self._ticks)

    def _follow(self) -> None:
        """Put all that the subscription has into the ring."""
        life, machine = self.life, self.life.machine
        if self.ring is None:
            self.ring = self.rings.open(machine.cursor())
            self.joins_before = len(self.memory.joins)
        ring, fetched = self.ring, True
        while fetched:
            fetched = life.fetch_epoch()
            self.joins = list(self.memory.joins)
            notices = [(Given(None, "", self.joins_before, len(self.joins)), GAP) for _ in life.gaps]
            life.gaps.clear()
            self.rings.move(ring, machine.cursor(), notices)
            if notices:
                self.joins_before = len(self.joins)
            if fetched:
                epoch, after = life.take_epoch(), machine.cursor()
                given = Given(epoch, text_of(after), self.joins_before, len(self.joins))
                self.rings.append(ring, given, OUTCOME, after)
                self.joins_before = len(self.joins)
        ring.complete = machine.complete

    def settle(self) -> None:
        """Take all that the subscription has; the run is over."""
        if self.life.machine.ready and not self.life.ended:
            self._follow()
            self.life.ends()


class WebReader:
    """One reader over HTTP, through all its connections."""

    def __init__(self, feed: Feed, memory: Memory, since: Since | None, text: str = "") -> None:
        self.feed, self.world, self.memory = feed, feed.world, memory
        self.id = text
        """The last one that it was given; empty if it begins at the start of the history and has none."""
        self.over = False
        """Whether it has all outcomes and the stream is complete."""
        self._slowness = self.world.random.choice((0.1, 0.3, 1.0, 3.0))
        self._diary = Diary(self.world.history, memory.name)
        self._known: dict[str, int] = {}
        """Segment -> which publisher it follows, as far as that is written down."""
        self._is_ready = since is not From.START
        """Whether that is written down."""
        self._stored: tuple[str, Memory] = text, deepcopy(memory)
        self._life: Life | None = None
        """Its own subscription, while it has one."""
        self._seen: int | None = None
        """How many joins of the ring's subscription are in the memory; None where it has taken nothing here yet."""
        self._owed = 0
        """Notices of gaps that it must be given before the next epoch."""
        self._frontier: Times | None = None
        """The last frontier that was sent on this connection."""
        self._begins(since)
        self._connect(since)
        if since is None:
            assert feed.ring is not None
            self._was_given(text_of(feed.ring.newest.cursor))
            self._seen = len(feed.joins)
            self._stored = self.id, deepcopy(memory)

    @classmethod
    def now(cls, feed: Feed, name: str) -> "WebReader":
        """One that begins now: what the ring's subscription has had, counts as given to it."""
        had = feed.memory
        memory = replace(deepcopy(had), name=name, lives=0, joins=list(feed.joins), in_history=False)
        return cls(feed, memory, None)

    def _connect(self, since: Since | None) -> None:
        ring = self.feed.ring
        assert ring is not None, "a relay waits until its subscription has begun"
        self._ring = ring
        self._machine = RingReader[Given](ring, since, self.id)
        self._life = self._seen = self._frontier = None
        self._owed = 0
        self.over = False

    # ---- the history ----

    def _begins(self, since: Since | None) -> None:
        """It begins: with all that there is, or where another one or the ring is, of which it knows no more."""
        assert self.feed.ring is not None
        start = isinstance(since, From) and not self._forgets
        self._diary.joins("start" if start else None, [self.feed.scenario.time_shape.bottom])
        self._diary.always(self.memory.always)
        if isinstance(since, Cursor):
            self._diary.ready(since.frontier)
            self._was_given(self.id)
        elif since is None:
            self._diary.ready(self.feed.ring.newest.cursor.frontier)
        if not isinstance(since, From) and any(join.gap for join in self.memory.joins):
            self._misses()  # what a gap has taken from those before it is reported as aborted to this one, too

    def _misses(self) -> None:
        """A gap may have taken from it what had begun by now."""
        if self._forgets:
            self._diary.truncated()

    @property
    def _forgets(self) -> bool:
        return any(node.forgets for node in self.feed.nodes.values())

    def _was_given(self, text: str) -> None:
        """It has all up to this id, where it can go on."""
        if text:
            self.id, cursor = text, Cursor.from_json(text)
            self.memory.saves += 1
            self._diary.saves(self.memory.saves, cursor.frontier, cursor.unreported_aborts)

    def _take_down(self, epoch: EpochBatches | EpochWasAborted, text: str) -> None:
        """It was given an outcome, with an id."""
        time, frontier = epoch.time, Cursor.from_json(text).frontier
        if isinstance(epoch, EpochWasAborted):
            self._diary.aborted(time, frontier)
        else:
            self._diary.epoch(time, frontier, self.memory.yields[-1][1], self.memory.given_topics.get(time, ALL))
        self._was_given(text)

    def _follows(self) -> None:
        """Write down which publishers it follows, where that is new."""
        newest = {join.segment: join.incarnation for join in self.memory.joins}
        for segment, incarnation in newest.items():
            if self._known.get(segment, 0) < incarnation:
                self._diary.follows(segment, incarnation)
        self._known = newest

    # ---- lives ----

    def lives(self) -> None:
        """Read, or lose the connection, now and then."""
        world, memory = self.world, self.memory
        if memory.over or self.over:
            return
        pause = world.random.expovariate(1 / self._slowness)
        if self.feed.ring is not None:
            if self._ring is not self.feed.ring:
                self._reconnect()
            for _ in range(world.random.choice((1, 3, 100))):
                if not self._once():
                    break
            if world.chance(0.3):
                self._stored = self.id, deepcopy(memory)
            if not world.calm and world.chance(self.feed.scenario.subscriber_crash_rate * pause):
                self._crash()
            elif not world.calm and world.chance(self.feed.scenario.break_rate * pause):
                self._reconnect()
        world.after(min(pause, 4.0), self.lives)

    def _crash(self) -> None:
        """Die, and come back as it was stored last."""
        self._leave()
        name, (self.id, memory) = self.memory.name, self._stored
        self.memory = replace(deepcopy(memory), name=name)
        self._reconnect()

    def _reconnect(self) -> None:
        """Come back with the last id, as a browser does."""
        self.world.count("came back")
        self.world.note(f"{self.memory.name}: comes back with {self.id or 'nothing'}")
        self._leave()
        self._diary.life += 1
        if self.id:
            self._diary.resumes(self.memory.saves)
        else:
            self.memory = self.feed.new_memory(self.memory.name, start=True)
            self._is_ready = False
            self._begins(From.START)
        self._connect(Cursor.from_json(self.id) if self.id else From.START)

    def _leave(self) -> None:
        if self._life is not None:
            self._life.end()
            self._life = None

    # ---- what it is given ----

    def _once(self) -> bool:
        """Take one outcome; returns whether there was one."""
        followed = not self._machine.alone
        step = self._machine.step()
        if step is ReaderStep.ALONE:
            self.world.counts["overtaken"] += followed
            return self._alone()
        if self._life is not None:
            raise Violation(f"F18: {self.memory.name} follows the ring and has a subscription of its own")
        if step is ReaderStep.TAKE:
            self._take(self._machine.take())
            return True
        self._join(self.feed.joins_before, len(self.feed.joins))
        self._quiet()
        self.over = step is ReaderStep.END
        return False

    def _take(self, given: Given) -> None:
        self.world.count("from the ring")
        self._join(given.joins_before, given.joins)
        memory, feed = self.memory, self.feed.memory
        if given.epoch is None:
            self.world.count("notices")
            self._owed = max(0, self._owed - 1)
            self._misses()
            return
        time = given.epoch.time
        if self._owed:
            raise Violation(f"E17: {memory.name} is given {time!r} before the notice of a gap")
        self.world.note(f"{memory.name}: is given {type(given.epoch).__name__} {time!r} from the ring")
        if time in feed.given_topics:
            memory.given_topics[time] = feed.given_topics[time]
        take(memory, given.epoch)
        self._take_down(given.epoch, given.id)

    def _join(self, before: int, until: int) -> None:
        """What the ring's subscription joined until there counts for this reader, from where that follows the ring."""
        joins, memory = self.feed.joins, self.memory
        if self._seen is None:
            newest = {join.segment: join for join in joins[:before]}
            known = {join.segment: join.incarnation for join in memory.joins}
            if any(join.gap for join in joins[:before]):
                self._misses()  # the same where it goes over to the ring
            memory.joins += [
                join._replace(gap=False) for segment, join in newest.items() if join.incarnation > known.get(segment, 0)
            ]
            self._seen = before
        new = joins[self._seen : until]
        memory.joins += new
        self._owed += sum(join.gap for join in new)
        self._seen = until
        self._follows()

    def _alone(self) -> bool:
        if self._life is None:
            since = self._machine.since
            self.world.count("read history")
            self._life = self.feed.live(self.memory, since if isinstance(since, Cursor) else None)
        life = self._life
        if life.ended or not life.machine.ready:
            return False
        if not self._is_ready:
            self._is_ready = True
            self._diary.ready(life.machine.cursor().frontier)
        self._follows()
        fetched = not life.gaps and life.fetch_epoch()
        step = self._machine.look(
            life.machine.cursor(), gap=bool(life.gaps), item=fetched, complete=life.machine.complete
        )
        match step:
            case ReaderStep.GAP:
                self.world.count("notices")
                life.gaps.pop(0)
                self._misses()
                return True
            case ReaderStep.FOLLOW:
                self.world.count("follows the ring")
                if life.gaps:
                    raise Violation(f"E17: {self.memory.name} follows the ring, and gets no notice of its gap")
                self._seen = None
                self._leave()
                return True
            case ReaderStep.TAKE:
                epoch = life.take_epoch()
                self._machine.took(life.machine.cursor())
                self._take_down(epoch, text_of(life.machine.cursor()))
                return True
            case _:
                self._quiet()
                self.over = step is ReaderStep.END
                return False

    def _quiet(self) -> None:
        """It is sent the frontier, with an id; the frontier never goes back (I6)."""
        since = self._machine.since
        if isinstance(since, Cursor):
            sent = frozenset(since.frontier)
            if self._frontier is not None and not all(reached(self._frontier, time) for time in sent):
                where = f"from {sorted(self._frontier)} to {sorted(sent)}"
                raise Violation(f"I6: the frontier of {self.memory.name} went back {where}")
            self._frontier = sent
            if (text := text_of(since)) != self.id:
                self._was_given(text)

    def settle(self) -> None:
        """The run is over."""
        if self.over:
            self._diary.ends()

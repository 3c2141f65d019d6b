"""Applications that read: they join anywhere, fall behind, crash, and go on from a stored cursor."""

from tests.simulation.nodes import Node
from tests.simulation.oracle import Oracle
from tests.simulation.relays import RelayNode
from tests.simulation.scenario import Scenario
from tests.simulation.stories import ALL, Join, Memory, Topics, Yield
from tests.simulation.subscriptions import Life, Stored
from tests.simulation.world import World

from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.times import Time

FILTERS: tuple[Topics, ...] = (frozenset((b"a",)), frozenset((b"b", b"bb")), frozenset((b"b",)), ALL)


class Reader:
    """A reading application: lives, reads, stores its cursor, crashes, goes on."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        nodes: dict[str, Node],
        relays: dict[str, list[RelayNode]],
        oracle: Oracle,
        memory: Memory,
    ) -> None:
        self.world, self.scenario, self.nodes, self.oracle, self.memory = world, scenario, nodes, oracle, memory
        self.relays = relays
        self._stored: tuple[str, list[Yield], set[Time], list[Join], Stored] | None = None
        self._slowness = world.random.choice((0.1, 0.3, 1.0, 3.0))
        self.life = Life(world, scenario, nodes, relays, oracle, memory, None)

    def lives(self) -> None:
        """Do something, or suffer something, now and then."""
        memory, life, world = self.memory, self.life, self.world
        if memory.over:
            return
        pause = world.random.expovariate(1 / self._slowness)
        if not life.ended:
            life.read(world.random.choice((1, 3, 100)), self.scenario.interrupt_rate)
            if life.machine.ready and world.chance(0.3):
                self._store()
            if life.machine.ready:
                life.claim(self._some_time())
            if not world.calm:
                self._suffer(pause)
        world.after(min(pause, 4.0), self.lives)

    def _some_time(self) -> Time:
        """Near the frontier, or one that something was published at lately."""
        random, frontier = self.world.random, sorted(self.life.machine.frontier)
        if self.oracle.lately and (not frontier or random.random() < 0.6):
            return random.choice(self.oracle.lately).time
        return (
            _shifted(random.choice(frontier), random.choice((-2, -1, -1, 0)))
            if frontier
            else self.scenario.time_shape.bottom
        )

    def _store(self) -> None:
        memory = self.memory
        cursor, stored = self.life.save()
        known = list(memory.yields), set(memory.aborted), list(memory.joins)
        self._stored = cursor.to_json(), *known, stored

    def _suffer(self, passed: float) -> None:
        world, scenario, life = self.world, self.scenario, self.life
        if world.chance(scenario.break_rate * passed):
            world.random.choice(life.links).sever(world.random.choice((0.05, 0.5, 3.0)))
        if world.chance(scenario.pause_rate * passed):
            world.count("pauses")
            for link in life.links:
                link.pause()
            world.after(world.between(0.5, 5), life.resume)
        if world.chance(scenario.switch_rate * passed):
            world.count("switched")
            life.follow_pushes(not life.pushes)
        if scenario.change_rate and self.memory.reads_epochs and world.chance(scenario.change_rate * passed):
            life.change(world.random.choice(FILTERS))
        if world.chance(scenario.subscriber_crash_rate * passed):
            self._crash()

    def _crash(self) -> None:
        """Die; what was yielded after the cursor was stored is forgotten with it."""
        memory = self.memory
        self.life.end()
        if self._stored is None:
            memory.over = True  # it never counted; another one joins instead
            return
        text, yields, aborted, joins, stored = self._stored
        memory.yields, memory.aborted = list(yields), set(aborted)
        memory.joins = list(joins)
        self.world.note(f"{memory.name}: crash, resumes from {text}")
        self.world.after(self.world.between(0.1, 2.0), lambda: self._resume(text, stored))

    def _resume(self, text: str, stored: Stored) -> None:
        self.world.count("resumed")
        cursor = Cursor.from_json(text)
        if self.scenario.change_rate and self.memory.reads_epochs and self.world.chance(0.3):
            self.world.count("resumed with other topics")
            self.memory.topics = self.world.random.choice(FILTERS)
            self.memory.always &= self.memory.topics
        self.life = Life(self.world, self.scenario, self.nodes, self.relays, self.oracle, self.memory, cursor, stored)

    def settle(self) -> None:
        """Read all there is, and say what was seen whole."""
        if self.life.ended:
            return
        self.life.read(1_000_000)
        if self.life.machine.ready:
            for time in sorted(self.oracle.at):
                self.life.claim(time)
            self.life.ends()


def _shifted(time: Time, by: int) -> Time:
    if isinstance(time, int):
        return max(time + by, 0)
    return tuple(_shifted(part, by) for part in time)

"""One run: a scenario drawn from a seed, faults, an ending in which everything must come right, and the checks.

The story of a run is read here, in one place.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.simulation.catalog import Catalog
from tests.simulation.disk import Disk
from tests.simulation.nodes import Node
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.readers import FILTERS, Reader
from tests.simulation.relays import RelayNode, Server
from tests.simulation.scenario import Scenario
from tests.simulation.stories import Memory
from tests.simulation.transitions import Transition, watched
from tests.simulation.web import Feed, WebReader
from tests.simulation.world import World
from tests.simulation.writers import Writer

from epochal.protocol import messages as m
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import Time

RECOVERY = 60.0
"""Simulated seconds after which everything must have come right once faults have stopped."""
_FAULT_TICK = 0.5
_DRAIN = 3.0
"""Seconds that a process that stops waits for its disk, and for the catalog."""


class SimulationFailed(AssertionError):
    """A run broke a rule; the message holds the seed and the command that replays it."""

    def __init__(self, seed: int, why: str, overrides: dict[str, Any], *, on_files: bool = False) -> None:
        self.seed = seed
        self.why = why
        self.overrides = overrides
        self.on_files = on_files
        files = "--files " if on_files else ""
        fixed = "".join(f' "{name}={value!r}"' for name, value in overrides.items())
        super().__init__(f"seed {seed}: {why}; replay: python -m tests.simulation {files}{seed}{fixed}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels between processes as what it was made of."""
        return partial(type(self), on_files=self.on_files), (self.seed, self.why, self.overrides)


@dataclass(frozen=True, slots=True)
class Report:
    """What happened in a run, counted, so that a test can see that the runs together try everything."""

    seed: int
    scenario: Scenario
    virtual_seconds: float
    counts: Counter[str]
    """What was done and what happened, and how often."""
    transitions: frozenset[Transition] = field(repr=False)
    """What the machines took of their state tables."""


def simulate(
    seed: int,
    *,
    trace: Callable[[str], object] | None = None,
    make_disk: Callable[[World, str], Disk] | None = None,
    **overrides: Any,
) -> Report:
    """Run `seed`; `overrides` fixes fields of its `Scenario`. Raises `SimulationFailed` when a rule is broken.

    `make_disk` makes what durable segments keep their logs on; without it, a disk that is itself simulated.
    """
    limit = m.MAX_FILTER_ENTRIES
    try:
        run = _Run(seed, trace, make_disk or (lambda world, segment: Disk(world)), overrides)
        m.MAX_FILTER_ENTRIES = run.scenario.hello_entries
        with watched() as taken:
            run.run()
        return run.report(taken)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise SimulationFailed(seed, why, overrides, on_files=make_disk is not None) from error
    finally:
        m.MAX_FILTER_ENTRIES = limit


def _draining(lives: list[tuple[Node, SegmentPublisher]]) -> bool:
    """Whether a process that is to end still runs: one that has died meanwhile does not end in order."""
    return all(node.up and node.draining and node.publisher is publisher for node, publisher in lives)


class _Run:
    def __init__(
        self,
        seed: int,
        trace: Callable[[str], object] | None,
        make_disk: Callable[[World, str], Disk],
        overrides: dict[str, Any],
    ) -> None:
        self.seed = seed
        self.world = World(seed, trace)
        self.scenario = Scenario.draw(self.world.random, overrides)
        self.world.note(str(self.scenario))
        self.catalog = Catalog(self.scenario, clock=lambda: self.world.now)
        self.oracle = Oracle(self.scenario)
        self.nodes = {
            name: Node(self.world, self.scenario, self.catalog, self.oracle, name, make_disk)
            for name in self.scenario.names
        }
        self.relays = {name: self._relays_of(name) for name in self.scenario.names}
        hosted, nodes = self.scenario.per_process, list(self.nodes.values())
        self.processes = [nodes[first : first + hosted] for first in range(0, len(nodes), hosted)]
        self.writers = [self._writer(f"w{number}") for number in range(self.scenario.writers)]
        self.readers: list[Reader] = []
        self.feed: Feed | None = None
        self.web: list[WebReader] = []

    def run(self) -> None:
        """Faults, then the ending, then the checks."""
        world, scenario = self.world, self.scenario
        for writer in self.writers:
            world.after(world.between(0, 1), writer.lives)
        for _ in range(scenario.subscribers):
            world.after(world.between(0, scenario.seconds), self._join)
        if scenario.web_readers:
            self.feed = Feed(world, scenario, self.nodes, self.relays, self.oracle)
            for number in range(scenario.web_readers):
                name = f"h{number}"
                world.after(world.between(0, scenario.seconds), partial(self._join_web, self.feed, name))
        world.after(_FAULT_TICK, self._faults)
        world.run(scenario.seconds)
        self._end()
        self._check()

    def _relays_of(self, segment: str) -> list[RelayNode]:
        """Relays that may follow the publisher, each other, and themselves."""
        ways: list[Server] = [self.nodes[segment]]
        for number in range(self.scenario.relays):
            relay = RelayNode(self.world, self.scenario, f"r{number}", segment, ways)
            ways.append(relay)
        return [relay for relay in ways if isinstance(relay, RelayNode)]

    def _writer(self, name: str) -> Writer:
        return Writer(self.world, self.scenario, self.nodes, self.oracle, self.catalog, name)

    def _join(self, origin: From | None = None) -> None:
        random = self.world.random
        begin = origin or random.choice((From.LIVE, From.LIVE, From.START))
        kind = random.random()
        start = begin is From.START
        memory = Memory(f"s{len(self.readers)}", start, reads_epochs=kind < 0.7, partial=kind > 0.9)
        memory.pushed = random.random() >= self.scenario.pulling
        if start and random.random() < 0.3:
            memory.wanted = self._somewhere()
        if (chosen := zlib.crc32(memory.name.encode(), self.seed % 2**32) % 100) < self.scenario.filtering * 100:
            memory.topics = memory.always = FILTERS[chosen % len(FILTERS)]
            memory.whole_filter = self.scenario.whole_filter
        self.world.note(f"joins: {memory}")
        reader = Reader(self.world, self.scenario, self.nodes, self.relays, self.oracle, memory)
        self.readers.append(reader)
        reader.lives()

    def _join_web(self, feed: Feed, name: str) -> None:
        """A reader over HTTP begins now, at the start of the history, or with the last id of another one."""
        world = self.world
        if feed.ring is None:
            world.after(0.2, partial(self._join_web, feed, name))
            return
        others = [reader for reader in self.web if reader.id and not reader.memory.over]
        kind = world.random.random()
        if kind < 0.4:
            reader = WebReader.now(feed, name)
        elif kind < 0.7 or not others:
            reader = WebReader(feed, feed.new_memory(name, start=True), From.START)
        else:
            other = world.random.choice(others)
            memory = replace(deepcopy(other.memory), name=name, lives=0)
            reader = WebReader(feed, memory, Cursor.from_json(other.id), other.id)
        self.web.append(reader)
        reader.lives()

    def _somewhere(self) -> tuple[Time, ...]:
        """A frontier that some segment has, or what is not <= one of its times (E20)."""
        frontier = self.world.random.choice(list(self.nodes.values())).publisher.progress.lower.frontier
        times = sorted(frontier) or [self.scenario.time_shape.bottom]
        if self.world.chance(0.5):
            return tuple(self.scenario.time_shape.successors_past(self.world.random.choice(times)))
        return tuple(times)

    def _faults(self) -> None:
        world, scenario = self.world, self.scenario
        if world.calm:
            return
        for process in self.processes:
            if not process[0].up:
                continue
            if world.chance(scenario.crash_rate * _FAULT_TICK):
                self._crash(process, machine=world.chance(scenario.power_losses))
            elif world.chance(scenario.together_rate * _FAULT_TICK):
                world.count("together")
                self._crash(process, machine=True)
                for writer in self.writers:
                    if world.chance(0.6):
                        writer.die()
            elif world.chance(scenario.stall_rate * _FAULT_TICK):
                seconds = world.between(0.3, scenario.writer_timeout + 1)
                for node in process:
                    node.stall(seconds)
            elif world.chance(scenario.stop_rate * _FAULT_TICK):
                self._stop(process)
        if scenario.relay_faults:
            for relay in [relay for relays in self.relays.values() for relay in relays]:
                if relay.up and world.chance(scenario.relay_faults * _FAULT_TICK):
                    self._hurt(relay)
        for node in self.nodes.values():
            if world.chance(scenario.wrong_address_rate * _FAULT_TICK):
                node.mislead(world.between(0.3, 4.0))
        if not self.catalog.away and world.chance(scenario.catalog_away_rate * _FAULT_TICK):
            self._catalog_away(world.between(0.3, 6.0))
        if scenario.catalog_restored_rate:
            self._copies(scenario.catalog_restored_rate * _FAULT_TICK)
        world.after(_FAULT_TICK, self._faults)

    def _hurt(self, relay: RelayNode) -> None:
        world = self.world
        kind = world.random.randrange(5)
        if kind == 0:
            relay.crash(world.between(0.2, 2.0))
        elif kind == 1:
            relay.end_in_order(world.between(0.2, 2.0))
        elif kind == 2:
            relay.stall(world.between(0.3, 5.0))
        elif kind == 3:
            relay.sever(world.random.choice((0.05, 0.5, 3.0)))
        else:
            relay.change_way()

    def _crash(self, process: list[Node], *, machine: bool) -> None:
        back_after = self.world.between(0.2, 2.0)
        for node in process:
            node.crash(back_after, machine=machine)

    def _stop(self, process: list[Node]) -> None:
        """End a process in order, as a rolling update does: what it has decided goes out first, if time allows."""
        if process[0].draining or process[0].stalled:
            return
        lives = [(node, node.publisher) for node in process]
        for node in process:
            node.drain()
        self._settle(lives, self.world.now + _DRAIN)

    def _settle(self, lives: list[tuple[Node, SegmentPublisher]], until: float) -> None:
        world, nodes = self.world, [node for node, _ in lives]
        if not _draining(lives):
            return  # it died meanwhile
        if not all(node.settled for node in nodes) and world.now < until:
            world.after(0.05, lambda: self._settle(lives, until))
            return
        stores = [node.last_record() for node in nodes]

        def arrives() -> None:
            if not self.catalog.away:
                for store in stores:
                    store()

        def ends() -> None:
            if _draining(lives):
                back_after = world.between(0.1, 2.0)
                for node in nodes:
                    node.stop(back_after)

        there = world.between(0.001, 0.8 * _DRAIN if world.chance(0.3) else 0.3)
        world.after(there, arrives)
        world.after(_DRAIN if self.catalog.away else there + world.between(0.001, 0.3), ends)

    def _catalog_away(self, seconds: float) -> None:
        self.world.count("away")
        self.catalog.away = True
        self.world.note(f"the catalog is away for {seconds:.2f} s")
        self.world.after(seconds, self._catalog_back)

    def _catalog_back(self) -> None:
        self.catalog.away = False

    def _copies(self, chance: float) -> None:
        """Copy the catalog now and then, and put such a copy back, of which every publisher learns by a refusal."""
        world, catalog = self.world, self.catalog
        if catalog.copies and not catalog.complete and world.chance(chance):
            world.count("restored")
            catalog.restore(world.random.randrange(catalog.copies))
            world.note("an older copy of the catalog is put back")
            for process in self.processes:
                if process[0].up:
                    self._crash(process, machine=False)
        elif world.chance(0.2):
            catalog.copy()

    # ---- the ending ----

    def _end(self) -> None:
        world, scenario = self.world, self.scenario
        world.note("the ending begins")
        if scenario.all_finish:
            for number, writer in enumerate(self.writers):
                writer.must_finish = True
                if 0 < number <= scenario.lost_at_end:
                    world.after(world.between(0, 1.0), writer.vanish)
            world.after(10.0, self._calm)
        else:
            self._calm()
            for writer in self.writers:
                writer.retire()
            world.run(world.now + scenario.writer_timeout + 10)
            for node in self.nodes.values():
                self.oracle.all_are_gone(node.log)
            self._new_writers_finish()
        world.run(world.now + RECOVERY, self._over)
        forgotten = world.counts["volumes lost"]  # also that somebody had finished
        if not self.catalog.complete and (forgotten or not self.oracle.enough_opened):  # some vanished, uncounted
            self._new_writers_finish()
            world.run(world.now + RECOVERY, self._over)
        if not self._over():
            finished = scenario.all_finish and all(writer.finished or writer.vanished for writer in self.writers)
            raise Violation(f"{'E47, finish was confirmed to all' if finished else 'liveness'}: {self._unfinished()}")
        self._calm()
        self._join(From.START)
        self._join(From.LIVE)
        world.run(world.now + RECOVERY, self._over)
        if not self._over():
            raise Violation(f"liveness, late joins: {self._unfinished()}")
        world.run(world.now + RECOVERY, lambda: not self._waiting_writers())
        if self._waiting_writers():
            raise Violation(f"liveness: {self._waiting_writers()} never learned that the stream is complete")

    def _new_writers_finish(self) -> None:
        new = [self._writer(f"final-{number}") for number in range(self.scenario.min_writers)]
        self.writers += new
        for writer in new:
            writer.must_finish = True
            writer.lives()

    def _calm(self) -> None:
        self.world.calm = True
        self._catalog_back()

    def _over(self) -> bool:
        return (
            self.catalog.complete
            and all(
                reader.memory.over or (not reader.life.ended and reader.life.machine.complete)
                for reader in self.readers
            )
            and all(reader.memory.over or reader.over for reader in self.web)
        )

    def _waiting_writers(self) -> list[str]:
        """The processes that wait for the answer to their `finish` or to an open."""
        return [process.name for writer in self.writers for process in writer.processes if process.running]

    def _unfinished(self) -> str:
        publishers = {
            name: (list(node.publisher.progress.lower.frontier), node.publisher.writers)
            for name, node in self.nodes.items()
        }
        writers = {writer.name: writer.finished for writer in self.writers}
        readers = {
            reader.memory.name: (reader.life.machine.ready, list(reader.life.machine.frontier))
            for reader in self.readers
            if not reader.memory.over and not reader.life.machine.complete
        }
        web = [reader.memory.name for reader in self.web if not (reader.memory.over or reader.over)]
        return (
            f"complete={self.catalog.complete}, publishers {publishers}, writers {writers}, readers {readers}, "
            f"readers over HTTP {web}"
        )

    # ---- the checks ----

    def _check(self) -> None:
        for reader in self.readers:
            reader.settle()
        for web in self.web:
            web.settle()
        if self.feed is not None:
            self.feed.settle()
        self._judge_history()

    def _judge_history(self) -> None:
        """What was under way at the end counts, too."""
        history = self.world.history
        for node in self.nodes.values():
            if node.draining and node.up and not self.scenario.durable:
                history.lost(node.segment, node.publisher.incarnation)  # it has aborted what it will not keep
        history.judge()

    def report(self, taken: Iterable[Transition]) -> Report:
        """What happened in the run, with the transitions that it has taken."""
        counts, memories = self.world.counts, [reader.memory for reader in self.readers]
        counts["appends"] = len(self.oracle.appends)
        counts["logged"] = sum(len(log.payloads) for logs in self.oracle.logs.values() for log in logs)
        counts["lost"] = len(self.oracle.lost)
        for memory in memories:
            counts["yielded"] += len(memory.yields)
            counts["aborted"] += len(memory.aborted)
            counts["pulling"] += not memory.pushed
            counts["asked"] += memory.wanted is not None
        return Report(self.seed, self.scenario, self.world.now, counts, frozenset(taken))

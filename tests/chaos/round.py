"""One round: three streams side by side are damaged by a seeded schedule, then everything is healed and judged.

Only this module decides which fault happens to whom and when. The streams keep what was published in memory, or on disk
under the policies `interval` and `batch`. Each has publishers, writers and subscribers of its own, and all have one
catalog. The seed fixes the schedule, but not what is going on when a fault happens, so to see a failure again, run
several rounds of its seed.

`python -m tests.chaos.round (SEED... | --rounds N) [--seconds S] [--parallel K] [--keep DIRECTORY]`; the exit status is
1 when a rule was broken. The history of such a round stays, and its path is printed.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos import pipeline
from tests.chaos.checker import Violation, check, counts, faults
from tests.chaos.history import NEMESIS, Phase, Recorder, read, read_file, watched
from tests.chaos.pipeline import Part
from tests.chaos.processes import SUPERSEDED, Actor, Catalog, Publisher, stopped
from tests.chaos.proxy import BOTH, Proxy, Trouble, Way
from tests.patience import PATIENCE

from epochal.client.catalog.catalog import CatalogClient

SECONDS = 4.0
"""Seconds during which faults happen."""
NAMESPACE = "test"
POLICIES = ("memory", "interval", "batch")
"""The streams of a round; these are their names too."""
OWNED = (("0", "1"), ("2",))
"""The segments of each publisher of a stream."""
WRITERS = ("w1", "w2")
READERS = {"s1": "start", "s2": "start", "s3": None}
BLOCKING = "b1"
PACES = {"s2": 0.2, "s3": 0.05, BLOCKING: 0.1}
"""Seconds, at most, that these work on an epoch: the first is always behind, the others now and then."""
SPEC = {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, "segments": 3}
SILENT, BUSY = 3.0, 15.0
"""Seconds until a writer counts as lost: where faults silence writers, and where only a machine too busy could."""
KINDS = (
    "kill publisher", "kill publisher and writers", "end publisher", "end publishers in turn", "stop publisher",
    "replace publisher", "hand publisher over", "kill publisher without catalog", "end publisher without catalog",
    "kill writer", "stop actor", "kill reader", "interrupt reader", "kill catalog", "stop catalog",
    "cut", "block", "slow", "refuse",
)  # fmt: skip
"""Every kind of fault; a long run must have done each."""

Fault = Callable[[random.Random], Awaitable[None]]


class Stream:
    """One stream of a round, with all that is done to it. `round`: what it shares with the others."""

    def __init__(self, whole: "Round", policy: str) -> None:
        self.policy, self.directory, self._round = policy, whole.directory / policy, whole
        self.directory.mkdir()
        self.name = f"{NAMESPACE}/{policy}"
        self.stored = policy != "memory"
        self.mild = random.Random(f"{whole.seed}/{policy}/mild").random() < 0.3
        """Whether no publisher loses its memory: then nothing at all may be missing.

        With logs on disk, publishers are killed all the same, and of the other processes only subscribers are damaged:
        then no epoch may be aborted unless a writer asked for that.
        """
        data = self.directory / "logs" if self.stored else None
        self.publishers = [
            Publisher(self.directory, f"{policy}-{number}", segments, whole.catalog, data, self.name)
            for number, segments in enumerate(OWNED)
        ]
        self.actors: list[Actor] = []
        self.recorder = Recorder(self.directory, NEMESIS)

    @property
    def only_publishers(self) -> bool:
        """Whether nothing may be aborted."""
        return self.mild and self.stored

    @property
    def writers(self) -> list[Actor]:
        """The processes that write."""
        return [actor for actor in self.actors if actor.name in WRITERS]

    async def begin(self) -> None:
        """Start all processes; returns once each actor has something to lose."""
        if self.stored:
            # A catalog that is away aborts nothing either: publishers go on, and writers wait.
            self.tell("stored", targets=[*(publisher.name for publisher in self.publishers), "catalog"])
        history = {"storage": {"size": "1Gi"}, "durability": self.policy} if self.stored else {}
        timeout = BUSY if self.only_publishers else SILENT
        if self.only_publishers:
            self.tell("spared", targets=WRITERS, seconds=timeout)
        progress = {"minWriters": len(WRITERS), "writerTimeout": f"{timeout:g}s"}
        document: dict[str, Any] = {"apiVersion": "epochal.dev/v1alpha1", "kind": "Stream"}
        document |= {"spec": {**SPEC, "history": history, "progress": progress}}
        document["metadata"] = {"name": self.policy, "namespace": NAMESPACE}
        async with CatalogClient(self._round.catalog.url) as client:
            await client.apply(document, NAMESPACE, self.policy)
        self.actors = [Actor(pipeline.write, self._part(name)) for name in WRITERS]
        self.actors += [Actor(pipeline.read, self._part(name), since) for name, since in READERS.items()]
        self.actors.append(Actor(pipeline.read_blocking, self._part(BLOCKING), "start"))
        await asyncio.gather(*(publisher.start() for publisher in self.publishers))
        for actor in self.actors:
            await actor.start()
        idle = self.actors
        async with asyncio.timeout(PATIENCE):
            while idle:
                await asyncio.sleep(0.1)
                idle = await asyncio.to_thread(lambda waiting: [x for x in waiting if not self._works(x)], idle)

    def _part(self, name: str) -> Part:
        seed = f"{self._round.seed}/{self.policy}"
        return Part(self._round.catalog.url, self.name, name, 0, self.directory, seed, PACES.get(name, 0.0))

    def _works(self, actor: Actor) -> bool:
        """Whether an actor has something to lose: a writer has written, or a reader was given an epoch."""
        wanted = ("append", Phase.OK) if actor.name in WRITERS else ("epoch", Phase.INFO)
        return any((entry.op, entry.phase) == wanted for entry in read_file(self.directory / f"{actor.name}.jsonl"))

    async def finish(self) -> list[Violation]:
        """Heal, and wait until all actors have ended; returns those that have not ended well."""
        self.tell("over")
        (self.directory / "over").touch()
        statuses = await asyncio.gather(*(actor.ended(PATIENCE * 2) for actor in self.actors))
        return [
            Violation(f"{self.policy} ended", f"{actor.name} ended with {status}")
            for actor, status in zip(self.actors, statuses, strict=True)
            if status != 0
        ]

    async def clean_up(self) -> None:
        """End what is left."""
        for actor in self.actors:
            if actor.lives:
                await actor.kill()
        for publisher in self.publishers:
            await publisher.close()
            with contextlib.suppress(AssertionError):  # it was not started
                await publisher.kill()
        self.recorder.close()

    def tell(self, op: str, **data: Any) -> None:
        """Write down what is done."""
        self.recorder.write(op, **data)

    def lanes(self) -> dict[str, list[Fault]]:
        """The faults of this stream, by lane. In a lane, each fault is healed before the next one begins."""
        lanes: dict[str, list[Fault]] = {
            f"{self.policy}/processes": self._process_faults(),
            f"{self.policy}/readers": [self._kill_reader],
            f"{self.policy}/interrupts": [self._interrupt_reader],
        }
        if not self.only_publishers:
            lanes[f"{self.policy}/network"] = [self._cut, self._cut, self._block, self._block, self._slow, self._refuse]
        return lanes

    def _process_faults(self) -> list[Fault]:
        deaths: list[Fault] = [
            self._kill_publisher, self._end_publisher, self._end_in_turn, self._kill_without_catalog,
            self._end_without_catalog,
        ]  # fmt: skip
        if self.only_publishers:
            return [*deaths, self._kill_publisher, self._hand_over]
        faults: list[Fault] = [self._stop_publisher, self._kill_writer, self._stop_actor]
        if self.stored:
            return [*faults, *deaths, *(self._kill_together, self._hand_over) * 2]
        if self.mild:
            return faults
        return [*faults, *deaths, self._kill_together, *(self._replace_publisher,) * 2]

    # ---- publishers ----

    def _one(self, rng: random.Random, kind: str) -> Publisher:
        publisher = rng.choice(self.publishers)
        self.tell(kind, target=publisher.name)
        return publisher

    def _tell_lost(self, publisher: Publisher) -> None:
        """Record that what it had in memory is gone; a log on disk is not."""
        if not self.stored:
            self.tell("lost", target=publisher.name, segments=publisher.segments)

    async def _kill_publisher(self, rng: random.Random) -> None:
        publisher = self._one(rng, "kill publisher")
        await publisher.kill()
        self._tell_lost(publisher)
        await asyncio.sleep(rng.choice((0.0, 1.0)))
        await publisher.start()

    async def _kill_together(self, rng: random.Random) -> None:
        """A machine with a publisher and writers dies; all restart, in any order, the writers with the same ids."""
        publisher = rng.choice(self.publishers)
        writers = [actor for actor in self.writers if actor.lives][: rng.choice((1, 2, 2))]
        self.tell("kill publisher and writers", targets=[publisher.name, *(actor.name for actor in writers)])
        await asyncio.gather(publisher.kill(), *(actor.kill() for actor in writers))
        self._tell_lost(publisher)
        first = rng.choice((True, False))
        if first:
            await publisher.start()
        await asyncio.sleep(rng.choice((0.0, 0.5)))
        for actor in writers:
            await actor.restart()
        if not first:
            await publisher.start()

    async def _end_publisher(self, rng: random.Random) -> None:
        publisher = self._one(rng, "end publisher")
        await publisher.end()
        self._tell_lost(publisher)
        await publisher.start()

    async def _end_in_turn(self, _: random.Random) -> None:
        """Like a rolling update: each publisher stops in order, and the next one once its successor is ready."""
        self.tell("end publishers in turn", targets=[publisher.name for publisher in self.publishers])
        for publisher in self.publishers:
            await publisher.end()
            self._tell_lost(publisher)
            await publisher.start()

    async def _kill_without_catalog(self, rng: random.Random) -> None:
        """No one can record what it knew last, and its successor waits for the catalog."""
        async with self._round.catalog_away(rng):
            publisher = self._one(rng, "kill publisher without catalog")
            await asyncio.sleep(rng.choice((0.0, 0.5, 1.5)))
            await publisher.kill()
            self._tell_lost(publisher)
            starting = asyncio.create_task(publisher.start())
            await asyncio.sleep(rng.choice((0.0, 1.0)))
        await starting

    async def _end_without_catalog(self, rng: random.Random) -> None:
        """An orderly stop that cannot report."""
        async with self._round.catalog_away(rng):
            publisher = self._one(rng, "end publisher without catalog")
            await asyncio.sleep(rng.choice((0.0, 1.0)))
            ending = asyncio.create_task(publisher.end())
            await asyncio.sleep(rng.choice((0.5, 2.5)))
        await ending
        self._tell_lost(publisher)
        await publisher.start()

    async def _stop_publisher(self, rng: random.Random) -> None:
        async with stopped(self._one(rng, "stop publisher").pid):
            await asyncio.sleep(rng.uniform(0.2, 3.0))

    async def _replace_publisher(self, rng: random.Random) -> None:
        """Another process takes over the segments while the first one is stopped, and cannot notice it (E12)."""
        publisher = self._one(rng, "replace publisher")
        async with stopped(publisher.pid):
            self._tell_lost(publisher)
            status = await publisher.replace()
        if status != SUPERSEDED:
            raise AssertionError(f"{publisher.name} was replaced, and ended with {status}")

    async def _hand_over(self, rng: random.Random) -> None:
        """Another process waits for the log of the first one, and goes on after its last event (E12)."""
        await self._one(rng, "hand publisher over").hand_over(rng.uniform(0.0, 1.0))

    # ---- writers and subscribers ----

    async def _kill_writer(self, rng: random.Random) -> None:
        """It resumes its session."""
        await self._kill(rng, "kill writer", rng.choice(self.writers))

    async def _kill_reader(self, rng: random.Random) -> None:
        """It resumes its cursor. The first reader is never killed, so that the others can be compared with it."""
        await self._kill(rng, "kill reader", rng.choice([actor for actor in self.actors if actor.name in ("s2", "s3")]))

    async def _interrupt_reader(self, rng: random.Random) -> None:
        """Ctrl-C, several times: it saves its cursor, and goes on or resumes that."""
        (actor,) = (actor for actor in self.actors if actor.name == BLOCKING)
        for _ in range(rng.randint(1, 10)):
            if actor.lives:
                self.tell("interrupt reader", target=actor.name)
                os.kill(actor.pid, signal.SIGINT)
                await asyncio.sleep(rng.uniform(0.0, 0.1))

    async def _kill(self, rng: random.Random, kind: str, actor: Actor) -> None:
        if actor.lives:
            self.tell(kind, target=actor.name)
            await actor.kill()
            await asyncio.sleep(rng.choice((0.0, 0.2, 1.0)))
            await actor.restart()

    async def _stop_actor(self, rng: random.Random) -> None:
        actor = rng.choice(self.actors)
        if actor.lives:
            self.tell("stop actor", target=actor.name)
            async with stopped(actor.pid):
                await asyncio.sleep(rng.choice((0.3, 1.5, 4.0)))

    # ---- the network ----

    def _proxy(self, rng: random.Random, kind: str) -> Proxy:
        publisher = rng.choice(self.publishers)
        name, proxy = rng.choice(sorted(publisher.proxies.items()))
        self.tell(kind, target=f"{publisher.name}/{name}")
        return proxy

    async def _cut(self, rng: random.Random) -> None:
        self._proxy(rng, "cut").cut()

    async def _block(self, rng: random.Random) -> None:
        """Nothing gets through, one way or both, and neither side notices."""
        blocked = rng.choice((BOTH, frozenset({Way.UP}), frozenset({Way.DOWN})))
        await self._suffer(self._proxy(rng, "block"), Trouble(blocked=blocked), rng.choice((0.3, 1.5, 4.0)))

    async def _slow(self, rng: random.Random) -> None:
        await self._suffer(self._proxy(rng, "slow"), Trouble(delay=rng.uniform(0.01, 0.3), rate=200_000.0), 2.0)

    async def _suffer(self, proxy: Proxy, trouble: Trouble, seconds: float) -> None:
        proxy.suffer(trouble)
        await asyncio.sleep(seconds)
        await self._heal(proxy)

    async def _refuse(self, rng: random.Random) -> None:
        proxy = self._proxy(rng, "refuse")
        proxy.refuse()
        proxy.cut()
        await asyncio.sleep(rng.uniform(0.1, 1.5))
        await self._heal(proxy)

    async def _heal(self, proxy: Proxy) -> None:
        if any(proxy in publisher.proxies.values() for publisher in self.publishers):  # else its publisher is gone
            await proxy.heal()


class Round:
    """One round with all that belongs to it. `directory` holds the histories and the logs, one folder a stream."""

    def __init__(self, seed: str, directory: Path, seconds: float) -> None:
        self.seed, self.directory, self.seconds = seed, directory, seconds
        self.catalog = Catalog(directory)
        self.took = (0.0, 0.0, 0.0)
        """Seconds to begin, with faults, and until all actors have seen the end."""
        self._catalog_is_hurt = asyncio.Lock()
        self.streams = [Stream(self, policy) for policy in POLICIES]

    async def run(self) -> list[Violation]:
        """Run the round; returns the actors that have not ended well.

        Nothing of it runs any more then: judging would block the loop in which the proxies are.
        """
        try:
            async with watched(*(stream.recorder for stream in self.streams)):
                begun = time.monotonic()
                await self.catalog.start()
                await asyncio.gather(*(stream.begin() for stream in self.streams))
                healthy = time.monotonic()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._lane("catalog", [self._hurt_catalog, self._spare_catalog]))
                    for stream in self.streams:
                        for name, faults in stream.lanes().items():
                            tasks.create_task(self._lane(name, faults))
                over = time.monotonic()
                left = await asyncio.gather(*(stream.finish() for stream in self.streams))
                self.took = (healthy - begun, over - healthy, time.monotonic() - over)
                return [violation for each in left for violation in each]
        finally:
            for stream in self.streams:
                await stream.clean_up()
            with contextlib.suppress(AssertionError):  # it was not started
                await self.catalog.kill()

    async def _lane(self, name: str, faults: Sequence[Fault]) -> None:
        rng, clock = random.Random(f"{self.seed}/{name}"), asyncio.get_running_loop().time
        until = clock() + self.seconds
        while clock() < until:
            await asyncio.sleep(rng.uniform(0.1, 0.8))
            await rng.choice(faults)(rng)

    @contextlib.asynccontextmanager
    async def catalog_away(self, rng: random.Random) -> AsyncIterator[None]:
        """The catalog does not answer for a while: it is killed, or stopped."""
        kill = rng.choice((True, False))
        async with self._catalog_is_hurt:
            for stream in self.streams:
                stream.tell("kill catalog" if kill else "stop catalog", target="catalog")
            if kill:
                await self.catalog.kill()
                try:
                    yield
                finally:
                    await self.catalog.start()
            else:
                async with stopped(self.catalog.pid):
                    yield

    async def _hurt_catalog(self, rng: random.Random) -> None:
        async with self.catalog_away(rng):
            await asyncio.sleep(rng.uniform(0.0, 2.0))

    async def _spare_catalog(self, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0.5, 1.5))


class Outcome(NamedTuple):
    """The outcome of one round: whether a rule was broken, and how often each kind of fault was done."""

    broken: bool
    faults: Counter[str]


async def run(seed: str, seconds: float = SECONDS, keep: Path | None = None) -> Outcome:
    """One round of `seed`, reported on standard output. `keep`: where the history of one that fails goes."""
    directory = Path(tempfile.mkdtemp(prefix=f"epochal-chaos-{seed}-"))
    whole = Round(seed, directory, seconds)
    try:
        left, raised = await whole.run(), ""
    except Exception:
        left, raised = [], traceback.format_exc()
    # In a thread, because the proxies of other rounds run in this loop.
    found, facts, done = await asyncio.to_thread(_judged, directory)
    broken = [raised] if raised else _grouped([*found, *left])
    took = "+".join(f"{phase:.0f}" for phase in whole.took)
    print(f"{'BROKEN' if broken else 'ok'} seed={seed} {took} s {_listed(facts)}", flush=True)
    print(f"  {_listed(+done)}", flush=True)
    for line in broken:
        print(f"  {line}")
    if broken:
        if keep is not None:
            directory = Path(shutil.move(directory, keep / directory.name))
        print(f"  history: {directory}")
        print(f"  again: python -m tests.chaos.round {seed} --seconds {seconds:g}", flush=True)
    else:
        shutil.rmtree(directory)
    return Outcome(bool(broken), done)


def _judged(directory: Path) -> tuple[list[Violation], Counter[str], Counter[str]]:
    """What was broken in the streams of a round, how much happened, and how often each kind of fault was done."""
    found: list[Violation] = []
    facts: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for policy in POLICIES:
        history = read(directory / policy)
        found += [Violation(f"{policy} {rule}", detail) for rule, detail in check(history)]
        facts.update(counts(history))
        done.update(faults(history))
    for kind in ("kill catalog", "stop catalog"):  # one fault of the catalog, but each stream has written it down
        done[kind] //= len(POLICIES)
    facts["stalls"] //= len(POLICIES)  # likewise
    facts["faults"] = done.total()
    return found, facts, done


def _grouped(found: Sequence[Violation]) -> list[str]:
    """The broken rules, each with one example: many readers see the same torn epoch."""
    examples: dict[str, list[str]] = {}
    for rule, detail in found:
        examples.setdefault(rule, []).append(detail)
    return [f"{rule} ({len(details)}): {details[0]}" for rule, details in examples.items()]


def _listed(counter: Counter[str]) -> str:
    return " ".join(f"{name.replace(' ', '-')}={count}" for name, count in counter.items())


async def run_all(seeds: Sequence[str], parallel: int, seconds: float, keep: Path | None) -> tuple[int, list[str]]:
    """Run rounds, `parallel` at a time; returns how many broke a rule, and the kinds of fault that never happened."""
    room, broken, done = asyncio.Semaphore(parallel), 0, Counter(dict.fromkeys(KINDS, 0))

    async def one(seed: str) -> None:
        nonlocal broken
        async with room:
            outcome = await run(seed, seconds, keep)
            broken += outcome.broken
            done.update(outcome.faults)

    async with asyncio.TaskGroup() as rounds:
        for seed in seeds:
            rounds.create_task(one(seed))
    assert set(done) == set(KINDS), "every kind of fault is listed"
    print(f"{len(seeds)} rounds, {broken} broken; {_listed(done)}", flush=True)
    return broken, [kind for kind, count in done.items() if not count]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.round")
    parser.add_argument("seeds", nargs="*", help="seeds to run, or run again")
    parser.add_argument("--rounds", type=int, default=0, help="how many more rounds to run, of fresh seeds")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long faults happen in each")
    parser.add_argument("--parallel", type=int, default=1, help="how many rounds at a time")
    parser.add_argument("--keep", type=Path, default=None, help="where histories of rounds that fail go")
    parser.add_argument("--every-kind", action="store_true", help="fail when some kind of fault never happened")
    options = parser.parse_args()
    seeds = [*options.seeds, *(str(random.SystemRandom().randrange(2**32)) for _ in range(options.rounds))]
    if not seeds:
        parser.error("give seeds, or --rounds")
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    broken, never = asyncio.run(run_all(seeds, options.parallel, options.seconds, options.keep))
    if options.every_kind and never:
        print(f"never happened: {', '.join(never)}")
        return 1
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())

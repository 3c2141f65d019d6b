"""One round: writers and subscribers work while a seeded schedule damages them, then all is healed and judged.

Apart from the parts because it decides what is done to whom and when. The seed fixes the schedule; what it meets is a
matter of the machine's time, so a failure is replayed by several rounds of its seed.

`python -m tests.chaos.round SEED... [--seconds S] [--parallel N] [--keep DIRECTORY]`; the exit status is 1 when a rule
was broken. The history of such a round stays, and its path is printed; with `--keep`, that of every round.
"""

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.checker import Violation, check, counts
from tests.chaos.history import NEMESIS, Phase, Recorder, read, read_file
from tests.chaos.pipeline import Part
from tests.chaos.processes import STREAM, SUPERSEDED, Actor, Catalog, Publisher, stopped
from tests.chaos.proxy import BOTH, Proxy, Trouble, Way

from epochal.client.catalog import CatalogClient

SECONDS = 4.0
"""How long faults happen."""
PATIENCE = 90.0
"""Seconds for everybody to end once all is healed, on a busy machine."""
OWNED = {"p0": ("0", "1"), "p1": ("2",)}
WRITERS = ("w1", "w2")
READERS = {"s1": "start", "s2": "start", "s3": None}
PACES = {"s2": 0.2, "s3": 0.05}
"""How long these work on an epoch, at most: the one is always behind, the other now and then."""
SPEC = {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, "segments": 3}
SILENT, BUSY = "3s", "15s"
"""When a writer counts as lost: where faults silence writers, and where only a machine without time could."""


def stored(seed: str) -> str | None:
    """The policy of the stream's log on disk, in half of the seeds; None for memory."""
    return random.Random(f"{seed}/stored").choice((None, None, "batch", "interval"))


class Round:
    """Everything of one round. `directory` keeps the history and the logs."""

    def __init__(self, seed: str, directory: Path, seconds: float) -> None:
        self.seed, self.directory, self.seconds = seed, directory, seconds
        self.catalog = Catalog(directory)
        self.stored = stored(seed)
        data = None if self.stored is None else directory / "logs"
        self.publishers = [Publisher(directory, name, segments, self.catalog, data) for name, segments in OWNED.items()]
        self.actors: list[Actor] = []
        self.mild = random.Random(f"{seed}/mild").random() < 0.5
        """Whether no publisher loses its memory: then nothing may be missing, and the checker excuses nothing.

        With logs on disk publishers are killed all the same, and only they are: then nobody may abort what no writer
        asked to abort.
        """
        self._recorder = Recorder(directory, NEMESIS)

    async def run(self) -> list[Violation]:
        """Do it; returns what was broken."""
        try:
            await self._begin()
            async with asyncio.TaskGroup() as lanes:
                lanes.create_task(self._lane("processes", self._process_faults()))
                lanes.create_task(self._lane("readers", [self._kill_reader]))
                if not self._only_publishers:
                    lanes.create_task(self._lane("network", self._network_faults()))
            self._tell("over")
            (self.directory / "over").touch()
            return await self._finish()
        finally:
            await self._clean_up()

    async def _begin(self) -> None:
        if self.stored is not None:
            self._tell("stored", targets=[publisher.name for publisher in self.publishers])
        await self.catalog.start()
        namespace, name = STREAM.split("/")
        history = {} if self.stored is None else {"storage": {"size": "1Gi"}, "durability": self.stored}
        progress = {"minWriters": len(WRITERS), "writerTimeout": BUSY if self._only_publishers else SILENT}
        spec = {**SPEC, "history": history, "progress": progress}
        document = {"apiVersion": "epochal.dev/v1alpha1", "kind": "Stream", "spec": spec}
        document["metadata"] = {"name": name, "namespace": namespace}
        async with CatalogClient(self.catalog.url) as client:
            await client.apply(document, namespace, name)
        parts = {
            name: Part(self.catalog.url, STREAM, name, 0, self.directory, self.seed, PACES.get(name, 0.0))
            for name in (*WRITERS, *READERS)
        }
        self.actors = [Actor(parts[name], writes=True) for name in WRITERS]
        self.actors += [Actor(parts[name], since) for name, since in READERS.items()]
        await asyncio.gather(*(publisher.start() for publisher in self.publishers))
        for actor in self.actors:
            actor.start()
        async with asyncio.timeout(PATIENCE):
            while not all(map(self._works, self.actors)):  # noqa: ASYNC110 - other processes tell, by files
                await asyncio.sleep(0.05)

    def _works(self, actor: Actor) -> bool:
        """Whether an actor is where it can be damaged: a writer has written, a reader was given an epoch."""
        wanted = ("append", Phase.OK) if actor.writes else ("epoch", Phase.INFO)
        return any((entry.op, entry.phase) == wanted for entry in read_file(self.directory / f"{actor.name}.jsonl"))

    async def _finish(self) -> list[Violation]:
        left = [
            f"{actor.name} ended with {status}"
            for actor, status in zip(
                self.actors, await asyncio.gather(*(actor.ended(PATIENCE) for actor in self.actors)), strict=True
            )
            if status != 0
        ]
        return [*check(read(self.directory)), *(Violation("ended", detail) for detail in left)]

    async def _clean_up(self) -> None:
        for actor in self.actors:
            if actor.lives:
                await actor.kill()
        for publisher in self.publishers:
            await publisher.close()
        for service in (*self.publishers, self.catalog):
            with contextlib.suppress(AssertionError):  # it was not started
                await service.kill()
        self._recorder.close()

    # ---- what happens ----

    def _tell(self, op: str, **data: Any) -> None:
        self._recorder.write(op, **data)

    async def _lane(self, name: str, faults: Sequence[Callable[[random.Random], Awaitable[None]]]) -> None:
        """One fault after the other, each healed before the next."""
        rng, clock = random.Random(f"{self.seed}/{name}"), asyncio.get_running_loop().time
        until = clock() + self.seconds
        while clock() < until:
            await asyncio.sleep(rng.uniform(0.1, 0.8))
            await rng.choice(faults)(rng)

    def _process_faults(self) -> list[Callable[[random.Random], Awaitable[None]]]:
        deaths: list[Callable[[random.Random], Awaitable[None]]] = [self._kill_publisher, self._end_publisher]
        if self._only_publishers:
            return [*deaths, self._kill_publisher, self._hand_over]
        faults: list[Callable[[random.Random], Awaitable[None]]] = [
            self._stop_publisher, self._kill_writer, self._stop_actor, self._kill_catalog, self._stop_catalog,
        ]  # fmt: skip
        if self.stored is not None:
            return [*faults, *deaths, self._hand_over]
        return faults if self.mild else [*faults, *deaths, self._replace_publisher]

    @property
    def _only_publishers(self) -> bool:
        return self.mild and self.stored is not None

    def _network_faults(self) -> list[Callable[[random.Random], Awaitable[None]]]:
        return [self._cut, self._cut, self._block, self._block, self._slow, self._refuse]

    async def _kill_publisher(self, rng: random.Random) -> None:
        publisher = rng.choice(self.publishers)
        self._tell("kill", target=publisher.name)
        await publisher.kill()
        self._tell_lost(publisher)
        await asyncio.sleep(rng.choice((0.0, 1.0)))
        await publisher.start()

    async def _end_publisher(self, rng: random.Random) -> None:
        publisher = rng.choice(self.publishers)
        self._tell("end", target=publisher.name)
        await publisher.end()
        self._tell_lost(publisher)
        await publisher.start()

    async def _stop_publisher(self, rng: random.Random) -> None:
        publisher = rng.choice(self.publishers)
        self._tell("stop", target=publisher.name)
        async with stopped(publisher.pid):
            await asyncio.sleep(rng.uniform(0.2, 3.0))

    async def _replace_publisher(self, rng: random.Random) -> None:
        """Another process takes the segments over while the first one cannot notice (E12)."""
        publisher = rng.choice(self.publishers)
        self._tell("replace", target=publisher.name)
        async with stopped(publisher.pid):
            self._tell_lost(publisher)
            status = await publisher.replace()
        if status != SUPERSEDED:
            raise AssertionError(f"{publisher.name} was replaced, and ended with {status}")

    async def _hand_over(self, rng: random.Random) -> None:
        """Another process waits for the log of the first one, and goes on behind its last event (E12)."""
        publisher = rng.choice(self.publishers)
        self._tell("hand over", target=publisher.name)
        await publisher.hand_over(rng.uniform(0.0, 1.0))

    def _tell_lost(self, publisher: Publisher) -> None:
        """What it had in memory is gone; a log on disk is not."""
        if self.stored is None:
            self._tell("lost", segments=list(publisher.segments))

    async def _kill_writer(self, rng: random.Random) -> None:
        """It resumes its session."""
        await self._kill(rng, rng.choice([actor for actor in self.actors if actor.writes]))

    async def _kill_reader(self, rng: random.Random) -> None:
        """It resumes its cursor; the first reader is left alone, to compare with."""
        await self._kill(rng, rng.choice([actor for actor in self.actors if not actor.writes and actor.name != "s1"]))

    async def _kill(self, rng: random.Random, actor: Actor) -> None:
        if actor.lives:
            self._tell("kill", target=actor.name)
            await actor.kill()
            await asyncio.sleep(rng.choice((0.0, 0.2, 1.0)))
            actor.restart()

    async def _stop_actor(self, rng: random.Random) -> None:
        actor = rng.choice(self.actors)
        if actor.lives:
            self._tell("stop", target=actor.name)
            async with stopped(actor.pid):
                await asyncio.sleep(rng.choice((0.3, 1.5, 4.0)))

    async def _kill_catalog(self, rng: random.Random) -> None:
        self._tell("kill", target="catalog")
        await self.catalog.kill()
        await asyncio.sleep(rng.choice((0.0, 1.0)))
        await self.catalog.start()

    async def _stop_catalog(self, rng: random.Random) -> None:
        self._tell("stop", target="catalog")
        async with stopped(self.catalog.pid):
            await asyncio.sleep(rng.uniform(0.2, 3.0))

    # ---- the network ----

    def _proxy(self, rng: random.Random) -> Proxy:
        publisher = rng.choice(self.publishers)
        name, proxy = rng.choice(sorted(publisher.proxies.items()))
        self._tell("network", target=f"{publisher.name}/{name}")
        return proxy

    async def _cut(self, rng: random.Random) -> None:
        self._proxy(rng).cut()

    async def _block(self, rng: random.Random) -> None:
        """Nothing gets through, one way or both; nobody is told."""
        blocked = rng.choice((BOTH, frozenset({Way.UP}), frozenset({Way.DOWN})))
        await self._suffer(self._proxy(rng), Trouble(blocked=blocked), rng.choice((0.3, 1.5, 4.0)))

    async def _slow(self, rng: random.Random) -> None:
        await self._suffer(self._proxy(rng), Trouble(delay=rng.uniform(0.01, 0.3), rate=200_000.0), 2.0)

    async def _suffer(self, proxy: Proxy, trouble: Trouble, seconds: float) -> None:
        proxy.suffer(trouble)
        await asyncio.sleep(seconds)
        await self._heal(proxy)

    async def _refuse(self, rng: random.Random) -> None:
        proxy = self._proxy(rng)
        proxy.refuse()
        proxy.cut()
        await asyncio.sleep(rng.uniform(0.1, 1.5))
        await self._heal(proxy)

    async def _heal(self, proxy: Proxy) -> None:
        if any(proxy in publisher.proxies.values() for publisher in self.publishers):  # else its publisher is gone
            await proxy.heal()


async def run(seed: str, seconds: float = SECONDS, keep: Path | None = None) -> bool:
    """One round of `seed`, told on standard output; whether every rule held. `keep`: where the history stays."""
    if keep is None:
        directory = Path(tempfile.mkdtemp(prefix=f"epochal-chaos-{seed}-"))
    else:
        directory = keep / seed
        directory.mkdir(parents=True)
    begun = asyncio.get_running_loop().time()
    try:
        broken = [f"{rule}: {detail}" for rule, detail in await Round(seed, directory, seconds).run()]
    except Exception:
        broken = [traceback.format_exc()]
    took = asyncio.get_running_loop().time() - begun
    kind = stored(seed) or "memory"
    facts = " ".join(f"{name}={value}" for name, value in counts(read(directory)).items())
    print(f"{'BROKEN' if broken else 'ok'} seed={seed} {kind} {took:.1f} s {facts}", flush=True)
    for line in broken[:20]:
        print(f"  {line}")
    if broken:
        print(f"  history: {directory}")
        print(f"  again: python -m tests.chaos.round {seed} --seconds {seconds:g}", flush=True)
    elif keep is None:
        shutil.rmtree(directory)
    return not broken


async def run_all(seeds: Sequence[str], parallel: int, seconds: float, keep: Path | None) -> int:
    """Rounds, `parallel` at a time; the number in which a rule was broken."""
    room, broken = asyncio.Semaphore(parallel), 0

    async def one(seed: str) -> None:
        nonlocal broken
        async with room:
            broken += not await run(seed, seconds, keep)

    async with asyncio.TaskGroup() as rounds:
        for seed in seeds:
            rounds.create_task(one(seed))
    return broken


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.round")
    parser.add_argument("seeds", nargs="+")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=None)
    options = parser.parse_args()
    return int(asyncio.run(run_all(options.seeds, options.parallel, options.seconds, options.keep)) > 0)


if __name__ == "__main__":
    sys.exit(main())

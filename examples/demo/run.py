"""One run of the demo: local mode, the Spark job, one subscriber from the start and one that joins late."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo.job import Job
from examples.demo.sidecar import sidecar
from examples.demo.tally import Join, Kill, Sums, Tally, read_truth
from examples.demo.view import View

import epochal
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import EpochalError, StreamComplete
from epochal.local import LocalMode
from epochal.protocol.times import Time, less_equal
from epochal.resources.documents import load_manifests
from epochal.resources.manifest import StreamManifest

LATE = "late"
"""The name under which the catalog lists the late subscriber."""
RELAYED = {"relays": 1, "push": {"initialFilter": "none"}}
"""What the demo declares besides the manifest: a relay, and that a reader is never sent what it has not asked for."""
JOIN_FROM = 0.3
"""Share of the hours that are complete when the late subscriber begins to try."""
KILL_FROM = 0.5
"""... and when a publisher is killed, once the late subscriber is there and an hour is under way."""
HOLD_SECONDS = 60.0
"""How long, at most, a writer of our own keeps an hour under way: for the late subscriber, and for a publisher.

Where a join, or a kill, takes longer than a micro-batch, as on a busy machine, it would otherwise never meet one.
"""
REPORT_SECONDS = 60.0
"""How long, at most, the late subscriber waits until the catalog has its last report; one comes every few seconds."""


@dataclass(slots=True)
class Run:
    """What happens, and what is left of it for the verdict."""

    days: int
    view: View
    kills: bool = True
    """Whether a publisher is killed on the way."""
    sidecar: bool = False
    """Whether the job publishes through one."""
    airport: str | None = None
    """The only one that the late subscriber asks for, through a relay; None: it asks for all."""
    early: Tally = field(default_factory=Tally)
    late: Tally = field(default_factory=Tally)
    join: Join | None = None
    sent: int | None = None
    """Bytes that the late subscriber was sent, if it asked for one airport."""
    everything: int = 0
    """Bytes that the scout, which asks for all, was sent since the late subscriber joined."""
    kill: Kill | None = None
    back_after: float | None = None
    """Seconds from the kill until the scout followed the publisher's next process."""
    batches: int = 0
    publishing: float = 0.0
    """Seconds from the first micro-batch to the end of the stream."""
    truth: dict[int, dict[str, Sums]] = field(default_factory=dict)
    kill_process: Callable[[str], None] = field(default=lambda publisher: None)
    """Kills a publisher, by its id, as nothing in the system can prepare for."""
    kill_how: str = "killed with -9"
    total: int = 0
    """Hours that there will be, once they are known."""
    _done: int = 0
    _joined: asyncio.Event = field(default_factory=asyncio.Event)
    _back: asyncio.Event = field(default_factory=asyncio.Event)
    _killed_at: float = 0.0

    async def run(self, base: Path, manifest: str, script: Path) -> None:
        """Run it all under `base`, and leave no process behind."""
        work = base / "job"
        work.mkdir(parents=True)
        async with AsyncExitStack() as stack:
            self.view.step("starting a catalog and publishers")
            local = await stack.enter_async_context(LocalMode(base / "epochal"))
            self.kill_process = lambda publisher: os.kill(local.processes[publisher], signal.SIGKILL)
            stream = await declare(local.url, manifest)
            self.view.step("starting Spark")
            arguments = ["--catalog", local.url, "--stream", stream, "--days", str(self.days), "--master", "local[2]"]
            environment: dict[str, str] = {}
            if self.sidecar:
                environment = await stack.enter_async_context(sidecar(local.url, base / "sidecar.log"))
            job = await stack.enter_async_context(Job(script, work, arguments, environment))
            client = await stack.enter_async_context(epochal.connect(local.url))
            early = await stack.enter_async_context(client.subscribe(stream, via="direct"))
            scout = await stack.enter_async_context(client.subscribe(stream, partial=True, via="direct"))
            async with asyncio.timeout(30):
                await early.ready.wait()
                await scout.ready.wait()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.follow(early, self.early, late=False))
                tasks.create_task(self.watch(client, stream, scout))
                tasks.create_task(self._listen(job))
        self.truth = read_truth(work / "truth.json")

    async def _listen(self, job: Job) -> None:
        """Lead the job through its steps."""
        began = 0.0
        async for event in job.events():
            match event["event"]:
                case "prepared":
                    self.total = event["hours"]
                    self.view.prepared(self.days, event["hours"], event["flights"])
                case "started":
                    self.view.step("publishing")
                    began = time.monotonic()
                    job.begin()
                case "published":
                    self.batches, self.publishing = event["batches"], time.monotonic() - began
                    self.view.step("comparing with a plain Spark batch over the same file")

    async def follow(self, subscription: epochal.Subscription, tally: Tally, *, late: bool) -> None:
        """Compute the sums of each complete hour, until the stream is complete."""
        async for epoch in subscription.epochs():
            match epoch:
                case epochal.Epoch(time=int(hour)):
                    with epoch.processing():
                        tally.add(hour, epoch.records())
                        self.view.complete(hour, tally, late=late)
                case epochal.EpochAborted(time=hour):
                    tally.faults.append(f"{hour} was aborted")

    async def watch(self, client: epochal.Client, stream: str, scout: epochal.Subscription) -> None:
        """See which hours are under way, and let the late subscriber join while one is of what it asks for."""
        active: set[int] = set()
        parted: set[int] = set()
        """Those of which a part was published that the late subscriber asks for."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            holding: list[asyncio.Task[None]] = []
            async for event in scout.events():
                match event:
                    case epochal.Data(time=int(hour)):
                        active.add(hour)
                        if self.join is not None:
                            self.everything += len(event.payload)
                        if self.airport is None or event.topic == self.airport.encode():
                            parted.add(hour)
                        if self._may_join() and parted:
                            await self._try_to_join(client, stream, parted, tasks)
                        elif self.kills and self.join and self.kill is None and self._done >= KILL_FROM * self.total:
                            # Else the last hour could be complete before the publisher is gone, and nobody saw it back.
                            holding += await self._keep(client, stream, "keeper of the kill", self._back, stack, tasks)
                            await self._kill(client, stream, event.segment, active)
                    case epochal.Rewound(segment=segment) if self.kill and segment == self.kill.segment:
                        self.back_after = time.monotonic() - self._killed_at
                        self.view.back(self.back_after)
                        self._back.set()
                    case epochal.FrontierChanged(frontier=frontier):
                        left = {hour for hour in active if not _reached(frontier, hour)}
                        active -= left
                        parted -= left
                        self._done += len(left)
                        if not holding and self._may_join():
                            holding += await self._keep(client, stream, "keeper", self._joined, stack, tasks)
                self.view.under_way(active)
            for each in holding:
                each.cancel()

    async def _keep(
        self,
        client: epochal.Client,
        stream: str,
        name: str,
        until: asyncio.Event,
        stack: AsyncExitStack,
        tasks: asyncio.TaskGroup,
    ) -> list[asyncio.Task[None]]:
        """Keep an hour under way until something has happened, or for so long that it never will."""

        async def hold(keeper: epochal.Writer) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOLD_SECONDS):
                    await until.wait()
            await keeper.finish()

        with contextlib.suppress(StreamComplete):
            keeper = await stack.enter_async_context(client.writer(stream, name))
            return [tasks.create_task(hold(keeper))]
        return []

    def _may_join(self) -> bool:
        return self.join is None and self.total > 0 and self._done >= JOIN_FROM * self.total

    async def _try_to_join(
        self, client: epochal.Client, stream: str, active: set[int], tasks: asyncio.TaskGroup
    ) -> None:
        """Join, and stay if an hour was under way at the snapshots; else leave, for another try."""
        async with AsyncExitStack() as stack:
            late = await stack.enter_async_context(self._subscribe_late(client, stream))
            async with asyncio.timeout(30):
                await late.ready.wait()
            frontier = late.frontier()
            parted = tuple(sorted(hour for hour in active if _reached(frontier, hour) and not late.saw_whole(hour)))
            if not parted or not frontier:
                return
            self.join = Join(self._done, self.total, parted, self.airport, tuple(sorted(set(late.via.values()))))
            self.view.joined(self.join)
            self._joined.set()
            tasks.create_task(self._follow_late(client, stream, late, stack.pop_all()))

    def _subscribe_late(self, client: epochal.Client, stream: str) -> epochal.Subscription:
        if self.airport is None:
            return client.subscribe(stream, subscriber=LATE)
        return client.subscribe(stream, topics=[self.airport.encode()], via="relay", subscriber=LATE)

    async def _kill(self, client: epochal.Client, stream: str, segment: str, active: set[int]) -> None:
        """Kill the publisher of `segment`; it is started again."""
        namespace, name = stream.split("/")
        known = await client.catalog.lookup(namespace, name)
        logging.getLogger("epochal.local").setLevel(logging.ERROR)  # that it starts it again is for the view to tell
        for found in known.segments:
            if found.id == segment and found.publisher is not None:
                self.kill = Kill(segment, self._done, self.total, tuple(sorted(active)), self.kill_how)
                self._killed_at = time.monotonic()
                self.kill_process(found.publisher.id)
                self.view.killed(self.kill)

    async def _follow_late(
        self, client: epochal.Client, stream: str, late: epochal.Subscription, stack: AsyncExitStack
    ) -> None:
        async with stack:
            await self.follow(late, self.late, late=True)
            if self.airport is not None:
                self.sent = await _sent_to_late(client.catalog, stream)


async def _sent_to_late(catalog: CatalogClient, stream: str) -> int | None:
    """The bytes that the late subscriber was sent, once it has reported that the stream is complete; else None."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REPORT_SECONDS):
            while True:
                for listed in await catalog.subscriptions(*stream.split("/")):
                    if listed.subscriber == LATE and listed.lower == ():
                        return int(listed.counters["received_bytes"])
                await asyncio.sleep(0.2)
    return None


def _reached(frontier: tuple[Time, ...], hour: int) -> bool:
    """Whether `hour` can still grow."""
    return any(less_equal(time, hour) for time in frontier)


async def declare(url: str, text: str) -> str:
    """Declare the streams of a manifest file, each with a relay; returns the name of the first."""
    manifests = [each for each in load_manifests(text) if isinstance(each, StreamManifest)]
    if not manifests:
        raise EpochalError("the manifest declares no stream")
    async with CatalogClient(url) as catalog:
        for manifest in manifests:
            document = manifest.to_document()
            document["spec"] |= RELAYED
            await catalog.apply(document, manifest.namespace, manifest.name)
            await catalog.lookup(manifest.namespace, manifest.name, wait=60)
    return manifests[0].qualified

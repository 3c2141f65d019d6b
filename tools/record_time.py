"""Records a real run of three writers and a subscriber, which the picture of the README shows.

    python tools/record_time.py > docs/pictures/time.json

It starts a catalog and a publisher on this machine. Each event has the time, in seconds from the first one, at which it
was acknowledged to a writer or given to a subscriber. Between the writers' steps it waits, so that they can be told
apart in the picture; what a subscriber is given comes when it comes.
"""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass

import epochal
from epochal.client.catalog.catalog import CatalogClient
from epochal.local import LocalMode

NAMESPACE, NAME = "demo", "picture"
MANIFEST = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": NAME, "namespace": NAMESPACE},
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, "progress": {"minWriters": 3}},
}
PACE = 0.12
"""Seconds before each step."""
SLOW = 5
"""How many times as long the slow writer waits."""
STEPS = (
    ("w1", "append", 1), ("w2", "append", 1), ("w3", "append", 1), ("w1", "advance", 2), ("w2", "advance", 2),
    ("w1", "append", 2), ("w2", "append", 2), ("w3", "slow", 1), ("w3", "advance", 2), ("reader", "whole", 1),
    ("w3", "append", 2), ("w1", "advance", 3), ("w3", "fail", 2), ("w2", "advance", 3), ("reader", "aborted", 2),
    ("w1", "append", 3), ("w2", "append", 3), ("w1", "advance", 4), ("w2", "advance", 4), ("reader", "whole", 3),
)  # fmt: skip
"""Who does what at which time. `reader` waits until the subscriber was given it; `slow` only waits."""


class FaultError(Exception):
    """What ends the program of the third writer."""


@dataclass(frozen=True, slots=True)
class Event:
    """What happened: `records` is the number of records that the subscriber was given."""

    at: float
    who: str
    what: str
    time: int
    records: int = 0


class Recorder:
    """Does the steps against a running catalog, and keeps what happens."""

    def __init__(self, pace: float) -> None:
        self.events: list[Event] = []
        self._pace = pace
        self._began = time.monotonic()
        self._more = asyncio.Event()

    def note(self, who: str, what: str, at: int, records: int = 0) -> None:
        """Keep one event."""
        self.events.append(Event(round(time.monotonic() - self._began, 4), who, what, at, records))
        self._more.set()

    async def run(self, url: str) -> None:
        """Declare the stream, and do all steps."""
        async with CatalogClient(url) as catalog:
            await catalog.apply(MANIFEST, NAMESPACE, NAME)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            client = await stack.enter_async_context(epochal.connect(url))
            readers = [await stack.enter_async_context(client.subscribe(f"{NAMESPACE}/{NAME}")) for _ in range(2)]
            for reader in readers:
                await reader.ready.wait()
            following = [tasks.create_task(self._epochs(readers[0])), tasks.create_task(self._frontier(readers[1]))]
            leaving = {who: await stack.enter_async_context(AsyncExitStack()) for who in ("w1", "w2", "w3")}
            writers = {who: client.writer(f"{NAMESPACE}/{NAME}", who) for who in leaving}
            for who, writer in writers.items():
                await leaving[who].enter_async_context(writer)
                await writer.advance(1)
            await self._until("frontier", "is", 1)
            self.events.clear()
            self._began = time.monotonic()
            self.note("frontier", "is", 1)
            for who, what, at in STEPS:
                await self._step(who, what, at, writers, leaving)
            await self._until("frontier", "is", 4)
            for task in following:
                task.cancel()

    async def _step(
        self, who: str, what: str, at: int, writers: dict[str, epochal.Writer], leaving: dict[str, AsyncExitStack]
    ) -> None:
        if who == "reader":
            return await self._until(who, what, at)
        await asyncio.sleep(self._pace * (SLOW if what == "slow" else 1))
        match what:
            case "append":
                await writers[who].append(at, [{"delay": 7}])
            case "advance":
                await writers[who].advance(at)
            case "fail":
                with suppress(FaultError):
                    async with leaving[who]:
                        raise FaultError
            case _:
                return None
        return self.note(who, what, at)

    async def _until(self, who: str, what: str, at: int) -> None:
        """Wait for an event."""
        while not any((event.who, event.what, event.time) == (who, what, at) for event in self.events):
            self._more.clear()
            await self._more.wait()

    async def _epochs(self, reader: epochal.Subscription) -> None:
        async for epoch in reader.epochs():
            if isinstance(epoch, epochal.EpochAborted):
                self.note("reader", "aborted", epoch.time)
            else:
                self.note("reader", "whole", epoch.time, len(list(epoch.records())))

    async def _frontier(self, reader: epochal.Subscription) -> None:
        async for event in reader.events():
            if isinstance(event, epochal.FrontierChanged) and event.frontier:
                self.note("frontier", "is", min(event.frontier))


async def record(url: str, pace: float = PACE) -> list[Event]:
    """What happens in a run against the catalog at `url`."""
    recorder = Recorder(pace)
    await recorder.run(url)
    return sorted(recorder.events, key=lambda event: event.at)


async def _main() -> None:
    async with LocalMode() as local:
        events = await record(local.url)
    lines = ",\n  ".join(json.dumps(asdict(event)) for event in events)
    sys.stdout.write(f"[\n  {lines}\n]\n")


if __name__ == "__main__":
    asyncio.run(_main())

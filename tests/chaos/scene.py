"""What tests of named faults damage: one publisher behind proxies, with a writer and subscribers in this process.

Linux only, like the proxies.
"""

import asyncio
import itertools
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType

from tests.chaos.processes import NEAR, Catalog, Publisher
from tests.patience import PATIENCE

import epochal
from epochal.client.catalog.catalog import CatalogClient
from epochal.protocol.subscriber.follower import FollowerSettings

SPEC = {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}}


class Scene:
    """A catalog, one publisher behind proxies, a writer and a subscriber.

    `history`: that part of the manifest; with `storage` in it, the logs are in `data`.
    """

    def __init__(
        self, directory: Path, segments: int = 2, history: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        self.catalog = Catalog(directory)
        self.data = directory / "logs" if "storage" in history else None
        names = tuple(str(number) for number in range(segments))
        self.publisher = Publisher(directory, "p0", names, self.catalog, self.data)
        self._spec = {**SPEC, "segments": segments, "history": dict(history)}
        self._times = itertools.count()

    async def start(self, stack: AsyncExitStack, **publisher: float) -> None:
        """Start everything; `publisher`: settings of the publisher."""
        self.publisher.settings.update(publisher)
        await self.catalog.start()
        stack.push_async_callback(self.catalog.kill)
        document = {"apiVersion": "epochal.dev/v1alpha1", "kind": "Stream", "spec": self._spec}
        document["metadata"] = {"name": "chaos", "namespace": "test"}
        async with CatalogClient(self.catalog.url) as client:
            await client.apply(document, "test", "chaos")
        await self.publisher.start()
        stack.push_async_callback(self.publisher.kill)
        stack.push_async_callback(self.publisher.close)
        # load: it bounds how long a catalog is away, and not how slowly one answers
        self.client = await stack.enter_async_context(epochal.connect(self.catalog.url, patience=1.0))
        self.writer = await stack.enter_async_context(self.client.writer("test/chaos", wait=PATIENCE))

    @asynccontextmanager
    async def reader(self, silence: float = 3.0) -> AsyncIterator[epochal.Subscription]:
        """A subscriber that is ready."""
        settings = FollowerSettings(silence=silence)
        async with self.client.subscribe("test/chaos", wait=PATIENCE, settings=settings) as sub:
            await asyncio.wait_for(sub.ready.wait(), PATIENCE)
            yield sub

    async def publish(self) -> int:
        """Publish one whole epoch with a record in each segment; returns its time."""
        time = next(self._times)
        async with asyncio.timeout(PATIENCE):
            for key in (b"a", b"b", b"c", b"d"):
                await self.writer.append(time, [time], key=key)
            await self.writer.advance(time + 1)
        return time

    async def subscribers(self) -> int:
        """How many subscriptions the publisher holds."""
        url = self.publisher.addresses["http"].replace(self.publisher.far, NEAR) + "/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=PATIENCE).read().decode())
        lines = [line for line in text.splitlines() if line.startswith("epochal_publisher_subscribers")]
        assert lines, text
        return int(sum(float(line.rpartition(" ")[2]) for line in lines))

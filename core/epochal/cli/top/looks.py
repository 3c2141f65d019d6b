"""Polls the catalog and publishers' metrics for `epochal top`.

This is the part that does I/O; it never waits long for a publisher.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import aiohttp

from epochal.catalog_api.answers import StreamInfo
from epochal.cli import target
from epochal.cli.io.metrics import open_session, read_text
from epochal.cli.top.rates import Reading, Segment, rates, readings
from epochal.cli.top.rows import Snapshot
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import EpochalError

MOST_READ = 256
"""Publishers whose metrics are read in one poll, at most; the streams of the others have no rate."""
AT_ONCE = 64
METRICS_TIMEOUT = 2.0
"""Seconds for the metrics of one publisher."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which streams to show: `streams` if any are named, else those of `namespace`, else all."""

    streams: Sequence[tuple[str, str]] = ()
    namespace: str | None = None


class Looks:
    """Polls again and again, and computes rates from the counters of the poll before."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._session = open_session()
        self._before: dict[Segment, Reading] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def look(self, catalog: CatalogClient) -> Snapshot:
        """Poll once. Raises `StreamNotFound` for a stream that was named, and what the catalog's client raises."""
        streams = await self._streams(catalog)
        subscriptions = await catalog.subscriptions(self._wanted.namespace)
        now = await self._readings(streams)
        found = rates(self._before, now)
        self._before = now
        return Snapshot(datetime.now().astimezone(), streams, subscriptions, found)

    async def _streams(self, catalog: CatalogClient) -> tuple[StreamInfo, ...]:
        if not self._wanted.streams:
            return await catalog.list(self._wanted.namespace)
        return tuple([await catalog.get(*stream) for stream in self._wanted.streams])

    async def _readings(self, streams: Sequence[StreamInfo]) -> dict[Segment, Reading]:
        """The counters of every publisher that answers, each only of the segments that it serves."""
        gate = asyncio.Semaphore(AT_ONCE)
        served = _served(streams)
        some = list(served.items())[:MOST_READ]
        answers = await asyncio.gather(*(self._read(gate, address) for address, _ in some))
        return {
            segment: reading
            for (_, segments), answer in zip(some, answers, strict=True)
            for segment, reading in answer.items()
            if segment in segments
        }

    async def _read(self, gate: asyncio.Semaphore, address: str) -> dict[Segment, Reading]:
        async with gate:
            with suppress(aiohttp.ClientError, OSError, ValueError, TimeoutError, EpochalError):
                there = await target.way(address)
                answer = await read_text(self._session, f"{there}/metrics", METRICS_TIMEOUT)
                return readings(answer.text.decode("utf-8", "replace"), time.monotonic())
        return {}


def _served(streams: Sequence[StreamInfo]) -> dict[str, set[Segment]]:
    """The HTTP addresses of publishers, each with the segments that it serves."""
    found: dict[str, set[Segment]] = {}
    for stream in streams:
        for segment in stream.segments:
            if segment.publisher is not None and (address := segment.publisher.addresses.get("http")):
                found.setdefault(address, set()).add((stream.qualified, segment.id))
    return found

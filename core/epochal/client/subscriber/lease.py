"""Makes a subscription known to the catalog, in the background, while it is open (S30).

Reading never depends on it: a catalog that does not answer is tried again, and no read waits for it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from epochal.backoff import Backoff
from epochal.catalog_api.answers import StreamInfo, SubscriptionLease
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import RECONNECT_FIRST, RECONNECT_LAST
from epochal.errors import EpochalError, StreamGone, StreamNotFound
from epochal.protocol.times import Time
from epochal.transport.shutdown import ended

WITHDRAW = 1.0
"""Seconds that leaving waits for the catalog; after that the lease lapses by itself (S30)."""

SubscriptionReport = tuple[Sequence[Time] | None, Mapping[str, float]]
"""The frontier, None before there is one, and what was counted."""


def _take_note(entering: "asyncio.Future[SubscriptionLease]") -> None:
    """Have asyncio not warn about a failure: the caller that waited may be cancelled by now."""
    if not entering.cancelled():
        entering.exception()


class Announcement:
    """One subscription's entry in the catalog. `run` is a task; `withdraw` comes after it has ended."""

    def __init__(
        self, catalog: CatalogClient, stream: StreamInfo, subscriber: str, report: Callable[[], SubscriptionReport]
    ) -> None:
        self._catalog = catalog
        self._stream = stream
        self._subscriber = subscriber
        self._report = report
        self._lease: SubscriptionLease | None = None
        self._entering: asyncio.Task[SubscriptionLease] | None = None

    async def run(self) -> None:
        """Enter, renew each third of the lease with a report, enter again when it lapsed; until the stream is gone."""
        backoff = Backoff(RECONNECT_FIRST, RECONNECT_LAST)
        while True:
            try:
                ttl = await self._enter() if self._lease is None else await self._renew(self._lease)
            except (StreamNotFound, StreamGone):
                return
            except EpochalError as error:
                if error.code in ("unknown_subscription", "not_owner"):
                    self._lease = None
                await backoff.pause()
            else:
                backoff.reset()
                await asyncio.sleep(ttl / 3)

    async def _enter(self) -> float:
        stream = self._stream
        asked = self._catalog.subscribed(stream.namespace, stream.name, self._subscriber, stream.uid)
        self._entering = asyncio.create_task(asked)
        self._entering.add_done_callback(_take_note)
        self._lease = await asyncio.shield(self._entering)  # if this is cancelled, `withdraw` still needs the lease
        return 0.0  # the first report follows at once

    async def _renew(self, lease: SubscriptionLease) -> float:
        lower, counters = self._report()
        return await self._catalog.renew_subscription(lease.id, lease.token, lower, counters)

    async def withdraw(self) -> None:
        """Say that the subscription has ended, if that takes no longer than `WITHDRAW`."""
        lease, self._lease = self._lease, None
        entering, self._entering = self._entering, None
        try:
            with suppress(EpochalError, TimeoutError):
                async with asyncio.timeout(WITHDRAW):
                    if lease is None and entering is not None:
                        await asyncio.wait([entering])
                        lease = None if entering.cancelled() else entering.result()
                    if lease is not None:
                        await self._catalog.unsubscribe(lease.id, lease.token)
        finally:
            if entering is not None:
                await ended([entering])

"""Renews all leases of a process in one request.

For a `PublisherLease` a renewal is one call with one answer; here the calls of all streams of the process are joined.
The catalog still judges each lease independently and answers each with a renewal or an error.

Requests are joined in two ways: all leases renew at the same moments, and urgent renewals share the next request.
"""

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from contextvars import Context
from typing import NamedTuple

from epochal.catalog_api.answers import Renewal
from epochal.catalog_api.requests import MOST_TOGETHER, RenewOne, SegmentReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import CatalogUnavailable, EpochalError, Unavailable

logger = logging.getLogger("epochal.publisher")

MOST_BYTES = 512 * 1024
"""About the most bytes of one request; a catalog takes no more than 1 MiB."""
GATHERING = 0.005
"""Seconds for which a regular renewal waits for others: timers of one moment fire in several turns of the loop."""
MOST_AT_ONCE = 2
"""Most requests under way. Later renewals share the next one, so a slow catalog gets larger requests, not more.

With only one, an urgent renewal would have to wait for two answers: that of the request under way, and its own.
"""


class _Asked(NamedTuple):
    lease: RenewOne
    answered: "asyncio.Future[Renewal]"


class SharedRenewals:
    """Renews for all streams of a process through `client`."""

    def __init__(self, client: CatalogClient) -> None:
        self.client = client
        self._waiting: list[_Asked] = []
        self._sending: dict[asyncio.Task[None], frozenset[str]] = {}
        self._due: asyncio.TimerHandle | None = None

    async def renew(
        self, publisher: str, token: int, segments: Mapping[str, SegmentReport], *, urgent: bool
    ) -> Renewal:
        """As `CatalogClient.renew`. A renewal that is not `urgent` waits a moment for others."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Renewal] = loop.create_future()
        self._waiting.append(_Asked(RenewOne(publisher, token, dict(segments)), answered))
        self._send_by(loop.time() + (0.0 if urgent else GATHERING))
        return await answered

    @staticmethod
    def next_beat(now: float, interval: float) -> float:
        """When a lease with this `interval` (seconds) is due next: the same moment for all leases of a process."""
        return (math.floor(now / interval) + 1) * interval

    async def close(self) -> None:
        """End what is under way."""
        if self._due is not None:
            self._due.cancel()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _send_by(self, at: float) -> None:
        if self._due is not None:
            if self._due.when() <= at:
                return
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_at(at, self._send, context=Context())

    def _send(self) -> None:
        self._due = None
        while len(self._sending) < MOST_AT_ONCE and (asked := self._take()):
            task = asyncio.create_task(self._renew(asked), name="renewals")
            self._sending[task] = frozenset(each.lease.publisher for each in asked)
            task.add_done_callback(self._sent)

    def _sent(self, task: "asyncio.Task[None]") -> None:
        del self._sending[task]
        if self._due is None:
            self._send()

    def _take(self) -> list[_Asked]:
        """The oldest renewals that fit into a request, at most one of each lease, so that reports stay in order."""
        taken, size, later = list[_Asked](), 0, list[_Asked]()
        under_way = {publisher for sent in self._sending.values() for publisher in sent}
        for asked in self._waiting:
            if asked.answered.done():
                continue  # its stream has stopped and sends its last report by itself
            more = _size(asked.lease)
            full = bool(taken) and (size + more > MOST_BYTES or len(taken) == MOST_TOGETHER)
            if full or asked.lease.publisher in under_way:
                later.append(asked)
                continue
            under_way.add(asked.lease.publisher)
            taken.append(asked)
            size += more
        self._waiting = later
        return taken

    async def _renew(self, asked: Sequence[_Asked]) -> None:
        try:
            answers = await self._answers([each.lease for each in asked])
        except asyncio.CancelledError:
            for each in asked:
                each.answered.cancel()
            raise
        except Exception as error:  # a bug: each stream ends with it, and starts again
            answers = [EpochalError(f"renewals failed: {error!r}") for _ in asked]
            logger.exception("renewals failed")
        for each, answer in zip(asked, answers, strict=True):
            if each.answered.done():
                continue  # its stream has stopped
            if isinstance(answer, EpochalError):
                each.answered.set_exception(answer)
            else:
                each.answered.set_result(answer)

    async def _answers(self, leases: Sequence[RenewOne]) -> Sequence[Renewal | EpochalError]:
        if len(leases) > 1:
            try:
                return await self.client.renew_together(leases)
            except Unavailable as error:
                return [CatalogUnavailable(str(error)) for _ in leases]
            except EpochalError as error:
                # Refused as a whole, which says nothing about a single lease: send each alone.
                logger.warning("renewals that were sent together are refused, each is sent alone: %s", error)
        return await asyncio.gather(*map(self._alone, leases))

    async def _alone(self, lease: RenewOne) -> Renewal | EpochalError:
        try:
            return await self.client.renew(lease.publisher, lease.token, lease.segments)
        except EpochalError as error:
            return error


def _size(lease: RenewOne) -> int:
    """About how many bytes it takes in a request."""
    size = 100
    for report in lease.segments.values():
        size += 400 + sum(len(writer) + 4 for writer in report.writers or ()) + sum(map(len, report.marks))
        size += 150 * len(report.channels) + 120 * len(report.holders)
        size += 24 * sum(map(len, (report.lower or (), report.horizon or (), report.below)))
    return size

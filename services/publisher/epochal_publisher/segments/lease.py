"""This process's right to its segments: registered at the catalog, renewed every second, given up at the end.

It touches no sockets: each answer of the catalog becomes a call of `LeaseOwner`. Streams work on while the catalog is
away. Only after a stall must the lease be confirmed before anything is sent (E12 fencing).

A superseded process leaves a mark, a file that keeps it from being started again. An exit status is not enough: Kubelet
restarts a pod's containers whatever it is, and the catalog would take the restarted process for a newer owner than the
one that had taken over.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol, Self

from epochal.catalog_api.answers import Registration, Renewal, StreamInfo
from epochal.catalog_api.requests import SegmentReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import EpochalError, ProtocolError, StreamGone, StreamNotFound, Superseded, Unavailable
from epochal.logfiles.disk import sync_directory
from epochal_publisher.segments.renewals import SharedRenewals
from epochal_publisher.settings import Settings

logger = logging.getLogger("epochal.publisher")

_FOR_EVER = float("inf")
_RETRY = 0.2
"""Seconds between tries of a call that must succeed before the process can go on."""


class Forgotten(Superseded):
    """The catalog does not know this registration. It may have lost its database, so perhaps no one has taken over."""


class ReportRefused(EpochalError):
    """The catalog refuses this publisher's reports: a bug in this program, not a lost lease."""

    code = "report_refused"


class LeaseOwner(Protocol):
    """Receives the answers of the catalog."""

    stalls: int
    """Number of stalls so far. A renewal that was requested before the last stall proves nothing."""

    def reports(self, *, urgent: bool = False, final: bool = False) -> Mapping[str, SegmentReport]:
        """The report of each segment. `urgent`: only of segments that asked for one since the last time.

        `final`: this is the last report, because the process stops in order.
        """
        ...

    def renewed(self, renewal: Renewal) -> None:
        """The catalog has stored the last report."""

    def confirmed(self, stalls: int) -> None:
        """The lease was valid at some time after stall number `stalls`."""

    def completed(self) -> None:
        """The stream is complete (E7 finish)."""

    def finishing_answered(self, segment: str, number: int, complete: bool) -> None:
        """The catalog answered a finishing report."""

    def ended(self, error: EpochalError) -> None:
        """The segments are no longer ours: superseded, or the stream is gone."""


class PublisherLease:
    """The calls to the catalog for one stream; `shared`: renewals go together with those of the process's others."""

    def __init__(self, settings: Settings, shared: SharedRenewals | None = None) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._shared = shared
        self._client = CatalogClient(settings.catalog, patience=0.0, timeout=5.0) if shared is None else shared.client
        self.instance = secrets.token_hex(8)
        """Identifies this life of the process."""
        self._token = -1
        self._incarnations: dict[str, int] = {}
        self._finishing: dict[str, asyncio.Queue[tuple[int, bool]]] = {}
        self._soon = asyncio.Event()

    async def __aenter__(self) -> Self:
        if self._shared is None:
            await self._stack.enter_async_context(self._client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def look_up(self) -> StreamInfo:
        """The stream; waits while the catalog is away. Raises `StreamNotFound` and other errors that it answers."""
        namespace, _, name = self._settings.stream.partition("/")
        async with CatalogClient(self._settings.catalog, patience=_FOR_EVER, on_unreachable=self._warn) as client:
            return await client.get(namespace, name)

    async def acquire(
        self, stream: StreamInfo, addresses: Mapping[str, str], incarnations: Mapping[str, int]
    ) -> tuple[StreamInfo, Registration]:
        """Register; waits while the catalog is away. Raises any error that it answers.

        `incarnations`: the last one of each log on disk. Call it only with those logs locked (E12 fencing).
        """
        settings = self._settings
        namespace, _, name = settings.stream.partition("/")
        async with CatalogClient(settings.catalog, patience=_FOR_EVER, on_unreachable=self._warn) as client:
            registration = await client.register(
                settings.publisher,
                instance=self.instance,
                stream=settings.stream,
                uid=stream.uid,
                segments=settings.segments,
                addresses=addresses,
                incarnations=incarnations,
            )
            # Look it up once more: the last owner is fenced now, so the records of its segments no longer change.
            stream = await client.get(namespace, name)
        self._token = registration.token
        self._incarnations = {grant.id: grant.incarnation for grant in registration.segments}
        return stream, registration

    def _warn(self, reason: str) -> None:
        logger.warning("no catalog answers at %s (%s); trying again until one does", self._settings.catalog, reason)

    def ask_now(self) -> None:
        """Renew at once: something waits for the answer (E11 horizon)."""
        self._soon.set()

    async def keep(self, owner: LeaseOwner) -> None:
        """Renew until the lease is lost. Between regular renewals, only segments that ask for it are reported."""
        loop = asyncio.get_running_loop()
        away, stalls, due = False, 0, loop.time()
        while True:
            confirmed, stalls, urgent = stalls, owner.stalls, not away and loop.time() < due
            try:
                renewal = await self._renew(owner.reports(urgent=urgent), urgent=urgent)
            except Unavailable as error:
                if isinstance(error, Superseded):
                    owner.ended(error)
                    return
                if not away:
                    logger.warning("the lease cannot be renewed, the stream goes on: %s", error)
                away, stalls = True, confirmed
            except EpochalError as error:
                owner.ended(_meaning(error))
                return
            else:
                if away:
                    logger.info("the lease is renewed again")
                away = False
                owner.confirmed(stalls)
                owner.renewed(renewal)
                if renewal.complete:
                    owner.completed()
            if not urgent:
                due = self._next(loop.time())
            if away:
                await asyncio.sleep(_RETRY)  # otherwise each `ask_now` would be one more attempt
            await self._pause(due - loop.time() if stalls == owner.stalls else _RETRY)

    async def _renew(self, reports: Mapping[str, SegmentReport], *, urgent: bool) -> Renewal:
        if self._shared is None:
            return await self._client.renew(self._settings.publisher, self._token, reports)
        return await self._shared.renew(self._settings.publisher, self._token, reports, urgent=urgent)

    def _next(self, now: float) -> float:
        interval = self._settings.renew_interval
        return now + interval if self._shared is None else self._shared.next_beat(now, interval)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._soon.wait()
        except TimeoutError:
            pass
        self._soon.clear()

    def report_finishing(self, segment: str, number: int, finishing: bool) -> None:
        """Queue a finishing report. Reports of one segment are sent one after the other (E7 finish)."""
        self._finishing.setdefault(segment, asyncio.Queue()).put_nowait((number, finishing))

    async def report(self, owner: LeaseOwner, segment: str) -> None:
        """Send the finishing reports of one segment, for ever; each is repeated until it is answered."""
        queue = self._finishing.setdefault(segment, asyncio.Queue())
        while True:
            number, finishing = await queue.get()
            complete = await self._report_one(owner, segment, number, finishing)
            if complete is None:
                return
            owner.finishing_answered(segment, number, complete)

    async def _report_one(self, owner: LeaseOwner, segment: str, number: int, finishing: bool) -> bool | None:
        while True:
            try:
                return await self._client.finishing(
                    self._settings.stream,
                    segment,
                    publisher=self._settings.publisher,
                    token=self._token,
                    incarnation=self._incarnations[segment],
                    number=number,
                    finishing=finishing,
                )
            except Unavailable as error:
                if isinstance(error, Superseded):
                    owner.ended(error)
                    return None
                logger.warning("the catalog was not notified that segment %s is finishing: %s", segment, error)
                await asyncio.sleep(_RETRY)
            except EpochalError as error:
                owner.ended(_meaning(error))
                return None

    async def give_up(self, owner: LeaseOwner) -> None:
        """Report the last state and deregister, so that the next owner starts exactly there."""
        try:
            async with asyncio.timeout(self._settings.drain_timeout):
                await self._renew(owner.reports(final=True), urgent=True)
                await self._client.deregister(self._settings.publisher, self._token)
        except (EpochalError, TimeoutError) as error:
            logger.warning("the lease was not given up, it will lapse: %s", str(error) or "no answer in time")


def _meaning(error: EpochalError) -> EpochalError:
    """The owner's error for an error answer of the catalog."""
    if isinstance(error, StreamGone | StreamNotFound):
        return StreamGone("the stream was deleted")
    if error.code == "unknown_publisher":
        return Forgotten(f"the catalog does not know this registration any more: {error}")
    if isinstance(error, ProtocolError):
        return error
    return ReportRefused(f"the catalog refused what this publisher reports: {error}; this is a bug, report it")


def find_mark(path: Path | None) -> str | None:
    """Why an earlier life of this publisher was superseded; None if there is no mark, or no `path` is set."""
    if path is None or not path.exists():
        return None
    return path.read_text(encoding="utf-8", errors="replace").strip()


def leave_mark(path: Path | None, reason: str) -> None:
    """Write the mark, durably. If the disk fails, that is logged, and the process ends all the same."""
    if path is None:
        return
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write(f"{reason}\n")
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except OSError as error:
        logger.error("%s cannot be written, so that a start of this publisher would take over again: %s", path, error)

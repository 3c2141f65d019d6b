"""A relay from start to stop.

This module connects the parts: the process with its sockets, its HTTP side, and the catalog.
"""

import asyncio
import logging
from typing import Any

from epochal.catalog_api.requests import RegisterRelay, RelayAddresses, RelayReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import Directory
from epochal.client.catalog.relay_lease import RelayLease
from epochal.client.catalog.routes import Routes
from epochal.errors import EpochalError, StreamGone
from epochal.transport.shutdown import ended
from epochal_publisher.relay.epochs.answers import EpochReaders, StreamFacts
from epochal_publisher.relay.http import RelayHttp
from epochal_publisher.relay.own import OwnDirectory
from epochal_publisher.relay.process import RelayProcess
from epochal_publisher.relay.settings import RelaySettings
from epochal_publisher.relay.telemetry import RelayTelemetry

logger = logging.getLogger("epochal.relay")

EXIT_FAILED = 1


async def serve(settings: RelaySettings, stop: asyncio.Event) -> int:
    """Run a relay until `stop`, or until the stream is gone; returns the exit code."""
    relay = RelayProcess(settings)
    try:
        telemetry = RelayTelemetry(relay)
        async with (
            CatalogClient(settings.catalog) as catalog,
            RelayHttp(settings, telemetry, lambda: relay.ready, settings.http_port) as http,
        ):
            return await _Service(settings, relay, catalog, http).run(stop)
    finally:
        relay.close()


class _Service:
    """The relay while its sockets are bound."""

    def __init__(self, settings: RelaySettings, relay: RelayProcess, catalog: CatalogClient, http: RelayHttp) -> None:
        self._settings, self._relay, self._catalog, self._http = settings, relay, catalog, http
        self._directory = Directory(catalog, settings.stream, wait=settings.lookup_wait)
        self._routes = Routes(self._directory, catalog.relays, settings.via)
        self._lease: RelayLease | None = None

    async def run(self, stop: asyncio.Event) -> int:
        relay = self._relay
        stopped = asyncio.ensure_future(stop.wait())
        serving = asyncio.create_task(self._serve(), name="serve")
        tasks: list[asyncio.Task[Any]] = [serving]
        try:
            await asyncio.wait((stopped, relay.over, serving), return_when=asyncio.FIRST_COMPLETED)
            error = self._error(serving)
            await self._leave("the relay stops; join elsewhere" if error is None else str(error), tasks)
        finally:
            stopped.cancel()
            await ended(tasks)
        if error is None:
            logger.info("stopped")
            return 0
        if isinstance(error, StreamGone):
            logger.info("stopped: %s", error)
            return 0
        logger.error("cannot go on: %s", error)
        return EXIT_FAILED

    def _error(self, serving: "asyncio.Task[None]") -> EpochalError | None:
        """The error that has ended the relay, if there is one."""
        if self._relay.over.done():
            return self._relay.over.result()
        failed = serving.exception() if serving.done() else None
        causes = failed.exceptions if isinstance(failed, BaseExceptionGroup) else (failed,)
        if isinstance(causes[0], EpochalError):
            return causes[0]
        if failed is not None:
            raise failed
        return None

    async def _serve(self) -> None:
        relay, settings = self._relay, self._settings
        info = await self._directory.look_up()
        relay.listen(self._directory.declared.push.buffer_bytes)
        addresses = {**relay.addresses, "http": f"http://{relay.host}:{self._http.port}"}
        own = RelayAddresses(**addresses)
        registration = RegisterRelay(
            stream=info.qualified, uid=info.uid, name=settings.name, id=settings.id, addresses=own,
            capacity=settings.capacity, upstream=settings.upstream,
        )  # fmt: skip
        self._lease = RelayLease(self._catalog, registration, self._report)
        relay.on_ready = self._lease.ask_now
        facts = StreamFacts(self._directory.encoding, self._directory.shape)
        itself = relay.subscriptions(OwnDirectory(self._directory, relay.own_addresses))
        self._http.readers = EpochReaders(settings, facts, itself)
        print("ready", *(f"{name}={address}" for name, address in addresses.items()), flush=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._lease.run(), name="register")
            tasks.create_task(relay.serve(self._directory, self._routes), name="relay")

    def _report(self) -> RelayReport:
        readers = self._http.readers
        return self._relay.report(0 if readers is None else readers.shared)

    async def _leave(self, why: str, tasks: "list[asyncio.Task[Any]]") -> None:
        """Report that the relay drains, so that no new subscriber is sent here; then notify those that are here."""
        self._relay.draining = True
        await ended(tasks)
        if self._lease is not None:
            await self._lease.renew_now()
        self._relay.drain(why)
        if self._lease is not None:
            await self._lease.withdraw()

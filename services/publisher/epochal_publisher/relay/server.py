"""A relay from start to stop.

Only this module connects the parts: the process with its sockets, its HTTP side, the catalog.
"""

import asyncio
import logging
from typing import Any

from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import Directory
from epochal.errors import EpochalError, StreamGone
from epochal_publisher.relay.http import RelayHttp
from epochal_publisher.relay.process import RelayProcess
from epochal_publisher.relay.settings import RelaySettings

logger = logging.getLogger("epochal.relay")

EXIT_FAILED = 1


async def serve(settings: RelaySettings, stop: asyncio.Event) -> int:
    """Run a relay until `stop`, or until the stream is gone; returns the exit code."""
    relay = RelayProcess(settings)
    try:
        async with RelayHttp(settings, relay) as http, CatalogClient(settings.catalog) as catalog:
            directory = Directory(catalog, settings.stream, wait=settings.lookup_wait)
            return await _until_stopped(relay, directory, {**relay.addresses, "http": http.address}, stop)
    finally:
        relay.close()


async def _until_stopped(
    relay: RelayProcess, directory: Directory, addresses: dict[str, str], stop: asyncio.Event
) -> int:
    stopped = asyncio.ensure_future(stop.wait())
    serving = asyncio.create_task(_serve(relay, directory, addresses), name="serve")
    tasks: list[asyncio.Future[Any]] = [stopped, serving]
    try:
        await asyncio.wait((stopped, relay.over, serving), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        if not relay.over.done():
            logger.info("stopping")
            relay.drain("the relay stops; join elsewhere")
            return 0
        error: EpochalError = relay.over.result()
        relay.drain(str(error))
        if isinstance(error, StreamGone):
            logger.info("stopping: %s", error)
            return 0
        logger.error("cannot go on: %s", error)
        return EXIT_FAILED
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(relay: RelayProcess, directory: Directory, addresses: dict[str, str]) -> None:
    await directory.look_up()
    print("ready", *(f"{name}={address}" for name, address in addresses.items()), flush=True)
    await relay.serve(directory)

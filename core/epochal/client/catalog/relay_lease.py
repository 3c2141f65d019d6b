"""Keeps a relay listed in the catalog, in the background, while it runs.

Readers that are connected go on without it: a catalog that does not answer is tried again, and nothing that is relayed
waits for it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from epochal.backoff import Backoff
from epochal.catalog_api.requests import RegisterRelay, RelayReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import RECONNECT_FIRST, RECONNECT_LAST
from epochal.errors import EpochalError, RemoteProtocolError, StreamGone, StreamNotFound

WITHDRAW = 1.0
"""Seconds that leaving waits for the catalog; after that the entry lapses by itself."""


class RelayLease:
    """One relay's entry in the catalog. `run` is a task; `withdraw` comes after it has ended.

    `report` is called for the registration and for each renewal, and says how the relay is at that moment.
    """

    def __init__(self, catalog: CatalogClient, registration: RegisterRelay, report: Callable[[], RelayReport]) -> None:
        self._catalog = catalog
        self._registration = registration
        self._report = report
        self._listed = False
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """Register, renew each third of the TTL with a report, and register again when the entry is unknown.

        Raises `StreamGone` when the stream was deleted, or was created again: the relay has nothing left to relay.
        Raises any other error by which the catalog refuses the registration. What is no answer of a catalog, such as
        that of a proxy, is tried again.
        """
        backoff = Backoff(RECONNECT_FIRST, RECONNECT_LAST)
        while True:
            self._asked.clear()
            try:
                ttl = await self._renew() if self._listed else await self._register()
            except StreamNotFound:
                raise StreamGone(f"stream {self._registration.stream} was deleted") from None
            except EpochalError as error:
                if error.code == "unknown_relay":
                    self._listed = False
                elif not error.retryable and not isinstance(error, RemoteProtocolError):
                    raise
                await backoff.pause()
            else:
                backoff.reset()
                await self._wait(ttl / 3)

    def ask_now(self) -> None:
        """Renew at once: what `report` says has changed."""
        self._asked.set()

    async def renew_now(self) -> None:
        """Renew and wait for that, no longer than `WITHDRAW`; only while `run` does not."""
        with suppress(EpochalError, TimeoutError):
            async with asyncio.timeout(WITHDRAW):
                await self._renew()

    async def withdraw(self) -> None:
        """Take the relay off the list, if that takes no longer than `WITHDRAW`."""
        with suppress(EpochalError, TimeoutError):
            async with asyncio.timeout(WITHDRAW):
                await self._catalog.deregister_relay(self._registration.id)

    async def _register(self) -> float:
        ttl = await self._catalog.register_relay(replace(self._registration, report=self._report()))
        self._listed = True
        return ttl

    async def _renew(self) -> float:
        return await self._catalog.renew_relay(self._registration.id, self._report())

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._asked.wait()

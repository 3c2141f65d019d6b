"""The catalog as a server: starts and stops store, state and routes in the right order."""

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from epochal import errors
from epochal.service.http import HttpServer
from epochal.service.problems import explain
from epochal_catalog import errors as own
from epochal_catalog.api.queries import CATALOG
from epochal_catalog.api.routes import add_routes
from epochal_catalog.api.statuses import STATUS
from epochal_catalog.runtime.service import Catalog
from epochal_catalog.runtime.settings import CatalogSettings
from epochal_catalog.runtime.telemetry import CatalogTelemetry
from epochal_catalog.storage.store import CatalogStore

_log = logging.getLogger("epochal.catalog")


class Server:
    """A catalog that listens while its context is entered; `url` is its address.

    Raises `PortTaken` and what `CatalogStore.open` raises.
    """

    def __init__(
        self,
        settings: CatalogSettings,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.url = ""
        self._telemetry = CatalogTelemetry()
        self.catalog = Catalog(
            settings, CatalogStore(settings.data, settings.busy_timeout), self._telemetry, clock, wall
        )
        self.http = HttpServer(settings, self._telemetry, _explain, drain=settings.drain_timeout)
        self.http.app[CATALOG] = self.catalog
        add_routes(self.http.app)

    async def __aenter__(self) -> Self:
        """Open the store, then listen: no request is answered before everything stored is loaded."""
        try:
            await self.catalog.start()
            port = await self.http.start(self.settings.port)
        except BaseException:
            await self._close()
            raise
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take no more connections, answer the requests under way, close the store."""
        await self._close()

    async def _close(self) -> None:
        self.http.stop_listening()
        self.catalog.drain()  # ends waiting lookups and watches, for which the next line would wait
        await self.http.close()
        await self.catalog.close()
        self._telemetry.close()


def _explain(error: errors.EpochalError) -> web.Response:
    if isinstance(error, own.StoreUnavailable):
        _log.error("%s", error)
    return explain(error, STATUS)

"""The HTTP server around the catalog: limits, errors, metrics, start and stop.

Apart from the routes because none of this is about streams.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from epochal.errors import ConfigError, EpochalError
from epochal_catalog import problems
from epochal_catalog.deadline import Deadline
from epochal_catalog.errors import StoreUnavailable
from epochal_catalog.routes import CATALOG, add_routes
from epochal_catalog.service import Catalog
from epochal_catalog.settings import Settings
from epochal_catalog.store import Store
from epochal_catalog.telemetry import Telemetry

_log = logging.getLogger("epochal.catalog")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PortTaken(ConfigError):
    """Another process listens on the port."""

    code = "port_taken"


class Server:
    """A catalog that listens while it is entered; `url` says where. Raises `PortTaken` and what `Store.open` raises."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.url = ""
        self._telemetry = Telemetry()
        self.catalog = Catalog(settings, Store(settings.data, settings.busy_timeout), self._telemetry, clock)
        self._runner = web.AppRunner(
            make_app(self.catalog),
            access_log=None,
            handler_cancellation=True,  # a client that goes away takes its waiting lookup with it
            keepalive_timeout=settings.idle_timeout,
            shutdown_timeout=settings.drain_timeout,
        )
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Open the store, then listen: nobody is answered before everything stored is known."""
        try:
            await self.catalog.start()
            await self._runner.setup()
            self._listener = await self._listen()
        except BaseException:
            await self._close()
            raise
        port = self._listener.sockets[0].getsockname()[1]
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take no more connections, answer what is under way, close the store."""
        await self._close()

    async def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self.catalog.drain()
        await self._runner.cleanup()
        await self.catalog.close()
        self._telemetry.close()

    async def _listen(self) -> asyncio.Server:
        pause = 0.1
        for attempt in range(self.settings.port_retries + 1):
            try:
                return await asyncio.get_running_loop().create_server(
                    self._protocol, self.settings.host, self.settings.port, backlog=1024
                )
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise ConfigError(f"cannot listen on {self.settings.host}:{self.settings.port}: {error}") from error
                if attempt < self.settings.port_retries:
                    _log.warning("port %d is taken; trying again in %.1f s", self.settings.port, pause)
                    await asyncio.sleep(pause)
                    pause *= 2
        raise PortTaken(
            f"port {self.settings.port} on {self.settings.host} is taken by another process; stop that, or give another"
            " port (--port, EPOCHAL_CATALOG_PORT; 0 takes a free one)"
        )

    def _protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None, "the runner is set up before anything listens"
        return Deadline(server(), self.settings.header_timeout)


def make_app(catalog: Catalog) -> web.Application:
    """The application: routes, and around them errors and metrics."""
    app = web.Application(middlewares=[_watch, _explain], client_max_size=catalog.settings.max_body)
    app[CATALOG] = catalog
    add_routes(app)
    return app


@web.middleware
async def _watch(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Tell the connection that the head is in, and count the answer."""
    deadline = request.transport.get_protocol() if request.transport is not None else None
    if isinstance(deadline, Deadline):
        deadline.head_done()
    started, status = time.monotonic(), 499  # what a client that went away is counted as
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        if isinstance(deadline, Deadline):
            deadline.served()
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "none"
        request.app[CATALOG].telemetry.request(request.method, route, status, time.monotonic() - started)


@web.middleware
async def _explain(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Turn every error into a problem document."""
    try:
        return await handler(request)
    except StoreUnavailable as error:
        _log.error("%s", error)
        return problems.from_error(error)
    except EpochalError as error:
        return problems.from_error(error)
    except web.HTTPException as error:
        return problems.from_http(error)
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return problems.answer(500, "internal", "the catalog failed on this request; its log says how")

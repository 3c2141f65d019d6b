"""The relay's HTTP side: health, readiness, metrics, and whole epochs."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from epochal.service.http import Handler
from epochal.service.http import HttpServer as Listener
from epochal.service.origins import CorsOrigins
from epochal.service.telemetry import ServiceTelemetry
from epochal_publisher.relay.epochs import errors, openapi
from epochal_publisher.relay.epochs.answers import EpochReaders
from epochal_publisher.relay.epochs.settings import RelayHttpSettings

_READABLE = r"/v1/epochs|/v1/openapi\.json"
"""What pages of other sites may read where a setting allows them."""
_DRAIN = 0.5
"""Seconds; requests that wait are ended at once."""


class RelayHttp:
    """Listens on a port while entered; `ready`: whether the relay serves. Raises `ConfigError` if it cannot."""

    def __init__(
        self,
        settings: RelayHttpSettings,
        telemetry: ServiceTelemetry,
        readers: EpochReaders,
        ready: Callable[[], bool],
        port: int = 0,
    ) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._readers = readers
        self._ready = ready
        self.port = port
        """The one that it listens on, once entered."""
        self._listener = Listener(
            settings, telemetry, errors.answer,
            drain=_DRAIN, readable_by=CorsOrigins(settings.cors_origins, _READABLE),
        )  # fmt: skip
        self._measure()
        handlers: dict[str, Handler] = {
            "epochs": readers.answer,
            "healthz": self._health,
            "readyz": self._readiness,
            "metrics": telemetry.serve,
            "openapi_document": self._openapi,
        }
        for operation in openapi.OPERATIONS:
            self._listener.app.router.add_route(operation.method, operation.path, handlers[operation.name])

    async def __aenter__(self) -> Self:
        try:
            self.port = await self._listener.start(self.port)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        self._listener.stop_listening()
        await self._readers.close()
        await self._listener.close()
        self._telemetry.close()

    def _measure(self) -> None:
        readers, gauge = self._readers, self._telemetry.gauge
        gauge("epochal.relay.http.readers", "{answer}", "Answers with epochs under way", lambda: len(readers.places))
        gauge("epochal.relay.http.feeds", "{filter}", "Filters that are followed", lambda: len(readers.feeds))
        gauge("epochal.relay.http.catch_ups", "{answer}", "Readers that read history", lambda: len(readers.catch_ups))
        gauge("epochal.relay.http.ring.size", "By", "Bytes of epochs that are kept", lambda: readers.feeds.rings.bytes)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _request: web.Request) -> web.Response:
        if self._ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not serving: not connected, or about to stop\n")

    async def _openapi(self, _request: web.Request) -> web.Response:
        return web.json_response(openapi.document(self._settings.max_wait))

"""The relay's HTTP side: health, readiness, metrics, and whole epochs."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from epochal.errors import Unavailable
from epochal.service.http import Handler
from epochal.service.http import HttpServer as Listener
from epochal.service.origins import CorsOrigins
from epochal.service.telemetry import ServiceTelemetry
from epochal_publisher.relay.epochs import errors, openapi
from epochal_publisher.relay.epochs.answers import EpochReaders
from epochal_publisher.relay.epochs.settings import RelayHttpSettings

_READABLE = r"/v1/epochs|/v1/openapi\.json"
"""The paths that web pages of allowed origins may read."""
_DRAIN = 0.5
"""Seconds for answers under way at the end; requests that wait are ended at once."""


class RelayHttp:
    """Listens on a port while entered; `ready` says whether the relay serves. Entering raises `ConfigError`."""

    def __init__(
        self,
        settings: RelayHttpSettings,
        telemetry: ServiceTelemetry,
        ready: Callable[[], bool],
        port: int = 0,
    ) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._ready = ready
        self.readers: EpochReaders | None = None
        """What answers requests for epochs; None until the stream's manifest is known."""
        self.port = port
        """The port that it listens on, once entered."""
        self._listener = Listener(
            settings, telemetry, errors.answer,
            drain=_DRAIN, readable_by=CorsOrigins(settings.cors_origins, _READABLE),
        )  # fmt: skip
        self._measure()
        handlers: dict[str, Handler] = {
            "epochs": self._epochs,
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
        if self.readers is not None:
            await self.readers.close()
        await self._listener.close()
        self._telemetry.close()

    def _measure(self) -> None:
        def gauge(name: str, unit: str, text: str, read: Callable[[EpochReaders], int]) -> None:
            def value() -> int:
                return 0 if self.readers is None else read(self.readers)

            self._telemetry.gauge(f"epochal.relay.http.{name}", unit, text, value)

        gauge("readers", "{answer}", "Answers with epochs under way", lambda readers: len(readers.places))
        gauge("feeds", "{filter}", "Filters that are followed", lambda readers: len(readers.feeds))
        gauge("catch_ups", "{answer}", "Readers that read history", lambda readers: len(readers.catch_ups))
        gauge("subscriptions.size", "By", "Bytes that subscriptions hold", lambda readers: readers.feeds.memory.bytes)
        gauge("ring.size", "By", "Bytes of epochs that are kept", lambda readers: readers.feeds.rings.bytes)

    async def _epochs(self, request: web.Request) -> web.StreamResponse:
        if self.readers is None:
            raise Unavailable("this relay has not found its stream yet; try again")
        return await self.readers.answer(request)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _request: web.Request) -> web.Response:
        if self._ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not serving: not connected, or about to stop\n")

    async def _openapi(self, _request: web.Request) -> web.Response:
        return web.json_response(openapi.document(self._settings.max_wait))

"""The relay's HTTP side: health, readiness, metrics."""

from types import TracebackType
from typing import Self

from aiohttp import web

from epochal.service.http import HttpServer
from epochal_publisher.http import errors
from epochal_publisher.relay.process import RelayProcess
from epochal_publisher.relay.settings import RelaySettings
from epochal_publisher.relay.telemetry import RelayTelemetry

_DRAIN = 0.5
"""Seconds; requests that wait are ended at once."""


class RelayHttp:
    """Listens at `address` while entered. Raises `ConfigError` if it cannot."""

    def __init__(self, settings: RelaySettings, relay: RelayProcess) -> None:
        self._settings = settings
        self._relay = relay
        self._telemetry = RelayTelemetry(relay)
        self._listener = HttpServer(settings, self._telemetry, errors.answer, drain=_DRAIN)
        router = self._listener.app.router
        for path, handler in (
            ("/healthz", self._health),
            ("/readyz", self._ready),
            ("/metrics", self._telemetry.serve),
        ):
            router.add_route("GET", path, handler)
        self.address = ""

    async def __aenter__(self) -> Self:
        settings = self._settings
        try:
            port = await self._listener.start(settings.http_port)
        except BaseException:
            await self._close()
            raise
        host = settings.advertise or settings.host
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        await self._listener.close()
        self._telemetry.close()

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        if self._relay.ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not serving: not connected to every segment, or about to stop\n")

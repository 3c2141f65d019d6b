"""The publisher's HTTP side: is it alive, is it ready, what are its numbers.

Apart from the sockets of the protocol because only people, probes and monitoring come here.
"""

from types import TracebackType
from typing import Self

from aiohttp import web

from epochal.errors import EpochalError
from epochal.service import problems
from epochal.service.http import HttpServer as Listener
from epochal_publisher.publisher import Publisher
from epochal_publisher.settings import Settings
from epochal_publisher.telemetry import Telemetry

_DRAIN = 0.5
"""Seconds; nobody waits here for anything."""


class HttpServer:
    """Listens while entered; `address` says where. Raises `ConfigError` if it cannot."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        self._settings, self._publisher = settings, publisher
        self._telemetry = Telemetry(publisher)
        self._listener = Listener(settings, self._telemetry, _explain, drain=_DRAIN)
        self._listener.app.add_routes([
            web.get("/healthz", self._health), web.get("/readyz", self._ready), web.get("/metrics", self._metrics)
        ])  # fmt: skip
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
        if self._publisher.ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not serving: no lease, or about to stop\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._telemetry.render(), headers={"Content-Type": "text/plain; version=0.0.4"})


def _explain(error: EpochalError) -> web.Response:
    return problems.answer(500, error.code, str(error), retryable=error.retryable)

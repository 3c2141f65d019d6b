"""The publisher's HTTP side: is it alive, is it ready, what are its numbers.

Apart from the sockets of the protocol because only people, probes and monitoring come here.
"""

from types import TracebackType
from typing import Self

from aiohttp import web

from epochal.errors import Unavailable
from epochal_publisher.publisher import Publisher
from epochal_publisher.settings import Settings
from epochal_publisher.telemetry import Telemetry


class HttpServer:
    """Listens while entered; `address` says where. Raises `Unavailable` if it cannot."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        self._settings, self._publisher = settings, publisher
        self._telemetry = Telemetry(publisher)
        app = web.Application(client_max_size=64 * 1024)
        app.add_routes([
            web.get("/healthz", self._health), web.get("/readyz", self._ready), web.get("/metrics", self._metrics)
        ])  # fmt: skip
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=30.0, shutdown_timeout=0.5)
        self.address = ""

    async def __aenter__(self) -> Self:
        settings = self._settings
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, settings.host, settings.http_port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise Unavailable(f"cannot listen on {settings.host}:{settings.http_port}: {error.strerror}") from error
        host = settings.advertise or settings.host
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        self._telemetry.close()

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        if self._publisher.ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not serving: no lease, or about to stop\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._telemetry.render(), headers={"Content-Type": "text/plain; version=0.0.4"})

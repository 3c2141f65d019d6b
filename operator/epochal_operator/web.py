"""Health and metrics over HTTP.

Apart from the controller because probes and monitoring ask, and whether the process stands by or acts, it answers.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Self

from aiohttp import web

from epochal.errors import EpochalError
from epochal.service import problems
from epochal.service.http import Handler, HttpServer
from epochal.service.telemetry import ServiceTelemetry
from epochal_operator.settings import Settings

_DRAIN = 0.5
"""Seconds; nothing that is answered here takes longer."""


class Web:
    """Two ports while entered: one for probes, one for metrics. `healthy` and `ready` are what probes are told."""

    def __init__(
        self, settings: Settings, telemetry: ServiceTelemetry, healthy: Callable[[], bool], ready: Callable[[], bool]
    ) -> None:
        self._settings, self._telemetry = settings, telemetry
        self._healthy, self._ready = healthy, ready
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen. Raises `ConfigError`."""
        async with AsyncExitStack() as stack:
            probes = ServiceTelemetry("operator.probes")
            stack.callback(probes.close)
            asked = {"/healthz": _probe(self._healthy), "/readyz": _probe(self._ready)}
            await self._serve(stack, probes, self._settings.port, asked)
            await self._serve(stack, self._telemetry, self._settings.metrics_port, {"/metrics": self._metrics})
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _serve(
        self, stack: AsyncExitStack, telemetry: ServiceTelemetry, port: int, routes: dict[str, Handler]
    ) -> None:
        server = HttpServer(self._settings, telemetry, _explain, drain=_DRAIN)
        for path, handler in routes.items():
            server.app.router.add_get(path, handler)
        stack.push_async_callback(server.close)
        await server.start(port)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._telemetry.render(), headers={"Content-Type": "text/plain; version=0.0.4"})


def _probe(asked: Callable[[], bool]) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if asked() else web.Response(status=503, text="no\n")

    return answer


def _explain(error: EpochalError) -> web.Response:
    return problems.explain(error, {})

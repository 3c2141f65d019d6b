"""The publisher's HTTP side: health, readiness, metrics, and events for clients that have no ZeroMQ.

It is for people, probes, monitoring and simple clients; writers and subscribers use the sockets of the protocol.
"""

from types import TracebackType
from typing import Self

from aiohttp import web

from epochal.service.http import Handler
from epochal.service.http import HttpServer as Listener
from epochal.service.origins import CorsOrigins
from epochal_publisher.http import errors, history_query, openapi
from epochal_publisher.http.history import EventReaders
from epochal_publisher.http.webhooks import Webhooks
from epochal_publisher.publisher import PublisherProcess
from epochal_publisher.settings import Settings
from epochal_publisher.telemetry import PublisherTelemetry

_READABLE = r"/v1/segments/[^/]+/events|/v1/openapi\.json"
"""Paths that web pages of other sites may read if a setting allows it: not web-hooks, which belong to other clients."""
_DRAIN = 0.5
"""Seconds that requests under way may take at a stop; those that wait for events are ended at once."""


class PublisherHttp:
    """Listens at `address` while entered. Raises `ConfigError` if it cannot."""

    def __init__(self, settings: Settings, publisher: PublisherProcess) -> None:
        self._settings = settings
        self._publisher = publisher
        self._telemetry = PublisherTelemetry(publisher)
        self._readers = EventReaders(settings, publisher)
        self._webhooks = Webhooks(settings, publisher)
        self._telemetry.gauge(
            "epochal.publisher.http.readers",
            "{answer}",
            "Answers with events under way",
            lambda: len(self._readers.places),
        )
        self._telemetry.gauge(
            "epochal.publisher.webhooks", "{webhook}", "Web-hooks that have not ended", lambda: len(self._webhooks)
        )
        self._listener = Listener(
            settings, self._telemetry, errors.answer,
            drain=_DRAIN, readable_by=CorsOrigins(settings.cors_origins, _READABLE),
        )  # fmt: skip
        handlers: dict[str, Handler] = {
            "events": self._readers.answer,
            "list_webhooks": self._list_webhooks,
            "register_webhook": self._register_webhook,
            "cancel_webhook": self._cancel_webhook,
            "healthz": self._health,
            "readyz": self._ready,
            "metrics": self._telemetry.serve,
            "openapi_document": self._openapi,
        }
        for operation in openapi.OPERATIONS:
            self._listener.app.router.add_route(operation.method, operation.path, handlers[operation.name])
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
        self._publisher.wake_readers()
        await self._webhooks.close()
        await self._listener.close()
        self._telemetry.close()

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        if self._publisher.ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not serving: no lease, or about to stop\n")

    async def _list_webhooks(self, request: web.Request) -> web.Response:
        segment = request.match_info["segment"]
        self._readers.follower(segment)
        return web.json_response({"items": list(self._webhooks.of(segment))})

    async def _register_webhook(self, request: web.Request) -> web.Response:
        segment = request.match_info["segment"]
        follower = self._readers.follower(segment)
        webhook, since = await history_query.read_webhook(request, self._settings.body_timeout)
        begun = await self._webhooks.register(segment, follower, webhook.subscription, webhook.callback, since)
        where = f"{request.path}/{webhook.subscription}"
        return web.json_response(begun, status=201, headers={"Location": where})

    async def _cancel_webhook(self, request: web.Request) -> web.Response:
        self._webhooks.cancel(request.match_info["segment"], request.match_info["subscription"])
        return web.Response(status=204)

    async def _openapi(self, _request: web.Request) -> web.Response:
        return web.json_response(openapi.document(self._settings.max_wait))

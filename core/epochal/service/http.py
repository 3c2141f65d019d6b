"""An HTTP server with limits on what a client may cost, and one form of answer for every error.

The services add their routes; nothing here is about what they serve.
"""

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from epochal.backoff import Backoff
from epochal.errors import ConfigError, EpochalError
from epochal.service import problems
from epochal.service.connection import Gate, TimedConnection
from epochal.service.origins import CorsOrigins, ForeignOrigin, TrustedNames, UnknownHost
from epochal.service.settings import ServiceSettings
from epochal.service.telemetry import ServiceTelemetry, serving

_log = logging.getLogger("epochal.service")
_HEALTH = frozenset(("/healthz", "/readyz", "/metrics"))
"""Paths that are answered even above the limits: probes and monitoring must see the state of the service."""
_WAITING = 1024
"""Connections that the system queues until they are accepted."""
_PORT_FIRST, _PORT_LAST = 0.1, 60.0
"""Seconds between tries to listen on a port that is taken."""
_ACCEPTED_AT_ONCE = 8
"""Connections that asyncio accepts before open ones get their turn.

asyncio accepts as many at once as its `backlog` says. With a large backlog, a flood would bring more new connections
at once than there are spare ones, and each probe would be cut before its request was read.
"""

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET",
    "Access-Control-Allow-Headers": "Accept, Last-Event-ID",
    "Access-Control-Max-Age": "600",
}
"""The headers that answer a browser's question whether a page may read."""

NOBODY = CorsOrigins()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Explain = Callable[[EpochalError], web.Response]


class PortTaken(ConfigError):
    """Another process listens on the port."""

    code = "port_taken"


class HttpServer:
    """Serves `app`, to which the service adds its routes, from `start` to `close`, within the limits of `settings`.

    `explain` makes the answer for an error that a handler raises. `drain`: seconds that requests under way may still
    take at `close`. `readable_by`: sites whose pages may read what some GETs are answered.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        telemetry: ServiceTelemetry,
        explain: Explain,
        *,
        drain: float,
        readable_by: CorsOrigins = NOBODY,
    ) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._explain = explain
        self.app = web.Application(
            middlewares=[self._watched, self._explained, self._limited],
            client_max_size=settings.max_body,
        )
        self._readable_by = readable_by
        if readable_by is not NOBODY:
            self.app.on_response_prepare.append(self._allow_reading)
        # when a client goes away, its waiting request is cancelled
        self._runner = web.AppRunner(self.app, handler_cancellation=True, shutdown_timeout=drain)
        self._gate = Gate(settings, telemetry.refused)
        self._names = TrustedNames(settings.host, settings.known_hosts(), settings.variable("hosts"))
        self._listener: asyncio.Server | None = None
        telemetry.gauge("epochal.http.connections", "{connection}", "Open connections", lambda: len(self._gate))

    async def start(self, port: int) -> int:
        """Listen; returns the port, a free one when `port` is 0. Raises `ConfigError`, `PortTaken`."""
        await self._runner.setup()
        self._listener = await self._listen(port)
        return int(self._listener.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Take no more connections."""
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        """Take no more connections, and answer the requests under way."""
        self.stop_listening()
        await self._runner.cleanup()

    async def _listen(self, port: int) -> asyncio.Server:
        host, backoff = self._settings.host, Backoff(_PORT_FIRST, _PORT_LAST, jitter=0)
        for attempt in range(self._settings.port_retries + 1):
            try:
                listener = await asyncio.get_running_loop().create_server(
                    self._connection, host, port, backlog=_ACCEPTED_AT_ONCE
                )
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
                if attempt < self._settings.port_retries:
                    pause = backoff.delay()
                    _log.warning("port %d is taken; trying again in %.1f s", port, pause)
                    await asyncio.sleep(pause)
            else:
                # a second listen() makes the system's queue longer; asyncio goes on to accept few at once
                for listening in listener.sockets:
                    with socket.socket(fileno=os.dup(listening.fileno())) as same:
                        same.listen(_WAITING)
                return listener
        raise PortTaken(
            f"cannot listen: port {port} on {host} is taken by another process; stop that, or give another port"
            " (0 takes a free one)"
        )

    def _connection(self) -> TimedConnection:
        server = self._runner.server
        assert server is not None, "the runner is set up before anything listens"
        return TimedConnection(server, self._gate)

    # --- around every request, from the outside in -----------------------------------------------------------------

    @web.middleware
    async def _watched(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Notify the connection that the head has come, and count the answer."""
        connection = request.protocol
        assert isinstance(connection, TimedConnection)
        connection.serving()
        started, status = time.monotonic(), 499  # a request whose client went away is counted with this status
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "none"
        try:
            with serving(request.method, route, request.headers) as span:
                response = await handler(request)
                status = response.status
                span.answered(status)
            if connection.beyond:
                response.force_close()
            return response
        finally:
            connection.served()
            self._telemetry.request(request.method, route, status, time.monotonic() - started)

    @web.middleware
    async def _explained(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn every error into a problem document."""
        try:
            return await handler(request)
        except EpochalError as error:
            return self._explain(error)
        except web.HTTPException as error:
            if error.status in (408, 413):
                self._telemetry.refused({408: "body_timeout", 413: "max_body"}[error.status])
            return problems.from_http(error)
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return problems.answer(500, "internal", "the service failed on this request; its log says how")

    @web.middleware
    async def _limited(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve no page of another site, see `origins`; above the limits, serve only health and metrics.

        The whole body is read, in time, before the handler runs.
        """
        host = request.headers.get("Host")
        if host is not None:  # every browser sends one
            try:
                self._names.check(request.method, host, request.headers.get("Origin"))
            except (UnknownHost, ForeignOrigin) as error:
                self._telemetry.refused(error.code)
                return problems.answer(421 if isinstance(error, UnknownHost) else 403, error.code, str(error))
        if request.method == "OPTIONS" and self._readable_by.cover(request.path):
            return web.Response(status=204, headers=_PREFLIGHT)
        connection: Any = request.protocol
        if connection.beyond and request.path not in _HEALTH:
            self._telemetry.refused(connection.beyond)
            return problems.answer(
                503, "too_many_connections",
                f"this service has as many connections as its setting max_{connection.beyond} allows; close some, or"
                " try again later",
                retryable=True,
            )  # fmt: skip
        if request.can_read_body:
            if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
                self._telemetry.refused("packed_body")
                return _packed()
            await self._read(request)
        return await handler(request)

    async def _allow_reading(self, request: web.Request, response: web.StreamResponse) -> None:
        if request.method in ("GET", "OPTIONS") and self._readable_by.cover(request.path):
            response.headers.update(self._readable_by.headers(request.headers.get("Origin")))

    async def _read(self, request: web.Request) -> None:
        timeout = self._settings.body_timeout
        try:
            async with asyncio.timeout(timeout):
                await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the body did not arrive within {timeout:g} s") from None
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text=f"the body cannot be read: {error}") from None


def _packed() -> web.Response:
    """Refuse a packed body: 200 KiB can unpack to 200 MiB, and all clients would wait meanwhile (RFC 9110, 8.4)."""
    refused = problems.answer(
        415, "packed_body", "bodies are not taken packed; send it as it is, without the header Content-Encoding"
    )
    refused.headers["Accept-Encoding"] = "identity"
    return refused

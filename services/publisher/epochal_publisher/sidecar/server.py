"""A sidecar from start to stop: its sockets, its HTTP side, its locks, its shutdown.

Only this module connects the parts; none of them knows the others.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import zmq
from aiohttp import web

from epochal.errors import ConfigError, EpochalError
from epochal.locks import FileLock, LockTaken
from epochal.protocol import messages as m
from epochal.service.http import HttpServer
from epochal.service.telemetry import ServiceTelemetry
from epochal_publisher.http import errors
from epochal_publisher.sidecar.front import Front
from epochal_publisher.sidecar.lanes import Lanes
from epochal_publisher.sidecar.lookups import CatalogLookups
from epochal_publisher.sidecar.settings import SidecarSettings

logger = logging.getLogger("epochal.sidecar")

TICK = 0.1
MODE = 0o660
"""Mode of the socket: writers run as other users, in the pod's group, which owns the directory."""


class SidecarProcess:
    """Answers writers and forwards what they publish."""

    def __init__(self, settings: SidecarSettings) -> None:
        self._settings = settings
        self.instance = secrets.token_hex(8)
        self.lanes = Lanes(self.instance, settings.limits)
        self.lookups = CatalogLookups(settings.catalog, self.lanes.know, remember=settings.remember)
        self._tasks = set[asyncio.Task[None]]()
        try:
            self.front = Front(settings.addresses, self.lanes, self._control)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"cannot listen on {settings.listen}: {error}; set EPOCHAL_SIDECAR_LISTEN to ipc://PATH in a "
                "directory that this user may write, or to tcp://127.0.0.1:PORT"
            ) from error
        for path in _paths(settings):
            path.chmod(MODE)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then until all writers have left or `drain_timeout` is over."""
        self.front.start()
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while deadline is None or (self.lanes.count and loop.time() < deadline):
            try:
                async with asyncio.timeout(TICK):
                    await (asyncio.Event() if stop.is_set() else stop).wait()
            except TimeoutError:
                pass
            self.front.tick()
            if stop.is_set() and deadline is None:
                deadline = loop.time() + self._settings.drain_timeout
                self.lanes.drain()
                self.front.tick()
                logger.info("stopping; %d connections of writers still stand", self.lanes.count)

    async def close(self) -> None:
        """Close everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.front.close()
        await self.lookups.close()

    def _control(self, peer: bytes, message: m.Message) -> None:
        match message:
            case m.Greet():
                if m.VERSION not in message.versions:
                    detail = f"this sidecar speaks version {m.VERSION} of the protocol, the writer {message.versions}"
                    self.front.tell(peer, m.Refused(message.request, "sidecar_unavailable", detail))
                else:
                    greeted = m.Greeted(message.request, m.VERSION, self.instance, self._settings.pod)
                    self.front.tell(peer, greeted)
            case m.Ask():
                task = asyncio.create_task(self._answer(peer, message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case m.Left():
                self.lookups.left(message)

    async def _answer(self, peer: bytes, ask: m.Ask) -> None:
        told: m.Message
        try:
            told = await self.lookups.answer(ask)
        except EpochalError as error:
            told = m.Refused(ask.request, error.code, str(error))
        except Exception:
            logger.exception("a question could not be answered")
            told = m.Refused(ask.request, "internal", "the sidecar failed on this question; its log says how")
        self.front.tell(peer, told)


def _paths(settings: SidecarSettings) -> list[Path]:
    addresses = settings.addresses
    return [Path(address.removeprefix("ipc://")) for address in addresses if address.startswith("ipc://")]


@asynccontextmanager
async def _http(settings: SidecarSettings, sidecar: SidecarProcess) -> AsyncIterator[int]:
    telemetry = ServiceTelemetry("sidecar")
    lanes, front = sidecar.lanes, sidecar.front
    telemetry.gauge("epochal.sidecar.writers", "{connection}", "Connections of writers", lambda: lanes.count)
    telemetry.gauge("epochal.sidecar.warm", "{connection}", "Connections that wait for a writer", lambda: lanes.warm)
    telemetry.gauge("epochal.sidecar.held", "By", "What publishers have not taken yet", lambda: lanes.held)
    telemetry.count("epochal.sidecar.waits", "{wait}", "How often reading stopped for that", lambda: lanes.waits)
    telemetry.count("epochal.sidecar.passed", "By", "Bytes from writers to publishers", lambda: front.passed_bytes)
    telemetry.count("epochal.sidecar.refused", "{message}", "Messages that broke the protocol", lambda: front.refused)
    sessions = sidecar.lookups.sessions
    telemetry.count("epochal.sidecar.ahead", "{session}", "Sessions asked for ahead and used", lambda: sessions.ahead)
    listener = HttpServer(settings, telemetry, errors.answer, drain=0.5)

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        if lanes.draining:
            return web.Response(status=503, text="about to stop\n")
        if not await sidecar.lookups.answers():
            return web.Response(status=503, text=f"the catalog at {settings.catalog} does not answer\n")
        return web.Response(text="ok\n")

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=telemetry.render(), headers={"Content-Type": "text/plain; version=0.0.4"})

    router: Any = listener.app.router
    for path, handler in (("/healthz", health), ("/readyz", ready), ("/metrics", metrics)):
        router.add_route("GET", path, handler)
    try:
        yield await listener.start(settings.http_port)
    finally:
        await listener.close()
        telemetry.close()


async def serve(settings: SidecarSettings, stop: asyncio.Event) -> int:
    """Run a sidecar until `stop`; returns the exit code.

    Raises `ConfigError` if another sidecar has the socket, or if it cannot be made.
    """
    locks = [FileLock(path.with_name(f"{path.name}.lock"), str(os.getpid())) for path in _paths(settings)]
    held: list[FileLock] = []
    try:
        for path, lock in zip(_paths(settings), locks, strict=True):
            try:
                held.append(lock.__enter__())
            except LockTaken as taken:
                raise ConfigError(
                    f"another sidecar (process {taken.holder}) has {path}; stop it, or set EPOCHAL_SIDECAR_LISTEN"
                ) from None
            except OSError as error:
                raise ConfigError(
                    f"{path} cannot be made: {error.strerror}; its directory must be there and belong to this user's "
                    "group (in a pod: an emptyDir and securityContext.fsGroup)"
                ) from None
            path.unlink(missing_ok=True)  # a stale one: this process has the lock
        sidecar = SidecarProcess(settings)
        try:
            async with _http(settings, sidecar) as port:
                print("ready", *settings.addresses, f"http=http://{settings.host}:{port}", flush=True)
                await sidecar.run(stop)
        finally:
            await sidecar.close()
            for path in _paths(settings):
                path.unlink(missing_ok=True)
    finally:
        for lock in held:
            lock.__exit__()
    return 0

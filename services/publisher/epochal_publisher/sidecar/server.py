"""A sidecar from start to stop: settings, sockets, HTTP, locks, shutdown.

Only this module connects the parts; none of them knows the others.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import zmq
from aiohttp import web
from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from epochal.client.sidecar.sidecar import check_address
from epochal.errors import ConfigError, EpochalError
from epochal.locks import FileLock, LockTaken
from epochal.protocol import messages as m
from epochal.service.http import HttpServer
from epochal.service.settings import ServiceSettings
from epochal.service.telemetry import ServiceTelemetry
from epochal_publisher.http import errors
from epochal_publisher.settings import CatalogUrl
from epochal_publisher.sidecar.front import Front
from epochal_publisher.sidecar.lanes import Lanes, Limits
from epochal_publisher.sidecar.lookups import CatalogLookups


def _pod() -> str:
    return os.environ.get("EPOCHAL_POD_UID", "")


class SidecarSettings(ServiceSettings):
    """Read from `EPOCHAL_SIDECAR_*`; arguments of `read` win. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="EPOCHAL_SIDECAR_")
    service: ClassVar[str] = "sidecar"

    listen: str = "ipc:///run/epochal/ingest.sock"
    """Where writers connect: `ipc://PATH`, and by comma `tcp://127.0.0.1:PORT` for those that share no directory."""
    catalog: CatalogUrl = ""
    """The URL of the catalog; empty for EPOCHAL_CATALOG."""
    pod: str = Field(default_factory=_pod)
    """The uid of the pod, from EPOCHAL_POD_UID. Writers in another pod have another uid and do not use this sidecar."""
    http_port: int = Field(default=8705, ge=0, le=65535)
    """Port of health and metrics; 0 takes a free one."""
    held_bytes: int = Field(default=64 * 2**20, ge=2**20)
    """Most bytes that publishers have not taken yet. Above this, writers are not read, so that their windows fill."""
    max_lanes: int = Field(default=1024, ge=1)
    """Writers' connections at once; a writer has one for each segment."""
    silence: float = Field(default=120.0, gt=0.0)
    """How long a writer may be silent before its connection to the publisher is closed; open ones send heartbeats."""
    remember: float = Field(default=1.0, ge=0.0, le=60.0)
    """How long a look-up serves other writers too: the tasks of one batch begin within a second."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severity that is logged."""
    drain_timeout: float = Field(default=15.0, ge=0.0, le=20.0)
    """How long writers may go on after SIGTERM."""

    @property
    def addresses(self) -> list[str]:
        """Where to listen."""
        return [address.strip() for address in self.listen.split(",")]

    @property
    def limits(self) -> Limits:
        """The limits for `Lanes`."""
        return Limits(held=self.held_bytes, lanes=self.max_lanes, silence=self.silence)

    @field_validator("listen")
    @classmethod
    def _listen(cls, value: str) -> str:
        for address in value.split(","):
            try:
                check_address(address.strip())
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return value


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
                logger.info("stopping; %d connections of writers are still open", self.lanes.count)

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
                    self.front.send(peer, m.Refused(message.request, "sidecar_unavailable", detail))
                else:
                    greeted = m.Greeted(message.request, m.VERSION, self.instance, self._settings.pod)
                    self.front.send(peer, greeted)
            case m.Ask():
                task = asyncio.create_task(self._answer(peer, message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case m.Left():
                self.lookups.left(message)

    async def _answer(self, peer: bytes, ask: m.Ask) -> None:
        answer: m.Message
        try:
            answer = await self.lookups.answer(ask)
        except EpochalError as error:
            answer = m.Refused(ask.request, error.code, str(error))
        except Exception:
            logger.exception("a question could not be answered")
            answer = m.Refused(ask.request, "internal", "the sidecar failed on this question; its log says how")
        self.front.send(peer, answer)


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

    router: Any = listener.app.router
    for path, handler in (("/healthz", health), ("/readyz", ready), ("/metrics", telemetry.serve)):
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
            path.unlink(missing_ok=True)  # left by an earlier process, because this one has the lock
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

"""Local mode: a catalog, publishers and relays as processes on this machine, as the declared streams require.

`resources.plan` decides what should run. This module reads the declared streams, carries out the plan, and at the end
stops everything in order, the catalog last. It uses the services like any other client.
"""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Self

from epochal.catalog_api.answers import StreamInfo
from epochal.client.catalog.catalog import CatalogClient, Listing
from epochal.errors import ConfigError, EpochalError, Unavailable
from epochal.local.child import console_script, tail
from epochal.local.progress import Progress
from epochal.local.removable_logs import StreamLogs
from epochal.local.service import LocalSettings, Service
from epochal.local.shared import SharedProcess, SharedPublisher
from epochal.locks import FileLock, LockTaken
from epochal.resources.plan import (
    DesiredStream,
    PlannedPublisher,
    PlannedRelay,
    Start,
    Stop,
    place,
    plan,
    plan_relays,
    publishers_of,
)
from epochal.turns import Turns

logger = logging.getLogger("epochal.local")

HOST = "127.0.0.1"
"""Local mode serves this machine only, because it has no keys and no accounts."""
MOST_PAUSE = 2.0
"""Most seconds between two looks at the streams, however long one takes."""


class LocalMode:
    """A running local mode while entered; `url` is its catalog.

    `data`: the directory of all files; None is a temporary one, removed at the end. `port`: the catalog's; 0 is any
    free one. `tell` is called with lines for the user: how far the start of many streams is, and where relays listen.
    Raises `ConfigError` when the directory or the port is in use, `Unavailable` when the catalog does not start.
    """

    def __init__(
        self,
        data: Path | str | None = None,
        port: int = 0,
        settings: LocalSettings | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings or LocalSettings()
        self.data = Path() if data is None else Path(data).absolute()
        self.url = ""
        self._temporary = data is None
        self._port = port
        self._stack = contextlib.AsyncExitStack()
        self._catalog: Service | None = None
        self._publishers: dict[str, tuple[PlannedPublisher, Service | SharedPublisher]] = {}
        self._shared: dict[int, SharedProcess] = {}
        self._placed: Mapping[str, int] = {}
        self._turns = Turns(self.settings.starts, self.settings.start_turn)
        self._tell: Callable[[str], None] = tell or logger.debug
        self._progress = Progress(self._tell)
        self._seen: tuple[str, int] | None = None
        self._relays: dict[str, tuple[PlannedRelay, Service]] = {}
        self._stopping: dict[str, asyncio.Task[None]] = {}
        self._desired: dict[tuple[str, int], DesiredStream] = {}
        self._logs = StreamLogs(self.data / "streams")
        self._reconciled = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self._prepare_data(stack)
            self._logs = StreamLogs(self.data / "streams")
            _check_port(self._port)
            _check_packages()
            for script in ("epochal-catalog", "epochal-publisher"):
                console_script(script)
            self._catalog = Service(
                "the catalog", self._catalog_command, self.data / "logs" / "catalog.log", self.settings, self._set_url
            )
            stack.push_async_callback(self._catalog.stop)
            self._catalog.start()
            await self._await_catalog(self._catalog)
            client = await stack.enter_async_context(CatalogClient(self.url, patience=0.0, timeout=5.0))
            stack.push_async_callback(self._stop_all)
            self._loop_task = asyncio.create_task(self._reconcile_forever(client), name="reconcile")
            stack.push_async_callback(_cancel, self._loop_task)
            await self._await_services()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def processes(self) -> dict[str, int]:
        """Process ids by name: `catalog`, `shared-0` and so on; dedicated publishers and relays by their ids."""
        services = {"catalog": self._catalog, **{process.name: process for process in self._shared.values()}}
        services |= {key: service for key, service in self._services.items() if isinstance(service, Service)}
        return {name: pid for name, service in services.items() if service is not None and (pid := service.pid)}

    @property
    def served(self) -> tuple[int, int]:
        """How many streams have all of their publishers ready now, and how many are declared."""
        waiting = {planned.uid for planned, service in self._publishers.values() if not service.ready}
        there = {planned.uid for planned, _ in self._publishers.values()}
        wanted = {stream.uid for stream in self._desired.values() if stream.segments}
        return len(wanted & (there - waiting)), len(wanted)

    @property
    def _services(self) -> dict[str, Service | SharedPublisher]:
        return {key: service for key, (_, service) in (*self._publishers.items(), *self._relays.items())}

    async def wait(self) -> None:
        """Wait for ever. Raises the error if reconciling ends by one, which is a bug."""
        assert self._loop_task is not None
        await self._loop_task

    def _prepare_data(self, stack: contextlib.AsyncExitStack) -> None:
        if self._temporary:
            self.data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epochal-")))
        try:
            self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"the data directory {self.data} cannot be made: {error.strerror}") from None
        stack.enter_context(DirectoryLock(self.data))

    def _catalog_command(self) -> Sequence[str]:
        script = console_script("epochal-catalog")
        arguments = ["--data", str(self.data / "catalog"), "--port", str(self._port), "--exit-with-stdin"]
        arguments += ["--local-data", str(self.data)]
        return [script, "serve", *arguments]

    def _publisher_command(self, publisher: PlannedPublisher) -> Sequence[str]:
        arguments = ["--catalog", self.url, "--stream", publisher.stream, "--publisher", publisher.id]
        segments = ["--segments", ",".join(publisher.segments)]
        data = ["--data", str(self.data / "streams"), *_port(publisher.http_port)]
        return [console_script("epochal-publisher"), "serve", *arguments, *segments, *data, "--exit-with-stdin"]

    def _shared_command(self) -> Sequence[str]:
        return [
            console_script("epochal-publisher"), "share", "--catalog", self.url, "--data", str(self.data / "streams")
        ]  # fmt: skip

    def _relay_command(self, relay: PlannedRelay) -> Sequence[str]:
        arguments = ["--catalog", self.url, "--stream", relay.stream, "--name", relay.name]
        arguments += _port(relay.http_port)
        return [console_script("epochal-publisher"), "relay", *arguments, "--exit-with-stdin"]

    async def _set_url(self, ready: str) -> None:
        self._seen = None  # an older copy of its database may have been put back, and may be at the same revision
        self.url = ready.split()[0]
        self._port = int(self.url.rpartition(":")[2])  # a restarted catalog must have the same address as the first one

    async def _await_catalog(self, catalog: Service) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.start_timeout):
                await catalog.settled(self.settings.start_tries)
        if not catalog.was_ready.is_set():
            raise Unavailable(f"the catalog does not start; the end of {catalog.log}:\n{tail(catalog.log)}")

    async def _await_services(self) -> None:
        """Wait until the streams declared earlier are served, or until their number stops rising."""
        assert self._loop_task is not None
        loop = asyncio.get_running_loop()
        seen, deadline = -1, loop.time() + self.settings.start_timeout
        while loop.time() < deadline:
            if self._reconciled.is_set():
                services = self._services.values()
                ready = sum(service.was_ready.is_set() for service in services)
                if ready == len(services):
                    return
                if ready > seen:
                    seen, deadline = ready, loop.time() + self.settings.start_timeout
            await asyncio.sleep(min(self.settings.poll_interval, 0.05))

    async def _reconcile_forever(self, client: CatalogClient) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._look(client)
            except EpochalError as error:  # publishers go on while there is no catalog
                logger.debug("the streams cannot be read: %s", error)
            self._progress.look(*self.served, loop.time())
            # With many streams that change all the time each look is slow, so it may take a tenth of the time at most.
            # But the pause is bounded: one slow look, such as at a catalog that hangs, says nothing about the next one.
            await asyncio.sleep(max(self.settings.poll_interval, min(9 * (loop.time() - began), MOST_PAUSE)))

    async def _look(self, client: CatalogClient) -> None:
        """Read the streams if anything in the catalog has changed, and carry out the new plan."""
        head = await client.head()
        if head == self._seen and not self._stopping:
            return
        listing = await client.listing(self._logs.revision)
        self._reconcile(listing.streams)
        self._reconciled.set()
        await self._collect(listing)
        # Logs are not removed while a publisher is still stopping; the next look tries again.
        self._seen = None if self._stopping else (listing.identity, listing.revision)

    def _reconcile(self, streams: Sequence[StreamInfo]) -> None:
        self._desired = {
            key: self._desired.get(key) or _desired(stream) for stream in streams for key in [_key(stream)]
        }
        desired = list(self._desired.values())
        relays = plan_relays(desired, [relay for relay, _ in self._relays.values()])
        wanted = [publisher for stream in desired for publisher in publishers_of(stream)]
        self._placed = place(wanted, self._placed, max(self.settings.shared_processes, 1))
        for relay in relays.stop:
            self._stop(relay.id)
        for action in plan(desired, [publisher for publisher, _ in self._publishers.values()]):
            match action:
                case Stop(publisher):
                    self._stop(publisher.id)
                case Start(publisher):
                    self._start(publisher)
        for relay in relays.start:
            self._start_relay(relay)

    def _start_relay(self, relay: PlannedRelay) -> None:
        log = self.data / "logs" / "relays" / f"{relay.id}.log"
        name, command = f"relay {relay.id}", lambda: self._relay_command(relay)

        async def ready(said: str) -> None:
            http = [part.removeprefix("http=") for part in said.split() if part.startswith("http=")]
            self._tell(f"{name} is ready: {', '.join(http)}")

        service = Service(name, command, log, self.settings, ready, turns=self._turns)
        self._relays[relay.id] = relay, service
        service.start(after=self._stopping.get(relay.id))

    def _start(self, publisher: PlannedPublisher) -> None:
        service = self._dedicated(publisher) if publisher.dedicated else self._process_of(publisher).host(publisher)
        self._publishers[publisher.id] = publisher, service
        service.start(after=self._stopping.get(publisher.id))

    def _dedicated(self, publisher: PlannedPublisher) -> Service:
        log = self.data / "logs" / "publishers" / f"{publisher.id}.log"
        # It reads the logs of its segments before it is ready, one after the other on one core: more time for each.
        settings = replace(self.settings, start_timeout=self.settings.start_timeout * len(publisher.segments))
        name, command = f"publisher {publisher.id}", lambda: self._publisher_command(publisher)
        return Service(name, command, log, settings, turns=self._turns)

    def _process_of(self, publisher: PlannedPublisher) -> SharedProcess:
        """The process for this publisher; started for the first publisher in it."""
        number = self._placed[publisher.id]
        process = self._shared.get(number)
        if process is None:
            name = f"shared-{number}"
            log = self.data / "logs" / "publishers" / f"{name}.log"
            process = SharedProcess(name, self._shared_command, log, self.settings, self._turns)
            self._shared[number] = process
            process.start()
        return process

    def _stop(self, key: str) -> None:
        """Stop the publisher or the relay with this id."""
        _, service = self._relays.pop(key) if key in self._relays else self._publishers.pop(key)
        task = asyncio.create_task(service.stop(), name=f"stop {key}")
        self._stopping[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    async def _collect(self, listing: Listing) -> None:
        """Remove the logs of deleted streams: a uid is never used again, so no one can need them."""
        uids = {stream.uid for stream in listing.streams}
        deleted = self._logs.deleted(listing.identity, listing.revision, uids, follows=listing.follows)
        if self._stopping:
            return  # their publishers may still write there; the next call finds these directories again
        for directory in deleted:
            logger.info("removing %s: its stream was deleted", directory)
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    def _forget(self, key: str, done: asyncio.Task[None]) -> None:
        if self._stopping.get(key) is done:
            del self._stopping[key]

    async def _stop_all(self) -> None:
        for key, service in self._services.items():
            if isinstance(service, Service):
                self._stop(key)
        # The streams in a shared process stop with it, in order.
        await asyncio.gather(*self._stopping.values(), *(process.stop() for process in self._shared.values()))


def _key(stream: StreamInfo) -> tuple[str, int]:
    return stream.uid, stream.generation


def _desired(stream: StreamInfo) -> DesiredStream:
    """A stream as the planner takes it.

    Without `publishers.segmentsPerPod`, one publisher has all segments: a process takes some 45 MiB and half a second
    of a core to start, a further segment next to nothing.
    The generation is left at 1: a restart could lose history that is in memory, so a publisher is not restarted for a
    changed setting; it takes effect when the publisher next starts.
    """
    segments = tuple(segment.id for segment in stream.segments if segment.state == "open")
    spec = stream.declared().spec
    packed = spec.publishers.segments_per_pod or max(len(segments), 1)
    return DesiredStream(
        stream.namespace, stream.name, stream.uid, segments, packed,
        relays=spec.relays, dedicated=spec.publishers.dedicated,
        http_port=spec.publishers.http_port or 0, relay_http_port=spec.relay_http_port or 0,
        stored=spec.history.policy != "memory",
    )  # fmt: skip


def _port(http: int) -> list[str]:
    """The option that gives a process this HTTP port; none for 0, because it takes a free port by default."""
    return ["--http-port", str(http)] if http else []


def _check_packages() -> None:
    """Raise `ConfigError` if packages that the services need are not installed: the client alone needs fewer."""
    missing: list[str] = []
    try:
        requirements = metadata.requires("epochal") or ()
    except metadata.PackageNotFoundError:  # run from a copy without metadata, which would list the requirements
        return
    for requirement in requirements:
        package = re.match(r"[A-Za-z0-9._-]+", requirement)
        if package is not None and re.search(r"extra == .(catalog|publisher)\b", requirement):
            try:
                metadata.version(package[0])
            except metadata.PackageNotFoundError:
                missing.append(package[0])
    if missing:
        raise ConfigError(
            f"local mode needs packages that are not installed ({', '.join(sorted({*missing}))}); install them with:"
            " pip install 'epochal[local]'"
        )


def _check_port(port: int) -> None:
    """Report a port in use at once; the catalog would report it too, but only in its log."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of {HOST} cannot be used ({error.strerror}); choose another with --port (0: any)"
            ) from None


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


class DirectoryLock:
    """Lets only one local mode at a time use a data directory: holds `directory`/lock while entered.

    It must be entered before the first process starts, and left after the last one has ended. Raises `ConfigError`
    naming the holder's process when it is taken.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = FileLock(directory / "lock", str(os.getpid()))

    def __enter__(self) -> Self:
        try:
            self._lock.__enter__()
        except LockTaken as taken:
            raise ConfigError(
                f"the data directory {self._directory} is in use by another `epochal up` (process {taken.holder}); "
                "stop that one, or choose another directory with --data"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

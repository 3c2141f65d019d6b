"""The processes of a round, and what can be done to each: kill, end, stop, continue, restart.

Services are the installed commands with shortened times. Actors are forked from a server that has imported everything,
so that their start costs only milliseconds.
"""

import asyncio
import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.chaos.pipeline import Part
from tests.chaos.proxy import Proxy, loopback
from tests.patience import PATIENCE

from epochal.local.child import Child, console_script

NEAR = "127.0.0.1"
"""Where publishers listen. Clients get another address, where the proxy listens."""
LOOK_SECONDS = 0.05
"""Seconds between two looks whether an actor has ended."""
LOG_BYTES = 1 << 20
SOCKETS = ("events", "requests", "ingest")
STREAM = "test/chaos"
SUPERSEDED = 3
"""The exit status of a publisher that finds that it was replaced."""

_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["tests.chaos.pipeline"])
_forking = ThreadPoolExecutor(1, "forking")
"""The thread that waits for the server that forks, so that the loop with the proxies need not; one call at a time."""


def _timed(prefix: str, settings: Mapping[str, object]) -> list[str]:
    return ["env", *(f"EPOCHAL_{prefix}_{name.upper()}={value}" for name, value in settings.items())]


class Service:
    """One service process and its successors."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self.child.pid

    @property
    def child(self) -> Child:
        """The present process."""
        assert self._child is not None
        return self._child

    def command(self) -> list[str]:
        """What is run."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start a process and wait until it is ready."""
        self._child = await Child.start(self.command(), self.log, LOG_BYTES)
        await self.is_ready(await self._child.ready(PATIENCE))

    async def is_ready(self, said: str) -> None:
        """Called when the process is ready; `said` is the address in its ready line."""

    async def kill(self) -> None:
        """SIGKILL; gone when this returns."""
        self.child.kill()
        await self.child.ended()
        await self.child.stop(0)

    async def end(self) -> None:
        """SIGTERM; gone when this returns."""
        await self.child.stop(PATIENCE)


class Catalog(Service):
    """The catalog; it keeps its address over restarts."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "catalog.log")
        self.url = ""
        self._data, self._at = directory / "catalog", (loopback(), "0")

    def command(self) -> list[str]:
        """At the same address, which no other process has taken meanwhile, and on the same data."""
        times = {"lease_ttl": 2, "subscription_ttl": 3}
        host, port = self._at
        command = [console_script("epochal-catalog"), "serve", "--data", str(self._data)]
        return [*_timed("CATALOG", times), *command, "--host", host, "--port", port, "--exit-with-stdin"]

    async def is_ready(self, said: str) -> None:
        """Keep its address."""
        self.url = said.split()[0]
        self._at = (self._at[0], self.url.rpartition(":")[2])


class Publisher(Service):
    """The publisher of some segments, behind a proxy for each of its sockets. `data`: where its logs are, or None."""

    def __init__(
        self,
        directory: Path,
        name: str,
        segments: tuple[str, ...],
        catalog: Catalog,
        data: Path | None = None,
        stream: str = STREAM,
    ) -> None:
        super().__init__(directory / f"{name}.log")
        self.name, self.segments, self._catalog, self._data, self._stream = name, segments, catalog, data, stream
        self.settings: dict[str, object] = {"renew_interval": 0.3, "drain_timeout": 1, "log_retry": 0.05}
        self.program = [console_script("epochal-publisher")]
        self.far = loopback()
        self.proxies: dict[str, Proxy] = {}
        self.addresses: dict[str, str] = {}
        self._stack = contextlib.AsyncExitStack()

    def command(self) -> list[str]:
        """On free ports: the last process may still hold its own."""
        command = [*self.program, "serve", "--catalog", self._catalog.url, "--stream", self._stream]
        command += ["--publisher", self.name, "--segments", ",".join(self.segments), "--advertise", self.far]
        command += [] if self._data is None else ["--data", str(self._data)]
        return [*_timed("PUBLISHER", self.settings), *command, "--exit-with-stdin"]

    async def is_ready(self, said: str) -> None:
        """Let clients in, through proxies."""
        await self._stack.aclose()
        self.addresses = dict(word.split("=", 1) for word in said.split())
        for name in SOCKETS:
            port = int(self.addresses[name].rpartition(":")[2])
            self.proxies[name] = await self._stack.enter_async_context(Proxy((self.far, port), (NEAR, port)))

    async def replace(self) -> int:
        """Start another process while this one is stopped, then continue this one; returns this one's exit status."""
        old = self.child
        try:
            await self.start()
        finally:
            os.kill(old.pid, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE):
            status = await old.ended()
        await old.stop(0)
        return status

    async def hand_over(self, after: float) -> None:
        """Start another process, which waits for the logs of this one; kill this one after `after` seconds."""
        old, starting = self.child, asyncio.create_task(self.start())
        try:
            await asyncio.sleep(after)
        finally:
            old.kill()
            await old.ended()
            await old.stop(0)
            await starting

    async def close(self) -> None:
        """End its proxies."""
        await self._stack.aclose()


class Actor:
    """A writer or a subscriber, through all its lives: a process that calls `act`, of `tests.chaos.pipeline`."""

    def __init__(self, act: Callable[..., None], part: Part, *arguments: object) -> None:
        self.part, self._act, self._arguments = part, act, arguments
        self.process: multiprocessing.process.BaseProcess | None = None

    @property
    def name(self) -> str:
        """Its name in the history."""
        return self.part.name

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid

    @property
    def lives(self) -> bool:
        """Whether its process runs, or is stopped."""
        return self.process is not None and not _has_ended(self.process)

    async def start(self) -> None:
        """Start it."""
        await asyncio.get_running_loop().run_in_executor(_forking, self._start)

    def _start(self) -> None:
        arguments = (self.part, *self._arguments)
        process = _fork.Process(target=self._act, args=arguments, name=self.name, daemon=True)
        process.start()
        self.process = process

    async def kill(self) -> None:
        """SIGKILL; gone when this returns."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        await self.ended(PATIENCE)

    async def restart(self) -> None:
        """Begin its next life."""
        self.part = self.part._replace(life=self.part.life + 1)
        await self.start()

    async def ended(self, timeout: float) -> int | None:
        """Its exit status; None when it has not ended after `timeout` seconds."""
        process = self.process
        assert process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not _has_ended(process):  # noqa: ASYNC110 - only the end of another process shows it
                    await asyncio.sleep(LOOK_SECONDS)
        return await asyncio.get_running_loop().run_in_executor(_forking, lambda: process.exitcode)


def _has_ended(process: multiprocessing.process.BaseProcess) -> bool:
    """Whether a process has ended; may be called in any thread, because unlike `is_alive` it reads nothing."""
    return bool(multiprocessing.connection.wait([process.sentinel], 0))


@contextlib.asynccontextmanager
async def stopped(pid: int) -> AsyncIterator[None]:
    """A process that does not run for a while (SIGSTOP, SIGCONT)."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

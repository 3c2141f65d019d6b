"""Keeps one service process running: starts it, restarts it when it ends, and stops it.

`mode` decides what should run; the settings of both are here. Restarts back off, so that a service which cannot run
costs little.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from epochal.backoff import Backoff
from epochal.errors import TimedOut, Unavailable
from epochal.local.child import Child, tail
from epochal.turns import Turns

DEFAULT_DATA = Path(".epochal")
"""Where `epochal up` keeps its files by default: in the directory of the project, as build tools do."""


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """How local mode behaves; seconds and bytes."""

    poll_interval: float = 0.25
    """Between two reads of the catalog's streams: so short that a user who applies a manifest does not notice it."""
    start_timeout: float = 30.0
    """For a service to become ready, or to get on: a cold start of Python on a busy machine takes seconds.

    While a process prints or computes it has as much again, up to `start_times` of it. A publisher has as much for each
    of its segments, because it reads their logs first."""
    start_times: int = 10
    starts: int = max(2, os.cpu_count() or 1)
    """Processes that start at once; with many more, none would be ready in time."""
    start_turn: float = 10.0
    """A process that takes longer to start holds up no other one."""
    shared_processes: int = min(4, os.cpu_count() or 1)
    """Publisher processes that streams share. Each takes some 50 MiB, and one cannot use more than one processor."""
    start_tries: int = 3
    """Of the first catalog; if each ends before it is ready, local mode ends and says why."""
    stop_timeout: float = 10.0
    """For a service to drain after SIGTERM, before SIGKILL."""
    restart_first: float = 0.1
    """Before the first restart of a service that ended; doubled each time."""
    restart_last: float = 15.0
    """The longest wait before a restart."""
    restart_reset: float = 10.0
    """A service that was ready for this long starts again after `restart_first`."""
    log_bytes: int = 1 << 20
    """Of one log file; there is one older file beside it."""


logger = logging.getLogger("epochal.local")

LEAST_PROGRESS = 0.01
"""The share of its time that a process computes at least while it gets somewhere."""


class Starting(Protocol):
    """A process that is not ready yet, as `until_ready` knows it: a `Child`."""

    async def ready(self, timeout: float) -> str:
        """What it says once it is ready; raises `TimedOut` after `timeout` seconds, `Unavailable` at its end."""
        ...

    def progress(self) -> float:
        """Seconds that it has computed, or more."""
        ...


async def until_ready(child: Starting, timeout: float, times: int) -> str:
    """What `child` says once it is ready.

    It has `timeout` seconds, and so much again, up to `times` in all, as long as it has computed in the last ones.
    Raises `TimedOut` for one that gets no further, `Unavailable` at its end.
    """
    before = 0.0
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(times):
        with contextlib.suppress(TimedOut):
            return await child.ready(timeout)
        progress = child.progress()
        if progress - before < timeout * LEAST_PROGRESS:
            break
        before = progress
    raise TimedOut(f"was not ready within {loop.time() - began:.3g} s")


class Service:
    """A service that runs from `start()` to `stop()`.

    `command` returns the arguments, and is called at each start. `on_ready` is awaited at each start, with the text of
    the ready line, `on_line` called with each later line that it prints, and `on_end` when the process has ended.
    `turns`: with others, a few of which start at once; None starts at once.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        log: Path,
        settings: LocalSettings,
        on_ready: Callable[[str], Awaitable[None]] | None = None,
        *,
        on_line: Callable[[bytes], None] | None = None,
        on_end: Callable[[], None] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.restarts = 0
        self.was_ready = asyncio.Event()
        self._failed_starts = 0
        self._news = asyncio.Event()
        self._command = command
        self._settings = settings
        self._on_ready = on_ready
        self._on_line = on_line
        self._on_end = on_end
        self._turns = turns
        self._ready_since: float | None = None
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._after: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while a process runs."""
        return None if self._child is None else self._child.pid

    @property
    def ready(self) -> bool:
        """Whether a process runs that is ready."""
        return self._ready_since is not None

    def send(self, line: bytes) -> None:
        """Write a line to the standard input of the process; lost where none is ready."""
        if self._child is not None and self.ready:
            self._child.send(line)

    def kill(self) -> None:
        """End the process at once, if one runs; it is started again as after any end."""
        if self._child is not None:
            self._child.kill()

    async def settled(self, tries: int) -> None:
        """Wait until it has been ready, or has ended so many times before that."""
        while not self.was_ready.is_set() and self._failed_starts < tries:
            self._news.clear()
            await self._news.wait()

    def start(self, after: asyncio.Task[None] | None = None) -> None:
        """Begin to keep it running, once `after` (the stop of a namesake) is done."""
        self._after = after
        self._task = asyncio.create_task(self._keep(after), name=f"keep {self.name}")

    async def stop(self, patience: float | None = None) -> None:
        """Stop the process and do not start it again; `patience` in place of the settings' `stop_timeout`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        child, self._child = self._child, None
        if child is not None:
            await child.stop(self._settings.stop_timeout if patience is None else patience)
        if self._after is not None:
            await asyncio.wait([self._after])  # whoever follows waits for this stop only (E12 fencing)

    async def _keep(self, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._settings.restart_first, self._settings.restart_last, jitter=0)
        while True:
            outcome = await self._run_once()
            since, self._ready_since = self._ready_since, None
            if self._on_end is not None:
                self._on_end()
            self._failed_starts += not self.was_ready.is_set()
            self._news.set()
            if since is not None and loop.time() - since >= self._settings.restart_reset:
                backoff.reset()
            delay = backoff.delay()
            logger.warning("%s %s; starting it again in %.1f s (log: %s)", self.name, outcome, delay, self.log)
            await asyncio.sleep(delay)
            self.restarts += 1

    async def _run_once(self) -> str:
        """Run one process until it ends; returns how it ended, in words."""
        turn = contextlib.nullcontext() if self._turns is None else await self._turns.take()
        with turn:
            try:
                child = self._child = await self._give_birth()
            except OSError as error:
                return f"could not be started ({error.strerror})"
            try:
                ready = await until_ready(child, self._settings.start_timeout, self._settings.start_times)
                self._ready_since = asyncio.get_running_loop().time()
                self.was_ready.set()
                self._news.set()
                if self._on_ready is not None:
                    await self._on_ready(ready)
            except TimedOut as missed:
                await child.stop(self._settings.stop_timeout)
                self._child = None
                return str(missed)
            except Unavailable:
                pass  # it ended before; the status says more
        status = await child.ended()
        await child.stop(0)  # closes our ends of its pipes
        self._child = None
        if status < 0:
            return f"ended with signal {-status}"
        why = tail(self.log, 1) if status else ""
        return f"ended with status {status}{f' ({why})' if why else ''}"

    async def _give_birth(self) -> Child:
        """Start the process. When cancelled, still wait for the start: else `stop` would not know the process."""
        birth = asyncio.ensure_future(Child.start(self._command(), self.log, self._settings.log_bytes, self._on_line))
        try:
            return await asyncio.shield(birth)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):  # the start failed: the cancellation is raised all the same
                self._child = await birth
            raise

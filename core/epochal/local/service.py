"""Keeps one service process running: starts it, restarts it when it ends, and stops it.

`mode` decides which services should run; the settings of both are here. Restarts back off, so that a service that
cannot run costs little.
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
"""The default directory of `epochal up`: in the project's directory, as build tools do."""


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """How local mode behaves; seconds and bytes."""

    poll_interval: float = 0.25
    """Time between two reads of the catalog's streams: too short to be noticed by a user who applies a manifest."""
    start_timeout: float = 30.0
    """Time for a service to become ready: a cold start of Python on a busy machine takes seconds.

    A process that prints or computes meanwhile gets this time again, up to `start_times` of it. A publisher gets it for
    each of its segments, because it reads their logs first."""
    start_times: int = 10
    starts: int = max(2, os.cpu_count() or 1)
    """Processes that may start at once; with many more, none would be ready in time."""
    start_turn: float = 10.0
    """A process that takes longer to start no longer delays others."""
    shared_processes: int = min(4, os.cpu_count() or 1)
    """Publisher processes that streams share. Each takes some 50 MiB, and one cannot use more than one processor."""
    start_tries: int = 3
    """Starts of the first catalog; if each ends before it is ready, local mode ends and says why."""
    stop_timeout: float = 10.0
    """Time for a service to drain after SIGTERM, before SIGKILL."""
    restart_first: float = 0.1
    """Pause before the first restart of a service that ended; doubled each time."""
    restart_last: float = 15.0
    """The longest wait before a restart."""
    restart_reset: float = 10.0
    """A service that was ready for this long starts again after `restart_first`."""
    log_bytes: int = 1 << 20
    """Most bytes of one log file; there is one older file beside it."""


logger = logging.getLogger("epochal.local")

LEAST_PROGRESS = 0.01
"""A process that computes for a smaller share of its time than this makes no progress."""


class Starting(Protocol):
    """A process that is not ready yet: the part of `Child` that `until_ready` uses."""

    async def ready(self, timeout: float) -> str:
        """Its ready line's text; raises `TimedOut` after `timeout` seconds, `Unavailable` if it ends before."""
        ...

    def progress(self) -> float:
        """A number that rises while it makes progress, at least by one for each second of processor time."""
        ...


async def until_ready(child: Starting, timeout: float, times: int) -> str:
    """Wait until `child` is ready; returns its ready line's text.

    It gets `timeout` seconds, and the same again while it has made progress in the last ones, up to `times` in all.
    Raises `TimedOut` if it makes none, `Unavailable` if it ends.
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
    `turns`: a semaphore shared with other services, so that only a few start at once; None starts without waiting.
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
        """Whether a process runs and is ready."""
        return self._ready_since is not None

    def send(self, line: bytes) -> None:
        """Write a line to the standard input of the process; lost if none is ready."""
        if self._child is not None and self.ready:
            self._child.send(line)

    def kill(self) -> None:
        """End the process at once, if one runs; it is started again as after any end."""
        if self._child is not None:
            self._child.kill()

    async def settled(self, tries: int) -> None:
        """Wait until it is ready, or has ended `tries` times before that."""
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
            await asyncio.wait([self._after])  # a namesake that follows waits for this stop only (E12 fencing)

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
                child = self._child = await self._start_process()
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
        await child.stop(0)  # closes this end of its pipes
        self._child = None
        if status < 0:
            return f"ended with signal {-status}"
        why = tail(self.log, 1) if status else ""
        return f"ended with status {status}{f' ({why})' if why else ''}"

    async def _start_process(self) -> Child:
        """Start the process. When cancelled, still wait for the start: otherwise `stop` would not know the process."""
        birth = asyncio.ensure_future(Child.start(self._command(), self.log, self._settings.log_bytes, self._on_line))
        try:
            return await asyncio.shield(birth)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):  # the start failed: the cancellation is raised all the same
                self._child = await birth
            raise

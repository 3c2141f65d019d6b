"""Keeps one service process running: starts it, restarts it when it ends, and stops it.

`mode` decides what should run. Restarts back off, so that a service which cannot run costs little.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from epochal.backoff import Backoff
from epochal.errors import TimedOut, Unavailable
from epochal.local.child import Child
from epochal.local.settings import LocalSettings

logger = logging.getLogger("epochal.local")


class Service:
    """A service that runs from `start()` to `stop()`.

    `command` returns the arguments, and is called at each start. `on_ready` is awaited at each start, with the text of
    the ready line.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        log: Path,
        settings: LocalSettings,
        on_ready: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.restarts = 0
        self.was_ready = asyncio.Event()
        self._command = command
        self._settings = settings
        self._on_ready = on_ready
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while a process runs."""
        return None if self._child is None else self._child.pid

    def start(self, after: asyncio.Task[None] | None = None) -> None:
        """Begin to keep it running, once `after` (the stop of a namesake) is done."""
        self._task = asyncio.create_task(self._keep(after), name=f"keep {self.name}")

    async def stop(self) -> None:
        """Stop the process and do not start it again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        child, self._child = self._child, None
        if child is not None:
            await child.stop(self._settings.stop_timeout)

    async def _keep(self, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._settings.restart_first, self._settings.restart_last, jitter=0)
        while True:
            began = loop.time()
            outcome = await self._run_once()
            if loop.time() - began >= self._settings.restart_reset:
                backoff.reset()
            delay = backoff.delay()
            logger.warning("%s %s; starting it again in %.1f s (log: %s)", self.name, outcome, delay, self.log)
            await asyncio.sleep(delay)
            self.restarts += 1

    async def _run_once(self) -> str:
        """Run one process until it ends; returns how it ended, in words."""
        try:
            child = self._child = await self._give_birth()
        except OSError as error:
            return f"could not be started ({error.strerror})"
        try:
            ready = await child.ready(self._settings.start_timeout)
            self.was_ready.set()
            if self._on_ready is not None:
                await self._on_ready(ready)
        except TimedOut:
            await child.stop(self._settings.stop_timeout)
            self._child = None
            return f"was not ready within {self._settings.start_timeout:g} s"
        except Unavailable:
            pass  # it ended before; the status says more
        status = await child.ended()
        await child.stop(0)  # closes our ends of its pipes
        self._child = None
        return f"ended with signal {-status}" if status < 0 else f"ended with status {status}"

    async def _give_birth(self) -> Child:
        """Start the process. When cancelled, still wait for the start: else `stop` would not know the process."""
        birth = asyncio.ensure_future(Child.start(self._command(), self.log, self._settings.log_bytes))
        try:
            return await asyncio.shield(birth)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):  # the start failed: the cancellation is raised all the same
                self._child = await birth
            raise

"""Publisher processes that serve many streams each: the orders sent to a process, and the state of each stream in it.

A `Service` keeps each process running. Whenever the process is ready, also after a restart, it is sent the orders for
all streams that it should serve. Within it, streams begin, fail and stop independently (`epochal_publisher.shared`).
"""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from epochal.local.service import LocalSettings, Service
from epochal.resources.plan import PlannedPublisher
from epochal.turns import Turns

logger = logging.getLogger("epochal.local")

STOP_EACH = 0.1
"""Seconds added to a process's time to stop, for each of its streams: each must give up its lease at the catalog."""


class SharedProcess:
    """One process and the publishers in it; `start` before anything else."""

    def __init__(
        self, name: str, command: Callable[[], Sequence[str]], log: Path, settings: LocalSettings, turns: Turns
    ) -> None:
        self.name = name
        self._settings = settings
        self._publishers: dict[str, SharedPublisher] = {}
        self._stopped = -math.inf
        """When one of its streams last stopped."""
        self._service = Service(
            f"publisher process {name}", command, log, settings, self._order_all,
            on_line=self._take_report, on_end=self._ended, turns=turns,
        )  # fmt: skip

    @property
    def pid(self) -> int | None:
        """The process id while a process runs."""
        return self._service.pid

    def start(self) -> None:
        """Begin to keep it running."""
        self._service.start()

    async def stop(self) -> None:
        """Stop all streams in order, and the process."""
        try:
            await self._service.stop(self._settings.stop_timeout + STOP_EACH * len(self._publishers))
        finally:
            self._ended()

    def kill(self) -> None:
        """End the process at once, with every stream in it; it is started again."""
        self._service.kill()

    def host(self, publisher: PlannedPublisher) -> "SharedPublisher":
        """Make a publisher in this process, without starting it."""
        return SharedPublisher(self, publisher, self._settings)

    def serve(self, publisher: "SharedPublisher") -> None:
        """Order the process to serve this publisher from now on."""
        self._publishers[publisher.planned.id] = publisher
        self._order(publisher)

    def release(self, publisher: "SharedPublisher") -> None:
        """Order the process to stop this publisher, which is notified when that is done."""
        if not self._service.ready:  # no process serves it, and the next one will get no order for it
            self._forget(publisher)
            return
        self._service.send(json.dumps({"stop": publisher.planned.id, "uid": publisher.planned.uid}).encode())

    def still_stops(self, seconds: float) -> bool:
        """Whether one of its streams stopped within the last `seconds`; then others still wait for their turn."""
        return asyncio.get_running_loop().time() - self._stopped < seconds

    def _forget(self, publisher: "SharedPublisher") -> None:
        if self._publishers.get(publisher.planned.id) is publisher:
            del self._publishers[publisher.planned.id]
        publisher.gone()

    def _order(self, publisher: "SharedPublisher") -> None:
        planned = publisher.planned
        order: dict[str, Any] = {
            "publisher": planned.id, "stream": planned.stream, "uid": planned.uid,
            "segments": list(planned.segments), "http_port": planned.http_port,
        }  # fmt: skip
        self._service.send(json.dumps({"serve": order}).encode())

    async def _order_all(self, _ready: str) -> None:
        for publisher in self._publishers.values():
            self._order(publisher)

    def _take_report(self, line: bytes) -> None:
        """Handle a line of its output; lines of the log are no JSON objects, and are ignored."""
        if not line.startswith(b"{"):
            return
        try:
            said: Any = json.loads(line)
        except ValueError:
            return
        publisher = self._publishers.get(said.get("publisher"))
        if publisher is not None and said.get("uid") != publisher.planned.uid:
            publisher = None  # a report about an earlier stream with this name
        if said.get("state") == "stopped":
            self._stopped = asyncio.get_running_loop().time()
        match said.get("state"):
            case "ready" if publisher is not None:
                publisher.is_ready()
            case "failed" if publisher is not None:
                publisher.failed(str(said.get("reason")))
            case "stopped" if publisher is not None and publisher.stopping:
                self._forget(publisher)

    def _ended(self) -> None:
        """The process has ended: nothing of it is served, and what was stopping has stopped."""
        for publisher in list(self._publishers.values()):
            publisher.lost()
            if publisher.stopping:
                self._forget(publisher)


class SharedPublisher:
    """One publisher in a shared process; `mode` uses it like a `Service`."""

    def __init__(self, process: SharedProcess, planned: PlannedPublisher, settings: LocalSettings) -> None:
        self.planned = planned
        self.was_ready = asyncio.Event()
        self.ready = False
        self.restarts = 0
        self.stopping = False
        self._process = process
        self._settings = settings
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._served = False
        self._after: asyncio.Task[None] | None = None

    def start(self, after: "asyncio.Task[None] | None" = None) -> None:
        """Begin to serve it, once `after` (the stop of a namesake) is done."""
        self._after = after
        self._task = asyncio.create_task(self._serve(after), name=f"serve {self.planned.id}")

    async def _serve(self, after: "asyncio.Task[None] | None") -> None:
        if after is not None:
            await asyncio.wait([after])
        self._served = True
        self._process.serve(self)

    async def stop(self) -> None:
        """Stop serving it, in order, and wait until it has stopped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if not self._served:
            if self._after is not None:
                await asyncio.wait([self._after])  # a namesake that follows waits for this stop only (E12 fencing)
            return
        self.stopping = True
        self._process.release(self)
        if not await self._stops_in_time():
            logger.warning(
                "publisher %s has not stopped within %g s; %s", self.planned.id, self._settings.stop_timeout,
                "going on without it" if self.planned.stored else "its process is killed and started again",
            )  # fmt: skip
            # With storage, the lock of its log keeps every other process out (E12 fencing), so the process may go on.
            # Without storage, it must have ended before it may begin elsewhere, so the whole process is killed.
            if not self.planned.stored:
                self._process.kill()
                await self._gone.wait()

    async def _stops_in_time(self) -> bool:
        """Whether it stops in time. Publishers of a process take turns, so the time starts again when another has."""
        timeout = self._settings.stop_timeout
        while True:
            try:
                async with asyncio.timeout(timeout):
                    await self._gone.wait()
                return True
            except TimeoutError:
                if not self._process.still_stops(timeout):
                    return False

    def is_ready(self) -> None:
        """Clients are served."""
        self.ready = True
        self.was_ready.set()

    def failed(self, reason: str) -> None:
        """It is not served now, and starts again after a pause."""
        self.ready = False
        self.restarts += 1
        logger.warning("publisher %s failed: %s; it is started again", self.planned.id, reason)

    def lost(self) -> None:
        """Its process has ended."""
        self.restarts += self.ready
        self.ready = False

    def gone(self) -> None:
        """It is not served any more."""
        self.ready = False
        self._gone.set()

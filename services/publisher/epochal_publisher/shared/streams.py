"""The streams that one process serves: each is started in turn, kept running and stopped independently.

A stream that fails is started again after a growing pause; no other stream notices. `serving` runs one stream once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from epochal.backoff import Backoff
from epochal.errors import EpochalError, StreamGone
from epochal.service.process import ABOUT
from epochal.turns import Turns
from epochal_publisher.serving import Ended
from epochal_publisher.shared.assignments import Serve, State, StopServing

logger = logging.getLogger("epochal.publisher")

Say = Callable[[str, str, State, str], None]
"""Called with a publisher's id, its stream's uid, its new state, and the reason."""


class Run(Protocol):
    """Serves one stream once; calls `ready` when clients are served."""

    def __call__(
        self, asked: Serve, stop: asyncio.Event, ready: Callable[[Mapping[str, str]], None]
    ) -> Awaitable[Ended]:
        """Returns when `stop` is set, or when the stream cannot be served any more."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """How many streams start and stop at once, and when a stream that failed is started again; in seconds."""

    starts: int = 4
    start_turn: float = 10.0
    """A stream that takes longer to start, because of a long log or a missing catalog, no longer delays others."""
    stops: int = 16
    restart_first: float = 0.1
    restart_last: float = 15.0
    restart_reset: float = 10.0
    """A stream that was served for at least this long is started again after `restart_first`."""


@dataclass(slots=True)
class _Kept:
    asked: Serve
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class SharedStreams:
    """Keeps the publishers of `serve` running until `stop` or `close`; calls `say` at each change."""

    def __init__(self, run: Run, say: Say, pace: Pace) -> None:
        self._run = run
        self._say = say
        self._pace = pace
        self._starts = Turns(pace.starts, pace.start_turn)
        self._stops = Turns(pace.stops, pace.start_turn)
        self._kept: dict[str, _Kept] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def serve(self, asked: Serve) -> None:
        """Start a publisher. If it already runs for the same stream, nothing happens.

        A publisher with this id for an earlier stream is stopped first. After `close` nothing starts.
        """
        if self._closing:
            return  # the process ends, and the next one gets the order again
        before = self._kept.get(asked.publisher)
        if before is not None and not before.stop.is_set():
            if before.asked.uid == asked.uid:
                return
            before.stop.set()
        kept = self._kept[asked.publisher] = _Kept(asked)
        kept.task = asyncio.create_task(self._keep(asked, kept, before), name=f"serve {asked.publisher}")
        self._tasks.add(kept.task)
        kept.task.add_done_callback(self._tasks.discard)

    def stop(self, asked: StopServing) -> None:
        """Stop a publisher in an orderly way; calls `say` when it has stopped."""
        kept = self._kept.get(asked.publisher)
        if kept is None or kept.asked.uid != asked.uid:
            self._say(asked.publisher, asked.uid, "stopped", "")
        else:
            kept.stop.set()

    async def close(self) -> None:
        """Stop all publishers in an orderly way."""
        self._closing = True
        for kept in self._kept.values():
            kept.stop.set()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _keep(self, asked: Serve, kept: _Kept, before: _Kept | None) -> None:
        ABOUT.set(asked.stream)
        if before is not None and before.task is not None:
            await asyncio.wait([before.task])  # one owner of a log at a time (E12 fencing)
        pace, loop = self._pace, asyncio.get_running_loop()
        backoff = Backoff(pace.restart_first, pace.restart_last, jitter=0)
        try:
            while not kept.stop.is_set():
                served, reason = await self._once(asked, kept.stop)
                if kept.stop.is_set():
                    return
                if reason is None:  # the stream was deleted: an order to stop will follow
                    await kept.stop.wait()
                    return
                if served is not None and loop.time() - served >= pace.restart_reset:
                    backoff.reset()
                delay = backoff.delay()
                logger.warning("%s; beginning again in %.1f s", reason, delay)
                self._say(asked.publisher, asked.uid, "failed", reason)
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await kept.stop.wait()
        finally:
            if self._kept.get(asked.publisher) is kept:
                del self._kept[asked.publisher]
            self._say(asked.publisher, asked.uid, "stopped", "")

    async def _once(self, asked: Serve, stop: asyncio.Event) -> tuple[float | None, str | None]:
        """Serve once. Returns when clients were first served (None: never), and why it ended (None: stream deleted)."""
        since: float | None = None
        turn = await self._starts.take()
        if stop.is_set():
            turn.give_back()
            return None, ""

        def ready(_addresses: Mapping[str, str]) -> None:
            nonlocal since
            since = asyncio.get_running_loop().time()
            turn.give_back()
            self._say(asked.publisher, asked.uid, "ready", "")

        may_stop = asyncio.Event()
        stopping = asyncio.create_task(self._stop_in_turn(stop, may_stop))
        try:
            with turn:
                ended = await self._run(asked, may_stop, ready)
            return since, (ended.reason or f"ended with status {ended.code}") if ended.code else None
        except StreamGone as error:  # before it started
            logger.info("not begun: %s", error)
            return since, None
        except EpochalError as error:
            return since, str(error)
        except Exception as error:
            logger.exception("serving this stream failed")
            return since, f"failed with {error!r}, a bug: its log says where"
        finally:
            stopping.cancel()
            await asyncio.wait([stopping])

    async def _stop_in_turn(self, stop: asyncio.Event, may_stop: asyncio.Event) -> None:
        """Set `may_stop` when `stop` is set and there is a turn, which lasts until this is cancelled."""
        await stop.wait()
        with await self._stops.take():
            may_stop.set()
            await asyncio.Event().wait()

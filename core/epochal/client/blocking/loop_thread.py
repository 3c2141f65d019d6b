"""An event loop in a thread of its own, and calls into it that wait for their answer.

It knows nothing about streams, only about threads, interrupts and forks.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

from epochal.errors import BackgroundTaskEnded, TimedOut, UsageError

R = TypeVar("R")

AFTER_INTERRUPT = 5.0
"""Seconds that an interrupted call is given to undo what it began, before the interrupt goes on."""


class _Call(Generic[R]):
    """One piece of work in the loop; `start` and `cancel` are called there, in the order in which they are submitted.

    `ended` is locked until the work is over. It is a plain lock because an interrupt during `acquire` leaves that
    either taken or not taken, with no state in between.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, R]], timeout: float | None) -> None:
        self._work = work
        self._timeout = timeout
        self._task: asyncio.Task[R] | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._bounded())
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is None or self._task.done():
            self._end(self._task)  # the caller may have been interrupted after it had the lock
        else:
            self._task.cancel()

    def _end(self, task: "asyncio.Task[R] | None") -> None:
        if task is not None and not task.cancelled():
            task.exception()  # marks it as retrieved: an interrupted caller does not ask for it
        if self.ended.locked():
            self.ended.release()

    async def _bounded(self) -> R:
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                return await self._work()
        except TimeoutError:
            if limit.expired():
                raise TimedOut(f"nothing came within {self._timeout:g} s; ask again to wait longer") from None
            raise

    def outcome(self, *, stopped: bool) -> R:
        """What the work returned or raised, once it has ended; `stopped`: whether the loop is being ended."""
        assert self._task is not None
        try:
            return self._task.result()
        except asyncio.CancelledError:
            if stopped:
                raise UsageError("the client was closed while this call waited") from None
            raise BackgroundTaskEnded(
                "this call was cancelled in the client's own event loop, as by a callback that cancels all its tasks"
            ) from None


class LoopThread:
    """One thread that runs one event loop until `stop`; `run` may be called from any other thread."""

    def __init__(self, name: str) -> None:
        # Reentrant: a signal handler may call the client while its thread holds the lock.
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._stopped = False
        self._running = threading.Event()
        # A daemon thread, so that a program which forgets to close its client can still end.
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=name, daemon=True)
        self._thread.start()
        self._running.wait()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._running.set()
        while not self._over.is_set():
            with suppress(asyncio.CancelledError):  # only `stop` ends it; a callback may cancel all tasks of this loop
                await self._over.wait()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that has the thread: a fork does not copy threads."""
        return os.getpid() != self._pid

    def run(self, work: Callable[[], Coroutine[Any, Any, R]], timeout: float | None = None) -> R:
        """What `work()` returns or raises, run in the loop.

        An interrupt (Ctrl-C) cancels it, and is raised once it has ended. Raises `TimedOut` after `timeout` seconds,
        with the work cancelled; `UsageError` after `stop`, in a forked process, and in the loop's own thread.
        """
        self._check()
        call = _Call(work, timeout)
        try:
            submitted = self.submit(call.start)
            if submitted:
                call.ended.acquire()
        except BaseException:  # an interrupt of this thread
            if self.submit(call.cancel):
                call.ended.acquire(timeout=AFTER_INTERRUPT)
            raise
        if not submitted:
            raise UsageError("the client was closed; connect a new one")
        return call.outcome(stopped=self._stopped)

    def submit(self, step: Callable[[], None]) -> bool:
        """Have the loop call `step`, in the order of submission; False where the loop has ended and will not."""
        with self._lock:
            if not self._stopped:
                self._loop.call_soon_threadsafe(step)
            return not self._stopped

    def _check(self) -> None:
        if self.forked:
            raise UsageError(
                f"this client belongs to process {self._pid} and cannot be used after a fork: connect in the child"
            )
        if threading.current_thread() is self._thread:
            raise UsageError("a callback of the client cannot call the client and wait: hand the work to a thread")

    def stop(self) -> None:
        """End the loop and its thread; what still runs in it is cancelled. A second call does nothing."""
        with self._lock:
            self._stopped = True
            with suppress(RuntimeError):  # it is closed already
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

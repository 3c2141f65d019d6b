"""An event loop in a thread of its own, and calls into it that wait for their answer.

Apart from the blocking client because nothing here knows of streams: it is about threads, interrupts and forks.
"""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from epochal.errors import TimedOut, UsageError

R = TypeVar("R")

AFTER_INTERRUPT = 5.0
"""Seconds that an interrupted call is given to undo what it began, before the interrupt goes on."""


class LoopThread:
    """One thread that runs one event loop until `stop`; `run` may be called from any other thread."""

    def __init__(self, name: str) -> None:
        self._pid, self._lock, self._stopped = os.getpid(), threading.Lock(), False
        self._running = threading.Event()
        # A daemon: a program that forgets to close its client ends all the same.
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=name, daemon=True)
        self._thread.start()
        self._running.wait()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._running.set()
        await self._over.wait()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that has the thread: it was not forked along."""
        return os.getpid() != self._pid

    def run(self, work: Callable[[], Coroutine[Any, Any, R]], timeout: float | None = None) -> R:
        """What `work()` returns or raises, run in the loop.

        An interrupt (Ctrl-C) cancels it, and is raised once it has ended. Raises `TimedOut` after `timeout` seconds,
        with the work cancelled; `UsageError` after `stop`, in a forked process, and in the loop's own thread.
        """
        self._check()
        ended = threading.Event()

        async def bounded() -> R:
            limit = asyncio.timeout(timeout)
            try:
                async with limit:
                    return await work()
            except TimeoutError:
                if limit.expired():
                    raise TimedOut(f"nothing came within {timeout:g} s; ask again to wait longer") from None
                raise
            finally:
                ended.set()

        future = self._submit(bounded)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise UsageError("the client was closed while this call waited") from None
        except BaseException:
            if not future.done():  # an interrupt of this thread
                future.cancel()
                ended.wait(AFTER_INTERRUPT)
            raise

    def _submit(self, work: Callable[[], Coroutine[Any, Any, R]]) -> concurrent.futures.Future[R]:
        with self._lock:  # nothing is handed to a loop that has ended: it would never be answered
            if self._stopped:
                raise UsageError("the client was closed; connect a new one")
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

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
            stopped, self._stopped = self._stopped, True
        if not stopped:
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

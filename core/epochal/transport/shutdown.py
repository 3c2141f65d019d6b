"""Ends background tasks, even if the caller that waits for that is cancelled, and notices tasks that end too early.

Writers, subscriptions and clients all leave in this way. A cancelled leave must still close everything, because no one
would close the rest later. And if something else has cancelled a task, callers that wait for its work must get an
error.
"""

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from epochal.errors import BackgroundTaskEnded

AFTER_CANCELLATION = 1.5
"""Seconds that clean-up goes on after its caller was cancelled."""


_ending = weakref.WeakSet[asyncio.Task[Any]]()
"""Tasks that `ended` has cancelled."""


def background(
    work: Coroutine[Any, Any, None], what: str, fail: Callable[[BackgroundTaskEnded], None], *, name: str | None = None
) -> asyncio.Task[None]:
    """Start a task of `what`, such as "writer 'w'", and call `fail` if it ends by a cancellation or an exception.

    `fail` is not called if `ended` has cancelled the task, or if it returns.
    """
    task = asyncio.create_task(work, name=name)

    def look(task: asyncio.Task[None]) -> None:
        if task in _ending:
            return
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            error = BackgroundTaskEnded(f"a background task of {what} failed: {failure!r:.500}; open it again")
            error.__cause__ = failure
            fail(error)
        elif task.cancelled():
            fail(
                BackgroundTaskEnded(
                    f"a background task of {what} was cancelled, as by a program or a test framework that cancels all"
                    " tasks of its event loop; open it again"
                )
            )

    task.add_done_callback(look)
    return task


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Run clean-up to its end.

    A cancellation of the caller is raised once the clean-up is over, after `AFTER_CANCELLATION` at the latest; a second
    one ends the clean-up at once. Raises `BackgroundTaskEnded` if something else has cancelled it.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        try:
            await asyncio.wait([task], timeout=AFTER_CANCELLATION)
        finally:
            await ended([task])
        raise
    if task.cancelled():
        raise BackgroundTaskEnded("clean-up was cancelled, as by a program that cancels all tasks of its event loop")
    task.result()


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; their errors are dropped.

    Only for tasks that end soon after they are cancelled: nothing interrupts this.
    """
    cancelled: asyncio.CancelledError | None = None
    left = set(tasks)
    while left := {task for task in left if not task.done()}:
        _ending.update(left)
        for task in left:
            task.cancel()  # again, in case its clean-up swallowed the last cancellation
        try:
            await asyncio.wait(left, timeout=AFTER_CANCELLATION)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled

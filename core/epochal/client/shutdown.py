"""Ends what runs in the background, also when the caller that waits for it is cancelled.

Separate from writers, subscriptions and clients because all three leave in this one way. A cancelled leave must still
close everything: no one would close the rest later.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

AFTER_CANCELLATION = 1.5
"""Seconds that clean-up goes on after its caller was cancelled."""


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Run clean-up to its end.

    A cancellation of the caller is raised once it is over, after `AFTER_CANCELLATION` at the latest; a second one ends
    it at once.
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
    task.result()


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; what they raised is dropped.

    Only for tasks that end soon after they are cancelled: nothing interrupts this.
    """
    cancelled: asyncio.CancelledError | None = None
    left = set(tasks)
    while left := {task for task in left if not task.done()}:
        for task in left:
            task.cancel()  # again, if something on its way out swallowed the last one
        try:
            await asyncio.wait(left, timeout=AFTER_CANCELLATION)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled

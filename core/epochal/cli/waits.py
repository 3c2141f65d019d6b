"""Watches a writer whose publishers may not answer: says why on standard error, and ends the wait in time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import epochal
from epochal.cli.connections import open_catalog
from epochal.cli.io.output import show_some
from epochal.cli.io.terminal import note
from epochal.errors import EpochalError, TimedOut
from epochal.transport.shutdown import ended
from epochal.verdicts import unacknowledged_because

SAY_AFTER = 3.0
"""Seconds without an answer after which a command says what it waits for."""
LOOK_EVERY = 0.25
"""Seconds between checks of the writer."""
STOOD_STILL = 1.0
"""A longer pause between checks means that this process was stopped, and may not have read answers yet."""
LEAST_PATIENCE = 1.0
"""Seconds for an answer, however short --timeout is: publishers write to disks and may be far away."""


@contextlib.asynccontextmanager
async def answers_awaited(writer: epochal.Writer, stream: str, url: str | None, timeout: float) -> AsyncIterator[None]:
    """Watch a writer that is entered in this block, while something of it is not answered.

    After `SAY_AFTER` seconds in which no publisher has confirmed anything it says why, as the catalog knows it; after
    `timeout` seconds every call of the writer raises `TimedOut`.
    """
    watch = watched(writer.session, stream, lambda: _why(stream, url), max(timeout, LEAST_PATIENCE))
    watching = asyncio.create_task(watch, name="await answers")
    try:
        yield
    finally:
        await ended([watching])


class Unanswered(Protocol):
    """A writer's session."""

    @property
    def unanswered(self) -> tuple[int, ...] | None:
        """A value that changes with every answer; None while nothing waits for one."""

    def fail(self, error: EpochalError) -> None:
        """End the session: its calls raise `error`."""


async def watched(session: Unanswered, stream: str, because: Callable[[], Awaitable[str]], patience: float) -> None:
    """Fail the session `patience` seconds after the last answer, and say why, which `because` finds out.

    Time in which this process was stopped does not count.
    """
    loop = asyncio.get_running_loop()
    before, since, asked, reason, looked = None, loop.time(), 0.0, "", loop.time()
    while True:
        await asyncio.sleep(LOOK_EVERY)
        now, state = loop.time(), session.unanswered
        stood_still, looked = now - looked > STOOD_STILL, now
        if state is None or state != before:
            before, since, asked, reason = state, now, 0.0, ""
        elif stood_still:
            since = now
        elif now - since >= patience:
            why = await because()
            looked = loop.time()
            if session.unanswered != state:
                continue  # an answer came meanwhile
            session.fail(TimedOut(f"no publisher of {stream} has confirmed anything for {patience:g} s: {why}"))
            return
        elif now - since >= SAY_AFTER and now - asked >= SAY_AFTER:
            asked, why = now, await because()
            looked = loop.time()
            if session.unanswered != state:
                continue
            if why != reason:  # only when it changes
                note(f"waiting for the publishers of {stream}, at most {patience:g} s: {why}")
            reason = why


async def _why(stream: str, url: str | None) -> str:
    try:
        async with open_catalog(url, 0.0) as catalog:
            reasons = unacknowledged_because(await catalog.get(*stream.split("/")))
    except EpochalError as error:
        return f"the catalog cannot say why ({error})"
    return show_some(reasons) if reasons else "they do not answer, and the catalog knows no reason"

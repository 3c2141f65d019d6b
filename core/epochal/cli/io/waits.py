"""A writer whose publishers do not answer: says on standard error for what it waits, and ends the wait in time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import epochal
from epochal.catalog_api.verdicts import unacknowledged_because
from epochal.cli.io.terminal import note
from epochal.cli.options import open_catalog
from epochal.client.shutdown import ended
from epochal.errors import EpochalError, TimedOut

SAY_AFTER = 3.0
"""Seconds without an answer after which a command says for what it waits."""
LOOK_EVERY = 0.25
"""Seconds between two looks at the writer."""
LEAST_PATIENCE = 1.0
"""Seconds for an answer, however short --timeout is: publishers write to disks and may be far away."""
MOST_SAID = 3


@contextlib.asynccontextmanager
async def answers_awaited(writer: epochal.Writer, stream: str, url: str | None, timeout: float) -> AsyncIterator[None]:
    """Watch a writer that is entered in this block, while something of it is not answered.

    After `SAY_AFTER` seconds in which no publisher has confirmed anything it says why, as the catalog knows it; after
    `timeout` seconds every call of the writer raises `TimedOut`.
    """
    watching = asyncio.create_task(_watch(writer, stream, url, max(timeout, LEAST_PATIENCE)), name="await answers")
    try:
        yield
    finally:
        await ended([watching])


async def _watch(writer: epochal.Writer, stream: str, url: str | None, patience: float) -> None:
    loop = asyncio.get_running_loop()
    before, since, said, looked = None, loop.time(), "", 0.0
    while True:
        await asyncio.sleep(LOOK_EVERY)
        now, state = loop.time(), writer.session.unanswered
        if state is None or state != before:
            before, since, said, looked = state, now, "", 0.0
            continue
        if now - since >= patience:
            why = await _why(stream, url)
            writer.session.fail(TimedOut(f"no publisher of {stream} has confirmed anything for {patience:g} s: {why}"))
            return
        if now - since >= SAY_AFTER and now - looked >= SAY_AFTER:
            looked, why = now, await _why(stream, url)
            if why != said:  # not again because it lasts
                note(f"waiting for the publishers of {stream}, at most {patience:g} s: {why}")
            said = why


async def _why(stream: str, url: str | None) -> str:
    try:
        async with open_catalog(url, 0.0) as catalog:
            reasons = unacknowledged_because(await catalog.get(*stream.split("/")))
    except EpochalError as error:
        return f"the catalog cannot say why ({error})"
    more = f"; and {len(reasons) - MOST_SAID} more" if len(reasons) > MOST_SAID else ""
    return "; ".join(reasons[:MOST_SAID]) + more if reasons else "they do not answer, and the catalog knows no reason"

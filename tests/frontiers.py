"""Waiting for what a subscription sees later than the writer that brought it about."""

import asyncio

from tests.patience import PATIENCE

import epochal
from epochal.protocol.times import Time


async def reaches(sub: epochal.Subscription, *frontier: Time) -> None:
    """Wait until these, in any order, are the least times that can still come; the test reads no events meanwhile."""
    async with asyncio.timeout(PATIENCE):
        while set(sub.frontier()) != set(frontier):  # noqa: ASYNC110 - only events announce it
            await asyncio.sleep(0.01)

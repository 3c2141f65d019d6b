"""Who keeps times open that a command has just advanced past: its user waits for them to complete."""

import asyncio
from collections.abc import Callable, Sequence

from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.texts import show_seconds, show_time
from epochal.cli.io.output import show_some
from epochal.client.catalog.catalog import CatalogClient
from epochal.protocol.blockers import HolderKind
from epochal.protocol.times import Time

REPORTED_WITHIN = 3.0
"""Seconds to wait for a new report of every publisher: they report every second."""
AGAIN = 0.1


async def who_holds(
    catalog: CatalogClient, name: tuple[str, str], is_open: Callable[[Time], bool], writer: str
) -> list[HeldBack]:
    """The holders other than `writer` of times that are `is_open`, by reports that were made after this call.

    Returns an empty list as soon as there are none. Waits at most `REPORTED_WITHIN` seconds for reports.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        stream = await catalog.get(*name)
        passed = loop.time() - began
        held = [each for each in stream.held_back if each.time is not None and is_open(each.time)]
        fresh = all(
            segment.reported is not None and segment.reported < passed
            for segment in stream.segments
            if segment.state == "open"
        )
        if not held or fresh or passed > REPORTED_WITHIN:
            return [each for each in held if each.writer != writer and each.kind != HolderKind.RECORDING]
        await asyncio.sleep(AGAIN)


def in_words(held: Sequence[HeldBack]) -> str:
    """The holders in words, each writer once.

    >>> in_words([HeldBack("0", 0, "writer", "A", 9.0, 3.0), HeldBack("1", 0, "writer", "A", 9.0, 3.0)])
    'writer A at segment 0 holds 0, last heard 3.0 s ago'
    """
    first: dict[tuple[str, str | None], HeldBack] = {}
    for each in held:
        first.setdefault((each.kind, each.writer), each)
    return show_some([_words(each) for each in first.values()])


def _words(held: HeldBack) -> str:
    if held.kind != HolderKind.WRITER or held.time is None:
        return held.words
    heard = "" if held.silent is None else f", last heard {show_seconds(held.silent)} ago"
    return f"writer {held.writer} at segment {held.segment} holds {show_time(held.time)}{heard}"

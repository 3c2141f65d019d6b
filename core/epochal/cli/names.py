"""What a shell can complete: kinds of objects, and the names of streams as the catalog knows them now.

Apart from the commands because the shell asks while somebody types: an answer comes at once or not at all, and never
with a word on the terminal.
"""

import asyncio
import os

import typer

from epochal.cli.documents import Documents
from epochal.client.catalog import catalog_url
from epochal.errors import EpochalError

TIMEOUT = 1.0
"""Seconds that the catalog may take; who presses Tab does not wait longer."""

LISTED = ("streams", "publishers", "writers", "subscriptions")


def complete_kinds(incomplete: str) -> list[str]:
    """The kinds that `get` lists; `describe` and `delete` know streams alone, which come first."""
    return [kind for kind in LISTED if kind.startswith(incomplete)]


def complete_streams(context: typer.Context, incomplete: str) -> list[str]:
    """Streams as NS/NAME, and those of the namespace at hand also as NAME; none when the catalog does not tell."""
    return find_streams(incomplete, context.params.get("catalog"), context.params.get("namespace"))


def complete_streams_of(context: typer.Context, incomplete: str) -> list[str]:
    """The same for a command that takes several: those that stand there already are left out."""
    given = context.params.get("names") or ()
    return [name for name in complete_streams(context, incomplete) if name not in given]


def find_streams(incomplete: str, catalog: str | None, namespace: str | None) -> list[str]:
    """Names that begin with `incomplete`."""
    namespace = namespace or os.environ.get("EPOCHAL_NAMESPACE") or "default"
    try:
        found = asyncio.run(_all_streams(catalog_url(catalog)))
    except (EpochalError, TimeoutError, OSError, KeyError, TypeError):
        return []
    short = [name for space, name in found if space == namespace]
    return sorted(name for name in [*short, *map("/".join, found)] if name.startswith(incomplete))


async def _all_streams(url: str) -> list[tuple[str, str]]:
    async with asyncio.timeout(TIMEOUT), Documents(url, patience=0.0, timeout=TIMEOUT) as documents:
        return [(item["namespace"], item["name"]) for item in await documents.all("/v1/streams")]

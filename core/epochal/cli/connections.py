"""How a command reaches the catalog: with a typed client, with whole objects, or as a publisher or subscriber.

It takes no options: a wait for publishers opens a catalog too.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import epochal
from epochal.cli.io.documents import Documents
from epochal.cli.io.terminal import note
from epochal.cli.target import advice, name_of, reach, where

if TYPE_CHECKING:
    from epochal.client.catalog.catalog import CatalogClient


@asynccontextmanager
async def open_catalog(url: str | None, timeout: float) -> AsyncIterator["CatalogClient"]:
    """A client that says on stderr, once, that it is waiting for the catalog."""
    from epochal.client.catalog.catalog import CatalogClient  # here: a list needs no models of answers

    address = await where(url)
    report = _reporter(name_of(address), timeout)
    async with CatalogClient(address, patience=timeout, on_unreachable=report, advice=advice()) as catalog:
        yield catalog


@asynccontextmanager
async def open_documents(url: str | None, timeout: float) -> AsyncIterator[Documents]:
    """The same, to read the catalog's own objects."""
    address = await where(url)
    report = _reporter(name_of(address), timeout)
    async with Documents(address, patience=timeout, on_unreachable=report, advice=advice()) as documents:
        yield documents


@asynccontextmanager
async def connected(url: str | None, timeout: float) -> "AsyncIterator[epochal.Client]":
    """A client that publishes and subscribes."""
    async with epochal.connect(await where(url), patience=timeout, reach=reach()) as client:
        yield client


def _reporter(address: str, timeout: float) -> Callable[[str], None]:
    reported = False

    def report(reason: str) -> None:
        nonlocal reported
        if not reported and timeout > 0:
            note(f"waiting up to {timeout:g} s for the catalog at {address} ({reason}) ...")
        reported = True

    return report

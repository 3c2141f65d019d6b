"""Options that several commands share, and how a command reaches the catalog.

An option has one name, one default and one explanation everywhere.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

import epochal
from epochal.cli.commands.completion import complete_kinds, complete_streams, complete_streams_of
from epochal.cli.io.documents import Documents
from epochal.cli.io.terminal import note
from epochal.cli.target import advice, name_of, reach, run, where
from epochal.client.catalog.url import DEFAULT_CATALOG

if TYPE_CHECKING:
    from epochal.client.catalog.catalog import CatalogClient

__all__ = [
    "DEFAULT_TIMEOUT",
    "AllNamespaces",
    "CatalogOption",
    "Format",
    "KindArgument",
    "Manifests",
    "NamespaceOption",
    "OptionalKind",
    "Output",
    "StreamArgument",
    "StreamsArgument",
    "Timeout",
    "chosen_namespace",
    "connected",
    "open_catalog",
    "open_documents",
    "run",
]


class Format(StrEnum):
    """How `get` and `describe` print."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def is_document(self) -> bool:
        """Whether the catalog's own objects are printed, whole."""
        return self in (Format.JSON, Format.YAML)


CatalogOption = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="URL",
        envvar="EPOCHAL_CATALOG",
        help=f"The catalog to talk to. Default: {DEFAULT_CATALOG}, in a pod the cluster's.",
        show_default=False,
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NS",
        envvar="EPOCHAL_NAMESPACE",
        help="For names without one (default: default); lists show this one alone.",
        show_default=False,
    ),
]
AllNamespaces = Annotated[
    bool,
    typer.Option("--all-namespaces", "-A", help="Of all namespaces, also where EPOCHAL_NAMESPACE names one."),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to try while the catalog cannot be reached."),
]
Output = Annotated[
    Format,
    typer.Option(
        "--output",
        "-o",
        metavar="table|wide|json|yaml|name",
        help="How to print; json and yaml are the catalog's own objects, whole.",
        show_default=True,
    ),
]
Manifests = Annotated[
    list[str] | None,
    typer.Option(
        "--filename",
        "-f",
        metavar="FILE",
        help="Manifests in YAML: a file, a directory of *.yaml, *.yml and *.json, or - for standard input. Repeatable.",
        show_default=False,
    ),
]
StreamArgument = Annotated[
    str, typer.Argument(metavar="STREAM", help="NAME or NS/NAME.", autocompletion=complete_streams, show_default=False)
]
StreamsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="STREAM", help="NAME or NS/NAME.", autocompletion=complete_streams_of, show_default=False),
]
KindArgument = Annotated[
    str, typer.Argument(metavar="KIND", help="See Kinds below.", autocompletion=complete_kinds, show_default=False)
]
OptionalKind = Annotated[
    str | None,
    typer.Argument(metavar="KIND", help="See Kinds below.", autocompletion=complete_kinds, show_default=False),
]
DEFAULT_TIMEOUT = 30.0


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
    """The same for the catalog's own objects."""
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


def chosen_namespace(namespace: str | None, everywhere: bool) -> str | None:
    """The one namespace that a list is of, or None for all."""
    return None if everywhere else namespace

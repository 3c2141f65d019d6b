"""Options that several commands share, and how a command reaches the catalog.

Apart from the commands so that an option has one name, one default and one explanation everywhere.
"""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from epochal.client.catalog import DEFAULT_CATALOG, CatalogClient, catalog_url

T = TypeVar("T")

Catalog = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="URL",
        envvar="EPOCHAL_CATALOG",
        help=f"The catalog to talk to. Default: {DEFAULT_CATALOG}.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", metavar="NS", help="For names without one. Default: default.", show_default=False
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to try while the catalog cannot be reached."),
]
Manifest = Annotated[
    str | None, typer.Option("--filename", "-f", metavar="FILE", help="Stream manifests in YAML; - is standard input.")
]
DEFAULT_TIMEOUT = 30.0


def open_catalog(url: str | None, timeout: float) -> CatalogClient:
    """A client that says on stderr, once, that it is waiting for the catalog."""
    address = catalog_url(url)
    told = False

    def tell(reason: str) -> None:
        nonlocal told
        if not told and timeout > 0:
            note(f"waiting up to {timeout:g} s for the catalog at {address} ({reason}) ...")
        told = True

    return CatalogClient(address, patience=timeout, on_unreachable=tell)


def read_manifest(filename: str) -> str:
    """The text of a manifest file or of standard input."""
    if filename == "-":
        return sys.stdin.read()
    return Path(filename).read_text(encoding="utf-8")


def note(text: str) -> None:
    """Print what is not data, on stderr."""
    print(text, file=sys.stderr, flush=True)


def run(command: Coroutine[None, None, T]) -> T:
    """Run one asynchronous command to its end."""
    return asyncio.run(command)

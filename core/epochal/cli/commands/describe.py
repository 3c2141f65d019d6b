"""`epochal describe`: show a stream in full, beginning with what holds its time back."""

import typer

from epochal.cli.connections import open_documents
from epochal.cli.description import print_stream
from epochal.cli.io.documents import Document, stream_path
from epochal.cli.io.output import print_document, print_fields
from epochal.cli.io.terminal import printable
from epochal.cli.listed_kinds import STREAMS, relay_lag, relay_load, relay_path
from epochal.cli.options import (
    DEFAULT_TIMEOUT,
    CatalogOption,
    Format,
    KindArgument,
    NamespaceOption,
    Output,
    StreamsArgument,
    Timeout,
    chosen_objects,
)
from epochal.cli.target import run

EPILOG = """\b
Kinds:
  stream

\b
Examples:
  epochal describe stream demo/flights
  epochal describe stream/demo/flights -o json

"Held back" shows what keeps the times at the frontier from completing: a writer that is open there and has not
advanced, writers that are still to open or to come back, or a segment without a publisher. The rest is what was
declared, each segment with its publisher, frontier, counters and channels, and declared fields whose function is
planned. With -o json and -o yaml the catalog's own object, in which "held_back" says the same, and beside its fields
"listed_relays", the stream's relays as `epochal get relays` has them; -o wide adds addresses and exact key ranges."""


def describe(
    kind: KindArgument,
    names: StreamsArgument = None,
    output: Output = Format.TABLE,
    namespace: NamespaceOption = None,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show a stream in full, and what holds its time back."""
    _, streams = chosen_objects(kind, names, namespace, "describe")
    if not streams:
        raise typer.BadParameter("name a stream: epochal describe stream NAME")
    run(_describe(streams, output, catalog, timeout))


async def _describe(streams: list[tuple[str, str]], output: Format, url: str | None, timeout: float) -> None:
    async with open_documents(url, timeout) as documents:
        for number, name in enumerate(streams):
            item = await documents.stream(*name)
            if output is Format.NAME:
                print(printable(f"stream/{STREAMS.key(item)}"))
                continue
            relays = await documents.all(f"{stream_path(*name)}/relays") if item.get("relays") else []
            if output.is_document:
                if number and output is Format.YAML:
                    print("---")
                print_document({**item, "listed_relays": relays}, output is Format.YAML)
            else:
                print("\n" if number else "", end="")
                print_stream(item, wide=output is Format.WIDE)
                if relays:
                    _print_relays(relays)


def _print_relays(relays: list[Document]) -> None:
    """Print each relay: name, state, load, lag, path to the publishers, filter, and its HTTP address."""
    print("\nRelays:")
    print_fields([(relay["id"], _relay(relay)) for relay in relays], indent="  ")


def _relay(item: Document) -> str:
    load, lag = f"load {relay_load(item)}", f"lag {relay_lag(item)}"
    reads = f"reads {item.get('filter') or 'everything'}"
    http = item["addresses"].get("http")
    at = [f"HTTP at {http}"] if http else []
    return ", ".join((item["name"], item["state"], load, lag, f"path {relay_path(item)}", reads, *at))

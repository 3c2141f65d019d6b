"""`epochal get`: list streams, publishers, writers, subscriptions or relays, once or again at each change.

`listed_kinds` defines the columns of each kind; `describe` shows one stream in full.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import typer

from epochal.cli.connections import open_documents
from epochal.cli.io.documents import Document, Documents, stream_path
from epochal.cli.io.output import aligned, as_yaml, dumps, print_document, print_table
from epochal.cli.io.terminal import note, printable
from epochal.cli.listed_kinds import KINDS, STREAMS, WRITERS, Kind
from epochal.cli.options import (
    DEFAULT_TIMEOUT,
    AllNamespaces,
    CatalogOption,
    Format,
    KindArgument,
    NamespaceOption,
    Output,
    StreamsArgument,
    Timeout,
    chosen_namespace,
    chosen_objects,
)
from epochal.cli.target import run, where
from epochal.errors import EpochalError

EPILOG = """\b
Kinds:
  streams        what is declared, with frontiers
  publishers     the owners of segments; with -o wide also replaced ones
  writers        writers that have a stream open
  subscriptions  readers, with frontiers and lag
  relays         relays, which pass a stream on to many readers

\b
Examples:
  epochal get streams                      # in all namespaces
  epochal get streams -n demo -o wide
  epochal get stream demo/flights -o yaml  # one object
  epochal get writers demo/flights         # of one stream
  epochal get streams --watch              # a row for each change
  epochal delete $(epochal get streams -n demo -o name)

Lists show all namespaces unless -n or EPOCHAL_NAMESPACE names one. A name may always be written as NS/NAME.

FRONTIER holds the least times that can still arrive: a time that is not at or after one of them is complete; {} means
that all times are. Output is a table on a terminal, else plain lines with columns two spaces apart; nothing is cut off.
With -o json and -o yaml a list is {"items": [...]} of the catalog's own objects, which docs/cli.md describes; one named
stream is the object itself; with --watch each row is a JSON object or a YAML document. -o name prints KIND/NAME."""

Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="After the list, print each object again whenever it changes.")
]
WATCH_INTERVAL = 1.0
"""Seconds between polls for what the catalog does not announce: frontiers and counters change without a revision."""


def get(
    kind: KindArgument,
    names: StreamsArgument = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
    namespace: NamespaceOption = None,
    everywhere: AllNamespaces = False,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """List streams, publishers, writers, subscriptions or relays."""
    found, streams = chosen_objects(kind, names, namespace, "get", KINDS)
    query = _Query(found, streams, None if streams else chosen_namespace(namespace, everywhere))
    run((_watch if watch else _get)(query, output, catalog, timeout))


class _Query:
    """What to list: objects of a kind, of `streams` if any are named, else of `namespace`, else all."""

    def __init__(self, kind: Kind, streams: list[tuple[str, str]], namespace: str | None) -> None:
        self.kind = kind
        self.streams = streams
        self.namespace = namespace

    @property
    def is_one(self) -> bool:
        """Whether the answer is one object, not a list."""
        return self.kind is STREAMS and len(self.streams) == 1

    async def fetch(self, documents: Documents) -> list[Document]:
        """The objects now, ordered by stream and name; raises `StreamNotFound` for a stream that was named."""
        if self.kind is STREAMS and self.streams:
            return [await documents.stream(*stream) for stream in self.streams]
        if self.streams:
            for stream in self.streams:
                await documents.stream(*stream)
        items = [item for item in await self._all(documents) if self._wants(item)]
        return sorted(items, key=lambda item: (self.kind.stream(item), self.kind.key(item)))

    async def _all(self, documents: Documents) -> list[Document]:
        if self.kind is not WRITERS:
            return await documents.all(self.kind.path)
        streams = self.streams or [(item["namespace"], item["name"]) for item in await documents.all(STREAMS.path)]
        found = [await documents.all(f"{stream_path(*stream)}/writers") for stream in streams]
        return [
            {**item, "stream": "/".join(stream)} for stream, items in zip(streams, found, strict=True) for item in items
        ]

    def _wants(self, item: Document) -> bool:
        stream = self.kind.stream(item)
        if self.streams:
            return tuple(stream.split("/")) in self.streams
        return self.namespace is None or stream.startswith(f"{self.namespace}/")


async def _get(query: _Query, output: Format, url: str | None, timeout: float) -> None:
    async with open_documents(url, timeout) as documents:
        items = await query.fetch(documents)
    kind = query.kind
    if output in (Format.TABLE, Format.NAME):
        items = [item for item in items if not item.get("superseded")]
    if output.is_document:
        print_document(items[0] if query.is_one else {"items": items}, output is Format.YAML)
    elif output is Format.NAME:
        for item in items:
            print(printable(f"{kind.name}/{kind.key(item)}"))
    elif items:
        print_table(kind.header(output is Format.WIDE), [kind.row(item, output is Format.WIDE) for item in items])
    elif query.namespace is not None:
        note(f"no {kind.plural} in namespace {query.namespace}; -A lists those of all namespaces")
    else:
        note(kind.nothing)


# ---- watching ----


async def _watch(query: _Query, output: Format, url: str | None, timeout: float) -> None:
    """Print every object, and an object again when it changes; a deleted one is reported on stderr."""
    shown: dict[str, list[str]] = {}
    rows = _Rows(query.kind, output)
    async with open_documents(url, timeout) as documents, _changes(url, timeout) as changed:
        while True:
            items = {query.kind.key(item): item for item in await query.fetch(documents)}
            look = {key: query.kind.state(item) for key, item in items.items()}
            rows.show([item for key, item in items.items() if shown.get(key) != look[key]])
            for key in shown.keys() - look.keys():
                note(f"{query.kind.name}/{key} is gone")
            shown = look
            changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_INTERVAL):
                    await changed.wait()


@asynccontextmanager
async def _changes(url: str | None, timeout: float) -> AsyncIterator[asyncio.Event]:
    """An event that is set at each change that the catalog announces; others are seen up to a second later."""
    from epochal.client.catalog.catalog import CatalogClient  # here: only --watch needs it

    changed, address = asyncio.Event(), await where(url)

    async def follow() -> None:
        async with CatalogClient(address, patience=timeout) as catalog:
            with suppress(EpochalError):  # the next list raises the same error
                async for _ in catalog.watch():
                    changed.set()

    task = asyncio.create_task(follow(), name="watch the catalog")
    try:
        yield changed
    finally:
        task.cancel()
        await asyncio.wait([task])


class _Rows:
    """Prints rows as they come. Columns keep the widths of the first ones, and grow when they must."""

    def __init__(self, kind: Kind, output: Format) -> None:
        self._kind = kind
        self._output = output
        self._wide = output is Format.WIDE
        header = kind.header(self._wide)
        self._widths = [0] * len(header)
        self._header: list[str] | None = header

    def show(self, items: Sequence[Document]) -> None:
        """Print some objects."""
        match self._output:
            case Format.JSON:
                lines = [dumps(item) for item in items]
            case Format.YAML:
                lines = [f"---\n{as_yaml(item)}".rstrip("\n") for item in items]
            case Format.NAME:
                lines = [printable(f"{self._kind.name}/{self._kind.key(item)}") for item in items]
            case _:
                lines = self._table([list(map(printable, self._kind.row(item, self._wide))) for item in items])
        for line in lines:
            print(line, flush=True)

    def _table(self, rows: list[list[str]]) -> list[str]:
        if rows and self._header is not None:
            rows.insert(0, self._header)
            self._header = None
        for row in rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        return [aligned(row, self._widths) for row in rows]

"""`epochal release`: release a lost writer that a stream is waiting for.

Unlike `delete`, it removes nothing: epochs are aborted, and others complete without the writer.
"""

import sys
from typing import Annotated

import typer

from epochal.catalog_api.answers import StreamInfo
from epochal.cli.connections import open_catalog
from epochal.cli.io.signals import raised_at_once
from epochal.cli.io.terminal import note
from epochal.cli.options import DEFAULT_TIMEOUT, CatalogOption, NamespaceOption, StreamArgument, Timeout
from epochal.cli.target import run
from epochal.errors import from_code
from epochal.resources.names import DEFAULT_NAMESPACE, parse_stream_name
from epochal.verdicts import lost_holders

EPILOG = """\b
Examples:
  epochal release demo/flights w3
  epochal release demo/flights w3 --yes

For streams with progress.whenLost: hold, which wait for a writer that was lost. The epochs that the writer had
published to and not left are aborted for good, and what it held is released: later epochs complete without it. The
catalog records it, and publishers do it within a second. A writer that is back by then, or opens the stream later, goes
on: its new session is not released.

`epochal describe stream NAME` shows, under "Held back", which writers a stream waits for. A writer that no segment
waits for as lost is not released (status 1). Only a terminal is asked; elsewhere --yes is needed."""


def release(
    stream: StreamArgument,
    writer: Annotated[str, typer.Argument(metavar="WRITER", help="The id of the lost writer.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    namespace: NamespaceOption = None,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Release a lost writer that a stream is waiting for."""
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter("this asks before it aborts epochs, and standard input is no terminal; add --yes")
    run(_release(parse_stream_name(stream, namespace or DEFAULT_NAMESPACE), writer, yes, catalog, timeout))


async def _release(name: tuple[str, str], writer: str, yes: bool, url: str | None, timeout: float) -> None:
    async with open_catalog(url, timeout) as catalog:
        if not yes:
            note(_what_happens(await catalog.get(*name), writer))
            with raised_at_once():
                typer.confirm(f"Release {writer}?", abort=True, err=True)
        session = await catalog.release(*name, writer)
    print(f"writer {writer} of {'/'.join(name)} released (session {session})")


def _what_happens(stream: StreamInfo, writer: str) -> str:
    """The text to confirm. Raises the catalog's refusal if no segment waits for the writer."""
    seen = "\n".join(held.words for held in lost_holders(stream) if held.writer == writer)
    if not seen:
        raise from_code("writer_not_lost", f"no segment of {stream.qualified} waits for writer {writer!r} as lost")
    return (
        f"{seen}\nThe epochs that {writer} published to and had not left are aborted, for good, and what it holds is"
        " released: later epochs complete without it."
    )

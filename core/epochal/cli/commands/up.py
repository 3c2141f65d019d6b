"""`epochal up`: local mode in the foreground.

`epochal.local` does the work, also for tests and programs. This module adds a terminal's signals and the ready line.
"""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.io.terminal import note
from epochal.cli.target import run
from epochal.local import DEFAULT_DATA, LocalMode, LocalSettings

EPILOG = """\b
Examples:
  epochal up                          # port 8700, files in ./.epochal
  epochal up --data /tmp/x --port 0   # any free port: the ready line says

Prints one line on standard output when ready: `epochal ready URL data=DIR`. Ctrl-C or SIGTERM stops the publishers,
then the catalog. What was declared stays in the directory for the next time, and so do the records of streams with
storage; those of others are kept in memory only. Streams share a few publisher processes; publishers.dedicated of a
manifest gives a stream processes of its own. Where the HTTP of a relay is, standard error says when it is ready, and
`epochal describe stream`; publishers.httpPort and relayHttpPort of a manifest name ports that stay."""


def up(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The data directory.")] = DEFAULT_DATA,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="The catalog's port; 0: any free one.")
    ] = 8700,
    poll_interval: Annotated[
        float,
        typer.Option(
            "--poll-interval", metavar="SECONDS", min=0.01, max=60, help="Time between checks of the streams."
        ),
    ] = LocalSettings().poll_interval,
    shared_processes: Annotated[
        int,
        typer.Option(
            "--shared-processes",
            metavar="N",
            min=1,
            max=64,
            help="Publisher processes that streams share.",
            show_default="one a processor, at most 4",
        ),
    ] = LocalSettings().shared_processes,
) -> None:
    """Run a catalog and publishers on this machine until Ctrl-C."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    run(_up(data, port, LocalSettings(poll_interval=poll_interval, shared_processes=shared_processes)))


async def _up(data: Path, port: int, settings: LocalSettings) -> None:
    try:
        async with LocalMode(data, port, settings, note) as local:
            print(f"epochal ready {local.url} data={local.data}", flush=True)
            try:
                await local.wait()
            except asyncio.CancelledError:
                note("stopping ...")
                raise
    except asyncio.CancelledError:  # a signal is how it is meant to end: status 0
        if (task := asyncio.current_task()) is not None:
            task.uncancel()

"""The command `epochal-catalog`.

Apart from the server because here are the process's own concerns: options, signals, standard streams, exit codes.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from epochal.errors import EpochalError
from epochal_catalog.datadir import DataDirectory
from epochal_catalog.server import Server
from epochal_catalog.settings import Settings

_app = typer.Typer(add_completion=False, no_args_is_help=True)


@_app.callback()
def _about() -> None:
    """The Epochal catalog: streams, segments, publishers and the sessions of writers."""


@_app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [default: 8700]")] = None,
    data: Annotated[Path | None, typer.Option(help="Directory of the database. [default: ./epochal-catalog]")] = None,
    lease_ttl: Annotated[float | None, typer.Option(help="Seconds a publisher's lease lasts. [default: 10]")] = None,
    exit_with_stdin: Annotated[bool, typer.Option(help="Stop when standard input ends.")] = False,
) -> None:
    """Run the catalog until SIGTERM or Ctrl-C. Every setting can also come from EPOCHAL_CATALOG_*."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        settings = Settings.read(host=host, port=port, data=data, lease_ttl=lease_ttl)
        with DataDirectory(settings.data):
            asyncio.run(_serve(settings, exit_with_stdin))
    except EpochalError as error:
        typer.echo(f"epochal-catalog: {error}", err=True)
        raise typer.Exit(1) from None


async def _serve(settings: Settings, exit_with_stdin: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if exit_with_stdin:
        _watch_stdin(loop, stop)
    async with Server(settings) as server:
        print(f"ready {server.url}", flush=True)
        await _first(stop, server.catalog.broken)
    if server.catalog.broken.is_set():
        raise typer.Exit(1)


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop at the end of standard input. A thread, since a file or /dev/null cannot be polled."""

    def read() -> None:
        with suppress(OSError):  # closed altogether: that is an end too
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # the loop has ended for another reason
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=read, name="stdin", daemon=True).start()


def main() -> None:
    """Entry point of the console script."""
    _app()


if __name__ == "__main__":
    main()

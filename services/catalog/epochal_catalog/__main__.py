"""The command `epochal-catalog`: options, start and exit code of the process.

The exit codes are those of every service (`epochal.service.process`).
"""

import gc

gc.disable()  # imports make no garbage, and looking for it takes a third of the start

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from epochal.service.process import any_set, command_line, run

_app = command_line("The Epochal catalog: streams, segments, publishers and the sessions of writers.")


@_app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [default: 8700]")] = None,
    data: Annotated[Path | None, typer.Option(help="Directory of the database. [default: ./epochal-catalog]")] = None,
    local_data: Annotated[str | None, typer.Option(help="Local mode's directory, for programs here.")] = None,
    lease_ttl: Annotated[float | None, typer.Option(help="Seconds a publisher's lease lasts. [default: 10]")] = None,
    exit_with_stdin: Annotated[bool, typer.Option(help="Stop when standard input ends.")] = False,
) -> None:
    """Run the catalog until SIGTERM or Ctrl-C. Every setting can also come from EPOCHAL_CATALOG_*."""
    given = {"host": host, "port": port, "data": data, "local_data": local_data, "lease_ttl": lease_ttl}
    run("epochal-catalog", lambda stop: _serve(stop, given), exit_with_stdin=exit_with_stdin)


async def _serve(stop: asyncio.Event, given: dict[str, Any]) -> int:
    # Imported here, so that `--help` starts without them.
    from epochal_catalog.runtime.settings import CatalogSettings
    from epochal_catalog.server import Server
    from epochal_catalog.storage.store import DataDirectory

    gc.freeze()
    gc.enable()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    settings = CatalogSettings.read(**given)
    with DataDirectory(settings.data, settings.trust_file_system):
        async with Server(settings) as server:
            print(f"ready {server.url}", flush=True)
            await any_set(stop, server.catalog.broken)
        return 1 if server.catalog.broken.is_set() else 0


def main() -> None:
    """Entry point of the console script."""
    _app()


if __name__ == "__main__":
    main()

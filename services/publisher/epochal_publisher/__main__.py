"""The command `epochal-publisher`.

It deals with the process: options, signals, standard streams, exit codes.

Exit codes: 0 stopped, or the stream was deleted; 1 cannot run; 2 wrong usage; 3 superseded by a newer publisher of the
same segments, in this run or in an earlier one that left its mark.
"""

import gc

gc.disable()  # imports make no garbage, and looking for it takes a third of the start

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from epochal.service.process import command_line, run

# Each command imports only what it runs, so that `--help` and the other commands start without that.

logger = logging.getLogger("epochal.publisher")
_app = command_line(
    "The Epochal publisher: owns segments of a stream, takes appends, pushes events, answers with history."
)


@_app.command()
def serve(
    catalog: Annotated[str | None, typer.Option(help="URL of the catalog.")] = None,
    stream: Annotated[str | None, typer.Option(help="namespace/name of the stream.")] = None,
    segments: Annotated[str | None, typer.Option(help="The segments to serve, by comma.")] = None,
    publisher: Annotated[str | None, typer.Option(help="Name of this publisher.")] = None,
    data: Annotated[Path | None, typer.Option(help="Directory of the logs, for streams with storage.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    advertise: Annotated[str | None, typer.Option(help="Host that clients use. [default: --host]")] = None,
    events_port: Annotated[int | None, typer.Option(help="Port of live push. [default: a free one]")] = None,
    requests_port: Annotated[int | None, typer.Option(help="Port of requests. [default: a free one]")] = None,
    ingest_port: Annotated[int | None, typer.Option(help="Port of writers. [default: a free one]")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of health and metrics. [default: a free one]")] = None,
    log_retry: Annotated[float | None, typer.Option(help="Seconds between tries on a full or owned disk.")] = None,
    exit_with_stdin: Annotated[bool, typer.Option(help="Stop when standard input ends.")] = False,
) -> None:
    """Serve segments until SIGTERM or Ctrl-C. Every setting can also come from EPOCHAL_PUBLISHER_*."""
    given = {name: value for name, value in locals().items() if name != "exit_with_stdin"}
    run("epochal-publisher", lambda stop: _until_stopped(stop, given), exit_with_stdin=exit_with_stdin)


@_app.command()
def share(
    catalog: Annotated[str | None, typer.Option(help="URL of the catalog.")] = None,
    data: Annotated[Path | None, typer.Option(help="Directory of the logs, for streams with storage.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
) -> None:
    """Serve many streams, as local mode says on standard input, until it ends; for settings see `serve`."""
    run("epochal-publisher", lambda stop: _share(stop, catalog, data, host))


@_app.command()
def sidecar(
    listen: Annotated[
        str | None, typer.Option(help="ipc://PATH, tcp://127.0.0.1:PORT. [default: ipc:///run/epochal/ingest.sock]")
    ] = None,
    catalog: Annotated[str | None, typer.Option(help="URL of the catalog. [default: EPOCHAL_CATALOG]")] = None,
    host: Annotated[str | None, typer.Option(help="Address of health and metrics. [default: 127.0.0.1]")] = None,
    http_port: Annotated[int | None, typer.Option(help="Their port. [default: 8705]")] = None,
    exit_with_stdin: Annotated[bool, typer.Option(help="Stop when standard input ends.")] = False,
) -> None:
    """Pass on what writers beside it publish, until SIGTERM or Ctrl-C. Settings also come from EPOCHAL_SIDECAR_*."""
    given = {name: value for name, value in locals().items() if name != "exit_with_stdin"}
    run("epochal-sidecar", lambda stop: _pass_on(stop, given), exit_with_stdin=exit_with_stdin)


@_app.command()
def relay(
    stream: Annotated[str | None, typer.Option(help="namespace/name of the stream.")] = None,
    name: Annotated[str | None, typer.Option(help="Name by which subscribers ask for it. [default: relay]")] = None,
    upstream: Annotated[
        str | None, typer.Option(help="What it follows: direct (the publishers), or a relay's name. [default: direct]")
    ] = None,
    catalog: Annotated[str | None, typer.Option(help="URL of the catalog. [default: EPOCHAL_CATALOG]")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    advertise: Annotated[str | None, typer.Option(help="Host that clients use. [default: --host]")] = None,
    capacity: Annotated[int | None, typer.Option(help="Subscribers at most. [default: 1000]")] = None,
    events_port: Annotated[int | None, typer.Option(help="Port of live push. [default: a free one]")] = None,
    requests_port: Annotated[int | None, typer.Option(help="Port of requests. [default: a free one]")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of HTTP. [default: a free one]")] = None,
    exit_with_stdin: Annotated[bool, typer.Option(help="Stop when standard input ends.")] = False,
) -> None:
    """Pass a stream on to many subscribers, until SIGTERM or Ctrl-C. Settings also come from EPOCHAL_RELAY_*."""
    given = {name: value for name, value in locals().items() if name != "exit_with_stdin"}
    run("epochal-relay", lambda stop: _relay(stop, given), exit_with_stdin=exit_with_stdin)


def _prepare() -> None:
    """Prepare the process, once everything is imported."""
    from epochal.transport.memory import PUBLISHER_KEEPS, keep_freed_memory
    from epochal.transport.sockets import check_libzmq

    gc.freeze()
    gc.enable()
    check_libzmq()
    keep_freed_memory(PUBLISHER_KEEPS)


def _collect_rarely() -> None:
    """Retained events are many and form no cycles: collections that visit all of them would only delay the loop."""
    from epochal.version import version

    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    logger.info("version %s", version())


async def _relay(stop: asyncio.Event, given: dict[str, Any]) -> int:
    from epochal_publisher.relay.server import serve as serve_relay
    from epochal_publisher.relay.settings import RelaySettings

    _prepare()
    settings = RelaySettings.read(**given)
    _collect_rarely()
    return await serve_relay(settings, stop)


async def _pass_on(stop: asyncio.Event, given: dict[str, Any]) -> int:
    from epochal_publisher.sidecar.server import SidecarSettings
    from epochal_publisher.sidecar.server import serve as serve_sidecar

    _prepare()
    settings = SidecarSettings.read(**given)
    logging.getLogger().setLevel(settings.log_level.upper())
    return await serve_sidecar(settings, stop)


async def _share(stop: asyncio.Event, catalog: str | None, data: Path | None, host: str | None) -> int:
    from epochal_publisher.shared.process import serve_shared

    _prepare()
    _collect_rarely()
    return await serve_shared(stop, catalog, data, host)


async def _until_stopped(stop: asyncio.Event, given: dict[str, Any]) -> int:
    from epochal_publisher.segments.lease import find_mark
    from epochal_publisher.serving import EXIT_SUPERSEDED, serve_stream
    from epochal_publisher.settings import Settings

    _prepare()
    settings = Settings.read(**given)
    if (reason := find_mark(settings.superseded_mark)) is not None:
        logger.error(
            "not started again, because %s exists: %s; "
            "if no other publisher should serve these segments, delete the pod, or that file",
            settings.superseded_mark,
            reason,
        )
        return EXIT_SUPERSEDED
    _collect_rarely()
    return (await serve_stream(settings, stop, ready=_print_ready)).code


def _print_ready(addresses: Mapping[str, str]) -> None:
    names = ("events", "requests", "ingest", "http")
    print("ready", *(f"{name}={addresses[name]}" for name in names), flush=True)


def main() -> None:
    """Entry point of the console script."""
    _app()


if __name__ == "__main__":
    main()

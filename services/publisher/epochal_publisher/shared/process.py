"""A process that serves many streams, as orders on standard input say.

Local mode starts it. On a cluster each pod serves the segments of one stream, with the command `serve`.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import zmq

from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import ConfigError
from epochal.service.process import file_limit
from epochal_publisher.segments.renewals import SharedRenewals
from epochal_publisher.serving import Ended, Shared, serve_stream
from epochal_publisher.settings import Settings
from epochal_publisher.shared.assignments import Serve, State, parse, said
from epochal_publisher.shared.streams import Pace, SharedStreams
from epochal_publisher.ticker import Ticker

logger = logging.getLogger("epochal.publisher")

MOST_SOCKETS = 65_000
"""Sockets of the library, whose own limit is 65,535. A stream has three; descriptors run out first."""


async def serve_shared(stop: asyncio.Event, catalog: str | None, data: Path | None, host: str | None) -> int:
    """Serve what the orders on standard input say, until `stop` is set or they end; returns the exit code.

    Raises `ConfigError` for settings with which no stream could be served.
    """
    # The settings that all streams have in common; the orders name the streams.
    common = Settings.read(catalog=catalog, data=data, host=host, stream="of/each", publisher="of-each", segments="0")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.max_sockets = min(MOST_SOCKETS, file_limit())
    ticker = Ticker(common.tick)
    async with CatalogClient(common.catalog, patience=0.0, timeout=5.0) as client:
        shared = Shared(context, SharedRenewals(client), ticker)

        async def run(asked: Serve, stop: asyncio.Event, ready: Callable[[Mapping[str, str]], None]) -> Ended:
            settings = Settings.read(
                catalog=catalog, data=data, host=host,
                stream=asked.stream, publisher=asked.publisher, segments=",".join(asked.segments),
                http_port=asked.http_port or None,
            )  # fmt: skip
            return await serve_stream(settings, stop, ready=ready, shared=shared, uid=asked.uid)

        streams = SharedStreams(run, _say, Pace())
        ticking = asyncio.create_task(ticker.run(), name="ticker")
        try:
            _read_orders(asyncio.get_running_loop(), lambda line: _obey(streams, line), stop.set)
            print("ready shared", flush=True)
            stopped = asyncio.ensure_future(stop.wait())
            await asyncio.wait([stopped, ticking], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            await streams.close()
        finally:
            ticking.cancel()
            await asyncio.wait([ticking])
            await shared.renewals.close()
    context.term()
    return 0


def _obey(streams: SharedStreams, line: bytes) -> None:
    try:
        order = parse(line)
    except ConfigError as error:
        logger.error("%s", error)
        return
    if isinstance(order, Serve):
        streams.serve(order)
    else:
        streams.stop(order)


def _say(publisher: str, uid: str, state: State, reason: str) -> None:
    with suppress(OSError):  # nothing reads any more, so standard input ends too
        print(said(publisher, uid, state, reason), flush=True)


def _read_orders(loop: asyncio.AbstractEventLoop, obey: Callable[[bytes], None], ended: Callable[[], None]) -> None:
    """Call `obey` with each line of standard input, and `ended` at its end. A thread: a file cannot be polled."""

    def read() -> None:
        with suppress(OSError, RuntimeError):  # closed; or the loop has ended for another reason
            rest = b""
            while chunk := os.read(0, 1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    loop.call_soon_threadsafe(obey, line)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(ended)

    threading.Thread(target=read, name="stdin", daemon=True).start()

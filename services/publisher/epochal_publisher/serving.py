"""Serves the segments of one stream, from the start to an orderly stop or a failure.

A process can serve many streams: each runs and ends here independently, with its own sockets, lease and logs. `Shared`
holds the resources of the process that they have in common.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import zmq

from epochal.errors import LogError, StreamGone, Superseded
from epochal_publisher.http.server import PublisherHttp
from epochal_publisher.publisher import PublisherProcess
from epochal_publisher.segments.lease import Forgotten, PublisherLease, leave_mark
from epochal_publisher.segments.renewals import SharedRenewals
from epochal_publisher.segments.store import SegmentStores
from epochal_publisher.settings import Settings
from epochal_publisher.ticker import Ticker

EXIT_FAILED = 1
EXIT_SUPERSEDED = 3

logger = logging.getLogger("epochal.publisher")


class Ended(NamedTuple):
    """How serving ended: the exit code of a process that serves nothing else, and the reason, empty for a stop."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Shared:
    """Resources that the streams of one process share."""

    context: "zmq.Context[zmq.Socket[bytes]]"
    renewals: SharedRenewals
    ticker: Ticker


async def serve_stream(
    settings: Settings,
    stop: asyncio.Event,
    *,
    ready: Callable[[Mapping[str, str]], None],
    shared: Shared | None = None,
    uid: str | None = None,
) -> Ended:
    """Serve until `stop` is set or the segments are lost.

    `ready` is called with the addresses by name once clients are served. `uid`: the uid that the stream must have, or
    None. Raises `StreamGone` if it has another one, `EpochalError` if serving cannot start, and any other error for a
    bug; sockets, logs and HTTP are closed then too.
    """
    async with PublisherLease(settings, None if shared is None else shared.renewals) as lease:
        publisher = PublisherProcess(settings, lease, None if shared is None else shared.context)
        try:
            async with PublisherHttp(settings, publisher) as http, AsyncExitStack() as stack:
                ticker = None if shared is None else shared.ticker
                start = _start(stack, settings, lease, publisher, http.address, uid)
                code = await _serve(settings, lease, publisher, start, stop, ready, ticker)
            return Ended(code, str(publisher.over.result()) if publisher.over.done() else "")
        finally:
            publisher.close()


async def _serve(
    settings: Settings,
    lease: PublisherLease,
    publisher: PublisherProcess,
    start: Coroutine[Any, Any, Mapping[str, str]],
    stop: asyncio.Event,
    ready: Callable[[Mapping[str, str]], None],
    ticker: Ticker | None,
) -> int:
    stopped = asyncio.ensure_future(stop.wait())
    tasks: list[asyncio.Future[Any]] = [stopped]
    try:
        starting = asyncio.ensure_future(start)
        tasks.append(starting)
        await asyncio.wait((stopped, starting), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return 0
        addresses = starting.result()
        running: list[Coroutine[Any, Any, None]] = [
            publisher.keep_time() if ticker is None else ticker.keep_time(publisher),
            lease.keep(publisher),
        ]
        running += [lease.report(publisher, segment) for segment in settings.segments]
        tasks += map(asyncio.ensure_future, running)
        ready(addresses)
        return await _until_over(settings, publisher, lease, stopped, tasks[2:])
    finally:
        await _cancel(tasks)


async def _start(
    stack: AsyncExitStack,
    settings: Settings,
    lease: PublisherLease,
    publisher: PublisherProcess,
    http: str,
    uid: str | None,
) -> Mapping[str, str]:
    """Own the logs, then the segments at the catalog, then begin. So no other process can write (E12 fencing).

    Returns the addresses of the sockets by name.
    """
    stream = await lease.look_up()
    if uid not in (None, stream.uid):
        raise StreamGone(f"stream {settings.stream} was deleted, and created again as another one")
    publisher.listen(stream)
    addresses = {**publisher.addresses, "http": http}
    stores = await stack.enter_async_context(SegmentStores(settings, stream, lease.instance))
    granted = await lease.acquire(stream, addresses, stores.incarnations)
    await publisher.serve(*granted, stores)
    return addresses


async def _until_over(
    settings: Settings,
    publisher: PublisherProcess,
    lease: PublisherLease,
    stopped: "asyncio.Future[Any]",
    running: "list[asyncio.Future[Any]]",
) -> int:
    await asyncio.wait((stopped, publisher.over, *running), return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        if task.done() and not publisher.over.done():
            task.result()  # a bug ends the stream here; its next publisher starts where the catalog says
    if not publisher.over.done():
        logger.info("stopping")
        publisher.drain()
        await publisher.settle()
        _, *reporting = running
        await _cancel(reporting)  # nothing may be reported after the last record, or without the lease
        await lease.give_up(publisher)
        return 0
    error = publisher.over.result()
    if isinstance(error, StreamGone):
        logger.info("stopping: %s", error)
        publisher.drain()
        return 0
    if isinstance(error, LogError):
        logger.error("the log cannot be written, nothing more is sent: %s", error)
        return EXIT_FAILED
    if not isinstance(error, Superseded):
        logger.error("nothing more is sent: %s", error)
        return EXIT_FAILED
    logger.error("superseded, nothing more is sent: %s", error)
    if not isinstance(error, Forgotten):
        leave_mark(settings.superseded_mark, str(error))
    return EXIT_SUPERSEDED


async def _cancel(tasks: "Sequence[asyncio.Future[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

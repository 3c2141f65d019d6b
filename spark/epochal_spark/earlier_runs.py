"""Checks whether a query may begin, by what catalog and publishers know about its earlier runs.

It only looks and refuses, before anything is opened. Opening a writer fences the one before (E6 sessions), so a query
that is started twice by mistake would end the running one. And a query whose checkpoint is lost would publish
everything again.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import epochal
from epochal.catalog_api.answers import StreamInfo
from epochal.errors import EpochalError, QueryIsNew, QueryRunning
from epochal.protocol.blockers import HolderKind
from epochal.protocol.messages import GROUP

SILENCE = 3.0
"""A driver counts as gone after this many seconds without a heartbeat, as a publisher reports them.

There is one a second. The time since the report does not count, because it says nothing about later heartbeats.
"""

LOOK = 0.2
"""Seconds between looks at the catalog."""

BETWEEN = 0.5
"""Least seconds between two heartbeats: two reports of the same heartbeat differ by less."""

PATIENCE = 10.0
"""Seconds to wait for the catalog to say when the writer was last heard; publishers report every second."""

PROBED = 8
"""How many tasks' writers are opened to find the last batch; each takes some ten milliseconds."""

PROBE_SECONDS = 5.0
"""Seconds for all of them together; the batch is only shown in a message."""


class StartRequest(NamedTuple):
    """A request to start a query: the settings that are compared with earlier runs.

    `spark_id`: the id in its checkpoint, None for a new one. `left`: the query's last session that this program has
    left in order.
    """

    stream: str
    query: str
    checkpoint: str
    spark_id: str | None
    take_over: bool
    new_checkpoint: bool
    left: int | None


async def check(client: epochal.Client, info: StreamInfo, request: StartRequest) -> None:
    """Raise `QueryRunning` or `QueryIsNew` where the query may not begin; changes nothing."""
    sessions = {w.writer: w.session for w in await client.catalog.writers(info.namespace, info.name)}
    gone = request.left is not None and sessions.get(request.query) == request.left
    if not (request.take_over or gone):
        await _refuse_a_second(client, info, request)
    if info.phase != "Complete" and not request.new_checkpoint:
        known = _tasks(request.query, sessions)
        if known and (request.spark_id or "")[:8] not in known:
            # with take_over the other query may be running; opening its tasks' writers would fence them (E6 sessions)
            last = None if request.take_over else await _last_batch(client, info, request, known)
            raise _is_new(request, known, last)


async def _refuse_a_second(client: epochal.Client, info: StreamInfo, request: StartRequest) -> None:
    """Return once the query's writer is not open, or is silent; raise `QueryRunning` once it sends a heartbeat.

    The capability of a killed driver is kept for the stream's time-out, and its next run goes on with it. So an open
    writer may be that of a killed driver, and only heartbeats show that a driver runs. One heartbeat is not enough: a
    publisher that was delayed counts its writers' silence from then on (E8), as if it had just heard them.
    """
    loop = asyncio.get_running_loop()
    began = heard = loop.time()
    beats = 0
    while True:
        now = loop.time()
        found = await client.catalog.get(info.namespace, info.name)
        if request.query not in found.writers:
            return
        said = min(_silent(found, request.query), default=None)
        if said is not None and said.silent - said.reported >= SILENCE:
            return
        if said is not None and now - said.silent > heard + BETWEEN:
            heard, beats = now - said.silent, beats + 1
        if beats > 1:
            raise running(request.stream, request.query, "it was heard just now")
        if now - began > PATIENCE:
            detail = (
                "its writer is open, and the catalog does not say when it was last heard. If its driver is gone, start "
                "with take_over=True before progress.writerTimeout is over: after that the batch it began is aborted"
            )
            raise running(request.stream, request.query, detail)
        await asyncio.sleep(LOOK)


class _Silence(NamedTuple):
    """Seconds since a publisher last heard a writer, and since it reported that."""

    silent: float
    reported: float


def _silent(info: StreamInfo, writer: str) -> Iterator[_Silence]:
    """Each publisher's report about the writer, if the writer holds time back there."""
    for segment in info.segments:
        for holder in segment.holders:
            if holder.writer == writer and holder.kind == HolderKind.WRITER and holder.silent is not None:
                yield _Silence(holder.silent, segment.reported or 0.0)


def running(stream: str, query: str, detail: str) -> QueryRunning:
    """The error that refuses a second run."""
    return QueryRunning(
        f"query {query!r} publishes to {stream} already ({detail}). Two queries on one stream need different names "
        "(query=...); with take_over=True this one fences the other, which then fails",
        stream=stream, query=query,
    )  # fmt: skip


def _tasks(query: str, writers: Iterable[str]) -> dict[str, list[int]]:
    """Partitions that have published for the query, by the first characters of the id of their checkpoint."""
    pattern = re.compile(re.escape(query) + r"/([0-9a-f]{8})/(\d+)")
    found: dict[str, list[int]] = {}
    for writer in writers:
        match = pattern.fullmatch(writer)
        if match is not None:
            found.setdefault(match[1], []).append(int(match[2]))
    return found


async def _last_batch(
    client: epochal.Client, info: StreamInfo, request: StartRequest, known: dict[str, list[int]]
) -> int | None:
    """The last batch of which publishers remember an append, found by opening the writers of some of its tasks."""
    if any(segment.finishing for segment in info.segments):
        return None  # an open would cancel that (E7 finish)
    ids = sorted((partition, spark_id) for spark_id, partitions in known.items() for partition in partitions)
    batches: list[int] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PROBE_SECONDS):
            for partition, spark_id in ids[:PROBED]:
                writer_id = f"{request.query}/{spark_id}/{partition}"
                with contextlib.suppress(EpochalError):
                    async with client.task_writer(request.stream, writer_id, under=request.query, direct=True) as task:
                        numbers = task.append_numbers.values()
                    batches += [number >> GROUP for number in numbers if number >= 0]
    return max(batches, default=None)


def _is_new(request: StartRequest, known: dict[str, list[int]], batch: int | None) -> QueryIsNew:
    ids = ", ".join(f"{spark_id}-..." for spark_id in sorted(known))
    last = "" if batch is None else f"; the last batch seen is {batch}"
    tasks = sum(map(len, known.values()))
    return QueryIsNew(
        f"query {request.query!r} has published to {request.stream} before, by {tasks} tasks of the "
        f"checkpoint with Spark's id {ids}{last}. The checkpoint {request.checkpoint} is another one, and from it "
        "Spark would publish again what it finds in the source. Restore the other checkpoint; or, if these rows have "
        "not been published yet, give the query another name (query=...) or say new_checkpoint=True; or delete the "
        "stream and declare it again",
        stream=request.stream, query=request.query, checkpoint=request.checkpoint, batch=batch,
    )  # fmt: skip

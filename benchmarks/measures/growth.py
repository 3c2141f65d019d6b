"""How cost grows with subscribers, with segments, and with streams in the catalog.

Not a comparison but a look for what is not linear: each table shows the cost of one unit, which must not rise.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harness.bench import NAMESPACE, Bench
from harness.processes import cpu_seconds, free_port, program, role, server
from harness.tables import Table

from epochal.client.catalog.catalog import CatalogClient
from measures.fanout import publisher_cpu
from measures.lookups import asked
from measures.throughput import rate

SUBSCRIBERS = (1, 8, 64)
SEGMENTS = (1, 8, 64)
STREAMS = (1, 10, 100, 1_000)


async def measure(bench: Bench) -> list[Table]:
    """Subscribers, segments, streams."""
    return [await _subscribers(bench), await _segments(bench), await _streams(bench)]


async def _subscribers(bench: Bench) -> Table:
    rows = []
    for subscribers in SUBSCRIBERS:
        cpu = await publisher_cpu(bench, bench.many(2_000), subscribers)
        bench.tell(f"growth: {subscribers} subscribers, {1e6 * cpu:.0f} us a batch")
        rows.append([str(subscribers), f"{1e6 * cpu:,.0f}", f"{1e6 * cpu / subscribers:,.1f}"])
    headings = ["subscribers", "publisher, us a 2 kB batch", "us a delivery"]
    return Table("growth: subscribers", "Growth: subscribers of one segment", headings, rows)


async def _segments(bench: Bench) -> Table:
    rows = []
    for segments in SEGMENTS:
        messages = bench.many(30_000)
        async with bench.stream("growth", segments=segments) as stream:
            to = {"catalog": bench.catalog, "stream": stream.name, "messages": messages}
            with role("ours.receive", **to) as receiver:
                await receiver.line()
                before = stream.cpu()
                with role("ours.send_batches", **to, batch=16) as sender:
                    reached = await rate(receiver, sender)
                cpu = (stream.cpu() - before) / messages
        bench.tell(f"growth: {segments} segments, {reached:,.0f} batches/s")
        rows.append([str(segments), f"{reached:,.0f}", f"{1e6 * cpu:,.1f}"])
    headings = ["segments", "batches of 16 records/s", "publisher, us a batch"]
    return Table("growth: segments", "Growth: segments of one stream, in one publisher", headings, rows)


async def _streams(bench: Bench) -> Table:
    rows = []
    async with _catalog() as (url, pid), CatalogClient(url) as catalog:
        known = 0
        for streams in STREAMS:
            started = time.monotonic()
            for number in range(known, streams):
                await _declare(catalog, f"growth-{number}")
            declared = (time.monotonic() - started) / (streams - known)
            known = streams
            request = f"GET /v1/streams/{NAMESPACE}/growth-0/segments HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            before = cpu_seconds(pid)
            looked_up = await asked(url, request.encode())
            cpu = (cpu_seconds(pid) - before) / looked_up["answers"]
            listed = await _timed_list(catalog)
            bench.tell(f"growth: {streams} streams, {looked_up['rate']:,.0f} lookups/s")
            rows.append(
                [
                    str(streams),
                    f"{looked_up['rate']:,.0f}",
                    f"{1e6 * cpu:,.0f}",
                    f"{1e3 * declared:.1f}",
                    f"{1e3 * listed / streams:.2f}",
                ]
            )
    headings = ["streams", "lookups/s", "catalog, us a lookup", "ms to declare one", "ms a stream of a list"]
    return Table("growth: streams", "Growth: streams in one catalog", headings, rows)


async def _declare(catalog: CatalogClient, name: str) -> None:
    """A stream and a publisher that says it serves it, so that lookups have an answer."""
    manifest = {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}},
    }
    info, _ = await catalog.apply(manifest, NAMESPACE, name)
    addresses = dict.fromkeys(("events", "requests", "ingest"), "tcp://127.0.0.1:1")
    await catalog.register(
        name, instance=name, stream=f"{NAMESPACE}/{name}", uid=info.uid,
        segments=[segment.id for segment in info.segments], addresses=addresses,
    )  # fmt: skip


async def _timed_list(catalog: CatalogClient) -> float:
    started = time.monotonic()
    await catalog.list()
    return time.monotonic() - started


@asynccontextmanager
async def _catalog() -> AsyncIterator[tuple[str, int]]:
    """A catalog alone, whose leases outlast the measure; yields its URL and process id."""
    binary, port = program("epochal-catalog"), free_port()
    assert binary is not None, "run `make setup`"
    with tempfile.TemporaryDirectory() as data:
        command = [binary, "serve", "--data", data, "--port", str(port), "--lease-ttl", "600"]
        async with server(command, port) as pid:
            await asyncio.sleep(0.2)
            yield f"http://127.0.0.1:{port}", pid

"""E11: what streams without storage pay for the horizon, and what a thousand of them cost one catalog."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial

from harness.bench import Bench, Served
from harness.processes import cpu_seconds, free_port, program, server
from harness.rounds import middle, percentile
from harness.tables import Table

import epochal
from epochal.catalog_api.requests import SegmentReport
from epochal.client.catalog.catalog import CatalogClient

PACES = {"one an hour": (30, 0.1), "one a second": (15, 1.0), "100 a second": (1000, 0.01)}
"""Pace -> how many epochs, and seconds between them.

A run cannot take hours, so "one an hour" uses epochs whose times are an hour of ms apart, with a pause of 1.1 s.
"""
FAR = 3_600_000
STREAMS = (300, 1_000)
SECONDS = 10


async def measure(bench: Bench) -> list[Table]:
    """The first append of an epoch, and the second one, which waits for nothing; then many streams at one catalog."""
    bench.tell("horizon")
    return [await _paces(bench), await _streams(bench)]


async def _paces(bench: Bench) -> Table:
    taken: dict[tuple[str, str], list[float]] = {}
    systems: dict[str, Callable[[], Awaitable[float]]] = {}
    kinds = {"memory": {}, "batch": {"storage": {"size": "1Gi"}}}
    for pace in PACES:
        for kind, history in kinds.items():
            systems[f"{pace}, {kind}"] = partial(_first, bench, pace, kind, history, taken)
    await bench.in_turn(systems)
    rows = []
    for pace in PACES:
        cells = [pace]
        for kind in ("memory", "memory, second", "batch"):
            ages = taken[pace, kind]
            cells += [f"{1000 * percentile(ages, 0.5):.2f} / {1000 * percentile(ages, 0.99):.2f}"]
        rows.append(cells)
    headings = [
        "epochs",
        "first append, p50 / p99 ms",
        "second append, p50 / p99 ms",
        "first append with storage (`batch`), p50 / p99 ms",
    ]
    return Table("horizon", "E11: acknowledgement of an epoch's first append", headings, rows)


async def _first(
    bench: Bench, pace: str, kind: str, history: dict[str, object], taken: dict[tuple[str, str], list[float]]
) -> float:
    epochs, pause = PACES[pace]
    async with bench.stream("horizon", history=history) as stream:
        ages, seconds = await _timed(bench, stream, max(5, int(epochs * bench.scale)), pause, far=pace == "one an hour")
    taken.setdefault((pace, kind), []).extend(ages)
    taken.setdefault((pace, f"{kind}, second"), []).extend(seconds)
    return 1000 * percentile(ages, 0.5)


async def _timed(
    bench: Bench, stream: Served, epochs: int, pause: float, *, far: bool
) -> tuple[list[float], list[float]]:
    first, second = [], []
    async with epochal.connect(bench.catalog) as client, client.writer(stream.name, writer_id="w") as writer:
        for epoch in range(epochs):
            at = epoch * FAR if far else epoch
            began = time.perf_counter()
            await writer.append(at, [b"x" * 128])
            first.append(time.perf_counter() - began)
            again = time.perf_counter()
            await writer.append(at, [b"x" * 128])
            second.append(time.perf_counter() - again)
            await writer.advance(at + 1)
            await asyncio.sleep(max(pause - (time.perf_counter() - began), 0) if not far else 1.1)
    warm = len(first) // 10
    return first[warm:], second[warm:]


# ---- many streams at one catalog ----


async def _streams(bench: Bench) -> Table:
    headings = ["streams of one epoch a second", "records a second", "answer, p50 / p99 ms", "processor of the catalog"]
    rows = [await _together(bench.many(streams)) for streams in STREAMS]
    return Table("horizon-streams", "E11: records of many streams", headings, rows)


async def _together(streams: int) -> list[str]:
    """As many leases as streams, at a catalog of its own; a record as each epoch begins, with the end of the last."""
    port = free_port()
    url, binary = f"http://127.0.0.1:{port}", program("epochal-catalog")
    assert binary is not None, "it is installed with this package"
    with tempfile.TemporaryDirectory() as data:
        command = [binary, "serve", "--port", str(port), "--data", data]
        async with server(command, port) as pid, CatalogClient(url, patience=60) as catalog:
            leases = [await _registered(catalog, f"many-{number}") for number in range(streams)]
            cpu, ages, began = cpu_seconds(pid), list[float](), time.perf_counter()
            await asyncio.gather(*(_recorded(catalog, lease, n / streams, ages) for n, lease in enumerate(leases)))
            took = time.perf_counter() - began
            used = (cpu_seconds(pid) - cpu) / took
    answered = f"{1000 * middle(ages):.1f} / {1000 * percentile(ages, 0.99):.1f}"
    return [f"{streams:,}", f"{len(ages) / took:,.0f}", answered, f"{100 * used:.0f} %"]


async def _registered(catalog: CatalogClient, name: str) -> tuple[str, int, int]:
    manifest = {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": name, "namespace": "bench"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}},
    }
    info, _ = await catalog.apply(manifest, "bench", name)
    addresses = dict.fromkeys(("events", "requests", "ingest"), "tcp://127.0.0.1:9")
    registration = await catalog.register(
        name, instance="1", stream=f"bench/{name}", uid=info.uid, segments=["0"], addresses=addresses
    )
    return name, registration.token, registration.segments[0].incarnation


async def _recorded(catalog: CatalogClient, lease: tuple[str, int, int], phase: float, ages: list[float]) -> None:
    name, token, incarnation = lease
    await asyncio.sleep(phase)
    for epoch in range(SECONDS):
        due = time.perf_counter() + 1.0
        report = SegmentReport(incarnation, [epoch], ["w"], number=epoch, horizon=[epoch])
        asked = time.perf_counter()
        renewal = await catalog.renew(name, token, {"0": report})
        ages.append(time.perf_counter() - asked)
        assert renewal.recorded == {"0": epoch}
        await asyncio.sleep(max(due - time.perf_counter(), 0))

"""P19: what idle streams of local mode cost, and how fast a stream is that shares its publisher process with others.

Idle streams are those of an `epochal up` of their own, with all of its processes; memory is what they hold together
(PSS: pages that several share count once).
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from harness.bench import Bench
from harness.processes import cpu_seconds, role
from harness.rounds import Ratio, middle
from harness.tables import Table

from epochal.client.catalog.catalog import CatalogClient
from epochal.local.child import console_script
from measures.durable import BATCH, HISTORY, MESSAGES, TOGETHER
from measures.throughput import rate

IDLE = (1, 10, 100, 1_000)
TARGETS = {100: "<= 400 MiB, <= 10 %", 1_000: "<= 2,048 MiB"}
APPLIED_AT_ONCE = 20
SETTLE, LOOK = 5.0, 20.0
"""Seconds until streams that have just begun are idle, and for which they are looked at."""
BUSY = 20
RATIO = ">= 0.98"
SHARED, DEDICATED = "shared", "dedicated"


async def measure(bench: Bench) -> list[Table]:
    """Idle streams; one stream in a shared process over one in its own; the same with others busy at the same time."""
    return [await _idle(bench), await _speed(bench)]


# ---- idle ----


async def _idle(bench: Bench) -> Table:
    rows = []
    for streams in IDLE:
        with tempfile.TemporaryDirectory() as data:
            memory, cpu, seconds, processes = await _cost(streams, Path(data))
        bench.tell(f"P19: {streams} idle streams, {memory:.0f} MiB, {100 * cpu:.1f} % of a core, after {seconds:.1f} s")
        figures = [f"{seconds:.1f}", str(processes), f"{memory:,.0f}", f"{100 * cpu:.1f}"]
        rows.append([f"{streams:,}", *figures, TARGETS.get(streams, "")])
    headings = ["idle streams", "all served after, s", "processes", "memory, MiB", "% of a core", "target"]
    return Table("P19 idle", "P19: idle streams of local mode, all processes", headings, rows)


async def _cost(streams: int, data: Path) -> tuple[float, float, float, int]:
    """MiB, share of a core, seconds from the first manifest until all are served, and the number of processes."""
    up = await asyncio.create_subprocess_exec(
        console_script("epochal"), "up", "--data", str(data), "--port", "0",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert up.stdout is not None
    try:
        url = (await up.stdout.readline()).decode().split()[2]
        began = time.monotonic()
        async with CatalogClient(url) as catalog:
            names = [f"s{number}" for number in range(streams)]
            for at in range(0, streams, APPLIED_AT_ONCE):
                await asyncio.gather(*(_declare(catalog, name) for name in names[at : at + APPLIED_AT_ONCE]))
            for name in names:
                await catalog.lookup("bench", name, wait=300)
        seconds = time.monotonic() - began
        await asyncio.sleep(SETTLE)
        pids = [up.pid, *_children(up.pid)]
        before, at = sum(map(cpu_seconds, pids)), time.monotonic()
        await asyncio.sleep(LOOK)
        cpu = (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - at)
        return sum(map(_held, pids)) / 2**20, cpu, seconds, len(pids)
    finally:
        up.terminate()
        await up.wait()


async def _declare(catalog: CatalogClient, name: str) -> None:
    document = {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": name, "namespace": "bench"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}},
    }
    await catalog.apply(document, "bench", name)


def _children(pid: int) -> Sequence[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


def _held(pid: int) -> int:
    """Bytes of memory, of pages that several processes share each one's part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


# ---- speed ----


async def _speed(bench: Bench) -> Table:
    rows = []
    for name, one in (("P1, 256 records a batch", _throughput), ("P3", _durable), (f"{BUSY} at once", _together)):
        bench.tell(f"P19: {name}")
        figures = await bench.in_turn(
            {SHARED: partial(one, bench, dedicated=False), DEDICATED: partial(one, bench, dedicated=True)}
        )
        cells = [f"{middle(figures[kind]):,.0f}" for kind in (SHARED, DEDICATED)]
        target = RATIO if one is not _together else ""
        rows.append([name, *cells, str(Ratio.of(figures[SHARED], figures[DEDICATED])), target])
    headings = ["measure", "shared process /s", "dedicated /s", "shared over dedicated", "target"]
    title = f"P19: a stream in a shared process over one in its own, on {os.cpu_count()} cores"
    return Table("P19 speed", title, headings, rows)


async def _throughput(bench: Bench, *, dedicated: bool) -> float:
    messages = bench.many(12_000)
    async with bench.stream("p19", dedicated=dedicated) as stream:
        to = {"catalog": bench.catalog, "stream": stream.name, "messages": messages}
        with role("ours.receive", **to) as receiver:
            await receiver.line()
            with role("ours.send_batches", **to, batch=256) as sender:
                return await rate(receiver, sender)


async def _durable(bench: Bench, *, dedicated: bool) -> float:
    async with bench.stream("p19", history=HISTORY, dedicated=dedicated) as stream:
        work = {"batch": BATCH, "messages": bench.many(MESSAGES), "together": TOGETHER}
        with role("ours.append", catalog=bench.catalog, stream=stream.name, **work) as sender:
            return float((await sender.line())["rate"])


async def _together(bench: Bench, *, dedicated: bool) -> float:
    """Acknowledged appends a second of so many streams together, from one program."""
    async with AsyncExitStack() as held:
        served = [await held.enter_async_context(bench.stream("p19", dedicated=dedicated)) for _ in range(BUSY)]
        streams = ",".join(each.name for each in served)
        work = {"batch": 256, "messages": bench.many(600), "together": 8}
        with role("ours.append_to_all", catalog=bench.catalog, streams=streams, **work) as sender:
            return float((await sender.line())["rate"])

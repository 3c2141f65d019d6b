"""P6: history from disk, and what a subscriber that does not read costs a publisher whose history is there."""

import asyncio
import os
import shutil
import signal
from functools import partial

from harness.bench import Bench, Served
from harness.processes import resident_bytes, role
from harness.rounds import Ratio, middle
from harness.tables import Table

from measures.durable import BATCH, HISTORY, TOGETHER

MESSAGES = 6_000
"""... of 33 kB: 200 MB, more than a publisher keeps in memory."""
TARGETS = "log >= 0.5, subscriber >= 0.15"


async def measure(bench: Bench) -> list[Table]:
    """A scan of the log by a subscriber, and by its reader alone, beside a plain read and crc of the same files."""
    bench.tell("P6")
    messages = bench.many(MESSAGES)
    async with bench.stream("p6", history=HISTORY) as stream:
        await _fill(bench, stream, messages)
        segment = stream.info.segments[0].id
        log = bench.local.data / "streams" / stream.info.uid / segment
        apart = bench.local.data / "apart"
        await asyncio.to_thread(shutil.copytree, log, apart)
        for pid in stream.pids:
            os.kill(pid, signal.SIGKILL)  # the next process has nothing in memory
        to = {"directory": apart, "stream": stream.info.uid, "segment": segment}
        figures = await bench.in_turn(
            {
                "since": partial(_rate, "ours.pull", catalog=bench.catalog, stream=stream.name, messages=messages),
                "log": partial(_rate, "plain_files.read_log", **to),
                "plain": partial(_rate, "plain_files.scan", directory=apart),
            }
        )
        await asyncio.to_thread(shutil.rmtree, apart)
    cells = [f"{middle(taken) / 1e6:,.0f}" for taken in figures.values()]
    ratios = [str(Ratio.of(figures[name], figures["plain"])) for name in ("log", "since")]
    headings = [
        "subscriber, MB/s",
        "log, MB/s",
        "read and crc, MB/s",
        "log over plain",
        "subscriber over plain",
        "target",
    ]
    table = Table("P6", "P6: history from disk, 33 kB batches", headings, [[*cells, *ratios, TARGETS]])
    return [table, await _stalled(bench, messages)]


async def _fill(bench: Bench, stream: Served, messages: int) -> None:
    to = {"catalog": bench.catalog, "stream": stream.name}
    with role("ours.append", **to, batch=BATCH, messages=messages, together=TOGETHER) as sender:
        await sender.line()


async def _rate(function: str, **arguments: object) -> float:
    with role(function, **arguments) as one:
        return float((await one.line())["rate"])


async def _stalled(bench: Bench, messages: int) -> Table:
    rows = []
    for stalled in (0, 1):
        async with bench.stream("stalled", history=HISTORY) as stream:
            owner = stream.info.segments[0]
            assert owner.publisher is not None
            crowd = {name: owner.publisher.addresses[name] for name in ("requests", "events")}
            crowd |= {"stream": stream.info.uid, "segment": owner.id, "size": stalled}
            before = sum(map(resident_bytes, stream.pids))
            with role("crowd.stall", **crowd) as listening:
                await listening.line()
                await _fill(bench, stream, messages)
                after = sum(map(resident_bytes, stream.pids))
        bench.tell(f"P6: {stalled} stalled, {after / 1e6:.0f} MB")
        rows.append([str(stalled), f"{before / 1e6:,.0f}", f"{after / 1e6:,.0f}"])
    size = messages * BATCH * 130 / 1e6
    headings = ["stalled subscribers", "publisher before, MB", f"after {size:,.0f} MB of appends, MB"]
    return Table("stalled", "Memory of a publisher with its log on disk", headings, rows)

"""P14: publishing through a sidecar over publishing directly, to the same publisher, turn by turn."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from harness.bench import Bench, Served
from harness.processes import cpu_seconds, free_port, program, resident_bytes, server
from harness.rounds import interval, percentile
from harness.tables import Table

import epochal

BATCHES = {256: 4_000, 4096: 800}
"""Records of 128 B a batch -> batches a turn."""
APPENDS, OPENINGS, TASKS = 1_000, 40, 8
PAUSE = 0.01
"""Seconds between two tasks of one worker process: Spark takes longer to send it the next one."""
WAYS = (True, False)
"""Direct, and through the sidecar."""


async def measure(bench: Bench) -> list[Table]:
    """Records a second, one append, a task's writer opened and closed; then the sidecar's own cost."""
    bench.tell("P14")
    async with _sidecar(bench) as pid, bench.stream("sidecar") as stream:
        systems: dict[str, Callable[[], Awaitable[float]]] = {}
        for direct in WAYS:
            way = "direct" if direct else "sidecar"
            for batch, usual in BATCHES.items():
                systems[f"{batch}, {way}"] = partial(_sent, bench, stream, batch, bench.many(usual), direct=direct)
            systems[f"append, {way}"] = partial(_append, bench, stream, direct=direct)
            systems[f"open, {way}"] = partial(_opened, bench, stream, direct=direct)
        found = await bench.in_turn(systems)
        cost = await _cost(bench, stream, pid)
        memory = await _memory(bench, stream, pid)
    rows = [
        [name, _over(found, key), target]
        for name, key, target in (
            ("records/s, batches of 256", "256", ">= 0.85"),
            ("records/s, batches of 4096", "4096", ">= 0.85"),
            ("p50 of one append", "append", "<= 1.6"),
            ("a writer opened and closed, with its client", "open", "<= 0.5"),
        )
    ]
    rows.append(["processor time a 2 kB batch, over the publisher's", f"{cost:.2f}", "<= 0.7"])
    rows.append([f"resident memory, {TASKS} writers at full window", f"{memory / 2**20:.0f} MiB", "<= 160 MiB"])
    headings = ["P14", "sidecar over direct (95 % interval)", "target"]
    return [Table("P14", "P14: through a sidecar", headings, rows)]


def _over(found: Mapping[str, list[float]], key: str) -> str:
    pairs = zip(found[f"{key}, sidecar"], found[f"{key}, direct"], strict=True)
    return interval([ours / direct for ours, direct in pairs])


@asynccontextmanager
async def _sidecar(bench: Bench) -> AsyncIterator[int]:
    binary, port = program("epochal-publisher"), free_port()
    assert binary is not None, "it is installed with this package"
    with tempfile.TemporaryDirectory(prefix="ep-") as directory:
        address = f"ipc://{Path(directory) / 's'}"
        command = [binary, "sidecar", "--listen", address, "--catalog", bench.catalog, "--http-port", str(port)]
        async with server(command, port) as pid:
            os.environ |= {"EPOCHAL_SIDECAR": address, "EPOCHAL_SIDECAR_REQUIRED": "true"}
            try:
                yield pid
            finally:
                del os.environ["EPOCHAL_SIDECAR"], os.environ["EPOCHAL_SIDECAR_REQUIRED"]


async def _sent(
    bench: Bench, stream: Served, batch: int, batches: int, *, direct: bool, record: bytes = b"x" * 128
) -> float:
    """Records a second."""
    records, every = [record] * batch, max(1, 65_536 // batch)
    async with epochal.connect(bench.catalog) as client, client.writer(stream.name, direct=direct) as writer:
        (at,) = writer.held
        began = time.perf_counter()
        for number in range(batches):
            writer.append_nowait(at, records)
            if number % every == every - 1:
                at += 1
                writer.advance_nowait(at)
                await writer.drain()
        await writer.flush()
        took = time.perf_counter() - began
        await writer.advance(at + 1)
    return batches * batch / took


async def _append(bench: Bench, stream: Served, *, direct: bool) -> float:
    """Seconds of one append, the median."""
    taken = []
    async with epochal.connect(bench.catalog) as client, client.writer(stream.name, direct=direct) as writer:
        (at,) = writer.held
        for _ in range(bench.many(APPENDS)):
            began = time.perf_counter()
            await writer.append(at, [b"x" * 128])
            taken.append(time.perf_counter() - began)
        await writer.advance(at + 1)
    return percentile(taken, 0.5)


async def _opened(bench: Bench, stream: Served, *, direct: bool) -> float:
    """Seconds to open and close a client with a writer under another's capability, as a task does; the median."""
    taken = []
    async with epochal.connect(bench.catalog) as client, client.capability_writer(stream.name, "query", direct=True):
        for _ in range(OPENINGS):
            began = time.perf_counter()
            async with (
                epochal.connect(bench.catalog) as task,
                task.task_writer(stream.name, "query/0", under="query", direct=direct),
            ):
                pass
            taken.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE)
    return percentile(taken, 0.5)


async def _cost(bench: Bench, stream: Served, pid: int) -> float:
    """Processor time of the sidecar over that of the publisher, for batches of 2 kB."""
    before = cpu_seconds(pid), stream.cpu()
    await _sent(bench, stream, 16, bench.many(60_000), direct=False)
    after = cpu_seconds(pid), stream.cpu()
    return (after[0] - before[0]) / (after[1] - before[1])


async def _memory(bench: Bench, stream: Served, pid: int) -> int:
    """Bytes, the most seen while several writers send as fast as they are let."""
    most = 0
    async with epochal.connect(bench.catalog) as client:
        writers = [client.writer(stream.name, f"w{number}") for number in range(TASKS)]
        for writer in writers:
            await writer.__aenter__()
        try:
            for _ in range(50):  # 200 MB of one epoch, of which a stream retains 256 MiB
                for writer in writers:
                    writer.append_nowait(writer.held[0], [b"x" * 500_000])
                    await writer.drain()
                most = max(most, resident_bytes(pid))
        finally:
            for writer in writers:
                await writer.__aexit__(None, None, None)
    return most

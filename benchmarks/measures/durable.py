"""P3: durable appends that are acknowledged, a second."""

from collections.abc import Awaitable, Callable
from functools import partial

from harness.bench import Bench
from harness.processes import jetstream_server, program, redis_server, role
from harness.rounds import Ratio, middle
from harness.tables import Table

BATCH = 256
MESSAGES = 3_000
TOGETHER = 64
"""Appends under way at any time: what comes together is synced together."""
HISTORY = {"storage": {"size": "8Gi"}, "durability": "batch", "retention": {"bytes": "4Gi"}}
TARGET = 3.0


async def measure(bench: Bench) -> list[Table]:
    """Beside JetStream with files that are synced always, and Redis Streams where there is a redis-server."""
    bench.tell("P3")
    messages = bench.many(MESSAGES)
    there = program("redis-server") is not None
    systems: dict[str, Callable[[], Awaitable[float]]] = {
        "Epochal": partial(_ours, bench, messages),
        "JetStream": partial(_jetstream, bench, messages),
    }
    if there:
        systems["Redis"] = partial(_redis, bench, messages)
    figures = await bench.in_turn(systems)
    row = [f"{middle(figures[name]):,.0f}" if name in figures else "-" for name in ("Epochal", "JetStream", "Redis")]
    row.append(str(Ratio.of(figures["Epochal"], figures["JetStream"])))
    row.append(str(Ratio.of(figures["Epochal"], figures["Redis"])) if there else "no redis-server on PATH")
    headings = ["Epochal /s", "JetStream /s", "Redis Streams /s", "over JetStream", "over Redis", "target"]
    title = f"P3: durable appends of {BATCH} records a second, acknowledged, {TOGETHER} under way"
    return [Table("P3", title, headings, [[*row, f">= {TARGET:g}"]])]


async def _ours(bench: Bench, messages: int) -> float:
    async with bench.stream("p3", history=HISTORY) as stream:
        to = {"catalog": bench.catalog, "stream": stream.name}
        with role("ours.append", **to, batch=BATCH, messages=messages, together=TOGETHER) as sender:
            return float((await sender.line())["rate"])


async def _jetstream(bench: Bench, messages: int) -> float:
    async with jetstream_server(bench.local.data) as url:
        work = {"batch": BATCH, "messages": messages, "together": TOGETHER}
        with role("jetstream.append", url=url, subject="p3", **work) as sender:
            return float((await sender.line())["rate"])


async def _redis(bench: Bench, messages: int) -> float:
    async with redis_server(bench.local.data) as port:
        work = {"batch": BATCH, "messages": messages, "together": TOGETHER}
        with role("redis_streams.append", port=port, key="p3", **work) as sender:
            return float((await sender.line())["rate"])

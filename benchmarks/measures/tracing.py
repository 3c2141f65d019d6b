"""P15: what tracing costs: in writers, in a publisher, in Spark's tasks, and in bytes on disk."""

import asyncio
import os
import statistics
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness.bench import Bench
from harness.processes import Role, free_port, role
from harness.rounds import interval
from harness.tables import Table

import epochal
from measures import fanout, spark

NONE, LOADED, UNSAMPLED, SAMPLED, APART = range(5)
"""What a writer traces (`roles.common`)."""
TURN = {"P1, 16 records a batch": 10_000, "P2": 60_000}
"""Messages a turn: parts of a second."""
BATCHES = {"P1, 16 records a batch": 16, "P2": 0}
TURNS = 8
"""... of the same processes; then come new ones."""
LOGGED = 4_000
"""Batches of 1 kB of which the log's bytes are counted."""
STORED = {"storage": {"size": "1Gi"}, "durability": "batch"}
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
DELAY = {"OTEL_BSP_SCHEDULE_DELAY": "1000"}


async def measure(bench: Bench) -> list[Table]:
    """Every ratio is that of a pair, and its interval that of so many pairs as there are rounds."""
    bench.tell("P15")
    rows = [await _bytes(bench)]
    rows += await _writers(bench)
    async with _collector() as url:
        rows += await _publisher(bench, url)
        rows += await _spark(bench, url)
    headings = ["tracing over none", "median (95 % interval)", "target"]
    return [Table("P15", "P15: what tracing costs", headings, rows)]


# ---- writers ----


async def _writers(bench: Bench) -> list[list[str]]:
    """Speed of writers in programs that have the API loaded, or are in a trace that is not sampled."""
    ways = {"the API is loaded": LOADED, "an unsampled trace": UNSAMPLED}
    rows = []
    for name in TURN:
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(max(1, bench.rounds // TURNS)):
            took = await _turns(bench, name, [NONE, *ways.values()])
            for way, mode in ways.items():
                found[way] += [none / one for none, one in zip(took[NONE], took[mode], strict=True)]
            bench.tell(f"{name}: " + ", ".join(f"{way} {statistics.median(found[way]):.2f}" for way in ways))
        rows += [[f"{name}, {way}: speed", interval(found[way]), ">= 0.99"] for way in ways]
    return rows


async def _turns(bench: Bench, name: str, modes: list[int]) -> dict[int, list[float]]:
    """Seconds of each turn by mode: processes that live at once and take turns."""
    messages, records = max(200, int(TURN[name] * bench.scale)), max(1, BATCHES[name])
    async with AsyncExitStack() as held:
        lines: dict[int, tuple[Role, Role]] = {}
        for mode in modes:
            stream = await held.enter_async_context(bench.stream("p15"))
            to = {"catalog": bench.catalog, "stream": stream.name}
            receiver = held.enter_context(role("turns.receive", **to))
            sender = held.enter_context(role("turns.send", **to, batch=BATCHES[name], trace=mode))
            lines[mode] = sender, receiver
        await asyncio.gather(*(one.line() for both in lines.values() for one in both))
        took: dict[int, list[float]] = {mode: [] for mode in modes}
        for number in range(-1, TURNS):  # the first turn is to warm up
            for mode in modes if number % 2 else modes[::-1]:
                sender, receiver = lines[mode]
                receiver.tell(messages * records)
                sender.tell(messages)
                sent, got = await asyncio.gather(sender.line(), receiver.line())
                if number >= 0:
                    took[mode].append(got["end"] - sent["start"])
        return took


# ---- the publisher ----


async def _publisher(bench: Bench, url: str) -> list[list[str]]:
    messages = bench.many(fanout.MESSAGES)

    async def cpu(trace: int, environment: dict[str, str]) -> float:
        with _environment(environment):  # for the publisher, which starts with the stream
            return await fanout.publisher_cpu(bench, messages, fanout.SUBSCRIBERS, trace)

    sends = {ENDPOINT: url, **DELAY}
    ways = {"all of one trace": SAMPLED, "each of its own": APART}
    fewer = replace(bench, rounds=max(1, bench.rounds // 3))  # processor time is less noisy, and a run takes seconds
    figures = await fewer.in_turn(
        {"none": partial(cpu, NONE, {}), **{way: partial(cpu, mode, sends) for way, mode in ways.items()}}
    )
    pairs = {way: [one / other for one, other in zip(figures[way], figures["none"], strict=True)] for way in ways}
    return [[f"P5, every batch sampled, {way}: processor time", interval(pairs[way]), "<= 1.1"] for way in ways]


# ---- Spark ----


async def _spark(bench: Bench, url: str) -> list[list[str]]:
    """Three sessions at once, which take turns."""
    away = f"http://127.0.0.1:{free_port()}"
    settings = {"none": {}, "all sampled": {ENDPOINT: url}, "collector away": {ENDPOINT: away}}
    async with AsyncExitStack() as held:
        systems = {}
        for name, environment in settings.items():
            stream = await held.enter_async_context(bench.stream("p15", encoding="arrow"))
            session = await held.enter_async_context(spark.session(bench, [stream.name], environment))
            for _ in range(spark.WARM):
                await spark.batch(session, 0)
            systems[name] = partial(spark.batch, session, 0)
        figures = await bench.in_turn(systems)
    rows = []
    for name in ("all sampled", "collector away"):
        ratios = [one / other for one, other in zip(figures[name], figures["none"], strict=True)]
        rows.append([f"P9 with arrow, {name}: addBatch", interval(ratios), "<= 1.05"])
    return rows


# ---- bytes ----


async def _bytes(bench: Bench) -> list[str]:
    """Of log files with batches of 1 kB: with trace, key, clock and one header, over without."""
    from opentelemetry import trace

    sizes = []
    span = trace.NonRecordingSpan(trace.SpanContext(1 << 120, 1 << 60, False, trace.TraceFlags(1)))
    for full in (False, True):
        async with (
            bench.stream("p15", history=STORED) as stream,
            epochal.connect(bench.catalog) as client,
            client.writer(stream.name, direct=True, clock=full) as writer,
        ):
            for number in range(LOGGED):
                if full:
                    with trace.use_span(span):
                        writer.append_nowait(0, [bytes(1021)], key=b"LH1234", headers={b"v": b"1"})
                else:
                    writer.append_nowait(0, [bytes(1021)])
                if number % 256 == 255:
                    await writer.flush()
            await writer.flush()
            sizes.append(sum(path.stat().st_size for path in _files(bench, stream.info.uid)))
    return ["bytes in the log, batches of 1 kB, all optional fields", f"{sizes[1] / sizes[0]:.3f}", "<= 1.05"]


def _files(bench: Bench, uid: str) -> list[Path]:
    return [path for path in bench.local.data.rglob("*") if path.is_file() and uid in str(path)]


# ---- both ----


@asynccontextmanager
async def _collector() -> AsyncIterator[str]:
    with role("otlp.serve") as collector:
        yield f"http://127.0.0.1:{(await collector.line())['port']}"


@contextmanager
def _environment(given: dict[str, str]) -> Iterator[None]:
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            del os.environ[name]

"""P17: what relays take off a publisher, what they cost themselves, and what they add to the way of a record."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any

from harness.bench import Bench, Served
from harness.processes import Role, cpu_seconds, role
from harness.rounds import Ratio, middle, percentile
from harness.tables import Table

from epochal.local.child import console_script

SUBSCRIBERS = 64
RELAYS = 4
BATCHES = {"128 B": 1, "2 kB": 16}
RECORD_BYTES = 130
"""Of 128 bytes, as msgpack has them."""
RATE = 1_000
PACED = 500
"""Records a second where latency is taken: four relays and all subscribers are on the same processors."""
MESSAGES = 3_000
TARGET, RELAY_TARGET = 0.4, 1.5


async def measure(bench: Bench) -> list[Table]:
    """One publisher with 64 subscribers, in turn with one that has four relays with 16 each."""
    bench.tell("P17")
    return [await _cost(bench), await _latency(bench)]


async def _cost(bench: Bench) -> Table:
    rows = []
    for name, batch in BATCHES.items():
        relays: list[float] = []
        figures = await bench.in_turn(
            {
                "direct": partial(_cpu, bench, bench.many(MESSAGES), batch, 0, []),
                "relayed": partial(_cpu, bench, bench.many(MESSAGES), batch, RELAYS, relays),
            }
        )
        cells = [f"{1e6 * middle(each):,.0f}" for each in (*figures.values(), relays)]
        targets = f"<= {TARGET:g}" if batch == BATCHES["2 kB"] else "", f"<= {RELAY_TARGET:g}"
        relayed, direct = figures["relayed"], figures["direct"]
        rows.append(
            [name, *cells, str(Ratio.of(relayed, direct)), targets[0], str(Ratio.of(relays, relayed)), targets[1]]
        )
    headings = [
        "batches", "publisher, direct, us", "with relays, us", "a relay, us", "with relays over direct", "target",
        "a relay over its publisher", "target",
    ]  # fmt: skip
    return Table("P17", f"P17: processor time a batch, {SUBSCRIBERS} subscribers, {RELAYS} relays", headings, rows)


@asynccontextmanager
async def _relay(catalog: str, stream: str) -> AsyncIterator[tuple[Mapping[str, str], int]]:
    """A relay in a process of its own: its addresses, and its process id."""
    command = (console_script("epochal-publisher"), "relay", "--stream", stream, "--catalog", catalog)
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=nothing)
    try:
        assert process.stdout is not None
        _, *said = (await process.stdout.readline()).decode().split()
        yield dict(word.split("=", 1) for word in said), process.pid
    finally:
        process.terminate()
        await process.communicate()


async def _cpu(bench: Bench, messages: int, batch: int, relays: int, cost: list[float]) -> float:
    """Processor seconds a batch of the publisher; those of one relay go to `cost`."""
    async with (
        bench.stream("p17", push={"initialFilter": "none"}) as stream,
        _relays(bench, stream, relays) as (addresses, pids),
    ):
        sends = {"catalog": bench.catalog, "stream": stream.name, "rate": RATE, "messages": messages}
        with ExitStack() as stack:
            listening = _crowd(stack, stream, addresses, SUBSCRIBERS, messages * batch * RECORD_BYTES)
            sender = stack.enter_context(role("ours.send_paced", **sends, batch=batch))
            await asyncio.gather(*(each.line() for each in listening), sender.line())
            before, of_relays = stream.cpu(), sum(map(cpu_seconds, pids))
            await asyncio.gather(*(each.line() for each in listening), sender.line())
            if pids:
                cost.append((sum(map(cpu_seconds, pids)) - of_relays) / messages / len(pids))
            return (stream.cpu() - before) / messages


def _crowd(
    stack: ExitStack, stream: Served, relays: Sequence[Mapping[str, str]], size: int, expected: int = 0
) -> list[Role]:
    """So many subscribers, of relays or of the publisher; they tell when each has had `expected` bytes."""
    segment = stream.info.segments[0]
    assert segment.publisher is not None
    served = relays or [segment.publisher.addresses]
    each = size // len(served)
    crowd = {"stream": stream.info.uid, "segment": segment.id, "size": each, "expected": each * expected}
    return [
        stack.enter_context(role("crowd.listen", requests=one["requests"], events=one["events"], **crowd))
        for one in (served if each else ())
    ]


@asynccontextmanager
async def _relays(bench: Bench, stream: Served, count: int) -> AsyncIterator[tuple[list[Mapping[str, str]], list[int]]]:
    """So many relays of a stream."""
    if not count:
        yield [], []
        return
    async with (
        _relay(bench.catalog, stream.name) as (addresses, pid),
        _relays(bench, stream, count - 1) as (others, pids),
    ):
        yield [addresses, *others], [pid, *pids]


async def _latency(bench: Bench) -> Table:
    rows = []
    for name, relays, crowd in (("", 1, 0), (f", one of {SUBSCRIBERS}", RELAYS, SUBSCRIBERS)):
        ages: dict[int, list[list[float]]] = {0: [], relays: []}
        messages = bench.many(MESSAGES)
        await bench.in_turn(
            {f"{each} relays": partial(_aged, bench, messages, each, crowd, taken) for each, taken in ages.items()}
        )
        for percent, share in (("p50", 0.5), ("p99", 0.99)):
            figures = [[percentile(taken, share) for taken in rounds] for rounds in ages.values()]
            cells = [f"{1000 * middle(taken):.2f}" for taken in figures]
            rows.append([percent + name, *cells, str(Ratio.of(figures[1], figures[0]))])
    headings = ["", "straight, ms", "through a relay, ms", "through a relay over straight"]
    return Table("P17, latency", f"P17: latency of records at {PACED:,} a second", headings, rows)


async def _aged(bench: Bench, messages: int, relays: int, crowd: int, ages: list[list[float]]) -> float:
    """The ages of records at one subscriber, beside a `crowd` of others that are divided over the relays."""
    async with (
        bench.stream("p17", push={"initialFilter": "none"}) as stream,
        _relays(bench, stream, relays) as (addresses, _),
    ):
        to: dict[str, Any] = {"catalog": bench.catalog, "stream": stream.name, "messages": messages}
        with ExitStack() as stack:
            await asyncio.gather(*(each.line() for each in _crowd(stack, stream, addresses, crowd)))
            receiver = stack.enter_context(role("ours.receive_aged", **to, via="relay" if relays else "direct"))
            await receiver.line()
            stack.enter_context(role("ours.send_paced", **to, rate=PACED))
            taken = (await receiver.line())["ages"]
            ages.append(taken[len(taken) // 10 :])
            return 1000 * percentile(ages[-1], 0.99)

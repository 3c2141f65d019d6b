"""P16: what filters at the sender cost a publisher, and what they save a subscriber."""

import asyncio
from functools import partial
from typing import Any

from harness.bench import Bench
from harness.processes import role
from harness.rounds import Ratio, middle
from harness.tables import Table

TOPICS = 100
BATCH = 16
"""Records of 128 bytes: 2 kB."""
BATCH_BYTES = BATCH * 130
RATE = 1_000
MESSAGES = 3_000
PACE = 2 / 3
"""Of `RATE`, where bytes are counted: nothing waits."""
SHARE = 0.03


async def measure(bench: Bench) -> list[Table]:
    """Filters that match 1 % of the batches each, in turn with one of them; and a subscriber of 1 % of the topics."""
    bench.tell("P16")
    return [await _cost(bench), await _saved(bench)]


async def _cost(bench: Bench) -> Table:
    messages = bench.many(MESSAGES)
    ways: dict[str, tuple[int, bool, str]] = {
        "1 filter": (1, False, ""),
        "10 filters": (10, False, "<= 1.5"),
        "60 filters": (60, False, "<= 2"),
        "100 filters: 63 channels, the rest share": (100, False, ""),
        "10 filters that all match": (10, True, ""),
    }
    runs = {
        name: partial(_publisher_cpu, bench, messages, filters, every) for name, (filters, every, _) in ways.items()
    }
    figures = await bench.in_turn(runs)
    rows = [
        [name, f"{1e6 * middle(taken):,.0f}", str(Ratio.of(taken, figures["1 filter"])), ways[name][2]]
        for name, taken in figures.items()
    ]
    headings = ["filters", "publisher, us a batch", "over one", "target"]
    return Table("P16", "P16: processor time a 2 kB batch of one topic in a hundred", headings, rows)


async def _publisher_cpu(bench: Bench, messages: int, filters: int, every: bool) -> float:
    expected = filters * BATCH_BYTES * (messages if every else messages // TOPICS)
    async with bench.stream("p16", push={"initialFilter": "none"}) as stream:
        segment = stream.info.segments[0]
        assert segment.publisher is not None
        crowd: dict[str, Any] = {name: segment.publisher.addresses[name] for name in ("requests", "events")}
        crowd |= {"stream": stream.info.uid, "segment": segment.id, "filters": filters, "every": int(every)}
        sends = {"catalog": bench.catalog, "stream": stream.name, "rate": RATE, "messages": messages, "batch": BATCH}
        with (
            role("filters.listen", **crowd, expected=expected) as listening,
            role("filters.send", **sends) as sender,
        ):
            await asyncio.gather(listening.line(), sender.line())
            before = stream.cpu()
            sender.tell(1)
            await sender.line()
            await listening.line()
            return (stream.cpu() - before) / messages


async def _saved(bench: Bench) -> Table:
    """The bytes that a reader of one topic in a hundred is pushed, over those of everything; twice as many batches."""
    rows = []
    for policy in ("firehose", "none"):
        first, second, steps = await _share(bench, policy)
        rows.append([policy, f"{first:.3f}", f"{second:.3f}", f"{steps}", f"<= {SHARE:g}"])
    headings = ["`initialFilter`", "first", "after that", "batches until the publisher knew", "target"]
    return Table("P16, bytes", "P16: bytes pushed to a reader of 1 % of the topics, over all", headings, rows)


async def _share(bench: Bench, policy: str) -> tuple[float, float, int]:
    messages = bench.many(MESSAGES) // TOPICS * TOPICS
    to = {"catalog": bench.catalog}
    async with bench.stream("p16", push={"initialFilter": policy}) as stream:
        to["stream"] = stream.name
        sends = {**to, "rate": int(RATE * PACE), "messages": messages, "batch": BATCH, "times": 2}
        with (
            role("filters.receive", **to, messages=messages // TOPICS, times=2) as receiver,
            role("filters.send", **sends) as sender,
        ):
            await asyncio.gather(receiver.line(), sender.line())
            parts, steps = [], 0
            for _ in range(2):
                sender.tell(1)
                got, _ = await asyncio.gather(receiver.line(), sender.line())
                parts.append(got["pushed"] / (messages * BATCH_BYTES))
                steps = got["steps"]
            return parts[0], parts[1], steps

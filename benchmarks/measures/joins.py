"""P10: how long a newcomer waits while a thousand subscribers are connected, and what each of them costs."""

from harness.bench import Bench
from harness.processes import resident_bytes, role
from harness.rounds import middle, percentile
from harness.tables import Table

SUBSCRIBERS = 1_000
JOINS = 300
RATE, MESSAGES, BATCH = 200, 600, 16
"""What is published while memory is measured, so that queues hold what they hold in use."""


async def measure(bench: Bench) -> list[Table]:
    """Joins one after another at an idle stream, and the publisher's memory before and after a thousand came."""
    bench.tell("P10")
    waits: list[float] = []
    memory: list[float] = []
    for _ in range(max(1, bench.rounds - 1)):  # one takes ten seconds
        await _round(bench, waits, memory)
        bench.tell(f"p99 {1000 * percentile(waits, 0.99):.1f} ms, {memory[-1] / 1024:.1f} KiB")
    rows = [
        ["join, p50, ms", f"{1000 * percentile(waits, 0.5):.1f}", ""],
        ["join, p99, ms", f"{1000 * percentile(waits, 0.99):.1f}", "< 50"],
        ["memory a subscriber, KiB", f"{middle(memory) / 1024:.1f}", "< 100"],
    ]
    headings = ["", f"with {SUBSCRIBERS:,} subscribers", "target"]
    return [Table("P10", "P10: joining, from hello to snapshot", headings, rows)]


async def _round(bench: Bench, waits: list[float], memory: list[float]) -> None:
    async with bench.stream("p10") as stream:
        segment = stream.info.segments[0]
        assert segment.publisher is not None
        to = {name: segment.publisher.addresses[name] for name in ("requests", "events")}
        to |= {"stream": stream.info.uid, "segment": segment.id}
        before = sum(map(resident_bytes, stream.pids))
        with role("crowd.listen", **to, size=SUBSCRIBERS, expected=SUBSCRIBERS * MESSAGES * BATCH * 128) as crowd:
            await crowd.line()
            sends = {"catalog": bench.catalog, "stream": stream.name, "rate": RATE, "batch": BATCH}
            with role("ours.send_paced", **sends, messages=MESSAGES) as sender:
                await sender.line()
                await sender.line()
                await crowd.line()
            kept = BATCH * 128 * MESSAGES  # history, which would be there without subscribers as well
            memory.append((sum(map(resident_bytes, stream.pids)) - before - kept) / SUBSCRIBERS)
            with role("crowd.join_one_by_one", **to, joins=JOINS) as newcomer:
                waits += (await newcomer.line())["waited"]

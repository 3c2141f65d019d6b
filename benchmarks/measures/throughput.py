"""P1: messages a second in explicit batches, from a writer over a publisher to one subscriber."""

from functools import partial

from harness.bench import Bench
from harness.processes import Role, free_port, nats_server, role
from harness.rounds import Ratio, middle
from harness.tables import Table

MESSAGES = {1: 60_000, 16: 40_000, 256: 12_000, 4096: 1_500}
TARGETS = {1: 1.0, 16: 1.0, 256: 2.0, 4096: 2.0}


async def rate(receiver: Role, sender: Role) -> float:
    """Messages (or records) a second, from the first send to the last arrival."""
    sent, got = await sender.line(), await receiver.line()
    return float(got["messages"] / (got["end"] - sent["start"]))


async def measure(bench: Bench) -> list[Table]:
    """Beside NATS core, and beside a bare PUSH/PULL pair, which has one hop instead of two."""
    rows = []
    async with nats_server() as nats:
        for batch, usual in MESSAGES.items():
            messages = bench.many(usual)
            bench.tell(f"P1, {batch} records a batch")
            figures = await bench.in_turn(
                {
                    "Epochal": partial(ours, bench, batch, messages),
                    "NATS": partial(_nats, nats, batch, messages),
                    "PUSH/PULL": partial(_bare, batch, messages),
                }
            )
            cells = [f"{middle(taken):,.0f}" for taken in figures.values()]
            ratio = Ratio.of(figures["Epochal"], figures["NATS"])
            rows.append([str(batch), *cells, str(ratio), f">= {TARGETS[batch]:g}"])
    headings = ["records a batch", "Epochal /s", "NATS core /s", "PUSH/PULL /s", "over NATS", "target"]
    return [Table("P1", "P1: batches a second, 128-byte records", headings, rows)]


async def ours(bench: Bench, batch: int, messages: int) -> float:
    """One run over a stream of its own."""
    async with bench.stream("p1") as stream:
        to = {"catalog": bench.catalog, "stream": stream.name, "messages": messages}
        with role("ours.receive", **to) as receiver:
            await receiver.line()
            with role("ours.send_batches", **to, batch=batch) as sender:
                return await rate(receiver, sender)


async def _nats(url: str, batch: int, messages: int) -> float:
    with role("nats_core.receive", url=url, subject="p1", messages=messages) as receiver:
        await receiver.line()
        with role("nats_core.send_batches", url=url, subject="p1", batch=batch, messages=messages) as sender:
            return await rate(receiver, sender)


async def _bare(batch: int, messages: int) -> float:
    address = f"tcp://127.0.0.1:{free_port()}"
    with role("bare_zmq.receive", address=address, messages=messages) as receiver:
        await receiver.line()
        with role("bare_zmq.send_batches", address=address, batch=batch, messages=messages) as sender:
            return await rate(receiver, sender)

"""P2: records a second that are appended one at a time and gathered by the client."""

from functools import partial

from harness.bench import Bench
from harness.processes import nats_server, role
from harness.rounds import Ratio, middle
from harness.tables import Table

from measures.throughput import rate

RECORDS = 1_000_000
"""... of ours; nats-py gets a tenth, so that both run about equally long."""
TARGET = 5.0


async def measure(bench: Bench) -> list[Table]:
    """Beside nats-py, which sends each record as a message and gathers bytes by itself."""
    bench.tell("P2")
    records = bench.many(RECORDS)
    async with nats_server() as nats:
        figures = await bench.in_turn(
            {"Epochal": partial(_ours, bench, records), "NATS": partial(_nats, nats.url, records // 10)}
        )
    cells = [f"{middle(taken):,.0f}" for taken in figures.values()]
    row = [*cells, str(Ratio.of(figures["Epochal"], figures["NATS"])), f">= {TARGET:g}"]
    headings = ["Epochal, linger 1 ms, records/s", "nats-py, records/s", "over NATS", "target"]
    return [Table("P2", "P2: records of 128 bytes, appended one at a time", headings, [row])]


async def _ours(bench: Bench, records: int) -> float:
    async with bench.stream("p2") as stream:
        to = {"catalog": bench.catalog, "stream": stream.name, "records": records}
        with role("ours.receive_records", **to) as receiver:
            await receiver.line()
            with role("ours.send_singly", **to) as sender:
                return await rate(receiver, sender)


async def _nats(url: str, records: int) -> float:
    with role("nats_core.receive", url=url, subject="p2", messages=records) as receiver:
        await receiver.line()
        with role("nats_core.send_singly", url=url, subject="p2", records=records) as sender:
            return await rate(receiver, sender)

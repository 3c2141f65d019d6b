"""P4: how long a record travels, 5,000 single-record messages a second."""

from functools import partial

from harness.bench import Bench
from harness.processes import Role, free_port, nats_server, role
from harness.rounds import Ratio, middle, percentile
from harness.tables import Table

RATE = 5_000
MESSAGES = 15_000
TARGET = 1.5


async def measure(bench: Bench) -> list[Table]:
    """Beside NATS core with nats-py, and beside two bare hops of ZeroMQ, which is what Epochal stands on.

    A sender makes five records each millisecond, and each carries its moment.
    """
    bench.tell("P4")
    messages = bench.many(MESSAGES)
    ages: dict[str, list[list[float]]] = {"Epochal": [], "NATS": [], "bare": []}
    async with nats_server() as nats:
        await bench.in_turn(
            {
                "Epochal": partial(_ours, bench, messages, ages["Epochal"]),
                "NATS": partial(_nats, nats.url, messages, ages["NATS"]),
                "bare": partial(_bare, messages, ages["bare"]),
            }
        )
    rows = [_row(name, share, ages) for name, share in (("p50", 0.5), ("p99", 0.99))]
    headings = ["", "Epochal, ms", "NATS core, ms", "two bare hops, ms", "over NATS", "target"]
    return [Table("P4", f"P4: latency at {RATE:,} single-record messages a second", headings, rows)]


def _row(name: str, share: float, ages: dict[str, list[list[float]]]) -> list[str]:
    figures = {system: [percentile(taken, share) for taken in rounds] for system, rounds in ages.items()}
    cells = [f"{1000 * middle(taken):.2f}" for taken in figures.values()]
    return [name, *cells, str(Ratio.of(figures["Epochal"], figures["NATS"])), f"<= {TARGET:g}"]


async def _ours(bench: Bench, messages: int, ages: list[list[float]]) -> float:
    async with bench.stream("p4") as stream:
        to = {"catalog": bench.catalog, "stream": stream.name, "messages": messages}
        with role("ours.receive_aged", **to) as receiver:
            await receiver.line()
            with role("ours.send_paced", **to, rate=RATE):
                return await _aged(receiver, ages)


async def _nats(url: str, messages: int, ages: list[list[float]]) -> float:
    with role("nats_core.receive_aged", url=url, subject="p4", messages=messages) as receiver:
        await receiver.line()
        with role("nats_core.send_paced", url=url, subject="p4", rate=RATE, messages=messages):
            return await _aged(receiver, ages)


async def _bare(messages: int, ages: list[list[float]]) -> float:
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    with (
        role("bare_zmq.receive_aged", address=addresses[1], messages=messages) as receiver,
        role("bare_zmq.pass_on", address=addresses[0], onward=addresses[1]) as hop,
    ):
        await receiver.line()
        await hop.line()
        with role("bare_zmq.send_paced", address=addresses[0], rate=RATE, messages=messages):
            return await _aged(receiver, ages)


async def _aged(receiver: Role, ages: list[list[float]]) -> float:
    """Note the ages of this round, without the first tenth, when everything is still cold; returns the p99 in ms."""
    taken = (await receiver.line())["ages"]
    ages.append(taken[len(taken) // 10 :])
    return 1000 * percentile(ages[-1], 0.99)

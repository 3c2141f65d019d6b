"""P1: messages a second in explicit batches, from a writer over a publisher to one subscriber, and what each costs.

Processor time is what a busy machine can still compare: a rate depends on who else wants the processor.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgpack
from harness.bench import Bench
from harness.processes import Nats, Role, c_program, cpu_seconds, free_port, nats_server, program_role, role
from harness.rounds import Ratio, middle
from harness.tables import Table
from roles.common import RECORD

MESSAGES = {1: 60_000, 16: 40_000, 256: 12_000, 4096: 1_500}
TARGETS = {1: 1.0, 16: 1.0, 256: 1.4, 4096: 1.6}
COST_TARGETS = {256: 2.0}
"""Processor time of all processes, over that of two bare hops."""
HISTORY = 256 * 2**20
"""Bytes of history that a publisher keeps by default."""
MOST_BEFORE = 120_000
"""Most messages that are sent to fill it; small ones hardly need new memory."""
RELAY = Path(__file__).parents[1] / "relay.c"
OURS, NATS, ONE_HOP, TWO_HOPS, PLAIN = "Epochal", "NATS", "PUSH/PULL", "two hops", "C over TCP"


Note = Callable[[str, float, int], None]


def _nothing(system: str, seconds: float, messages: int) -> None:
    """Where only the rate is of interest."""


class Costs:
    """Processor seconds a message of all processes of a system, one figure a round."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {}

    def note(self, system: str, seconds: float, messages: int) -> None:
        """A round of a system took so many seconds for so many messages."""
        self.taken.setdefault(system, []).append(seconds / messages)

    def cells(self, *systems: str) -> list[str]:
        """Microseconds a message of each system; nothing of one that was not measured."""
        return [f"{1e6 * middle(self.taken[name]):,.0f}" if name in self.taken else "" for name in systems]


async def rate(receiver: Role, sender: Role) -> float:
    """Messages (or records) a second, from the first send to the last arrival."""
    return await _noted("", receiver, sender, _nothing, lambda: 0.0)


async def measure(bench: Bench) -> list[Table]:
    """Beside NATS core, bare PUSH/PULL pairs of ZeroMQ over one hop and over two, and plain TCP in C over two."""
    speeds, costs = [], []
    with ExitStack() as held:
        relay = held.enter_context(c_program(RELAY))
        if relay is None:
            bench.tell("P1: no C compiler, so nothing is compared with plain TCP")
        async with nats_server() as nats:
            for batch, usual in MESSAGES.items():
                bench.tell(f"P1, {batch} records a batch")
                messages, used = bench.many(usual), Costs()
                systems = {
                    OURS: partial(ours, bench, batch, messages, used.note),
                    NATS: partial(_nats, nats, batch, messages, used.note),
                    ONE_HOP: partial(_one_hop, batch, messages),
                    TWO_HOPS: partial(_two_hops, batch, messages, used.note),
                }
                if relay is not None:
                    systems[PLAIN] = partial(_plain, relay, batch, messages, used.note)
                figures = await bench.in_turn(systems)
                cells = [f"{middle(figures[name]):,.0f}" for name in (OURS, NATS, ONE_HOP)]
                ratio = Ratio.of(figures[OURS], figures[NATS])
                speeds.append([str(batch), *cells, str(ratio), f">= {TARGETS[batch]:g}"])
                over = Ratio.of(used.taken[OURS], used.taken[TWO_HOPS])
                target = f"<= {COST_TARGETS[batch]:g}" if batch in COST_TARGETS else ""
                costs.append([str(batch), *used.cells(OURS, NATS, TWO_HOPS, PLAIN), str(over), target])
    speed = ["records a batch", "Epochal /s", "NATS core /s", "PUSH/PULL /s", "over NATS", "target"]
    cost = ["records a batch", "Epochal, us", "NATS core, us", "two bare hops, us", "C over TCP, us"]
    return [
        Table("P1", "P1: batches a second, 128-byte records", speed, speeds),
        Table(
            "P1 cost", "P1: processor time a batch, all processes", [*cost, "Epochal over bare hops", "target"], costs
        ),
    ]


async def ours(bench: Bench, batch: int, messages: int, note: Note = _nothing) -> float:
    """One run over a stream of its own, once its publisher has filled the history that it keeps."""
    async with bench.stream("p1") as stream:
        before = min(MOST_BEFORE, HISTORY // (batch * len(RECORD)) + 1)
        to = {"catalog": bench.catalog, "stream": stream.name, "messages": messages, "before": before}
        with role("ours.receive", **to) as receiver:
            await receiver.line()
            with role("ours.send_batches", **to, batch=batch) as sender:
                await sender.line()
                await receiver.line()
                idle = stream.cpu()
                sender.tell(messages)
                return await _noted(OURS, receiver, sender, note, lambda: stream.cpu() - idle)


async def _nats(nats: Nats, batch: int, messages: int, note: Note) -> float:
    with role("nats_core.receive", url=nats.url, subject="p1", messages=messages) as receiver:
        await receiver.line()
        before = cpu_seconds(nats.pid)
        with role("nats_core.send_batches", url=nats.url, subject="p1", batch=batch, messages=messages) as sender:
            return await _noted(NATS, receiver, sender, note, lambda: cpu_seconds(nats.pid) - before)


async def _one_hop(batch: int, messages: int) -> float:
    address = f"tcp://127.0.0.1:{free_port()}"
    with role("bare_zmq.receive", address=address, messages=messages) as receiver:
        await receiver.line()
        with role("bare_zmq.send_batches", address=address, batch=batch, messages=messages) as sender:
            return await rate(receiver, sender)


async def _two_hops(batch: int, messages: int, note: Note) -> float:
    first, second = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with (
        role("bare_zmq.receive", address=second, messages=messages) as receiver,
        role("bare_zmq.pass_on", address=first, onward=second) as hop,
    ):
        await receiver.line()
        await hop.line()
        before = hop.cpu()
        with role("bare_zmq.send_batches", address=first, batch=batch, messages=messages) as sender:
            return await _noted(TWO_HOPS, receiver, sender, note, lambda: hop.cpu() - before)


async def _noted(system: str, receiver: Role, sender: Role, note: Note, between: Callable[[], float]) -> float:
    """The rate of a run; notes the processor time of both ends and of what is `between` them."""
    sent, got = await sender.line(), await receiver.line()
    note(system, sent["cpu"] + got["cpu"] + between(), got["messages"])
    return float(got["messages"] / (got["end"] - sent["start"]))


async def _plain(relay: Path, batch: int, messages: int, note: Note) -> float:
    size = len(msgpack.packb([RECORD] * batch))
    first, second = str(free_port()), str(free_port())
    with (
        program_role(relay, "receive", second, str(size * messages)) as receiver,
        program_role(relay, "pass", first, second) as hop,
    ):
        await receiver.line()
        await hop.line()
        with program_role(relay, "send", first, str(size), str(messages)) as sender:
            sent, got, passed = await sender.line(), await receiver.line(), await hop.line()
    note(PLAIN, sent["cpu"] + passed["cpu"] + got["cpu"], messages)
    return messages / float(got["end"] - sent["start"])

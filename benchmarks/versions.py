"""How fast this version is beside another: `python benchmarks/versions.py CHECKOUT`, a work tree of the other commit.

Separate from `run.py`, which compares systems in runs of seconds: the speed of a shared machine changes by 10 % and
more from one second to the next, so small differences between two versions show only in turns of parts of a second.
All processes of both versions run at the same time, and those whose turn it is not wait for input. Each pair starts
new processes, since chance differences (addresses, hash seeds) last as long as a process.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from harness.processes import Role, role
from harness.rounds import interval, percentile
from harness.tables import Table
from measures.durable import BATCH, TOGETHER
from rich.console import Console

HERE = Path(__file__).parents[1]
PACKAGES = ("core", "services/catalog", "services/publisher", "operator", "spark")
RATE = 5_000
TURN = {
    "P1, 1 record a batch": 15_000, "P1, 16": 10_000, "P1, 256": 2_500, "P2": 60_000, "P3": 3_000, "P4": 2_500,
    "P6": 3_000,
}  # fmt: skip
"""Messages a turn: some 0.3 to 0.5 seconds; less of P6, which reads 100 MB in a turn."""
BATCHES = {"P1, 1 record a batch": 1, "P1, 16": 16, "P1, 256": 256, "P2": 0}
STORED = {"P3": ("append", {"together": TOGETHER}), "P6": ("pull", {"filled": 5_500})}
"""Measures of one role each, with a stream on disk. P6 reads none of the newest 64 MiB, which are in memory too."""


@dataclass(frozen=True, slots=True)
class Line:
    """A writer and a reader of one version, at their measure; some measures have one role alone."""

    sender: Role | None
    receiver: Role
    records: int
    """... in a message."""

    async def begin(self) -> None:
        """Until they are ready."""
        await asyncio.gather(*(each.line() for each in (self.sender, self.receiver) if each is not None))

    async def turn(self, messages: int) -> dict[str, float]:
        """Seconds from the first send to the last arrival, or the ages of paced records in ms."""
        self.receiver.tell(messages * self.records)
        if self.sender is None:
            alone = await self.receiver.line()
            return {"": alone["end"] - alone["start"]}
        self.sender.tell(messages)
        sent, got = await asyncio.gather(self.sender.line(), self.receiver.line())
        if "ages" in got:
            return {", p50": 1000 * percentile(got["ages"], 0.5), ", p99": 1000 * percentile(got["ages"], 0.99)}
        return {"": got["end"] - sent["start"]}


async def version(held: AsyncExitStack, checkout: Path, names: Sequence[str]) -> Mapping[str, Line]:
    """The services of the version in a checkout, with a writer and a reader a measure."""
    path = [checkout / package for package in PACKAGES]

    def play(function: str, **arguments: object) -> Role:
        return held.enter_context(role(f"turns.{function}", path, **arguments))

    names = sorted(names, key=lambda name: name in STORED)
    stored = sum(name in STORED for name in names)
    services = play("serve", streams=len(names) - stored, stored=stored)
    there = await services.line()
    if not Path(there["code"]).is_relative_to(checkout):
        raise RuntimeError(f"{checkout} was to be measured, and {there['code']} runs")
    held.callback(services.end)
    lines = {}
    for name, stream in zip(names, there["streams"], strict=True):
        to = {"catalog": there["catalog"], "stream": stream}
        sender: Role | None = None
        if name in STORED:
            function, more = STORED[name]
            receiver = play(function, **to, batch=BATCH, **more)
        elif name in BATCHES:
            receiver, sender = play("receive", **to), play("send", **to, batch=BATCHES[name])
        else:
            receiver, sender = play("receive_aged", **to), play("send_paced", **to, rate=RATE)
        lines[name] = Line(sender, receiver, max(1, BATCHES.get(name, 1)))
    for line in lines.values():
        await line.begin()
    return lines


async def pair(other: Path, names: Sequence[str], turns: int) -> dict[str, float]:
    """For each measure how many times as fast this version is: the ratio of the medians of all turns of a pair."""
    async with AsyncExitStack() as held:
        both = {checkout: await version(held, checkout, names) for checkout in (HERE, other)}
        ratios = {}
        for name in names:
            taken: dict[Path, dict[str, list[float]]] = {HERE: {}, other: {}}
            for number in range(-1, turns):  # the first turn is to warm up
                for checkout in (HERE, other) if number % 2 else (other, HERE):
                    for what, figure in (await both[checkout][name].turn(TURN[name])).items():
                        if number >= 0:
                            taken[checkout].setdefault(what, []).append(figure)
            for what in taken[HERE]:
                middles = [statistics.median(taken[checkout][what]) for checkout in (other, HERE)]
                ratios[name + what] = middles[0] / middles[1]
        return ratios


async def compare(pairs: int, measure: Callable[[], Awaitable[dict[str, float]]]) -> Table:
    """A table of so many pairs; each is printed as it comes."""
    taken = []
    for number in range(pairs):
        taken.append(await measure())
        shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in taken[-1].items())
        print(f"pair {number + 1}: {shown}", file=sys.stderr, flush=True)
    rows = [[name, interval([ratios[name] for ratios in taken])] for name in taken[0]]
    return Table(
        "versions", f"This version's speed over the other's, {pairs} pairs", ["", "median (95 % interval)"], rows
    )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="Measure this version of Epochal beside another, in turns.")
    parser.add_argument("checkout", type=Path, help="a work tree of the other version (git worktree add)")
    parser.add_argument("measures", nargs="*", help=f"beginnings of: {'; '.join(TURN)}")
    parser.add_argument("--pairs", type=int, default=15, help="how often both versions are started")
    parser.add_argument("--turns", type=int, default=20, help="turns of each version in each measure of a pair")
    arguments = parser.parse_args()
    other = arguments.checkout.resolve()
    if not (other / PACKAGES[0] / "epochal").is_dir():
        parser.error(f"{other} is no work tree of Epochal: it has no {PACKAGES[0]}/epochal")
    names = [name for name in TURN if not arguments.measures or name.startswith(tuple(arguments.measures))]
    if not names:
        parser.error(f"no measure begins so; there are {'; '.join(TURN)}")
    table = asyncio.run(compare(arguments.pairs, lambda: pair(other, names, arguments.turns)))
    table.show(Console())
    print(table.markdown())


if __name__ == "__main__":
    main()

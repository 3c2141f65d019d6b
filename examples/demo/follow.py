"""One subscriber of the demo as a program: `python -m examples.demo.follow early|late`.

`make demo-cluster` runs it in pods. It prints as JSON lines what the run would show, and
`replay` puts these into a run again.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable
from typing import Any

from examples.demo.run import Run
from examples.demo.tally import Join, Kill, Sums, Tally

import epochal
from epochal.cli.failures import report
from epochal.cli.tracing import telemetry
from epochal.errors import EpochalError

KILL = "deleted by force"
READY_TIMEOUT = 120.0
"""Seconds for the stream's publishers to be reached."""


class LineView:
    """A JSON line for everything of which the verdict must know."""

    def step(self, text: str) -> None:
        """Nobody looks."""

    def prepared(self, days: int, hours: int, flights: int) -> None:
        """The job tells."""

    def under_way(self, hours: set[int]) -> None:
        """Too much for lines."""

    def complete(self, hour: int, tally: Tally, *, late: bool) -> None:
        """A line."""
        tell("hour", hour=hour, sums=tally.hours[hour])

    def joined(self, join: Join) -> None:
        """A line."""
        tell("joined", **join._asdict())

    def killed(self, kill: Kill) -> None:
        """A line."""
        tell("killed", **kill._asdict())

    def back(self, seconds: float) -> None:
        """A line."""
        tell("back", seconds=seconds)


def replay(event: dict[str, Any], run: Run, tally: Tally) -> None:
    """Take over a follower's event: an hour, its join, a kill or its end."""
    match event["event"]:
        case "hour":
            tally.hours[event["hour"]] = {origin: Sums(*sums) for origin, sums in event["sums"].items()}
        case "joined":
            run.join = Join(event["complete"], event["total"], tuple(event["active"]))
        case "killed":
            how = {key: event[key] for key in ("segment", "complete", "total", "how")}
            run.kill = Kill(**how, active=tuple(event["active"]))
        case "back":
            run.back_after = event["seconds"]
        case "ended":
            tally.faults += event["faults"]


def tell(event: str, **fields: Any) -> None:
    """Print one line."""
    print(json.dumps({"event": event, **fields}), flush=True)


async def follow(which: str, stream: str, hours: int, *, kills: bool) -> None:
    """Follow the stream until it is complete.

    `hours` is how many there will be, for the follower that joins late; if it `kills`, it reports which publisher and
    when, and the program that reads this deletes the pod.
    """
    run = Run(0, LineView(), kills=kills, total=hours, kill_how=KILL)
    run.kill_process = lambda publisher: tell("kill", publisher=publisher)
    late = which == "late"
    async with epochal.connect() as client, client.subscribe(stream, partial=late) as subscription:
        async with asyncio.timeout(READY_TIMEOUT):
            await subscription.ready.wait()
        tell("ready")
        if late:
            await run.watch(client, stream, subscription)
        else:
            await run.follow(subscription, run.early, late=False)
    tell("ended", faults=(run.late if late else run.early).faults)


def main(arguments: Iterable[str] | None = None) -> None:
    """Run one subscriber."""
    parser = argparse.ArgumentParser(description="Follow the flights of the demo, and print the sums of each hour.")
    parser.add_argument("which", choices=("early", "late"))
    parser.add_argument("--stream", required=True, help="NAMESPACE/NAME of the stream")
    parser.add_argument("--hours", type=int, default=0, help="how many hours there will be (late)")
    parser.add_argument("--kill", action="store_true", help="say which publisher's pod is to be deleted (late)")
    options = parser.parse_args(None if arguments is None else list(arguments))
    try:
        with telemetry("epochal-demo-follower"):
            asyncio.run(follow(options.which, options.stream, options.hours, kills=options.kill))
    except EpochalError as error:
        sys.exit(report(error))


if __name__ == "__main__":
    main()

"""`python -m examples.demo`: the demo on this machine, as `make demo` runs it."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from examples.demo import traces
from examples.demo.prerequisites import check_needs
from examples.demo.run import Run
from examples.demo.verdict import verdict
from examples.demo.view import LiveView, PlainView, View
from rich.console import Console

from epochal.cli.failures import ExitStatus, report
from epochal.cli.io.terminal import note
from epochal.cli.tracing import telemetry
from epochal.errors import ConfigError

EPILOG = """\
examples:
  make demo                                      # 14 days of flights, as a live table
  make demo DEMO_ARGS="--days 365 --keep /tmp/flights"
  make demo DEMO_ARGS=--no-kill                  # no publisher is killed
  make demo DEMO_ARGS=--sidecar                  # the job publishes through a sidecar
  make demo DEMO_ARGS=--traces                   # ends with the address of a trace

Starts a catalog and publishers on free ports in a temporary directory, and a Spark job that publishes the flights from
New York in 2013: one micro-batch a day, one epoch a scheduled hour, the airport as key and topic. One subscriber is
there from the start. Another joins in the middle of an hour, and asks a relay for one airport only. In the middle of a
later hour a publisher is killed with -9. At the end, what the subscribers computed is compared with a plain Spark batch
over the same file. The exit status is 1 if a single number differs, or if the relay sent more than half of the bytes of
all airports. Needs Java 17 or newer and the extras spark and demo."""

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "spark" / "jobs" / "flights.py"
MANIFEST = ROOT / "examples" / "flights.yaml"
AIRPORT = "JFK"
"""What the late subscriber asks the relay for."""
STREAM = "demo/flights"
"""The stream of the manifest."""


def demo(options: argparse.Namespace) -> ExitStatus:
    """Publish real flights from a Spark job and follow them, hour by complete hour."""
    began = time.monotonic()
    with _directory(options.keep) as base:
        with telemetry("epochal-demo"):
            run = _run(base, options)
        if options.keep is not None:
            note(f"kept in {base}")
    return verdict(run, time.monotonic() - began)


def traced_demo(options: argparse.Namespace) -> int:
    """Run the demo through a sidecar with everything traced, and show one trace.

    The collector and Zipkin are those of the tests, so nothing else of the demo imports them.
    """
    from tests.cluster.harness.building import BuildError, UnfitError
    from tests.cluster.harness.programs import NotReadyError
    from tests.tracing.tools import tracing_tools

    print("starting a collector and Zipkin", flush=True)
    options.sidecar = True
    try:
        with tempfile.TemporaryDirectory(prefix="epochal-traces-") as logs, tracing_tools(Path(logs)) as tools:
            os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": tools.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "1000"}
            status = demo(options)
            if not status:
                traces.show(traces.find(tools.zipkin, STREAM, _leads_through_all), tools.zipkin)
            return status
    except (BuildError, UnfitError, NotReadyError, TimeoutError) as error:
        note(f"error: {error}")
        return ExitStatus.FAILURE


def _leads_through_all(found: traces.FoundTrace) -> bool:
    """Whether the trace has a span of every part, in one process or another."""
    return all(map(found.count, traces.STEPS)) and found.tagged("send", "epochal.way") == {"sidecar"}


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="epochal-demo-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    keep = keep.absolute()
    if keep.exists() and any(keep.iterdir()):
        raise ConfigError(f"{keep} is not empty; name a new directory")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep


def _run(base: Path, options: argparse.Namespace) -> Run:
    def run(view: View) -> Run:
        made = Run(options.days, view, options.kill, options.sidecar, AIRPORT)
        return asyncio.run(_interruptible(made, base))

    if not sys.stdout.isatty():
        return run(PlainView())
    with LiveView(Console()) as view:
        return run(view)


async def _interruptible(run: Run, base: Path) -> Run:
    """Run until the end or until a signal; either way everything that was started has ended."""
    running = asyncio.ensure_future(run.run(base, MANIFEST.read_text(encoding="utf-8"), SCRIPT))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    return run


def _days(text: str) -> int:
    if not 3 <= (days := int(text)) <= 365:
        raise argparse.ArgumentTypeError("is 3 to 365")
    return days


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Publish real flights from a Spark job and follow them, hour by complete hour.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--days", type=_days, default=14, metavar="N", help="how many days to publish, 3 to 365")
    say = "keep day files, results and logs in this new directory"
    parser.add_argument("--keep", type=Path, metavar="DIR", help=say)
    say = "kill a publisher with -9 in the middle (the default)"
    parser.add_argument("--kill", action=argparse.BooleanOptionalAction, default=True, help=say)
    parser.add_argument("--sidecar", action="store_true", help="have the job publish through a sidecar")
    say = "publish through a sidecar, trace everything, and end with the address of one trace"
    parser.add_argument("--traces", action="store_true", help=say)
    options = parser.parse_args(arguments)
    try:
        check_needs()
        return traced_demo(options) if options.traces else demo(options)
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except Exception as error:  # any failure ends as one of the command line does
        return report(error)


if __name__ == "__main__":
    sys.exit(main())

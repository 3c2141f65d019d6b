"""Runs pytest, and each test that fails once more: by itself, in a new process, with the same seeds.

Run as `python tools/try_again.py NAME PYTEST_ARGUMENT...`; the Makefile's targets do. A test that fails again is red.
One that passes is *unstable*: it is printed, its first traceback is kept in `.cache/ci/unstable/NAME`, and the run
counts as good. It is a defect all the same, of the product or of the test.

These stay red without a second try: a failure that `tests/run_report.py` calls final (simulation, search, exactness), a
file that cannot be collected, a run that ended before every test had its turn, and more than `MOST_UNSTABLE` failures.

What the run left is stored in `.cache/ci/runs/NAME.json`; `tools/run_results.py` reads it.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from run_results import MOST_UNSTABLE

FOLDER = Path(".cache/ci")
SEED = "EPOCHAL_TEST_SEED"
"""As `tests/seeds.py` reads it."""

ALONE = ("-n", "0", "--dist", "no")
"""The last word about the number of processes."""

FAILED = 1
"""pytest's exit code where tests failed."""


def run_pytest(arguments: Sequence[str], report: Path) -> tuple[int, dict[str, Any] | None]:
    """The exit code, and what the run reports; None if it died before its end."""
    command = [sys.executable, "-m", "pytest", *arguments, f"--run-report={report}"]
    # What is interrupted ends by itself, with a summary. A handler, unlike an ignored signal, is not inherited.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)
    with subprocess.Popen(command) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        code = process.wait()
    return code, json.loads(report.read_text()) if report.exists() else None


def store(name: str, report: dict[str, Any], unstable: Sequence[dict[str, str]]) -> None:
    """Keep what the run left, for the table of CI."""
    file = FOLDER / "runs" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**report, "seed": os.environ[SEED], "unstable": list(unstable)}, indent=1) + "\n")


def keep_traceback(name: str, test: str, text: str) -> str:
    """Write down how a test failed that passed when it was tried again; returns where."""
    file = FOLDER / "unstable" / name / (re.sub(r"[^\w.-]+", "-", test)[:150] + ".txt")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{test}\n{SEED}={os.environ[SEED]}\n{text}")
    return str(file)


def reason_for_no_second_try(report: dict[str, Any]) -> str:
    """Why this run is red as it is; empty if its tests may be tried again."""
    if not report["complete"] or report["broken"]:
        return "not every test had its turn"
    if len(report["failed"]) > MOST_UNSTABLE:
        return f"more than {MOST_UNSTABLE} tests failed"
    return "" if report["failed"] else "it failed without a test that did"


def main(arguments: Sequence[str]) -> int:
    """Run them; returns the exit code."""
    name, *given = arguments
    os.environ.setdefault(SEED, str(random.SystemRandom().randrange(2**32)))
    shutil.rmtree(FOLDER / "unstable" / name, ignore_errors=True)
    (FOLDER / "runs" / f"{name}.json").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        code, report = run_pytest(given, Path(scratch, "first"))
        if report is None:
            print(f"{name}: the run died before its end; nothing is tried again", flush=True)
            return code if code > 0 else FAILED
        store(name, report, [])
        if code != FAILED:
            return code
        if reason := reason_for_no_second_try(report):
            print(f"{name}: nothing is tried again: {reason}", flush=True)
            return FAILED
        return try_again(name, given, report, Path(scratch, "second"))


def try_again(name: str, given: Sequence[str], first: dict[str, Any], scratch: Path) -> int:
    """Give each test that failed its second try; returns the exit code of both runs."""
    red, unstable = [], []
    for test, failure in first["failed"].items():
        if failure["final"]:
            print(f"\n{name}: {test} is not tried again: such a failure is a fault, whatever comes of it", flush=True)
            red.append(test)
            continue
        print(f"\n{name}: once more, by itself, with the same seed: {test}", flush=True)
        scratch.unlink(missing_ok=True)
        code, second = run_pytest([*given, *ALONE, f"--again={test}"], scratch)
        if code == 0 and second is not None and second["passed"] == 1:
            unstable.append({"test": test, "traceback": keep_traceback(name, test, failure["text"])})
        else:
            red.append(test)
        for file, seconds in (second or {"seconds": {}})["seconds"].items():
            first["seconds"][file] = first["seconds"].get(file, 0.0) + seconds
    store(name, first, unstable)
    print()
    for each in unstable:
        print(f"UNSTABLE {each['test']}: it failed, and passed when it was tried again; see {each['traceback']}")
    for test in red:
        print(f"RED {test}")
    sys.stdout.flush()
    return FAILED if red else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

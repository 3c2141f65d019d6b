"""What the runs of the tests left under `.cache/ci`: which tests are unstable, and which files cost most.

Run as `python tools/run_results.py .cache/ci`, at the end of `.ci/run`. Exits with 1 when more than `MOST_UNSTABLE`
tests are unstable in all runs together.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MOST_UNSTABLE = 5
"""So many tests may fail once and pass when they are tried again, in all runs of CI together; one more is a failure."""

DEAREST = 25
"""Files that are listed."""


def read_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """What `tools/try_again.py` stored, by the name of the run, the oldest first."""
    files = sorted((folder / "runs").glob("*.json"), key=lambda file: file.stat().st_mtime)
    return {file.stem: json.loads(file.read_text()) for file in files}


def dearest(runs: dict[str, dict[str, Any]], most: int = DEAREST) -> list[tuple[str, float, list[str]]]:
    """The files that took longest in all runs together: file, seconds, and the names of the runs."""
    seconds: defaultdict[str, float] = defaultdict(float)
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, run in runs.items():
        for file, spent in run["seconds"].items():
            seconds[file] += spent
            names[file].append(name)
    ranked = sorted(seconds, key=lambda file: (-seconds[file], file))
    return [(file, seconds[file], names[file]) for file in ranked[:most]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both lists; returns the exit code."""
    parser = argparse.ArgumentParser(description="Show which tests are unstable, and which files cost most.")
    parser.add_argument("folder", type=Path, help="where CI keeps what its stages leave")
    runs = read_runs(parser.parse_args(arguments).folder)
    total = sum(sum(run["seconds"].values()) for run in runs.values())
    print(f"the dearest files of {total:.0f} s in tests:")
    for file, seconds, names in dearest(runs):
        print(f"{seconds:8.1f} s  {file}  ({', '.join(names)})")
    unstable = [(name, each) for name, run in runs.items() for each in run["unstable"]]
    if unstable:
        print(f"{len(unstable)} unstable (a defect of the product or of the test; {MOST_UNSTABLE} are allowed):")
    for name, each in unstable:
        print(f"UNSTABLE  {name}  {each['test']}  {each['traceback']}")
    if len(unstable) > MOST_UNSTABLE:
        print(f"more than {MOST_UNSTABLE} tests are unstable: that counts as a failure")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

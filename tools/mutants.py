"""Put known faults back, one at a time, and see that the named test catches each.

Run as `python tools/mutants.py [PATCH ...]`.

Apart from the tests because it judges them. A mutant is a unified diff in tests/mutants/ with three lines before it:

    Rule: S13
    Test: tests/protocol/test_frontier.py::test_an_equal_element_stays
    Fault: One sentence on what is broken and what a user would see.

Each is applied to a copy of the tree, never to the tree itself. The named test must be marked with the rule, pass on
the unchanged copy and fail on the changed one. Exits with 1 when a mutant survives, no longer applies, or its test
cannot run.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

COPIED = ("core", "services", "operator", "spark", "tests", "tools", "examples", "benchmarks", "docs", "pyproject.toml")
PARALLEL = 2
TEST_SECONDS = 240.0
"""A test that runs longer than this on a mutant has caught it: the unchanged one ended."""


class MutantError(Exception):
    """A mutant that cannot be judged; the message says why."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault, and who must notice it."""

    path: Path
    rule: str
    test: str
    fault: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutant: `caught`, `SURVIVED`, or `BROKEN` with the reason as `note`."""

    mutant: Mutant
    verdict: str
    seconds: float
    note: str = ""

    def __str__(self) -> str:
        """One row of the table."""
        name = self.mutant.path.stem
        told = self.note or self.mutant.fault
        return f"{self.verdict:<9} {self.mutant.rule:<4} {name:<36} {self.seconds:5.1f} s  {told}"


def read_mutant(path: Path) -> Mutant:
    """Read the three header lines of a patch.

    Raises:
        MutantError: a line is missing or empty.
    """
    header = path.read_text().partition("\n--- ")[0]
    fields = dict(re.findall(r"^(Rule|Test|Fault): *(.*\S)", header, re.MULTILINE))
    missing = [name for name in ("Rule", "Test", "Fault") if name not in fields]
    if missing:
        raise MutantError(f"{path.name}: no line {missing[0]}: before the diff")
    return Mutant(path, fields["Rule"], fields["Test"], fields["Fault"])


def copy_tree(root: Path, target: Path) -> None:
    """Copy what the tests need, without caches."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, target / name)


def source_roots(tree: Path) -> list[Path]:
    """The folders that hold the packages, as pyproject.toml names them for the wheel."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return [(tree / package).parent for package in packages]


def run_test(tree: Path, test: str) -> tuple[int | None, list[str]]:
    """Run one test against the packages in `tree`.

    Returns:
        pytest's exit code (None: it ran too long), and the ids of the rules that the passing test is marked with.
    """
    report = tree / "rules.json"
    # PYTHONPATH comes before the editable install, for the test and for every process that it starts.
    roots = os.pathsep.join(map(str, source_roots(tree)))
    environment = {**os.environ, "PYTHONPATH": roots, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "",
        "-p",
        "no:cacheprovider",
        f"--rules-report={report}",
    ]
    process = subprocess.Popen(
        [*command, test],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return None, []
    finally:
        _end_session(process)
    results = json.loads(report.read_text()) if report.exists() else {}
    return code, [rule for rule, tests in results.items() if tests["passed"]]


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End the test and whatever it left running."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def check_unchanged(root: Path, mutant: Mutant) -> None:
    """See the mutant's test pass on an unchanged copy, marked with the mutant's rule.

    Raises:
        MutantError: it does not.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        copy_tree(root, Path(scratch))
        code, rules = run_test(Path(scratch), mutant.test)
    if code != 0:
        raise MutantError(f"{mutant.test} does not pass on the unchanged code (exit code {code})")
    if mutant.rule not in rules:
        raise MutantError(f"{mutant.test} is not marked with rule {mutant.rule}")


def check_changed(root: Path, mutant: Mutant) -> bool:
    """Whether the mutant's test fails once the fault is there.

    Raises:
        MutantError: the patch does not apply, or the test did not run.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        tree = Path(scratch)
        copy_tree(root, tree)
        _apply(mutant.path, tree)
        code, _ = run_test(tree, mutant.test)
    if code not in (0, 1, None):
        raise MutantError(f"{mutant.test} did not run on the mutant (exit code {code})")
    return code != 0


def _apply(patch: Path, tree: Path) -> None:
    # Without the ceiling, a temporary directory inside some repository would make git skip the files.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    command = ["git", "apply", "--whitespace=nowarn", str(patch.resolve())]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MutantError(f"the patch does not apply: {done.stderr.strip().splitlines()[0]}")


def judge(root: Path, mutant: Mutant) -> Outcome:
    """Try one mutant out."""
    started = time.monotonic()
    verdict, note = "BROKEN", ""
    try:
        check_unchanged(root, mutant)
        verdict = "caught" if check_changed(root, mutant) else "SURVIVED"
    except MutantError as error:
        note = str(error)
    return Outcome(mutant, verdict, time.monotonic() - started, note)


def judge_all(root: Path, mutants: Iterable[Mutant]) -> list[Outcome]:
    """Try all of them out, a few at a time, and print each as it ends."""
    outcomes = []
    with ThreadPoolExecutor(PARALLEL) as pool:
        for outcome in pool.map(lambda mutant: judge(root, mutant), mutants):
            print(outcome, flush=True)
            outcomes.append(outcome)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the given patches, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description="Put known faults back and see the named test catch each.")
    parser.add_argument("patches", nargs="*", type=Path, help="only these; otherwise all of tests/mutants")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the source tree")
    given = parser.parse_args(arguments)
    patches = given.patches or sorted((given.root / "tests" / "mutants").glob("*.patch"))
    try:
        mutants = [read_mutant(patch) for patch in patches]
    except MutantError as error:
        print(error, file=sys.stderr)
        return 1
    outcomes = judge_all(given.root, mutants)
    caught = sum(outcome.verdict == "caught" for outcome in outcomes)
    print(f"{caught} of {len(outcomes)} mutants caught")
    return 0 if outcomes and caught == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

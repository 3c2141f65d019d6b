"""Put known faults back, one at a time, and see that the named test catches each.

Run as `python tools/mutants.py [PATCH ...]`.

It judges the tests. A mutant is a unified diff in tests/mutants/ with three lines before it:

    Rule: S13
    Test: tests/protocol/test_frontier.py::test_an_equal_element_stays
    Fault: One sentence on what is broken and what a user would see.

Each is applied to a copy of the tree, never to the tree itself. The named test must be marked with the rule (several
rules are separated by commas, and it must be marked with each), pass on the unchanged copy and fail on the changed one.
The unchanged copy is tried once for all mutants and its compiled files are shared. pytest runs in processes forked from
one that has loaded all packages (`forked_pytest`): a mutant costs little more than its test. Where a fault makes a test
wait in vain, its wait ends soon: on a mutant the patience of the tests is several times what the test took on the
unchanged copy, and not a minute. There it is never shorter, since the code is right. A test that does not end
in time is tried again, with twice the time and with nothing else running. If it is too slow again, the mutant counts as
caught. Exits with 1 when a mutant survives, no longer applies, or its test cannot run.

All tests draw from the same seed, here and in every run: with a fresh one, a mutant that most draws catch, and some do
not, would survive one day and be caught the next, and a red run would say nothing about the change that it tried.
`EPOCHAL_TEST_SEED=N` tries another seed. A mutant that survives with some seeds needs another test.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_pytest import ForkServer

COPIED = (
    "core",
    "services",
    "operator",
    "spark",
    "tests",
    "tools",
    "examples",
    "benchmarks",
    "docs",
    "charts",
    "README.md",
    "pyproject.toml",
)
SPARE_SECONDS, TIMES = 10.0, 5.0
"""The limit for a test on a mutant: SPARE_SECONDS, plus TIMES its time on the unchanged copy with pytest's start.

Each of its waits may take as long, without the start.
"""
ALONE = 2.0
"""The limit is multiplied by this when the test is tried again, alone."""

SEED = "EPOCHAL_TEST_SEED"
"""As `tests/seeds.py` reads it."""

FIXED_SEED = "1"
"""What all tests draw from, unless `SEED` is in the environment."""

PATIENCE, PATIENCE_SECONDS = "EPOCHAL_TEST_PATIENCE", 60.0
"""How many times PATIENCE_SECONDS a test waits, as `tests/patience.py` reads it."""

BASELINE_SECONDS = 900.0
PARTS = {
    "core/epochal/protocol/": "protocol",
    "core/epochal/client/": "client",
    "core/epochal/logfiles/": "log",
    "services/publisher/": "publisher",
    "services/catalog/": "catalog",
    "spark/": "spark",
    "operator/": "operator",
    "core/": "core",
}


class MutantError(Exception):
    """A mutant that cannot be judged; the message says why."""


class TooSlow(Exception):
    """A test did not end in time on a mutant: the mutant made it hang, or other processes took the machine's time."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault, and the test that must notice it."""

    path: Path
    rules: tuple[str, ...]
    test: str
    fault: str
    files: tuple[str, ...]

    @property
    def parts(self) -> list[str]:
        """Which parts of the code it changes."""
        found = (next((part for start, part in PARTS.items() if file.startswith(start)), "") for file in self.files)
        return sorted(set(filter(None, found)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one mutant: `caught`, `SURVIVED`, or `BROKEN`; the note says why."""

    mutant: Mutant
    verdict: str
    seconds: float
    note: str = ""

    def __str__(self) -> str:
        """One row of the table."""
        name, rules = self.mutant.path.stem, ", ".join(self.mutant.rules)
        text = self.note or self.mutant.fault
        return f"{self.verdict:<9} {rules:<4} {name:<40} {self.seconds:5.1f} s  {text}"

    def as_json(self) -> dict[str, Any]:
        """What `make rules` reads."""
        return {
            "mutant": self.mutant.path.stem,
            "rules": self.mutant.rules,
            "parts": self.mutant.parts,
            "test": self.mutant.test,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
        }


def read_mutant(path: Path) -> Mutant:
    """Read the three header lines of a patch.

    Raises:
        MutantError: a line is missing or empty.
    """
    header, _, diff = path.read_text().partition("\n--- ")
    fields = dict(re.findall(r"^(Rule|Test|Fault): *(.*\S)", header, re.MULTILINE))
    missing = [name for name in ("Rule", "Test", "Fault") if name not in fields]
    if missing:
        raise MutantError(f"{path.name}: no line {missing[0]}: before the diff")
    rules = tuple(re.split(r"[\s,]+", fields["Rule"]))
    files = tuple(re.findall(r"^\+\+\+ b/(\S+)", diff, re.MULTILINE))
    return Mutant(path, rules, fields["Test"], fields["Fault"], files)


def copy_tree(root: Path, target: Path) -> None:
    """Copy what the tests need, without caches, mutants, and compiled code: faults are in sources."""
    target.mkdir()
    left = shutil.ignore_patterns("__pycache__", "*.so", "mutants")
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=left)
        elif source.exists():
            shutil.copy2(source, target / name)


def link_tree(source: Path, target: Path) -> None:
    """Copy a tree by hard links, compiled files included: callers must replace a file there, never write into it."""
    target.mkdir()
    for name in filter(lambda name: (source / name).exists(), COPIED):
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, copy_function=os.link)
        else:
            os.link(source / name, target / name)


def source_roots(tree: Path) -> list[Path]:
    """The folders that hold the packages, as pyproject.toml names them for the wheel."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return [(tree / package).parent for package in packages]


def run_pytest(
    server: ForkServer,
    tree: Path,
    arguments: Sequence[str],
    seconds: float,
    *,
    compile_files: bool,
    patience: float | None = None,
) -> int | None:
    """Run pytest against the packages in `tree`, with the seed of all; returns what `ForkServer.run` does.

    Each wait of the tests may take `patience` seconds; without it, what fits the machine.
    """
    environment = {SEED: os.environ.get(SEED, FIXED_SEED)}
    if patience is not None:
        environment[PATIENCE] = f"{patience / PATIENCE_SECONDS:.3f}"
    roots = source_roots(tree)
    return server.run(tree, roots, arguments, seconds, compile_files=compile_files, environment=environment)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a test did on the unchanged code, in `seconds`; `start`: those that pytest took to start, at most."""

    passed: bool
    start: float
    seconds: float
    rules: frozenset[str]

    @property
    def limit(self) -> float:
        """Seconds after which the test has not ended in time on a mutant."""
        return SPARE_SECONDS + TIMES * (self.start + self.seconds)

    @property
    def patience(self) -> float:
        """Seconds that each wait of the test may take on a mutant."""
        return SPARE_SECONDS + TIMES * self.seconds

    def expect(self, mutant: Mutant) -> None:
        """See that it can judge `mutant`.

        Raises:
            MutantError: it cannot.
        """
        if not self.passed:
            raise MutantError(f"{mutant.test} does not pass on the unchanged code")
        for rule in mutant.rules:
            if rule not in self.rules:
                raise MutantError(f"{mutant.test} is not marked with rule {rule}")


def try_unchanged(server: ForkServer, tree: Path, tests: Sequence[str]) -> dict[str, Baseline]:
    """Run all of `tests` once, in one process; those that do not exist are left out of what is returned."""
    with tempfile.TemporaryDirectory(prefix="named-", dir=tree) as scratch:
        names, outcomes = Path(scratch, "names.json"), Path(scratch, "outcomes.json")
        names.write_text(json.dumps(tests))
        files = sorted({file for file in (test.partition("::")[0] for test in tests) if (tree / file).is_file()})
        plugin = ["-p", "named_tests", f"--named={names}", f"--outcomes={outcomes}"]
        begun = time.monotonic()
        if files:
            arguments = [*plugin, "--continue-on-collection-errors", *files]
            run_pytest(server, tree, arguments, BASELINE_SECONDS, compile_files=True)
        found = json.loads(outcomes.read_text()) if outcomes.exists() else {}
    # What no test has taken is the start of pytest. One mutant's test starts faster: it imports fewer files.
    start = time.monotonic() - begun - sum(it["seconds"] for it in found.values())
    return {test: Baseline(it["passed"], start, it["seconds"], frozenset(it["rules"])) for test, it in found.items()}


def _try_all_unchanged(server: ForkServer, tree: Path, mutants: Sequence[Mutant], jobs: int) -> dict[str, Baseline]:
    """The same for the tests of all mutants, in as many processes as `jobs`; a file's tests stay in one process."""
    tests = sorted({mutant.test for mutant in mutants})
    files = sorted({test.partition("::")[0] for test in tests})
    shares = [[test for test in tests if files.index(test.partition("::")[0]) % jobs == job] for job in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        parts = list(pool.map(lambda share: try_unchanged(server, tree, share), filter(None, shares)))
    return {test: baseline for part in parts for test, baseline in part.items()}


def judge(
    server: ForkServer, unchanged: Path, tree: Path, mutant: Mutant, baseline: Baseline | None, *, alone: bool = False
) -> Outcome | None:
    """Try one mutant out, in a copy of `unchanged` at `tree`, which is removed again.

    Returns:
        its outcome; None when its test did not end in time, and must be tried again `alone`.
    """
    started = time.monotonic()
    verdict, note = "BROKEN", ""
    try:
        if baseline is None:
            raise MutantError(f"{mutant.test} does not exist, or cannot be imported")
        baseline.expect(mutant)
        times = ALONE if alone else 1.0
        verdict = _try_changed(server, unchanged, tree, mutant, baseline.limit * times, baseline.patience * times)
    except MutantError as error:
        note = str(error)
    except TooSlow:
        if not alone:
            return None
        verdict, note = "caught", f"(the test did not end) {mutant.fault}"
    return Outcome(mutant, verdict, time.monotonic() - started, note)


def _try_changed(
    server: ForkServer, unchanged: Path, tree: Path, mutant: Mutant, seconds: float, patience: float
) -> str:
    """The verdict. Raises `MutantError`, or `TooSlow` when the test did not end within `seconds`."""
    link_tree(unchanged, tree)
    try:
        apply(mutant, tree)
        code = run_pytest(server, tree, ["-x", mutant.test], seconds, compile_files=False, patience=patience)
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    if code is None:
        raise TooSlow
    if code not in (0, 1):
        raise MutantError(f"{mutant.test} did not run on the mutant (exit code {code})")
    return "caught" if code else "SURVIVED"


def apply(mutant: Mutant, tree: Path) -> None:
    """Put the fault into `tree`, whose files may be links to those of another.

    Raises:
        MutantError: the patch does not apply.
    """
    # Without the ceiling, git would skip the files if the temporary directory were inside some repository.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    # git replaces a changed file instead of writing into it, so the one that other trees link to stays as it is.
    command = ["git", "apply", "--whitespace=nowarn", str(mutant.path.resolve())]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MutantError(f"the patch does not apply: {done.stderr.strip().splitlines()[0]}")
    for file in map(Path, mutant.files):  # Python compares whole seconds and sizes only
        for compiled in (tree / file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()


def judge_all(root: Path, mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Try all mutants, `jobs` at a time; yields each outcome when it is known, those that were too slow last."""
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as scratch,
        ForkServer() as server,
        ThreadPoolExecutor(jobs) as pool,
    ):
        unchanged = Path(scratch, "unchanged")
        copy_tree(root, unchanged)
        baselines: Mapping[str, Baseline] = _try_all_unchanged(server, unchanged, mutants, jobs)
        judged = {
            pool.submit(
                judge, server, unchanged, Path(scratch, str(number)), mutant, baselines.get(mutant.test)
            ): mutant
            for number, mutant in enumerate(mutants)
        }
        slow: list[Mutant] = []
        for future in as_completed(judged):
            outcome = future.result()
            if outcome is None:
                slow.append(judged[future])
            else:
                yield outcome
        for mutant in slow:
            outcome = judge(server, unchanged, Path(scratch, "alone"), mutant, baselines.get(mutant.test), alone=True)
            assert outcome is not None
            yield outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the given patches, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description="Put known faults back and see the named test catch each.")
    parser.add_argument("patches", nargs="*", type=Path, help="only these; otherwise all of tests/mutants")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the source tree")
    parser.add_argument("--report", type=Path, help="write what became of each to this file, for `make rules`")
    parser.add_argument(
        "--jobs",
        type=int,
        default=(os.cpu_count() or 1) + 1,
        help="so many at a time (one more than processors: they also wait)",
    )
    given = parser.parse_args(arguments)
    patches = given.patches or sorted((given.root / "tests" / "mutants").glob("*.patch"))
    try:
        mutants = [read_mutant(patch) for patch in patches]
    except MutantError as error:
        print(error, file=sys.stderr)
        return 1
    return _report(mutants, judge_all(given.root, mutants, given.jobs), given.report)


def _report(mutants: Sequence[Mutant], judged: Iterator[Outcome], report: Path | None) -> int:
    """Print each outcome as it comes, and the sum; write the report."""
    started, outcomes = time.monotonic(), []
    print(f"{len(mutants)} mutants; first their tests on the unchanged code", flush=True)
    for number, outcome in enumerate(judged, 1):
        print(f"{number:>3} {outcome}", flush=True)
        outcomes.append(outcome)
    outcomes.sort(key=lambda outcome: outcome.mutant.path.name)
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps([outcome.as_json() for outcome in outcomes], indent=1) + "\n")
    failed = [outcome for outcome in outcomes if outcome.verdict != "caught"]
    if failed:
        print("not caught:", *failed, sep="\n")
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} mutants caught in {time.monotonic() - started:.0f} s")
    return 0 if outcomes and not failed else 1


if __name__ == "__main__":
    sys.exit(main())

"""Which behaviour rules hold, by the tests that name them, and by the faults that those tests catch.

Run as `python tools/rule_report.py docs/rules.md TESTS.json MUTANTS.json [--more TESTS.json]`.

It compares three things: the table of rules that people read, the last run of the tests, and the last run of the
mutants. Exits with 1 when a current rule has no passing test or a failing one, when a rule of Q or E has no mutant that
is caught, or when a test or a mutant names a rule that is not in the table. Without a report of the mutants it reports
only which rules are tested. It also prints what the tests cost, and the files that cost most.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

Results = Mapping[str, Mapping[str, Sequence[str]]]
"""Rule id -> `passed` and `failed` -> the tests, as tests/conftest.py writes it."""

DEAREST = 10
"""Files of tests whose seconds are printed."""

Caught = Mapping[str, Sequence[Sequence[str]]]
"""Rule id -> for each of its mutants that was caught, the parts of the code that it changes."""

PROVEN = ("Q", "E")
"""The letters of the rules that need a mutant."""

_ROW = re.compile(r"^\| *(?P<id>[A-Z]\d+) *(?P<name>[a-z ]*?) *\|.*\| *(?P<status>\w+) *\|$")


class Rule(NamedTuple):
    """A row of the table."""

    status: str
    """`current` or `planned`."""
    name: str = ""
    """What the rule is cited by beside its id; the rules that are cited most have one."""


class Verdict(StrEnum):
    """What is known about one rule."""

    COVERED = "covered"
    """Its tests pass, and a mutant of it is caught."""
    TESTED = "tested"
    """A passing test names it, and that is all."""
    FAILING = "FAILING"
    UNTESTED = "UNTESTED"
    UNCOVERED = "UNCOVERED"
    """Tested, but a caught mutant is required and there is none."""
    PLANNED = "planned"
    UNKNOWN = "UNKNOWN"

    @property
    def acceptable(self) -> bool:
        """Whether the report may end well with it."""
        return self in (Verdict.COVERED, Verdict.TESTED, Verdict.PLANNED)


@dataclass(frozen=True, slots=True)
class Line:
    """One rule of the report."""

    rule: str
    verdict: Verdict
    passed: int = 0
    failed: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    """Where its mutants are that were caught, one entry a mutant and part."""
    name: str = ""

    def __str__(self) -> str:
        """For people: id, name, verdict, the number of tests, where its mutants were caught, and which tests fail."""
        tests = f"{self.passed} passing" if self.passed or self.failed else ""
        caught = ", ".join(f"{part} {count}" for part, count in sorted(Counter(self.parts).items()))
        title = f"{self.rule} {self.name}"
        shown = f"{title:<15}  {self.verdict:<9}  {tests:<11}  {caught and f'mutants: {caught}'}"
        return "  ".join([shown.rstrip(), *self.failed])


def read_rules(markdown: str) -> dict[str, Rule]:
    """The rules in the tables of `markdown`, by id, in their order.

    Raises:
        ValueError: a rule is there twice, or has another status.
    """
    rules: dict[str, Rule] = {}
    for row in filter(None, map(_ROW.match, markdown.splitlines())):
        if row["id"] in rules:
            raise ValueError(f"rule {row['id']} is twice in the table")
        if row["status"] not in ("current", "planned"):
            raise ValueError(f"rule {row['id']} has the status {row['status']!r}; known are current and planned")
        rules[row["id"]] = Rule(row["status"], row["name"])
    return rules


def read_caught(report: Path) -> Caught:
    """What tools/mutants.py wrote: the mutants that were caught."""
    caught: dict[str, list[Sequence[str]]] = {}
    for mutant in json.loads(report.read_text()):
        for rule in mutant["rules"] if mutant["verdict"] == "caught" else ():
            caught.setdefault(rule, []).append(mutant["parts"])
    return caught


def merged(*reports: Results) -> Results:
    """The results of several runs: those of one that has run other tests stand beside those of the first."""
    rules = sorted(set().union(*reports))
    return {
        rule: {
            outcome: sorted({test for report in reports for test in report.get(rule, {}).get(outcome, ())})
            for outcome in ("passed", "failed")
        }
        for rule in rules
    }


def assess(rules: Mapping[str, Rule], results: Results, caught: Caught | None = None) -> list[Line]:
    """One line a rule, in the table's order, and after them one for each id that the table does not have.

    Args:
        rules: what the table says.
        results: what the tests showed.
        caught: what the mutants showed; None when they were not run: then no rule needs one.
    """
    unknown = sorted({*results, *(caught or {})} - set(rules))
    return [_line(rule, rules.get(rule), results.get(rule, {}), caught) for rule in [*rules, *unknown]]


def _line(rule: str, row: Rule | None, result: Mapping[str, Sequence[str]], caught: Caught | None) -> Line:
    passed, failed = len(result.get("passed", ())), tuple(result.get("failed", ()))
    mutants = (caught or {}).get(rule, ())
    if row is None:
        verdict = Verdict.UNKNOWN
    elif failed:
        verdict = Verdict.FAILING
    elif row.status == "planned":
        verdict = Verdict.PLANNED
    elif not passed:
        verdict = Verdict.UNTESTED
    elif mutants:
        verdict = Verdict.COVERED
    else:
        verdict = Verdict.UNCOVERED if caught is not None and rule.startswith(PROVEN) else Verdict.TESTED
    parts = tuple(part for parts in mutants for part in parts)
    return Line(rule, verdict, passed, failed, parts, row.name if row else "")


def costs(*reports: Mapping[str, float]) -> list[str]:
    """What all tests of several runs took, in seconds, and the files that took most of it."""
    seconds = Counter[str]()
    for report in reports:
        seconds.update(report)
    dearest = sorted(seconds, key=lambda file: (-seconds[file], file))[:DEAREST]
    total = f"{sum(seconds.values()):8.1f} s  tests in {len(seconds)} files"
    return [total, *(f"{seconds[file]:8.1f} s  {file}" for file in dearest)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; returns the exit code."""
    parser = argparse.ArgumentParser(description="Show for every behaviour rule what shows it: tests, and mutants.")
    parser.add_argument("rules", type=Path, help="the Markdown page with the tables of rules")
    parser.add_argument("tests", type=Path, help="what the tests wrote with --rules-report")
    parser.add_argument("mutants", type=Path, help="what tools/mutants.py wrote with --report, if it has")
    parser.add_argument("--more", type=Path, action="append", default=[], help="the same from a run of other tests")
    given = parser.parse_args(arguments)
    caught = read_caught(given.mutants) if given.mutants.exists() else None
    reports = [json.loads(path.read_text()) for path in (given.tests, *given.more)]
    results = merged(*(report["rules"] for report in reports))
    lines = assess(read_rules(given.rules.read_text()), results, caught)
    print(*lines, sep="\n")
    print(*costs(*(report["seconds"] for report in reports)), sep="\n")
    counts = Counter(line.verdict for line in lines)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]))
    if caught is None:
        print("which rules are covered is not known: run `make mutants` first")
    return 0 if all(line.verdict.acceptable for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())

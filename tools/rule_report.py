"""Which behaviour rules hold, by the tests that name them.

Run as `python tools/rule_report.py docs/rules.md REPORT.json`.

Apart from the tests because it compares two things that do not know of each other: the table of rules that people
read, and what the last run of the tests showed. Exits with 1 when a current rule has no passing test or a failing one,
or when a test names a rule that the table does not have.
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

Results = Mapping[str, Mapping[str, Sequence[str]]]
"""Rule id -> `passed` and `failed` -> the tests, as tests/conftest.py writes it."""

_ROW = re.compile(r"^\| *(?P<id>[A-Z]\d+) *\|.*\| *(?P<status>\w+) *\|$")


class Verdict(StrEnum):
    """What is known about one rule."""

    COVERED = "covered"
    FAILING = "FAILING"
    UNCOVERED = "UNCOVERED"
    PLANNED = "planned"
    UNKNOWN = "UNKNOWN"

    @property
    def acceptable(self) -> bool:
        """Whether the report may end well with it."""
        return self in (Verdict.COVERED, Verdict.PLANNED)


@dataclass(frozen=True, slots=True)
class Line:
    """One rule of the report."""

    rule: str
    verdict: Verdict
    passed: int
    failed: tuple[str, ...]

    def __str__(self) -> str:
        """For people: id, verdict, the number of tests, and which fail."""
        tests = f"{self.passed} passing" if self.passed or self.failed else ""
        return "  ".join([f"{self.rule:<4}", f"{self.verdict:<9}", tests, *self.failed]).rstrip()


def read_rules(markdown: str) -> dict[str, str]:
    """The status (`current` or `planned`) of each rule in the tables of `markdown`, in their order.

    Raises:
        ValueError: a rule that stands there twice, or another status.
    """
    rules: dict[str, str] = {}
    for row in filter(None, map(_ROW.match, markdown.splitlines())):
        if row["id"] in rules:
            raise ValueError(f"rule {row['id']} stands twice in the table")
        if row["status"] not in ("current", "planned"):
            raise ValueError(f"rule {row['id']} has the status {row['status']!r}; known are current and planned")
        rules[row["id"]] = row["status"]
    return rules


def assess(rules: Mapping[str, str], results: Results) -> list[Line]:
    """One line a rule, in the table's order, and after them one for each id that only tests know."""
    unknown = sorted(set(results) - set(rules))
    return [_line(rule, rules.get(rule), results.get(rule, {})) for rule in [*rules, *unknown]]


def _line(rule: str, status: str | None, result: Mapping[str, Sequence[str]]) -> Line:
    passed, failed = len(result.get("passed", ())), tuple(result.get("failed", ()))
    if status is None:
        verdict = Verdict.UNKNOWN
    elif failed:
        verdict = Verdict.FAILING
    elif status == "planned":
        verdict = Verdict.PLANNED
    else:
        verdict = Verdict.COVERED if passed else Verdict.UNCOVERED
    return Line(rule, verdict, passed, failed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; returns the exit code."""
    parser = argparse.ArgumentParser(description="Show for every behaviour rule whether a passing test covers it.")
    parser.add_argument("rules", type=Path, help="the Markdown page with the tables of rules")
    parser.add_argument("report", type=Path, help="what the tests wrote with --rules-report")
    given = parser.parse_args(arguments)
    lines = assess(read_rules(given.rules.read_text()), json.loads(given.report.read_text()))
    print(*lines, sep="\n")
    counts = Counter(line.verdict for line in lines)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]))
    return 0 if all(line.verdict.acceptable for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What `epochal doctor` found: a verdict for each check, what is wrong, and what to do about it."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.text import Text

from epochal.cli.io.output import STYLES, hanging, printable
from epochal.cli.io.terminal import console


class Verdict(StrEnum):
    """How a check went."""

    OK = "ok"
    WARN = "warn"
    """It works, but something is not as it should be, or could not be looked at."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, what is seen, and what to do."""

    check: str
    verdict: Verdict
    seen: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """`{"check", "verdict", "seen", "advice"}`."""
        return {**asdict(self), "verdict": str(self.verdict)}


def ok(check: str, seen: str) -> Finding:
    """All is well."""
    return Finding(check, Verdict.OK, seen)


def warn(check: str, seen: str, advice: str) -> Finding:
    """It works, but look at it."""
    return Finding(check, Verdict.WARN, seen, advice)


def fail(check: str, seen: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(check, Verdict.FAIL, seen, advice)


_WIDTH = 12


def print_findings(findings: Iterable[Finding]) -> None:
    """A line for each, and under it what to do; on a terminal in colours, and broken under itself."""
    screen = console()
    for finding in findings:
        verdict = str(finding.verdict)
        line = hanging(f"{verdict:<5} {finding.check:<{_WIDTH}} ", printable(finding.seen))
        styled = Text.assemble((verdict, STYLES[verdict]), line.removeprefix(verdict))
        screen.print(styled, soft_wrap=True)
        if finding.advice:
            screen.print(Text(hanging(f"{'':<{_WIDTH + 7}}-> ", printable(finding.advice))), soft_wrap=True)


def summary(findings: Sequence[Finding]) -> str:
    """The last line."""
    counts = {verdict: sum(finding.verdict is verdict for finding in findings) for verdict in Verdict}
    if not counts[Verdict.FAIL] + counts[Verdict.WARN]:
        return f"all {len(findings)} checks are well"
    return ", ".join(f"{number} {verdict}" for verdict, number in counts.items())

"""Judges catalog, publishers and machine by what they report: values in, findings out, with what to do about each.

Probes collect these values, so that each judgement here can be read and tested without a network.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.text import Text

from epochal.catalog_api.answers import StreamInfo
from epochal.cli.io.documents import Document
from epochal.cli.io.output import STYLES, hanging
from epochal.cli.io.terminal import console, printable
from epochal.cli.listed_kinds import PUBLISHERS, RELAYS, lease_state, relay_load
from epochal.transport.sockets import LEAST_LIBZMQ
from epochal.verdicts import Trouble, judge


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
    """Print a line for each finding, and under it what to do; on a terminal in colours, with hanging indents."""
    screen = console()
    for finding in findings:
        verdict = str(finding.verdict)
        line = hanging(f"{verdict:<5} {finding.check:<{_WIDTH}} ", printable(finding.seen))
        styled = Text.assemble((verdict, STYLES[verdict]), line.removeprefix(verdict))
        screen.print(styled, soft_wrap=True)
        if finding.advice:
            screen.print(Text(hanging(f"{'':<{_WIDTH + 7}}-> ", printable(finding.advice))), soft_wrap=True)


def summary(findings: Sequence[Finding]) -> str:
    """The summary: how many checks ended with which verdict."""
    counts = {verdict: sum(finding.verdict is verdict for finding in findings) for verdict in Verdict}
    if not counts[Verdict.FAIL] + counts[Verdict.WARN]:
        return f"all {len(findings)} checks are well"
    return ", ".join(f"{number} {verdict}" for verdict, number in counts.items())


LEAST_PYTHON = (3, 11)
LEAST_JAVA = 17
SKEW = 2.0
"""Seconds by which two clocks may differ: the catalog's Date header has whole seconds."""
SLOW = 0.5
"""A catalog that takes more seconds for an answer is slow."""
FILES_LEAST, FILES_PER_SEGMENT = 1024, 12
"""Open files that any program needs, and that each followed segment takes (two sockets with their descriptors)."""


def check_python(version: tuple[int, ...]) -> Finding:
    """The version of Python."""
    text = ".".join(map(str, version[:3]))
    if version[:2] < LEAST_PYTHON:
        return fail("python", text, "install Python 3.11 or newer")
    return ok("python", text)


def check_libzmq(version: tuple[int, ...]) -> Finding:
    """ZeroMQ's library, which has known holes below the least version."""
    text, least = ".".join(map(str, version)), ".".join(map(str, LEAST_LIBZMQ))
    if version < LEAST_LIBZMQ:
        return fail("libzmq", f"{text} has known holes", f"install a pyzmq that brings libzmq {least} or newer")
    return ok("libzmq", f"{text} (least: {least})")


def check_java(major: int | None, spark: str | None) -> Finding:
    """Java and Spark: nothing else needs them."""
    install = "for Spark jobs: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
    if major is None or major < LEAST_JAVA:
        return warn("java", "none found" if major is None else f"{major} is older than {LEAST_JAVA}", install)
    if spark is None:
        return warn("spark", f"Java {major}, but no PySpark", "for Spark jobs: pip install 'epochal[spark]'")
    return ok("spark", f"PySpark {spark}, Java {major}")


def check_files(soft: int, hard: int, segments: int) -> Finding:
    """The limit of open files, against what following every segment takes."""
    wanted = FILES_LEAST + FILES_PER_SEGMENT * segments
    if soft < FILES_LEAST:
        return fail("open files", f"at most {soft}", f"ulimit -n {min(hard, max(wanted, 65536))}")
    if soft < wanted:
        seen = f"at most {soft}; to follow all {segments} segments takes up to {wanted}"
        return warn("open files", seen, f"ulimit -n {min(hard, max(wanted, 65536))}")
    return ok("open files", f"at most {soft}")


def check_versions(ours: str, theirs: str | None) -> Finding:
    """The versions of the client and the catalog."""
    if theirs is None:
        return warn("version", f"{ours} here; the catalog does not report its own", "is the address that of a catalog?")
    if ours != theirs:
        return warn("version", f"{ours} here, {theirs} at the catalog", "run the same version on both sides")
    return ok("version", f"{ours} here and at the catalog")


def check_latency(url: str, seconds: float) -> Finding:
    """How long the catalog takes to answer."""
    seen = f"{url} answers in {1000 * seconds:.0f} ms"
    if seconds > SLOW:
        return warn("catalog", seen, "it, or the way to it, is slow: look at its load")
    return ok("catalog", seen)


def check_clock(skew: float | None) -> Finding:
    """Our clock against the catalog's: a difference makes ages and wall-clock watermarks wrong."""
    if skew is None:
        return warn("clock", "the catalog's answer has no Date", "is there a proxy that drops it?")
    if abs(skew) > SKEW:
        direction = "behind" if skew > 0 else "ahead of"
        return warn("clock", f"{abs(skew):.0f} s {direction} the catalog's", "synchronise both clocks (chrony, NTP)")
    return ok("clock", f"within {SKEW:g} s of the catalog's")


def check_leases(publishers: Sequence[Document]) -> list[Finding]:
    """Whether the publishers' leases are live."""
    findings: list[Finding] = []
    live = 0
    for item in publishers:
        name = f"{PUBLISHERS.key(item)} ({item['stream']})"
        match lease_state(item):
            case "live":
                live += 1
            case "unverified":
                advice = "it was registered before the catalog was started again; it renews within seconds if it lives"
                findings.append(warn("leases", f"{name} has not renewed since the catalog started", advice))
            case "lapsed":
                findings.append(
                    warn("leases", f"{name} has stopped renewing", "look at its log; is the process there?")
                )
            case _:
                pass  # replaced: its successor is checked
    return [*findings, *([ok("leases", f"{count(live, 'publisher')} live")] if live else [])]


def check_relays(relays: Sequence[Document]) -> list[Finding]:
    """Relays that new subscribers do not use: those that wait for their upstream, and full ones."""
    findings: list[Finding] = []
    for item in relays:
        name = f"{RELAYS.key(item)} ({item['stream']})"
        if item["state"] == "waiting":
            advice = "subscribers do not use it; can it reach its upstream? see its log"
            findings.append(warn("relays", f"{name} is waiting", advice))
        elif item["load"] >= item["capacity"]:
            advice = "further subscribers go to others, or to the publishers; start another relay of this name"
            findings.append(warn("relays", f"{name} is full: {relay_load(item)}", advice))
    return findings


def count(number: int, what: str) -> str:
    """`1 publisher`, `2 publishers`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_CHECKS = {
    Trouble.DOWN: "streams",
    Trouble.FULL: "disk",
    Trouble.LOST: "held back",
    Trouble.HELD: "held back",
    Trouble.WAITING: "appends",
}
"""The name of the check that reports each trouble."""


def check_streams(streams: Sequence[StreamInfo]) -> list[Finding]:
    """Which streams are served, and what is wrong with them."""
    if not streams:
        return [ok("streams", "none is declared yet; declare one with: epochal apply -f FILE")]
    bad = [found for stream in streams if (found := _check_stream(stream))]
    well = len(streams) - len(bad)
    findings = [finding for found in bad for finding in found]
    return [*findings, *([ok("streams", f"{well} of {len(streams)} well")] if well else [])]


def _check_stream(stream: StreamInfo) -> list[Finding]:
    findings = []
    for found in judge(stream):
        verdict = Verdict.FAIL if found.trouble in (Trouble.DOWN, Trouble.FULL) else Verdict.WARN
        findings.append(Finding(_CHECKS[found.trouble], verdict, f"{stream.qualified}: {found.words}", found.advice))
    channels = None if stream.phase == "Complete" else _check_channels(stream)
    return findings if channels is None else [*findings, channels]


def _check_channels(stream: StreamInfo) -> Finding | None:
    """Whether readers share channels that carry more than they want, because all are taken (F12)."""
    full = [segment for segment in stream.segments if segment.counters.get("coarse")]
    if not full:
        return None
    worst = max(full, key=lambda segment: segment.counters["coarse"])
    coarse, channels = (int(worst.counters.get(counter) or 0) for counter in ("coarse", "channels"))
    taken = f"{stream.qualified}: all {channels:,} channels of segment {worst.id} are taken"
    seen = f"{taken}, and {count(coarse, 'subscriber')} get more than they want"
    others = f"; so it is at {count(len(full) - 1, 'more segment')}" if len(full) > 1 else ""
    advice = "let readers use the same filters, or give its publishers a higher EPOCHAL_PUBLISHER_MAX_CHANNELS"
    return warn("channels", seen + others, f"{advice}; epochal describe stream {stream.qualified} lists the channels")

"""Judges catalog, publishers and machine by what they report: values in, findings out, with what to do about each.

Probes collect these values, so that each judgement here can be read and tested without a network.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from shlex import quote
from typing import Any

from rich.text import Text

from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.verdicts import full_disk
from epochal.cli.commands.listed_kinds import PUBLISHERS, RELAYS, STREAMS, lease_state, relay_load
from epochal.cli.io.documents import Document
from epochal.cli.io.output import STYLES, hanging
from epochal.cli.io.terminal import console, printable
from epochal.transport.sockets import LEAST_LIBZMQ


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


LEAST_PYTHON = (3, 11)
LEAST_JAVA = 17
SKEW = 2.0
"""Seconds between two clocks that are not reported: the catalog's Date header has whole seconds."""
SLOW = 0.5
"""Seconds for an answer above which a catalog is slow."""
HELD_LONG = 60.0
"""Seconds for which a time is held, after which it is worth a look who holds it."""
SILENT_LONG = 10.0
"""Seconds without a heartbeat after which a writer has probably gone: they come every few."""
FILES_LEAST, FILES_PER_SEGMENT = 1024, 12
"""Open files: of any program, and for each segment that is followed (two sockets, each with what watches it)."""
SHOWN = 10
"""Findings of one kind that are printed; more of the same would not help."""


def check_python(version: tuple[int, ...]) -> Finding:
    """The interpreter."""
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
    """Client and catalog."""
    if theirs is None:
        return warn("version", f"{ours} here; the catalog does not report its own", "is the address that of a catalog?")
    if ours != theirs:
        return warn("version", f"{ours} here, {theirs} at the catalog", "run the same version on both sides")
    return ok("version", f"{ours} here and at the catalog")


def check_latency(url: str, seconds: float) -> Finding:
    """How long the catalog takes."""
    seen = f"{url} answers in {1000 * seconds:.0f} ms"
    if seconds > SLOW:
        return warn("catalog", seen, "it, or the way to it, is slow: look at its load")
    return ok("catalog", seen)


def check_clock(skew: float | None) -> Finding:
    """Our clock against the catalog's. Ages, leases in logs and wall-clock watermarks are read by it."""
    if skew is None:
        return warn("clock", "the catalog's answer has no Date", "is there a proxy that drops it?")
    if abs(skew) > SKEW:
        direction = "behind" if skew > 0 else "ahead of"
        return warn("clock", f"{abs(skew):.0f} s {direction} the catalog's", "synchronise both clocks (chrony, NTP)")
    return ok("clock", f"within {SKEW:g} s of the catalog's")


def check_leases(publishers: Sequence[Document]) -> list[Finding]:
    """What became of the publishers' registrations."""
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
                pass  # replaced: its successor is looked at
    return [*findings, *([ok("leases", f"{count(live, 'publisher')} live")] if live else [])]


def check_relays(relays: Sequence[Document]) -> list[Finding]:
    """Relays that subscribers do not use now: those that wait for their upstream, and full ones."""
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


def check_streams(streams: Sequence[Document]) -> list[Finding]:
    """Which streams are served, and which stand still."""
    if not streams:
        return [ok("streams", "none is declared yet; declare one with: epochal apply -f FILE")]
    bad = [finding for item in streams for finding in _check_stream(item)]
    well = len(streams) - len({finding.seen.split(":")[0] for finding in bad})
    return [*bad, *([ok("streams", f"{well} of {len(streams)} well")] if well else [])]


def _check_stream(item: Document) -> list[Finding]:
    name = STREAMS.key(item)
    if item["phase"] == "Complete":
        return []
    without = [segment["id"] for segment in item["segments"] if segment["publisher"] is None]
    if without:
        seen = f"{name}: no publisher for segment{'s' if len(without) > 1 else ''} {', '.join(without[:SHOWN])}"
        return [fail("streams", seen, "with `epochal up`, look at DIR/logs/publishers; else at the publishers' pods")]
    disks = [check_disk(name, segment) for segment in item["segments"]]
    held = [HeldBack.from_json(holder) for holder in item.get("held_back") or ()]
    counters = [segment.get("counters") or {} for segment in item["segments"]]
    found = (held_trouble(name, held, bool(item["writers"]), counters), check_channels(name, item["segments"]))
    return [finding for finding in (*disks, *found) if finding is not None]


def check_disk(name: str, segment: Document) -> Finding | None:
    """Whether the segment's log can be written."""
    full = full_disk(segment["id"], segment.get("counters") or {})
    if full is None:
        return None
    advice = "free space on that disk; appends go on by themselves then. Or let the stream retain less"
    return fail("disk", f"{name}: {full.words}", f"{advice} (history.retention)")


def check_channels(name: str, segments: Sequence[Document]) -> Finding | None:
    """Whether readers share channels that carry more than they want, because all are taken (F12)."""
    full = [segment for segment in segments if (segment.get("counters") or {}).get("coarse")]
    if not full:
        return None
    worst = max(full, key=lambda segment: segment["counters"]["coarse"])
    coarse, channels = (int(worst["counters"].get(counter) or 0) for counter in ("coarse", "channels"))
    taken = f"{name}: all {channels:,} channels of segment {worst['id']} are taken"
    seen = f"{taken}, and {count(coarse, 'subscriber')} get more than they want"
    others = f"; so it is at {count(len(full) - 1, 'more segment')}" if len(full) > 1 else ""
    advice = "let readers use the same filters, or give its publishers a higher EPOCHAL_PUBLISHER_MAX_CHANNELS"
    return warn("channels", seen + others, f"{advice}; epochal describe stream {name} lists the channels")


def held_trouble(
    name: str, held: Iterable[HeldBack], begun: bool, counters: Iterable[Mapping[str, Any]]
) -> Finding | None:
    """The first of what holds a stream back that somebody should look at: for `doctor`, `top` and `describe` alike.

    `begun`: a writer has it open. `counters` are those of its segments.
    """
    waiting = sum(int(each.get("open_epochs") or 0) for each in counters)
    return next((found for each in held if (found := _check_held(name, each, begun, waiting)) is not None), None)


def _check_held(name: str, held: HeldBack, begun: bool, waiting: int) -> Finding | None:
    """Whether somebody should look at one holder.

    A stream without a writer is well, as no one publishes; but not while records of `waiting` epochs wait there.
    """
    seconds = held.seconds or 0.0
    words = f"{name}: {held.words}"
    match held.kind:
        case "writer" if (held.silent or 0.0) > SILENT_LONG:
            return warn(
                "held back", words, f"is {held.writer} still there? it is given up after progress.writerTimeout"
            )
        case "writer" if seconds > HELD_LONG:
            return warn("held back", words, f"{held.writer} is alive; it should advance, or finish")
        case "returning" if seconds > SILENT_LONG:
            return warn("held back", words, f"start {held.writer} again, or wait for progress.writerTimeout")
        case "lost":
            advice = (
                f"start {held.writer} again under the same id, or: epochal release {name} {quote(held.writer or '')}"
            )
            return warn("held back", words.partition(" (progress.whenLost")[0], advice)
        case "opening" if seconds > HELD_LONG and begun:
            return warn("held back", words, "start the missing writers, or declare a smaller progress.minWriters")
        case "parked" if seconds > HELD_LONG and waiting:
            epochs = count(waiting, "epoch")
            seen = f"{name}: records of {epochs} wait, and nobody is left who could complete that: {held.words}"
            return warn("held back", seen, f"open a writer that advances, such as: epochal pub {name} --advance T")
        case "finishing" if seconds > HELD_LONG:
            return warn("held back", words, "the writers of the other segments have not finished")
        case _:
            return None

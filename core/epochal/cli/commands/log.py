"""`epochal log`: inspect the log files of segments, and check every byte of them.

It needs no catalog: it works where nothing runs, on a copy of a volume, and while a publisher writes the same files.
"""

import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn

from epochal.cli.failures import ExitStatus
from epochal.cli.io.documents import Document
from epochal.cli.io.output import print_document, print_fields, print_table, show_frontier
from epochal.cli.io.terminal import console, is_live, note
from epochal.cli.options import Format
from epochal.errors import CorruptLog, LogMismatch
from epochal.logfiles.files import log_paths
from epochal.logfiles.survey import Checked, Summary, log_directories, owner_of, summarize, verify

EPILOG = """\b
Actions:
  inspect  what each log file says of itself: events, incarnations, times
  verify   read every byte, and report what is damaged

\b
Examples:
  epochal log inspect /var/lib/epochal/logs
  epochal log verify /var/lib/epochal/logs -o json

DIR is the directory of one segment's log, or any directory above: then every log below it is looked at. Nothing is
changed, and a log may be in use meanwhile. An unfinished end of the last file is no damage: a publisher cuts it
off when it next opens the log.

Exit status 0 when all is sound, 1 when something is damaged; then it prints the file, the range of bytes, and which
events cannot be read."""


class LogAction(StrEnum):
    """What to do with a log."""

    INSPECT = "inspect"
    VERIFY = "verify"


def log(
    action: Annotated[LogAction, typer.Argument(metavar="ACTION", help="inspect or verify.", show_default=False)],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of one segment, or one above many.")],
    output: Annotated[
        Format, typer.Option("--output", "-o", metavar="table|json|yaml", help="The output format.", show_default=True)
    ] = Format.TABLE,
) -> int:
    """Look into a segment's log files, and check them."""
    if output not in (Format.TABLE, Format.JSON, Format.YAML):
        raise typer.BadParameter(f"{output} is not one of table, json, yaml")
    directories = log_directories(directory)
    if not directories:
        note(f"no log files in {directory}")
        return ExitStatus.FAILURE
    look = _inspect if action is LogAction.INSPECT else _verify
    documents, damaged = look(directories, output)
    if output.is_document:
        print_document({"logs": documents}, output is Format.YAML)
    return ExitStatus.FAILURE if damaged else ExitStatus.OK


# ---- inspect ----


def _inspect(directories: list[Path], output: Format) -> tuple[list[Document], bool]:
    documents, damaged = [], False
    for number, directory in enumerate(directories):
        summaries, problems = _summaries(directory)
        damaged = damaged or bool(problems)
        documents.append(_log_document(directory, summaries, problems))
        if output is Format.TABLE:
            print("\n" if number else "", end="")
            _show_log(directory, summaries, problems)
    return documents, damaged


def _summaries(directory: Path) -> tuple[list[Summary], list[str]]:
    found: list[Summary] = []
    problems: list[str] = []
    paths = log_paths(directory)
    for path in paths:
        try:
            found.append(summarize(path, is_last=path == paths[-1]))
        except (CorruptLog, LogMismatch) as error:
            problems.append(str(error))
        except FileNotFoundError:  # retention has removed the file meanwhile
            continue
    return found, problems


def _show_log(directory: Path, summaries: list[Summary], problems: list[str]) -> None:
    incarnation, instance = owner_of(directory)
    if summaries:
        first, last = summaries[0], summaries[-1]
        lives = ", ".join(f"{number} from event {seq}" for number, seq in last.incarnations)
        print_fields([
            ("Log", str(directory)),
            ("Stream", first.stream),
            ("Segment", first.segment),
            ("Owner", f"incarnation {incarnation}, {instance}" if incarnation else "none yet"),
            ("Events", _range(first.state.seq + 1, last.last)),
            ("Size", f"{sum(one.size for one in summaries):,} bytes"),
            ("Incarnations", lives or "none"),
        ])  # fmt: skip
        print()
        columns = ("FILE", "EVENTS", "BYTES", "SEALED", "CREATED", "NEWEST", "FRONTIER", "ACTIVE", "ABORTED")
        print_table(columns, map(_row, summaries))
    for problem in problems:
        note(f"error: {problem}")


def _row(one: Summary) -> tuple[str, ...]:
    state = one.state
    return (
        one.path.name,
        _range(state.seq + 1, one.last),
        f"{one.size:,}",
        "yes" if one.sealed else "no",
        _moment(one.created),
        _moment(one.newest),
        show_frontier(state.lower),
        str(len(state.active)),
        str(len(state.aborted)),
    )


def _log_document(directory: Path, summaries: list[Summary], problems: list[str]) -> Document:
    incarnation, instance = owner_of(directory)
    return {
        "directory": str(directory),
        "incarnation": incarnation,
        "instance": instance,
        "problems": problems,
        "files": [_file_document(one) for one in summaries],
    }


def _file_document(one: Summary) -> Document:
    return {
        "file": one.path.name,
        "stream": one.stream,
        "segment": one.segment,
        "first": one.state.seq + 1,
        "events": one.events,
        "bytes": one.size,
        "sealed": one.sealed,
        "created": _moment(one.created),
        "newest": _moment(one.newest),
        "incarnations": [{"incarnation": number, "first": seq} for number, seq in one.incarnations],
        "lower": list(one.state.lower),
        "active": list(one.state.active),
        "aborted": list(one.state.aborted),
    }


# ---- verify ----


def _verify(directories: list[Path], output: Format) -> tuple[list[Document], bool]:
    checked = _watched(directories)
    if output is Format.TABLE:
        print_table(("FILE", "EVENTS", "FRAMES", "BYTES", "INDEX", "VERDICT"), map(_checked_row, checked))
    for one in checked:
        for damage in one.damage:
            note(f"error: {damage}")
        if one.torn:
            note(f"{one.path}: the last {one.torn} bytes are no whole frame; the next to write the log cuts them off")
    return [_checked_document(one) for one in checked], any(one.damage for one in checked)


def _watched(directories: list[Path]) -> list[Checked]:
    """Check all files, with a bar on a terminal."""
    paths = [path for directory in directories for path in log_paths(directory)]
    total = sum(path.stat().st_size for path in paths if path.exists())  # retention may remove files meanwhile
    bar = Progress(BarColumn(24), TextColumn("{task.percentage:.0f} % of {task.total:,} bytes"),
                   console=console(sys.stderr), transient=True, disable=not is_live(sys.stderr))  # fmt: skip
    found: list[Checked] = []
    with bar:
        task = bar.add_task("", total=total)
        for directory in directories:
            for one in verify(directory):
                found.append(one)
                bar.advance(task, one.size)
    return found


def _checked_row(one: Checked) -> tuple[str, ...]:
    return (str(one.path), f"{one.events:,}", f"{one.frames:,}", f"{one.size:,}", one.index, _verdict(one))


def _verdict(one: Checked) -> str:
    if one.damage:
        return "damaged"
    return f"ok, {one.torn} bytes unfinished" if one.torn else "ok"


def _checked_document(one: Checked) -> Document:
    return {
        "file": str(one.path),
        "events": one.events,
        "frames": one.frames,
        "bytes": one.size,
        "torn": one.torn,
        "index": one.index,
        "damage": [
            {"first": damage.first, "last": damage.last, "reason": damage.reason, "behind": damage.behind}
            for damage in one.damage
        ],
    }


def _range(first: int, last: int) -> str:
    return f"{first} to {last}" if last >= first else "none"


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")

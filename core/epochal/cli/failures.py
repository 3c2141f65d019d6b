"""How a command fails: exit status, and one block on stderr that says what, why and what to do.

All commands fail alike; the statuses are part of the contract with scripts.
"""

import os
import re
import sys
import traceback
from enum import IntEnum

import typer

from epochal.cli.io.terminal import note
from epochal.errors import EpochalError, StreamNotFound, Unavailable, UsageError


class ExitStatus(IntEnum):
    """Exit statuses of every command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141


EXIT_STATUSES = """Exit status:
  0    done
  1    failed; of doctor: a check failed
  2    wrong usage, or a manifest, record, setting or file that cannot be used
  3    no such stream
  4    a service cannot be reached, or nothing came in time: try again later
  129  ended by SIGHUP, as of a terminal that is closed
  130  interrupted by Ctrl-C
  141  the reader of the output has gone, as in `epochal sub NAME | head`
  143  ended by SIGTERM"""

_ADVICE = {
    "stream_not_found": "list the streams with: epochal get streams",
    "no_publisher": "try again soon; `epochal describe stream NAME` shows which segment has none",
    "invalid_manifest": "correct the fields named above; the documentation shows a manifest with every field",
    "capability": "`epochal get stream NAME` shows, as FRONTIER, the least times at which can still be published",
    "writer_not_lost": "`epochal describe stream NAME` shows, under Held back, whom the stream waits for",
    "epoch_aborted": "publish at a later time; a writer that vanished or failed left this one half published",
    "stream_complete": "read it with `epochal sub NAME --since start`, or publish to a new stream",
}


_PARSERS_WORDS = re.compile(r"^Invalid value: |(?<=: )Value error, |\.$")
"""Words that the argument parser puts around our messages, and that are meant for programmers."""


def status_of(error: BaseException) -> ExitStatus:
    """The exit status for `error`."""
    match error:
        case KeyboardInterrupt():
            return ExitStatus.INTERRUPTED
        case StreamNotFound():
            return ExitStatus.NOT_FOUND
        case UsageError():
            return ExitStatus.USAGE
        case Unavailable():
            return ExitStatus.UNAVAILABLE
        case FileNotFoundError() | NotADirectoryError() | IsADirectoryError() | PermissionError() if error.filename:
            return ExitStatus.USAGE
        case _:
            return ExitStatus.FAILURE


def describe(error: BaseException) -> str:
    """The block for stderr; without a traceback unless EPOCHAL_DEBUG is set."""
    if isinstance(error, EpochalError):
        block = f"error: {error}"
        advice = _ADVICE.get(error.code)
        if advice and "epochal get streams" not in block:
            block += f"\nwhat to do: {advice}"
        return block
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"error: {where}{error.strerror or error}"
    return (
        f"error: unexpected {type(error).__name__}: {error}\n"
        "what to do: this is a fault of epochal; run again with EPOCHAL_DEBUG=1 and report what it prints"
    )


def report(error: BaseException) -> ExitStatus:
    """Print the block and return the exit status."""
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return report(error.exceptions[0])
    if os.environ.get("EPOCHAL_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    if not isinstance(error, KeyboardInterrupt):
        note(describe(error))
    return status_of(error)


def report_usage(error: typer.TyperException) -> ExitStatus:
    """Print what the argument parser found wrong, and how to get help."""
    command = getattr(getattr(error, "ctx", None), "command_path", "epochal")
    problem = _PARSERS_WORDS.sub("", error.format_message())
    note(f"error: {problem[:1].lower()}{problem[1:]}\nwhat to do: see `{command} --help`")
    return ExitStatus.USAGE

"""What is written where: data on standard output, all else on standard error, and colours only where they are wanted.

Apart from the commands because all of them must agree, and because whether somebody looks at a terminal is asked once.
"""

import os
import sys
from typing import TextIO

from rich.console import Console

_no_color = False


def forbid_colors(no_color: bool) -> None:
    """What `--no-color` said for this run."""
    global _no_color
    _no_color = no_color


def wants_colors() -> bool:
    """Whether escape sequences may be written to a terminal."""
    return not (_no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb")


def console(file: TextIO | None = None) -> Console:
    """A rich console on standard output or on `file` that shows texts as they are, without markup."""
    return Console(
        file=file or sys.stdout,
        color_system="auto" if wants_colors() else None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def is_live(file: TextIO) -> bool:
    """Whether `file` is a terminal on which lines can be drawn again."""
    return file.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def note(text: str) -> None:
    """Print what is not data, on stderr: in one write, so that lines of several processes are not mixed."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()

"""What is written where: data on standard output, all else on standard error, and colours only where wanted."""

import contextlib
import errno
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

LEAST_WIDTH = 10
"""Columns of a terminal below which nothing can be made to look well."""

_no_color = False


def forbid_colors(no_color: bool) -> None:
    """What `--no-color` said for this run."""
    global _no_color
    _no_color = no_color


def wants_colors() -> bool:
    """Whether escape sequences may be written to a terminal."""
    return not (_no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb")


def console(file: TextIO | None = None) -> "Console":
    """A rich console on standard output or on `file` that shows texts as they are, without markup."""
    from rich.console import Console  # here: what is no terminal needs none

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


def printable(text: str) -> str:
    r"""`text` without what could steer a terminal: control characters, and those that turn the direction of writing.

    >>> printable("a\x1b[2Jb\u202ec é")
    'a\\x1b[2Jb\\u202ec é'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def note(text: str) -> None:
    """Print what is not data, on stderr: in one write, so that lines of several processes are not mixed.

    Each line is made `printable`, because there may be something in it that others have sent. A terminal breaks lines
    anywhere; so there they are broken between words. Nothing is printed once the terminal is closed.
    """
    text = "\n".join(map(printable, text.split("\n")))
    if sys.stderr.isatty():
        text = folded(text, shutil.get_terminal_size().columns)
    with lost_when_closed():
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def lost_when_closed() -> Iterator[None]:
    """A block that writes what no one needs on a terminal that is closed: that must not keep a command from leaving."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def folded(text: str, width: int) -> str:
    r"""`text` with lines of at most `width` columns where words allow it; what goes on is indented.

    >>> folded("error: no such stream", 15)
    'error: no such\n  stream'
    """
    if width < LEAST_WIDTH:
        return text
    fold = textwrap.TextWrapper(
        width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    ).wrap
    return "\n".join("\n".join(fold(line)) if len(line) > width else line for line in text.split("\n"))

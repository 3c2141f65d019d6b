"""Where output goes: data to standard output, all else to standard error; colours only if wanted."""

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
"""Text is not wrapped for a terminal with fewer columns."""

_no_color = False


def forbid_colors(no_color: bool) -> None:
    """Apply `--no-color` to this run."""
    global _no_color
    _no_color = no_color


def wants_colors() -> bool:
    """Whether escape sequences may be written to a terminal."""
    return not (_no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb")


def console(file: TextIO | None = None) -> "Console":
    """A rich console on standard output or on `file` that shows texts as they are, without markup."""
    from rich.console import Console  # here: only a terminal needs it

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
    r"""`text` with escapes for characters that could control a terminal, or turn the direction of writing.

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
    """A block whose output is lost if the terminal is closed, and not an error: the command must be able to leave."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def folded(text: str, width: int) -> str:
    r"""`text` wrapped between words at `width` columns; continued lines are indented.

    >>> folded("error: no such stream", 15)
    'error: no such\n  stream'
    """
    if width < LEAST_WIDTH:
        return text
    fold = textwrap.TextWrapper(
        width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    ).wrap
    return "\n".join("\n".join(fold(line)) if len(line) > width else line for line in text.split("\n"))

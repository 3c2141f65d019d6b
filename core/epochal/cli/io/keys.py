"""Single keys from a terminal, without waiting for Enter; the terminal is as before at the end, whatever happens.

This module knows bytes and the terminal's settings, and nothing of any screen.
"""

import asyncio
import codecs
import contextlib
import os
import re
import termios
import tty
from collections.abc import Callable, Iterator
from enum import StrEnum

ESCAPE_WAIT = 0.05
"""Seconds after which an Escape counts as that key, and not as the beginning of an arrow key's sequence."""


class Key(StrEnum):
    """A key with a name; any other key is the text that it types."""

    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    ENTER = "enter"
    ESCAPE = "escape"
    BACKSPACE = "backspace"


_ESC = "\x1b"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[@-~])")
_BEGUN = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|O)?\Z")
_NAMED = {
    "\x1b[A": Key.UP, "\x1bOA": Key.UP, "\x1b[B": Key.DOWN, "\x1bOB": Key.DOWN,
    "\x1b[5~": Key.PAGE_UP, "\x1b[6~": Key.PAGE_DOWN,
    "\r": Key.ENTER, "\n": Key.ENTER, "\x7f": Key.BACKSPACE, "\x08": Key.BACKSPACE,
}  # fmt: skip


class KeyDecoder:
    r"""Turns bytes into keys: named keys and printable characters. The sequences of other keys are dropped.

    >>> decoder = KeyDecoder()
    >>> decoder.feed(b"q\x1b[A\x1b")
    ['q', <Key.UP: 'up'>]
    >>> decoder.pending, decoder.flush()
    (True, [<Key.ESCAPE: 'escape'>])
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("ignore").decode
        self._text = ""

    @property
    def pending(self) -> bool:
        """Whether an Escape waits for bytes that may belong to it."""
        return bool(self._text)

    def feed(self, data: bytes) -> list[str]:
        """The keys of some bytes, in order."""
        self._text += self._decode(data)
        keys: list[str] = []
        while self._text and not _BEGUN.match(self._text):
            found = _SEQUENCE.match(self._text)
            piece = self._text[0] if found is None else found[0]
            self._text = self._text[len(piece) :]
            if (key := _key(piece)) is not None:
                keys.append(key)
        return keys

    def flush(self) -> list[str]:
        """The key Escape, if one waits: nothing more has come for a moment."""
        begun, self._text = self._text, ""
        return [Key.ESCAPE] if begun == _ESC else []


def _key(piece: str) -> str | None:
    if piece == _ESC:
        return Key.ESCAPE
    return _NAMED.get(piece) or (piece if len(piece) == 1 and piece.isprintable() else None)


@contextlib.contextmanager
def single_keys(file: int) -> Iterator[None]:
    """Have the terminal `file` send each key at once, unseen.

    Ctrl-C still interrupts. Ctrl-Z does nothing: it would leave a shell in the middle of a screen.
    """
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file, termios.TCSANOW)
        ours = termios.tcgetattr(file)
        ours[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(file, termios.TCSANOW, ours)
        yield
    finally:
        termios.tcsetattr(file, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def reported_keys(file: int, report: Callable[[str], None], closed: Callable[[], None]) -> Iterator[None]:
    """Call `report` with each key that comes at `file`, and `closed` once the terminal has gone."""
    loop, decoder = asyncio.get_running_loop(), KeyDecoder()
    waiting: list[asyncio.TimerHandle] = []

    def each(keys: list[str]) -> None:
        for key in keys:
            report(key)

    def read() -> None:
        while waiting:
            waiting.pop().cancel()
        try:
            data = os.read(file, 4096)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(file)
            closed()
            return
        each(decoder.feed(data))
        if decoder.pending:
            waiting.append(loop.call_later(ESCAPE_WAIT, lambda: each(decoder.flush())))

    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)
        while waiting:
            waiting.pop().cancel()

"""The file of a cursor: `--save-cursor` writes it, and `--since` reads it."""

import os
from pathlib import Path

import epochal
from epochal.cli.io.terminal import note
from epochal.errors import CursorError, UsageError
from epochal.logfiles.disk import OSDisk
from epochal.protocol.subscriber.since import FORMS, is_since, read_since


def read_since_option(text: str | None) -> str | epochal.Cursor | None:
    """The value of --since: where to begin, or a cursor from a file. Raises `CursorError` or `UsageError`."""
    if text is None:
        return None
    if is_since(text):
        read_since(text)  # a wrong value is reported at once
        return text
    try:
        saved = Path(text).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CursorError(
            f"there is no file {text}; --since takes {FORMS}, or a file that --save-cursor wrote"
        ) from None
    except UnicodeDecodeError:
        raise CursorError(f"{text} does not hold a cursor; write one with --save-cursor {text}") from None
    try:
        return epochal.Cursor.from_json(saved)
    except CursorError as error:
        raise CursorError(f"{text} does not hold a cursor; write one with --save-cursor {text}: {error}") from None


def check_cursor_file(path: Path) -> None:
    """Raise `UsageError` if no cursor can be written there. Called before reading, so that nothing is read in vain."""
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"--save-cursor {path}: this is no file; name one, which may be a new one")
        beside = _beside(path)
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise UsageError(
            f"--save-cursor {path}: {error.strerror}; name a file in a directory that exists and can be written to"
        ) from None


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def save_cursor(path: Path, subscription: epochal.Subscription) -> None:
    """Write the cursor. A crash, or a loss of power, leaves the old cursor or the new one, whole."""
    try:
        text = subscription.cursor().to_json()
    except UsageError:
        note(f"{path} is not written: the subscription has no position yet")
        return
    beside = _beside(path)
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        OSDisk().sync_directory(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None

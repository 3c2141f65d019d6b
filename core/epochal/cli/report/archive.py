"""One archive with bounded parts and safe names, and a list of its contents; the file is complete or absent.

Only the owner of the file can read it, because it says much about a system.
"""

import io
import os
import re
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from epochal.errors import UsageError

MAX_PART = 4 * 2**20
"""Bytes of one part, at most."""
MAX_NAME = 100
"""Characters of each piece of a name; a stream's has at most 63."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the archive. `cut`: more was there than `MAX_PART`."""

    name: str
    size: int
    cut: bool


class Archive:
    """Collects parts while entered; then the file is at `path`, unless an error or a signal ended it.

    Raises `UsageError` if nothing can be written there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: list[Part] = []
        self.notes: list[str] = []
        """Parts that could not be read, and why."""
        self._root = path.name.removesuffix(".tar.gz").removesuffix(".tgz") or "epochal-report"
        self._names: set[str] = set()

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_file():
            raise UsageError(f"{self.path} is no file that can be replaced; choose another with -o FILE")
        try:
            number, name = tempfile.mkstemp(dir=self.path.parent, prefix=".epochal-report-")
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be written ({error.strerror}); choose another place with -o FILE"
            ) from None
        self._temporary = Path(name)
        self._file = os.fdopen(number, "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._tar.close()
            self._file.close()
            if kind is None:
                self._temporary.replace(self.path)
        finally:
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    def add(self, name: str, data: bytes, *, keep_end: bool = False, cut: bool = False) -> None:
        """Add a part; of one above `MAX_PART` only its beginning, or its end. `cut`: it has been cut already."""
        kept = data[-MAX_PART:] if keep_end else data[:MAX_PART]
        part = Part(self._unused(safe_name(name)), len(kept), cut or len(kept) < len(data))
        entry = tarfile.TarInfo(f"{safe_name(self._root)}/{part.name}")
        entry.size, entry.mtime, entry.mode = len(kept), int(time.time()), 0o600
        self._tar.addfile(entry, io.BytesIO(kept))
        self.parts.append(part)

    def note(self, text: str) -> None:
        """Note a part that could not be read."""
        self.notes.append(text)

    def _unused(self, name: str) -> str:
        number, unused = 1, name
        while unused in self._names:
            number += 1
            unused = f"{name}.{number}"
        self._names.add(unused)
        return unused


def safe_name(name: str) -> str:
    """A name that stays inside the archive, whatever a catalog calls its streams.

    >>> safe_name("streams/demo/../../etc/a b")
    'streams/demo/_/_/etc/a_b'
    """
    pieces = [re.sub(r"[^A-Za-z0-9._-]", "_", piece)[:MAX_NAME] for piece in name.split("/")]
    return "/".join("_" if not piece.strip(".") else piece for piece in pieces)

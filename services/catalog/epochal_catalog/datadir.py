"""The data directory: one process at a time, on a file system that keeps its promises.

Apart from the store because it is checked before any file is opened, and because its messages are for whoever starts
the process.
"""

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from epochal.locks import FileLock, LockTaken
from epochal_catalog.errors import DataDirectoryError

_UNFIT = ("nfs", "cifs", "smb", "fuse", "9p", "afs", "ceph")
"""File systems on which locks or fsync may not hold: SQLite must not be put there."""


class DataDirectory:
    """Holds an exclusive lock on `catalog.lock` in the directory while it is entered.

    The kernel drops the lock with the process, however that ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / "catalog.lock", f"process {os.getpid()} on {socket.gethostname()}")

    def __enter__(self) -> Self:
        """Create, check and lock the directory. Raises `DataDirectoryError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            kind = file_system_of(self.path.resolve(), _mounts())
            if kind.startswith(_UNFIT):
                raise DataDirectoryError(
                    f"the data directory {self.path} is on a {kind} file system, where SQLite can lose or mix data;"
                    " give a directory on a local disk (--data)"
                )
            self._lock.__enter__()
        except LockTaken as taken:
            raise DataDirectoryError(
                f"the data directory {self.path} is in use by {taken.holder}; stop it, or give another directory"
                " (--data)"
            ) from None
        except OSError as error:
            raise DataDirectoryError(f"the data directory {self.path} cannot be used: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Drop the lock."""
        self._lock.__exit__()


def file_system_of(path: Path, mounts: Iterable[str]) -> str:
    """The type of the file system that holds `path`, from lines as in /proc/mounts; empty when none matches."""
    best, kind = "", ""
    for line in mounts:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _mounts() -> list[str]:
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

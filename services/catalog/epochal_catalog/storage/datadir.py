"""The data directory: used by one process at a time, on a file system that is safe for a database.

Separate from the store because it is checked before any file is opened, and its messages are for the person who starts
the process.
"""

import os
import socket
from pathlib import Path
from typing import Self

from epochal.locks import FileLock, LockTaken
from epochal.service.filesystems import objection
from epochal_catalog.errors import DataDirectoryError


class DataDirectory:
    """Holds an exclusive lock on `catalog.lock` in the directory while its context is entered.

    The kernel drops the lock when the process ends in any way. `trusted`: a type of FUSE file system that is accepted.
    """

    def __init__(self, path: Path, trusted: str = "") -> None:
        self.path = path
        self._trusted = trusted
        self._lock = FileLock(path / "catalog.lock", f"process {os.getpid()} on {socket.gethostname()}")

    def __enter__(self) -> Self:
        """Create, check and lock the directory. Raises `DataDirectoryError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._check()
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

    def _check(self) -> None:
        setting = "EPOCHAL_CATALOG_TRUST_FILE_SYSTEM"
        told = objection(self.path, trusted=self._trusted, setting=setting, danger="SQLite can lose or mix data")
        if told is not None:
            raise DataDirectoryError(told)

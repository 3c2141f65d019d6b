"""The data directory: one process at a time, on a file system that keeps its promises.

Apart from the store because it is checked before any file is opened, and because its messages are for whoever starts
the process.
"""

import os
import socket
from pathlib import Path, PurePosixPath
from typing import Self

from epochal.locks import FileLock, LockTaken
from epochal_catalog.errors import DataDirectoryError
from epochal_catalog.filesystems import Verdict, judge, kind_of


class DataDirectory:
    """Holds an exclusive lock on `catalog.lock` in the directory while it is entered.

    The kernel drops the lock with the process, however that ends. `trusted`: a type of FUSE file system that is taken.
    """

    def __init__(self, path: Path, trusted: str = "") -> None:
        self.path, self._trusted = path, trusted
        self._lock = FileLock(path / "catalog.lock", f"process {os.getpid()} on {socket.gethostname()}")

    def __enter__(self) -> Self:
        """Create, check and lock the directory. Raises `DataDirectoryError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._check(kind_of(PurePosixPath(self.path.resolve()), _mountinfo()))
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

    def _check(self, kind: str) -> None:
        verdict = judge(kind)
        if verdict is Verdict.FIT or (verdict is Verdict.UNKNOWN and kind == self._trusted):
            return
        advice = "give a directory on a local disk (--data)"
        if verdict is Verdict.UNKNOWN:
            advice += (
                f"; if this one keeps its data on this machine, locks files and means its fsync, set"
                f" EPOCHAL_CATALOG_TRUST_FILE_SYSTEM={kind}"
            )
        raise DataDirectoryError(
            f"the data directory {self.path} is on a {kind} file system, where SQLite can lose or mix data; {advice}"
        )


def _mountinfo() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""

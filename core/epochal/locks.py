"""One process to a file: an exclusive lock whose file names the holder and is gone when the holder leaves.

Apart from the directories that it guards (local mode's, the catalog's) because the care is in here: the lock is the
kernel's (`flock`), so it cannot outlive its holder, and a lock taken on a file that was removed meanwhile is none.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Self


class LockTaken(Exception):
    """Another process holds the lock; `holder` is what it wrote about itself."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class FileLock:
    """Holds `path` while entered, with `holder` written in it.

    Raises `LockTaken`, or `OSError` for a path that cannot be used.
    """

    def __init__(self, path: Path, holder: str) -> None:
        self._path, self._holder = path, holder
        self._descriptor = -1

    def __enter__(self) -> Self:
        while self._descriptor < 0:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 256, 0).decode(errors="replace").strip() or "unknown"
                os.close(descriptor)
                raise LockTaken(holder) from None
            if self._is_current(descriptor):
                self._descriptor = descriptor
            else:  # the last holder removed the file between our open and our lock
                os.close(descriptor)
        os.ftruncate(self._descriptor, 0)
        with suppress(OSError):  # on a full disk the lock holds without a name
            os.pwrite(self._descriptor, f"{self._holder}\n".encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

"""A lock file that one process holds: it names the holder, and is removed when the holder leaves.

It guards the data directories of local mode and of the catalog. The lock is the kernel's (`flock`), so it cannot
outlive its holder. A lock that was taken on a file that is already removed does not count.
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
        self._path = path
        self._holder = holder
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
            else:  # the last holder removed the file between our open and our lock: another file can be locked by now
                os.close(descriptor)
        os.ftruncate(self._descriptor, 0)
        with suppress(OSError):  # on a full disk the lock holds without a name
            os.pwrite(self._descriptor, f"{self._holder}\n".encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        # Removed before it is unlocked: anyone who gets the lock on this file then sees that it is not at `path` any
        # more. In the other order this could remove the file of the next holder.
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

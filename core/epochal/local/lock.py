"""One local mode to a data directory.

Apart from the processes because it must hold before the first of them starts and after the last has ended. The lock is
the kernel's (`flock`), so it cannot outlive its holder; the file only tells others who that is.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

from epochal.errors import ConfigError


class DirectoryLock:
    """Holds `directory`/lock while entered; raises `ConfigError` naming the holder's process when it is taken."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._descriptor = -1

    def __enter__(self) -> Self:
        while self._descriptor < 0:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(descriptor)
                raise ConfigError(
                    f"the data directory {self._path.parent} is in use by another `epochal up` (process {holder}); "
                    "stop that one, or choose another directory with --data"
                ) from None
            if self._is_current(descriptor):
                self._descriptor = descriptor
            else:  # the last holder removed the file between our open and our lock
                os.close(descriptor)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
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

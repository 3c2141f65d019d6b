"""Only one local mode at a time uses a data directory.

The lock must be taken before the first process starts, and held until the last one has ended.
"""

import os
from pathlib import Path
from typing import Self

from epochal.errors import ConfigError
from epochal.locks import FileLock, LockTaken


class DirectoryLock:
    """Holds `directory`/lock while entered; raises `ConfigError` naming the holder's process when it is taken."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = FileLock(directory / "lock", str(os.getpid()))

    def __enter__(self) -> Self:
        try:
            self._lock.__enter__()
        except LockTaken as taken:
            raise ConfigError(
                f"the data directory {self._directory} is in use by another `epochal up` (process {taken.holder}); "
                "stop that one, or choose another directory with --data"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

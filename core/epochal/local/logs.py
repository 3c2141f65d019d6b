"""Log files of child processes that cannot fill a disk.

There are at most two files, the current one and its predecessor, each of a limited size.
"""

from pathlib import Path


class BoundedLog:
    """Appends to `path`; at `limit` bytes the file becomes `path`.1 (replacing the last) and a new one begins."""

    def __init__(self, path: Path, limit: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._limit = limit
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, chunk: bytes) -> None:
        """Append `chunk`; on a full disk it is lost, and the process that wrote it goes on."""
        if self._size + len(chunk) > self._limit:
            self._file.close()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file = self._path.open("ab", buffering=0)
            self._size = 0
        try:
            self._size += self._file.write(chunk[-self._limit :]) or 0
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def tail(path: Path, lines: int = 5) -> str:
    """The last `lines` lines of a log, for a message; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 8192, 0))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""

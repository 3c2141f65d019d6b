"""The few disk operations that a log needs, and the real disk.

A test can give a log another `Disk`: one that forgets what was not synced, runs full, or fails.
"""

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from epochal.errors import LogFull

MAX_BUFFERS: Final = os.sysconf("SC_IOV_MAX")
PIECE: Final = 256 * 1024
"""Bytes of a file that are read at once, even if fewer are needed."""
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def wall_clock() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_clock() -> int:
    """Milliseconds since the machine was started, sleep included. No one can set this clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_id() -> str | None:
    """The machine's boot id, a new one after each start; None if it cannot be read."""
    try:
        return BOOT_ID.read_text().strip() or None
    except OSError:
        return None


class Disk(Protocol):
    """Every call raises `OSError` when it fails. Offsets and sizes are bytes; files are known by descriptor."""

    def create(self, path: Path) -> int:
        """Make an empty file for reading and writing; replaces an existing one."""
        ...

    def open(self, path: Path, *, writing: bool = False) -> int:
        """Open an existing file."""
        ...

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        ...

    def size(self, descriptor: int) -> int:
        """The length of the file."""
        ...

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes, fewer only where the file ends."""
        ...

    def write(self, descriptor: int, buffers: Sequence[bytes], offset: int) -> None:
        """Write all of the buffers, one after another; after an error any part of them may have been written."""
        ...

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut the file to `size`."""
        ...

    def sync(self, descriptor: int) -> None:
        """Return once the file's bytes and length are on disk."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name in its directory; replaces an existing file of that name."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file's name; anyone who has the file open can still use it."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Return once the names in a directory are on disk."""
        ...


class OSDisk:
    """The machine's own file system."""

    def create(self, path: Path) -> int:
        """See `Disk`."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def open(self, path: Path, *, writing: bool = False) -> int:
        """See `Disk`."""
        return os.open(path, (os.O_RDWR if writing else os.O_RDONLY) | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        """See `Disk`."""
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        """See `Disk`."""
        return os.fstat(descriptor).st_size

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """See `Disk`."""
        data = os.pread(descriptor, size, offset)
        while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def write(self, descriptor: int, buffers: Sequence[bytes], offset: int) -> None:
        """See `Disk`."""
        for first in range(0, len(buffers), MAX_BUFFERS):
            some = buffers[first : first + MAX_BUFFERS]
            size = sum(map(len, some))
            written = os.pwritev(descriptor, some, offset)
            if written < size:  # the disk is full, or nearly: the next write shows which
                self._write_rest(descriptor, memoryview(b"".join(some))[written:], offset + written)
            offset += size

    def _write_rest(self, descriptor: int, rest: memoryview, offset: int) -> None:
        while rest:
            written = os.pwrite(descriptor, rest, offset)
            rest, offset = rest[written:], offset + written

    def truncate(self, descriptor: int, size: int) -> None:
        """See `Disk`."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """See `Disk`."""
        os.fdatasync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """See `Disk`."""
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        os.unlink(path)

    def sync_directory(self, path: Path) -> None:
        """See `Disk`."""
        sync_directory(path)


def sync_directory(path: Path) -> None:
    """Return once the names in a directory are on the machine's disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(disk: Disk, path: Path) -> None:
    """Make a directory and those above it, durably."""
    if not path.is_dir():
        make_directory(disk, path.parent)
        path.mkdir(exist_ok=True)
        disk.sync_directory(path.parent)


def write_or_undo(disk: Disk, descriptor: int, buffers: Sequence[bytes], offset: int) -> None:
    """Write at the end of a file, which is at `offset`; after an error the file ends there again, on disk too.

    Otherwise a crash could bring back a refused write in place of the one that followed it.

    Raises `LogFull` when there is no room, else `OSError`.
    """
    try:
        disk.write(descriptor, buffers, offset)
    except OSError as error:
        disk.truncate(descriptor, offset)
        disk.sync(descriptor)
        if error.errno in NO_SPACE:
            raise LogFull(f"no space for {sum(map(len, buffers))} bytes: {error.strerror}", error.errno) from None
        raise


def write_aside(disk: Disk, path: Path, buffers: Sequence[bytes]) -> int:
    """Write a file that is to become `path` under the name `aside(path)`, and sync it; an error leaves no file.

    Returns a descriptor for reading and writing. Raises `LogFull`, `OSError`.
    """
    descriptor = disk.create(aside(path))
    try:
        write_or_undo(disk, descriptor, buffers, 0)
        disk.sync(descriptor)
    except (OSError, LogFull):
        disk.close(descriptor)
        disk.remove(aside(path))
        raise
    return descriptor


def put_in_place(disk: Disk, path: Path) -> None:
    """Rename the file that `write_aside` wrote to `path`, durably. A crash leaves either the old or the new file."""
    disk.rename(aside(path), path)
    disk.sync_directory(path.parent)


def aside(path: Path) -> Path:
    """The temporary name of a file that is not complete yet."""
    return path.with_name(f"{path.name}.tmp")


class FileBytes:
    """An open file as bytes. Only the needed parts are read, so a slice takes no more memory than its own length.

    For one thread. Every call may raise `OSError`.
    """

    def __init__(self, disk: Disk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._size = disk.size(descriptor)
        self._piece = b""
        self._at = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, where: slice) -> bytes:
        start, stop, _ = where.indices(self._size)
        size = max(stop - start, 0)
        if size > PIECE:
            return self._disk.read(self._descriptor, size, start)
        begin = start - self._at
        if not 0 <= begin <= len(self._piece) - size:
            self._piece = self._disk.read(self._descriptor, min(PIECE, self._size - start), start)
            self._at, begin = start, 0
        return self._piece[begin : begin + size]

    def find(self, what: bytes, start: int, end: int) -> int:
        """The offset of the first `what` between two offsets; -1 if there is none."""
        end = min(end, self._size)
        while start + len(what) <= end:
            begin = start - self._at
            if not 0 <= begin <= len(self._piece) - len(what):
                self._piece, self._at, begin = self._disk.read(self._descriptor, PIECE, start), start, 0
            found = self._piece.find(what, begin, end - self._at)
            if found >= 0:
                return self._at + found
            start = max(self._at + len(self._piece) - len(what), start) + 1
        return -1

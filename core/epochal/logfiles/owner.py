"""Ownership of a log: a lock that ends with its process, and files that name the last owner's incarnation and boot id.

Ownership is checked at every group commit. When the catalog cannot keep two publishers apart, only this does (E12
fencing). The lock keeps out a second process on this machine; the file of the incarnation shows that another machine
has taken the volume.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

from epochal.errors import CorruptLog, LogFull, LogTaken, Superseded
from epochal.locks import FileLock, LockTaken
from epochal.logfiles.disk import Disk, put_in_place, write_aside

LOCK = "owner.lock"
INCARNATION = "incarnation"
BOOT = "boot"


class LastOwner(NamedTuple):
    """The content of the file `boot`, about the last process that owned the log; None for fields it does not have."""

    boot: str | None
    """The boot id of its machine, which changes with each start of the machine."""
    relaxed: bool | None
    """Whether it acknowledged appends before they were synced (`durability: interval`)."""


class LogOwner:
    """Holds the log directory from its making until `leave`.

    `instance` names this process. Raises `LogTaken`, naming the other owner.
    """

    def __init__(self, directory: Path, instance: str, disk: Disk) -> None:
        self._path = directory / INCARNATION
        self._instance = instance
        self._disk = disk
        self._boot = directory / BOOT
        self._lock = FileLock(directory / LOCK, instance)
        try:
            self._lock.__enter__()
        except LockTaken as taken:
            raise LogTaken(f"{directory} belongs to {taken.holder}") from None
        self._claimed: tuple[int, ...] = ()

    def incarnation(self) -> int:
        """The last incarnation that was claimed here, 0 if none was. Raises `CorruptLog` for an unreadable file."""
        try:
            return int(json.loads(self._path.read_bytes())["incarnation"])
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptLog(self._path, reason=f"it names no incarnation ({error})") from None

    def claim(self, incarnation: int) -> None:
        """Claim the log for `incarnation`, durably; the caller has checked that it is higher than any before.

        Raises `LogFull`, `OSError`.
        """
        text = json.dumps({"incarnation": incarnation, "instance": self._instance})
        self._disk.close(write_aside(self._disk, self._path, [text.encode()]))
        put_in_place(self._disk, self._path)
        self._claimed = self._identity()

    def last(self) -> LastOwner:
        """The last content that `note_boot` wrote; both fields are None if it cannot be read."""
        try:
            noted = json.loads(self._boot.read_bytes())
            return LastOwner(str(noted["boot"]), bool(noted["relaxed"]))
        except (OSError, ValueError, KeyError, TypeError):
            return LastOwner(None, None)

    def note_boot(self, boot: str | None, *, relaxed: bool) -> None:
        """Write this owner's boot id and durability, durably. On a full disk, or without `boot`, remove the file.

        Call it only after the log has recorded the aborts that `last` made necessary. Raises `OSError`.
        """
        try:
            if boot is not None:
                text = json.dumps({"boot": boot, "relaxed": relaxed})
                self._disk.close(write_aside(self._disk, self._boot, [text.encode()]))
                put_in_place(self._disk, self._boot)
                return
        except LogFull:
            pass
        if self._boot.exists():
            self._disk.remove(self._boot)
            self._disk.sync_directory(self._boot.parent)

    def check(self) -> None:
        """Raise `Superseded` unless the incarnation file is still the one that `claim` wrote. Costs one stat."""
        if self._identity() != self._claimed:
            raise Superseded(f"another process has claimed {self._path.parent}")

    def leave(self) -> None:
        """Release the lock, so that others can own the log."""
        self._lock.__exit__()

    def _identity(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return ()
        return found.st_dev, found.st_ino, found.st_mtime_ns

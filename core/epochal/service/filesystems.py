"""Finds the file system of a path, and decides whether data that must last may be kept there.

It turns the kernel's list of mounts into a verdict. A database and a log need locks that hold and an fsync that writes
to the disk, and SQLite also needs memory that is shared between openings of a file. A network file system guarantees
none of these.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

_SHARED = frozenset(
    (
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
        "nfs4", "orangefs", "panfs", "prl_fs", "pvfs2", "shfs", "smb2", "smb3", "smbfs", "sshfs", "vboxsf", "virtiofs",
        "vmhgfs", "wekafs",
    )
)  # fmt: skip
"""Types of file systems whose data another machine keeps, or the host of this virtual machine."""
_LOCAL_FUSE = frozenset(("fuseblk", "fuse.fuse-overlayfs"))
_FUSE = re.compile(r"fuse([.2-9]|$)")
_OCTAL = re.compile(r"\\([0-7]{3})")


class FilesystemVerdict(StrEnum):
    """Whether data that must last may be kept on a file system."""

    FIT = "fit"
    SHARED = "shared"
    """Never: its data is kept on another machine."""
    UNKNOWN = "unknown"
    """A program implements it (FUSE), and what that program guarantees is not known here."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo: a mount, its parent mount, its path, and the type of its file system."""

    id: str
    parent: str
    point: PurePosixPath
    kind: str


def objection(path: Path, *, trusted: str, setting: str, danger: str) -> str | None:
    """Why a service may not keep its data in `path`, an existing directory; None when it may.

    `trusted`: a type of FUSE file system that is accepted; `setting`: the environment variable that names it; `danger`:
    what can happen otherwise, for the text.
    """
    kind = kind_of(PurePosixPath(path.resolve()), mountinfo())
    verdict = judge(kind)
    if verdict is FilesystemVerdict.FIT or (verdict is FilesystemVerdict.UNKNOWN and kind == trusted):
        return None
    advice = "give a directory on a local disk (--data)"
    if verdict is FilesystemVerdict.UNKNOWN:
        advice += f"; if this one keeps its data on this machine, locks files and means its fsync, set {setting}={kind}"
    return f"the data directory {path} is on a {kind} file system, where {danger}; {advice}"


def mountinfo() -> str:
    """The kernel's list of mounts; empty where there is none."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def judge(kind: str) -> FilesystemVerdict:
    """Whether data that must last may be kept on a file system of this type.

    >>> judge("ext4"), judge("fuse.sshfs"), judge("fuse.mergerfs")
    (<FilesystemVerdict.FIT: 'fit'>, <FilesystemVerdict.SHARED: 'shared'>, <FilesystemVerdict.UNKNOWN: 'unknown'>)
    """
    if kind.removeprefix("fuse.") in _SHARED:
        return FilesystemVerdict.SHARED
    return FilesystemVerdict.UNKNOWN if _FUSE.match(kind) and kind not in _LOCAL_FUSE else FilesystemVerdict.FIT


def kind_of(path: PurePosixPath, mountinfo: str) -> str:
    """The type of the file system that holds an absolute path without links; empty when there is none.

    Goes from mount to mount, starting at the root, as the kernel does. A longest prefix is not enough: a mount can be
    hidden by a later mount on a directory above it.
    """
    mounts = [mount for mount in map(_parse, mountinfo.splitlines()) if mount is not None]
    mounts = [mount for mount in mounts if path.is_relative_to(mount.point)]
    known = {mount.id for mount in mounts}
    below = [mount for mount in mounts if mount.parent not in known or mount.parent == mount.id]
    kind = ""
    while below:
        found = min(below, key=lambda mount: len(mount.point.parts))
        kind = found.kind
        below = [mount for mount in mounts if mount.parent == found.id != mount.id]
    return kind


def _parse(line: str) -> Mount | None:
    """One line: `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS`; None for any other."""
    before, _, after = line.partition(" - ")
    head, tail = before.split(" "), after.split(" ")
    if len(head) < 6 or not tail[0]:
        return None
    return Mount(head[0], head[1], PurePosixPath(_OCTAL.sub(_unescaped, head[4])), tail[0])


def _unescaped(match: "re.Match[str]") -> str:
    return chr(int(match[1], 8))

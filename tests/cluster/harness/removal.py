"""Removes from the machine what a node has there beside its directory: processes, links, control groups.

Separate from what starts a node, because it asks the machine instead of the state that a start writes down: a start
that was cut off may have written none, and the number in an old one may be another node's by now.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.cluster.harness.programs import started_at

CGROUPS = Path("/sys/fs/cgroup")
_LINKS = Path("/sys/class/net")
_LONGEST_MARK = 255
"""Bytes that the kernel takes as the alias of a link."""
_POLL = 0.1


class RemainsError(Exception):
    """Something could not be removed; the message names each thing. Removing can be tried again."""


def mark(link: str, directory: Path) -> None:
    """Write on a link whose it is."""
    subprocess.run(["ip", "link", "set", link, "alias", _marked(directory)], check=True)


def owner(link: str) -> str | None:
    """Whose a link is, as `mark` wrote it: empty if nobody did; None if there is no such link."""
    try:
        return (_LINKS / link / "ifalias").read_text().strip()
    except OSError:
        return None


def links_of(directory: Path) -> list[str]:
    """The links that are marked for this directory."""
    return [path.name for path in _LINKS.iterdir() if owner(path.name) == _marked(directory)]


def groups(name: str) -> list[Path]:
    """The control group of that name: one directory, or with cgroup v1 one for each controller."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS / name]
    trees = [path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]
    return [tree / name for tree in trees]


def remove(directory: Path, names: Iterable[str], processes: Mapping[int, int], timeout: float) -> list[str]:
    """End processes, then remove links and control groups of these names; returns what is left after `timeout` seconds.

    Args:
        directory: For whom the links are marked. A name whose link is another's is left alone, with its control group.
        names: Of links and control groups.
        processes: Their pids, and when each started (`started_at`). With the first one in a namespace of processes end
            all others there; their mounts, links and rules end with them.
        timeout: Seconds for all of it.
    """
    deadline = time.monotonic() + timeout
    while True:
        left = [*_end(processes)]
        for name in names:
            if owner(name) in (None, _marked(directory)):
                left += _remove_groups(name)
                left += _remove_link(name)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL)


def _marked(directory: Path) -> str:
    return os.fsencode(directory)[-_LONGEST_MARK:].decode(errors="replace")


def _end(processes: Mapping[int, int]) -> Iterable[str]:
    for pid, start in processes.items():
        if started_at(pid) == start:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            yield f"process {pid}"


def _remove_groups(name: str) -> Iterable[str]:
    for group in groups(name):
        for path, _, _ in os.walk(group, topdown=False):
            _thaw(Path(path))
            with suppress(OSError):
                os.rmdir(path)
        if group.exists():
            inside = [pid for path, _, _ in os.walk(group) for pid in _members(Path(path))]
            yield f"control group {group}" + (f" with the processes {', '.join(inside)}" if inside else "")


def _thaw(group: Path) -> None:
    """Let what was frozen here go on: with cgroup v1 a frozen process does not end, not even by SIGKILL."""
    with suppress(OSError):
        if (state := group / "freezer.state").read_text() != "THAWED\n":
            state.write_text("THAWED")


def _members(group: Path) -> list[str]:
    with suppress(OSError):
        return (group / "cgroup.procs").read_text().split()
    return []


def _remove_link(name: str) -> Iterable[str]:
    if owner(name) is not None:
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
        if owner(name) is not None:
            yield f"network link {name}"

"""Which processes run, as the kernel tells."""

import asyncio
from pathlib import Path

from tests.forking import NAME as FORKS
from tests.patience import PATIENCE


def runs(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    stat = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return bool(stat) and stat[0] != b"Z"


async def until_ended(*pids: int, seconds: float = PATIENCE) -> None:
    """Wait for the end of processes that are not this one's children. Raises `TimeoutError`."""
    async with asyncio.timeout(seconds):
        while any(map(runs, pids)):  # noqa: ASYNC110 - the kernel tells us of a stranger's end in no other way
            await asyncio.sleep(0.02)


def children(pid: int) -> list[int]:
    """The running children of a process, started by any of its threads; none when it has ended."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        found = [int(child) for task in tasks.iterdir() for child in _read(task / "children").split()]
    except OSError:
        return []
    return [child for child in found if runs(child) and not _only_helps(child)]


def marked(mark: str) -> set[int]:
    """Processes that run and carry `mark` in their environment, which is inherited."""
    running = {path for path in Path("/proc").iterdir() if path.name.isdigit() and runs(int(path.name))}
    return {int(path.name) for path in running if mark.encode() in _read(path / "environ")}


def _only_helps(pid: int) -> bool:
    """Whether a process only helps others to start: that of multiprocessing, or one that programs are forked from."""
    called = _read(Path(f"/proc/{pid}/comm")).decode().strip()
    return called == FORKS or b"resource_tracker" in _read(Path(f"/proc/{pid}/cmdline"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""

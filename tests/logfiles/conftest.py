"""A log on a disk that can forget, run full and fail, and what the tests write into it."""

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epochal.errors import LogFailed
from epochal.logfiles import LogBatch, LogSettings, SegmentLog
from epochal.logfiles.disk import OSDisk
from epochal.protocol import messages as m
from epochal.protocol.log.file_format import LogCheckpoint
from epochal.protocol.log.frames import decode_entry, entries, entry
from epochal.protocol.log.history import SegmentState


@dataclass
class Inode:
    """What a file holds for certain, and what may or may not follow."""

    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(offset, bytes written there), or (size, None) for a cut."""

    def after_a_crash(self, chance: random.Random) -> bytes:
        """The synced bytes, and any part of the rest."""
        held = bytearray(self.synced)
        for offset, data in self.pending:
            fate = chance.random()
            if data is None:
                if fate < 0.5:
                    del held[offset:]
                continue
            if fate < 0.3:
                continue
            begin, end = (
                (0, len(data)) if fate < 0.6 else sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
            )
            longer = offset + (len(data) if fate > 0.9 else end) - len(held)  # a length may be kept without the bytes
            held.extend(bytes(max(longer, 0)))
            held[offset + begin : offset + end] = data[begin:end]
        return bytes(held)


class Shim(OSDisk):
    """The real disk, of which it is remembered what was synced.

    `room` bytes can still be written, if it is set; `broken` names calls that fail with an I/O error.
    """

    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.synced_names: dict[Path, Inode] = {}
        self.open_files: dict[int, Inode] = {}
        self.moves: list[dict[Path, Inode]] = []
        self.removed: dict[Path, Inode] = {}
        self.room: int | None = None
        self.broken: set[str] = set()
        self.syncs = 0

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self.open_files[descriptor] = self.names[path] = Inode()
        self._moved()
        return descriptor

    def open(self, path: Path, *, writing: bool = False) -> int:
        descriptor = super().open(path, writing=writing)
        if path in self.names:
            self.open_files[descriptor] = self.names[path]
        return descriptor

    def write(self, descriptor: int, buffers: Sequence[bytes], offset: int) -> None:
        self._may("write")
        data = b"".join(buffers)
        some = data if self.room is None else data[: self.room]
        self.open_files[descriptor].pending.append((offset, some))
        super().write(descriptor, [some], offset)
        if self.room is not None:
            self.room -= len(some)
        if len(some) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        self._may("read")
        return super().read(descriptor, size, offset)

    def truncate(self, descriptor: int, size: int) -> None:
        self._may("truncate")
        self.open_files[descriptor].pending.append((size, None))
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        self._may("sync")
        self.syncs += 1
        inode = self.open_files[descriptor]
        inode.synced = super().read(descriptor, self.size(descriptor), 0)
        inode.pending.clear()

    def rename(self, old: Path, new: Path) -> None:
        self._may("rename")
        super().rename(old, new)
        self.names[new] = self.names.pop(old)
        self._moved()

    def remove(self, path: Path) -> None:
        super().remove(path)
        if path in self.names:
            self.removed[path] = self.names.pop(path)
        self._moved()

    def sync_directory(self, path: Path) -> None:
        self._may("sync_directory")
        self.synced_names = dict(self.names)
        self.moves.clear()
        self.removed.clear()

    def crash(self, chance: random.Random) -> None:
        """Lose power: what was synced stays, the rest may.

        Names change in order, up to some point; what was removed may be back, whatever became of other files.
        """
        left = dict(chance.choice([self.synced_names, *self.moves]))
        left |= {path: inode for path, inode in self.removed.items() if chance.random() < 0.5}
        held = {path: inode.after_a_crash(chance) for path, inode in left.items()}
        for path in [*self.names, *left]:
            path.unlink(missing_ok=True)
        self.names = {path: Inode(data) for path, data in held.items()}
        for path, data in held.items():
            path.write_bytes(data)
        self.synced_names = dict(self.names)
        self.moves, self.removed, self.open_files, self.room, self.broken = [], {}, {}, None, set()

    def _moved(self) -> None:
        self.moves.append(dict(self.names))

    def _may(self, call: str) -> None:
        if call in self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Clock:
    """Milliseconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.jumped = 0
        """How much of it was no time that passed: the clock was set."""

    def __call__(self) -> int:
        return self.now


def event(seq: int, payload: bytes = b"payload") -> m.Data:
    """An event at time `seq`."""
    return m.Data(seq, seq - 1, seq, b"t", 1, 0, payload)


def state(seq: int) -> SegmentState:
    """The state behind event `seq`, as these tests count."""
    return SegmentState(seq, (seq + 1,), (), ())


def payloads(batch: LogBatch | None) -> list[tuple[int, bytes]]:
    """(seq, payload) of each event."""
    if batch is None:
        return []
    read: list[Any] = [decode_entry(one) for data in batch.data for one in entries(data)]
    assert [one.seq for one in read] == list(range(batch.first, batch.last + 1))
    return [(one.seq, one.payload) for one in read]


class Bench:
    """A log in a directory of its own, and how tests use it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.disk, self.clock = directory, Shim(), Clock()
        self.incarnation = 0

    def open(self, **settings: Any) -> SegmentLog:
        """Open the log without beginning an incarnation."""
        return SegmentLog.open(
            self.directory,
            "uid",
            "0",
            instance="a test",
            settings=LogSettings(**settings),
            disk=self.disk,
            clock=self.clock,
            steady=lambda: self.clock.now - self.clock.jumped,
        )

    def begin(self, **settings: Any) -> SegmentLog:
        """Open the log and begin the next incarnation."""
        log = self.open(**settings)
        self.incarnation = log.incarnation + 1
        log.begin(self.incarnation, LogCheckpoint(state(log.last), b"%d" % log.last))
        return log

    def append(self, log: SegmentLog, *sizes: int, notes: bytes = b"", sync: bool = True) -> None:
        """One frame with an event of each payload size."""
        events = [
            part for number, size in enumerate(sizes) for part in entry(event(log.last + 1 + number, bytes(size)))
        ]
        log.write(len(sizes), events, notes)
        if sync:
            log.sync()

    def fill(self, log: SegmentLog, count: int, size: int = 100) -> None:
        """So many frames of one event, in files as the settings want them."""
        for _ in range(count):
            self.append(log, size)
            if log.roll_due:
                log.roll(LogCheckpoint(state(log.last), b"%d" % log.last))

    def entry(self, seq: int, size: int) -> list[bytes]:
        """The entry of one event with a payload of `size` zeros."""
        return entry(event(seq, bytes(size)))

    def count_opens(self) -> Callable[[], int]:
        """How often a file has been opened since."""
        count, opens = 0, self.disk.open

        def counting(path: Path, *, writing: bool = False) -> int:
            nonlocal count
            count += 1
            return opens(path, writing=writing)

        self.disk.open = counting  # type: ignore[method-assign]
        return lambda: count

    def held(self) -> int:
        """How many descriptors of this process are of files of the log; others come and go with its threads."""
        count = 0
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # closed meanwhile
                count += Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent == self.directory
        return count

    def kill(self, log: SegmentLog, seed: int) -> None:
        """End the process and the machine at once."""
        self.disk.broken.add("sync")
        with suppress(LogFailed):
            log.close()
        self.disk.crash(random.Random(seed))

    def read(self, log: SegmentLog, after: int = -1, max_events: int = 100, max_bytes: int = 10_000) -> list[int]:
        """The seqs of all events after a position, read piece by piece."""
        found: list[int] = []
        while (batch := log.read(after, max_events, max_bytes)) is not None:
            found.extend(seq for seq, _ in payloads(batch))
            after = batch.last
        return found

    def files(self) -> list[Path]:
        """The log files, oldest first."""
        return sorted(self.directory.glob("*.log"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A log to be."""
    return Bench(tmp_path / "log")


@pytest.fixture
def toolbox() -> dict[str, Callable[..., Any]]:
    """What a state machine, which takes no fixtures, needs."""
    return {"bench": Bench, "event": event, "state": state, "payloads": payloads}


@pytest.fixture
def log(bench: Bench) -> Iterator[SegmentLog]:
    """A log with its first incarnation begun, in files of 4 KiB."""
    with bench.begin(file_bytes=4096) as log:
        yield log

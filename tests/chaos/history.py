"""What every actor did and saw, kept so that no kill can lose it: JSON lines, one file an actor, one write a line.

The actors write it, and the checker judges it. A call is written down before it is made (`invoke`), and again when its
outcome is known (`ok`: it was done, `fail`: it was not). A call without an outcome may have been done or not. `info` is
what an actor saw, or did to others.

It uses no code of the project: the code under test must not read the evidence against it.
"""

import asyncio
import contextlib
import json
import os
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Self, TypeAlias

Time: TypeAlias = int | tuple["Time", ...]
"""A logical time: an int, or times in a tuple."""
NEMESIS = "nemesis"
"""The actor that does things to the others."""
LOOK_SECONDS, LATE_SECONDS = 0.25, 1.0
"""How often an event loop is looked at, and how late it must be for that to be written down."""


class Phase(StrEnum):
    """How far a call has come."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Entry(NamedTuple):
    """One line. `at`: seconds of the machine's monotonic clock; `life`: how often the actor was started before."""

    at: float
    actor: str
    life: int
    op: str
    phase: Phase
    data: dict[str, Any]

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps([round(self.at, 6), *self[1:]], separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read a line."""
        at, actor, life, op, phase, data = json.loads(line)
        return cls(at, actor, life, op, Phase(phase), data)

    def time(self, name: str = "time") -> Time:
        """A field that holds a time."""
        return as_time(self.data[name])

    def times(self, name: str) -> tuple[Time, ...]:
        """A field that holds times."""
        return tuple(map(as_time, self.data[name]))


class Recorder:
    """Writes the history of one life of one actor.

    A line is one `write` to a file opened for appending: the kernel has it before the call returns, so that a kill of
    the process loses nothing.
    """

    def __init__(self, directory: Path, actor: str, life: int = 0) -> None:
        self.actor, self.life = actor, life
        self._file = os.open(directory / f"{actor}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def write(self, op: str, phase: Phase = Phase.INFO, /, **data: Any) -> None:
        """Write a line, which is kept before anything else happens."""
        entry = Entry(monotonic(), self.actor, self.life, op, phase, data)
        os.write(self._file, entry.to_json().encode() + b"\n")


@contextlib.asynccontextmanager
async def watched(*recorders: Recorder) -> AsyncIterator[None]:
    """Write a line `stalled` to each of `recorders` whenever this event loop was late by more than `LATE_SECONDS`.

    When the machine has no time for a process, its actors are silent too: that is no fault of the code under test.
    """
    watching = asyncio.create_task(_watch(recorders))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(recorders: Iterable[Recorder]) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        late = clock() - due
        if late > LATE_SECONDS:
            for recorder in recorders:
                recorder.write("stalled", seconds=round(late, 3))


def as_time(value: Any) -> Time:
    """A time from a field, where tuples are lists."""
    return value if isinstance(value, int) else tuple(map(as_time, value))


def times(values: Iterable[Time]) -> list[Any]:
    """Times as fields hold them."""
    return [value if isinstance(value, int) else times(value) for value in values]


def read(directory: Path) -> list[Entry]:
    """The whole history, by time. A last line that was cut short is ignored."""
    entries = [entry for path in directory.glob("*.jsonl") for entry in read_file(path)]
    return sorted(entries, key=lambda entry: entry.at)


def read_file(path: Path) -> list[Entry]:
    """What one actor wrote, in its order."""
    lines = path.read_text().split("\n") if path.exists() else [""]
    return [Entry.from_json(line) for line in lines[:-1]]


Record = Sequence[Any]
"""What writers publish: an id that is used once, and some filling."""


def digest(record: Record) -> int:
    """A checksum, which shows that a record arrived as it was sent."""
    return zlib.crc32(f"{record[0]} ".encode() + record[1])

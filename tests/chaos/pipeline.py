"""The actors of a round: a writer and a subscriber, each a process that writes its history while it works.

Apart from whoever damages them: an actor knows of no faults. It does what an application should do with each error,
and never judges. Started again after a kill, a writer resumes its session and a subscriber its saved cursor.
"""

import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.history import Phase, Recorder, digest, times

import epochal
from epochal.errors import (
    AppendsLost,
    CapabilityError,
    EpochAbortedError,
    EpochalError,
    HistoryTruncated,
    StreamComplete,
    Unavailable,
    WriterLost,
)
from epochal.protocol.cursors import Cursor

KEYS = 32
"""Enough different keys for every segment to get some."""
WAIT = 60.0
"""Seconds for a stream to have all its publishers, on a busy machine."""
ABORTS = 0.04
"""How likely a writer aborts an epoch of its own."""
PAUSE = 0.02
"""Seconds between appends, at most."""


class Part(NamedTuple):
    """Whom an actor is. `life`: how often it was started before."""

    url: str
    stream: str
    name: str
    life: int
    directory: Path
    seed: str
    pace: float = 0.0
    """Seconds, at most, that a subscriber works on each epoch: others wait then, and a kill meets them waiting."""

    @property
    def over(self) -> Path:
        """Exists once writers shall finish."""
        return self.directory / "over"

    @property
    def saved(self) -> Path:
        """Where a subscriber keeps its cursor."""
        return self.directory / f"{self.name}.cursor"


def write(part: Part) -> None:
    """Be a writer until the stream shall be finished, and finish."""
    asyncio.run(_Writing(part).run())


class _Writing:
    def __init__(self, part: Part) -> None:
        self._part, self._rng = part, random.Random(f"{part.seed}/{part.name}/{part.life}")
        self._recorder = Recorder(part.directory, part.name, part.life)
        self._appends = self._moves = 0

    async def run(self) -> None:
        part = self._part
        async with epochal.connect(part.url) as client:
            while True:
                try:
                    async with client.writer(part.stream, writer_id=part.name, wait=WAIT) as writer:
                        await self._publish(writer)
                except StreamComplete:
                    return  # it was finished, and the answer was lost
                except (Unavailable, AppendsLost, EpochAbortedError, WriterLost) as error:
                    self._error(error)
                except EpochalError as error:
                    self._error(error)
                    raise
                else:
                    return

    def _error(self, error: EpochalError) -> None:
        if isinstance(error, AppendsLost):
            self._recorder.write("told")
        self._recorder.write("error", code=error.code, text=str(error))

    async def _publish(self, writer: epochal.Writer) -> None:
        for time in writer.pending_epochs:
            if self._rng.random() < 0.5:  # else it is finished below
                await self._abort(writer, time)
        while not self._part.over.exists():
            (time,) = writer.held
            try:
                for _ in range(self._rng.randint(1, 6)):
                    await self._append(writer, time)
                    await asyncio.sleep(self._rng.random() * PAUSE)
                if self._rng.random() < ABORTS:
                    await self._abort(writer, time)
                await self._leave(writer, time + 1)
            except (AppendsLost, EpochAbortedError, WriterLost, CapabilityError) as error:
                self._error(error)
                await self._pass(writer, time)
        await self._leave(writer, None)

    async def _pass(self, writer: epochal.Writer, time: int) -> None:
        """Leave an epoch that is aborted."""
        while writer.held[0] <= time:
            try:
                await self._leave(writer, time + 1)
            except (AppendsLost, EpochAbortedError, WriterLost, CapabilityError) as error:
                self._error(error)
                await asyncio.sleep(PAUSE)

    async def _append(self, writer: epochal.Writer, time: int) -> None:
        part, key = self._part, bytes([self._rng.randrange(KEYS)])
        count = self._rng.randint(1, 3)
        records = [
            [f"{part.name}/{part.life}/{self._appends + n}", self._rng.randbytes(self._rng.randint(0, 200))]
            for n in range(count)
        ]
        self._appends += count
        data: dict[str, Any] = {
            "ids": [record[0] for record in records],
            "digests": [digest(record) for record in records],
            "segment": writer.segment(key),
            "time": time,
        }
        self._recorder.write("append", Phase.INVOKE, **data)
        try:
            position = await writer.append(time, records, key=key)
        except (EpochAbortedError, CapabilityError):
            self._recorder.write("append", Phase.FAIL, **data)
            raise
        self._recorder.write("append", Phase.OK, **data, position=list(position))

    async def _leave(self, writer: epochal.Writer, to: int | None) -> None:
        """A leave that raises has no outcome: some of the publishers may have been told."""
        self._moves += 1
        self._recorder.write("leave", Phase.INVOKE, n=self._moves, to=to)
        await (writer.finish() if to is None else writer.advance(to))
        self._recorder.write("leave", Phase.OK, n=self._moves, to=to)

    async def _abort(self, writer: epochal.Writer, time: int) -> None:
        self._recorder.write("abort", Phase.INVOKE, time=time)
        with suppress(EpochAbortedError, CapabilityError):  # somebody else did; or it is left, as after a time-out
            await writer.abort(time)
            self._recorder.write("abort", Phase.OK, time=time)


def read(part: Part, since: str | None) -> None:
    """Be a subscriber to the end of the stream, from the saved cursor if there is one."""
    asyncio.run(_Reading(part).run(since))


class _Reading:
    def __init__(self, part: Part) -> None:
        self._part, self._recorder = part, Recorder(part.directory, part.name, part.life)
        self._rng = random.Random(f"{part.seed}/{part.name}/{part.life}")
        self._last = 0

    async def run(self, since: str | None) -> None:
        saved = self._part.saved
        async with epochal.connect(self._part.url) as client:
            while True:
                begin = Cursor.from_json(saved.read_text()) if saved.exists() else since
                self._recorder.write("join", since="cursor" if isinstance(begin, Cursor) else since)
                try:
                    await self._subscribe(client, begin)
                except EpochalError as error:
                    self._recorder.write("error", code=error.code, text=str(error))
                    if not isinstance(error, HistoryTruncated | Unavailable):
                        raise
                    if isinstance(error, HistoryTruncated):
                        saved.unlink(missing_ok=True)  # what the cursor stands at is gone with a publisher (E11)
                else:
                    return

    async def _subscribe(self, client: epochal.Client, since: Any) -> None:
        async with client.subscribe(self._part.stream, since=since, wait=WAIT) as sub:
            await sub.ready.wait()
            self._recorder.write("ready", frontier=times(sub.frontier()))
            await self._follow(sub)

    async def _follow(self, sub: epochal.Subscription) -> None:
        async for epoch in sub.epochs():
            frontier = times(sub.frontier())
            if isinstance(epoch, epochal.Epoch):
                parts: dict[str, list[tuple[str, int]]] = {}
                for batch in epoch.batches:
                    found = parts.setdefault(batch.segment, [])
                    found += [(record[0], digest(record)) for record in batch.records()]
                self._recorder.write("epoch", time=epoch.time, frontier=frontier, parts=parts)
            else:
                self._recorder.write("aborted", time=epoch.time, frontier=frontier)
            self._last = max(self._last, epoch.time)
            self._save(sub.cursor())
            if not self._part.over.exists():  # afterwards it catches up
                await asyncio.sleep(self._rng.random() * self._part.pace)
        self._recorder.write("whole", times=[time for time in range(self._last + 1) if sub.saw_whole(time)])
        self._recorder.write("end", frontier=times(sub.frontier()))

    def _save(self, cursor: Cursor) -> None:
        """Replace the file, then say so: a kill between the two makes the checker expect less, never more."""
        beside = self._part.saved.with_suffix(".new")
        beside.write_text(cursor.to_json())
        os.replace(beside, self._part.saved)
        self._recorder.write("save", frontier=times(cursor.frontier))

"""The actors of a round: a writer and two kinds of subscriber, each a process that writes its history while it works.

An actor knows nothing about faults. It does what an application should do with each error, and never judges. When it is
restarted after a kill, a writer resumes its session and a subscriber its saved cursor. The subscriber without an event
loop can be interrupted (Ctrl-C) as well: then it saves its cursor, and goes on.

Only public names of `epochal` are used: tests of upgrades run this file with the client of the version before.
"""

import asyncio
import json
import os
import random
import signal
import threading
import time as clock
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tests.chaos.history import Phase, Recorder, digest, times, watched

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

KEYS = 32
"""So many different keys that every segment gets some."""
WAIT = 60.0 * float(os.environ.get("EPOCHAL_TEST_PATIENCE", "1"))
"""`PATIENCE` of tests/patience.py, which does not come along into pods: for a stream to have all its publishers."""
ABORTS = 0.04
"""The probability that a writer aborts an epoch of its own."""
RESTS = 0.1
"""The probability that the interruptible subscriber works on an epoch, for all those on which it did not."""
FETCH = 0.001
"""Seconds that fetching an epoch that is already waiting takes, roughly."""
NEAR = 3
"""How far from the frontier the times are for which a subscriber asks whether it saw them whole."""
PAUSE = 0.02
"""Seconds between appends, at most."""


class Part(NamedTuple):
    """Which actor it is. `life`: how often it was started before."""

    url: str
    stream: str
    name: str
    life: int
    directory: Path
    seed: str
    pace: float = 0.0
    """Seconds, at most, that a subscriber works on each epoch: others wait then, and a kill can come while they do."""
    via: str = "auto"
    """Which way a subscriber without interrupts takes."""

    @property
    def over(self) -> Path:
        """A file that exists once writers shall finish."""
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
        async with watched(self._recorder):
            await self._write()

    async def _write(self) -> None:
        part = self._part
        async with epochal.connect(part.url) as client:
            while True:
                try:
                    async with client.writer(part.stream, writer_id=part.name, wait=WAIT) as writer:
                        await self._publish(writer)
                except StreamComplete as error:
                    # It had finished and the answer was lost, or it was given up and the others finished meanwhile.
                    self._error(error)
                    return
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
        except (EpochAbortedError, CapabilityError) as error:
            self._recorder.write("append", Phase.FAIL, **data, code=error.code)
            raise
        self._recorder.write("append", Phase.OK, **data, position=list(position))

    async def _leave(self, writer: epochal.Writer, to: int | None) -> None:
        """Leave. If that raises, no outcome is written: it may have reached some of the publishers."""
        self._moves += 1
        held = times(() if to is None else (to,))
        self._recorder.write("leave", Phase.INVOKE, n=self._moves, held=held)
        await (writer.finish() if to is None else writer.advance(to))
        self._recorder.write("leave", Phase.OK, n=self._moves)

    async def _abort(self, writer: epochal.Writer, time: int) -> None:
        self._recorder.write("abort", Phase.INVOKE, time=time)
        with suppress(EpochAbortedError, CapabilityError):  # another writer did; or it is left, as after a time-out
            await writer.abort(time)
            self._recorder.write("abort", Phase.OK, time=time)


def read(part: Part, since: str | None) -> None:
    """Be a subscriber to the end of the stream, from the saved cursor if there is one."""
    asyncio.run(_Reading(part, since).run())


def read_blocking(part: Part, since: str | None) -> None:
    """The same without an event loop; SIGINT interrupts the loop over the epochs, wherever it is."""
    _BlockingReading(part, since).run()


Item: TypeAlias = "epochal.Epoch | epochal.EpochAborted"
AnySubscription: TypeAlias = "epochal.Subscription | epochal.BlockingSubscription"


class _Reader:
    """What both kinds of subscriber write down and save."""

    def __init__(self, part: Part, since: str | None) -> None:
        self._part, self._since, self._recorder = part, since, Recorder(part.directory, part.name, part.life)
        self._rng = random.Random(f"{part.seed}/{part.name}/{part.life}")
        self._last = self._saved = 0

    def _begin(self) -> Any:
        """Decide where to begin now, and write that down."""
        saved = self._part.saved
        if not saved.exists():
            self._recorder.write("join", since=self._since)
            return self._since
        document = json.loads(saved.read_text())
        self._saved = document["n"]
        self._recorder.write("join", since="cursor", n=self._saved)
        return epochal.Cursor.from_json(document["cursor"])

    def _failed(self, error: EpochalError) -> None:
        """Go on after some errors; raise the others."""
        self._recorder.write("error", code=error.code, text=str(error))
        if not isinstance(error, HistoryTruncated | Unavailable):
            raise error
        if isinstance(error, HistoryTruncated):
            self._part.saved.unlink(missing_ok=True)  # the history at the cursor is gone with a publisher (E11)

    def _ready(self, sub: AnySubscription) -> None:
        frontier = sub.frontier()
        self._recorder.write("ready", frontier=times(frontier))
        self._ask(sub, frontier)

    def _took(self, epoch: Item, sub: AnySubscription) -> None:
        """Write down what was handed over, what is known by now, and where to resume."""
        frontier = sub.frontier()
        if isinstance(epoch, epochal.Epoch):
            parts: dict[str, list[tuple[str, int]]] = {}
            for batch in epoch.batches:
                found = parts.setdefault(batch.segment, [])
                found += [(record[0], digest(record)) for record in batch.records()]
            self._recorder.write("epoch", time=epoch.time, frontier=times(frontier), parts=parts)
        else:
            self._recorder.write("aborted", time=epoch.time, frontier=times(frontier))
        self._last = max(self._last, epoch.time)
        self._ask(sub, frontier, epoch.time)
        self._save(sub.cursor())

    def _ask(self, sub: AnySubscription, frontier: Iterable[int], *more: int) -> None:
        """Ask which times near the frontier were seen whole."""
        near = {time for middle in (*frontier, *more) for time in range(middle - NEAR, middle + NEAR) if time >= 0}
        self._write_whole(sub, near)

    def _write_whole(self, sub: AnySubscription, asked: Iterable[int]) -> None:
        whole = [time for time in sorted(asked) if sub.saw_whole(time)]
        self._recorder.write("whole", frontier=times(sub.frontier()), times=whole)

    def _end(self, sub: AnySubscription) -> None:
        self._write_whole(sub, range(self._last + NEAR))
        self._recorder.write("end", frontier=times(sub.frontier()))

    def _save(self, cursor: epochal.Cursor) -> None:
        """Write down the cursor and its number, then replace the file: the next life writes which number it found."""
        self._saved += 1
        self._recorder.write(
            "save", n=self._saved, frontier=times(cursor.frontier), untold=times(cursor.unreported_aborts)
        )
        beside = self._part.saved.with_suffix(".new")
        beside.write_text(json.dumps({"n": self._saved, "cursor": cursor.to_json()}))
        os.replace(beside, self._part.saved)

    def _pace(self) -> float:
        """Seconds to work on an epoch; once the writers shall finish, it catches up."""
        return 0.0 if self._part.over.exists() else self._rng.random() * self._part.pace


class _Reading(_Reader):
    async def run(self) -> None:
        async with epochal.connect(self._part.url) as client:
            while True:
                begin = self._begin()
                try:
                    async with client.subscribe(self._part.stream, since=begin, wait=WAIT, via=self._part.via) as sub:
                        await sub.ready.wait()
                        self._ready(sub)
                        async for epoch in sub.epochs():
                            self._took(epoch, sub)
                            await asyncio.sleep(self._pace())
                        self._end(sub)
                except EpochalError as error:
                    self._failed(error)
                else:
                    return


class _BlockingReading(_Reader):
    """Can be interrupted while it asks for the next epoch, and between two epochs.

    It is like a loop whose body an application has protected: what was handed over is always written down. An interrupt
    during the body is raised a moment later, at a random moment while the next epoch is fetched. Now and then the
    subscriber works longer, so that epochs are waiting.
    """

    def __init__(self, part: Part, since: str | None) -> None:
        super().__init__(part, since)
        self._open = self._interrupted = False
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        """As Python's own handler, but while nothing may be interrupted, it only notes the interrupt for later."""
        if self._open:
            self._open = False
            raise KeyboardInterrupt
        self._interrupted = True

    def run(self) -> None:
        with epochal.connect_blocking(self._part.url) as client:
            while True:
                begin = self._begin()
                try:
                    with client.subscribe(self._part.stream, since=begin, wait=WAIT) as sub:
                        sub.ready.wait()
                        self._ready(sub)
                        if self._follow(sub):
                            self._end(sub)
                            return
                except EpochalError as error:
                    self._failed(error)

    def _follow(self, sub: epochal.BlockingSubscription) -> bool:
        """Read to the end; False to leave the subscription, and resume the cursor, after an interrupt."""
        items = sub.epochs()
        while True:
            try:
                self._read(sub, items)
            except KeyboardInterrupt:
                self._save(sub.cursor())
                way = self._rng.choice(("resume", "ask again", "go on"))
                self._recorder.write("interrupted", way=way)
                if way == "resume":
                    return False
                if way == "ask again":
                    items = sub.epochs()
            else:
                return True
            finally:
                self._open = False

    def _read(self, sub: epochal.BlockingSubscription, items: Iterable[Item]) -> None:
        self._open = True
        for epoch in items:
            self._open = False
            self._took(epoch, sub)
            if self._rng.random() < RESTS:
                clock.sleep(self._pace() / RESTS)
            if self._interrupted:
                self._interrupted = False
                if self._rng.random() < 0.2:
                    raise KeyboardInterrupt
                later = self._rng.random() * FETCH
                threading.Timer(later, os.kill, (os.getpid(), signal.SIGINT)).start()
            self._open = True
        self._open = False

"""Whole streams under seeded chance on the real log code: files that roll, go with age, and are torn by crashes.

The publishers' machines and `SegmentLog` as they are, on a disk that forgets what was not synced when its machine
dies, while the time of day jumps. What must hold is what the simulation checks; here its logs are files.
"""

import os
import pickle
import shlex
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest
from tests.scale import LONG
from tests.seeds import fresh_seed
from tests.simulation import Report, SimulationFailed, __main__, simulate
from tests.simulation.disk import Checkpoint, Disk, checkpoint_of, doubted, events_of
from tests.simulation.world import World

from epochal.errors import LogError, LogFailed
from epochal.logfiles import LogSettings, SegmentLog
from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.log.file_format import LogCheckpoint, with_incarnation
from epochal.protocol.log.frames import decode_entry, entries, entry
from epochal.protocol.log.history import SegmentState, apply
from epochal.protocol.publisher.effects import PublisherEffect
from epochal.protocol.publisher.journal import Note, Restored, Restoring, encode_notes
from epochal.protocol.publisher.machine import SegmentPublisher

FRESH = 40
FIXED = 10
"""Seeds that are the same in each run, each for so long that what happens rarely happens in one of them."""
MANY = 150 * LONG
LARGE = 1 << 30
"""Bytes that no log here reaches: all of it must be kept."""
STEP = 200
"""Events that are looked at together where a reader's beginning is searched."""
DAY = 86_400_000
START = 1_000 * DAY


class Files(Disk):
    """The log of one segment in a directory of its own; counts what happened to it."""

    def __init__(self, world: World, directory: Path, shim: Any, seen: set[str]) -> None:
        super().__init__(world)
        self._directory, self._shim, self._seen = directory, shim, seen
        self._log: SegmentLog | None = None
        self._publisher: SegmentPublisher | None = None
        self._may_lack = False
        self._jumped = 0
        """Milliseconds by which the time of day has been set."""
        random = world.random
        self._settings = LogSettings(
            file_bytes=random.choice((1_500, 6_000)), max_bytes=random.choice((20_000, LARGE)), file_age=5.0
        )
        # Whole files go, and checkpoints take a part of them, so a small log promises no event but its last ones.
        self.keeps = inf if self._settings.max_bytes == LARGE else 0

    @property
    def log(self) -> SegmentLog:
        """The log of the present process."""
        assert self._log is not None
        return self._log

    def _now(self) -> int:
        return START + int(self._world.now * 1000)

    # ---- lives ----

    def restore(self, incarnation: int) -> Restored | None:
        """Open the log as a starting publisher does."""
        self.die()
        if self._world.chance(0.2):
            self._seen.add("clock set")
            self._jumped += self._world.random.choice((-DAY, DAY, -1_000))
        log = self._log = SegmentLog.open(
            self._directory, "uid", "0", instance="a test", settings=self._settings, disk=self._shim,
            clock=lambda: self._now() + self._jumped, steady=self._now, boot=lambda: f"boot {self.boots}",
        )  # fmt: skip
        self._may_lack = log.may_lack(relaxed=self.relaxed)
        found = log.recovered
        self.incarnations = list(with_incarnation(log.incarnations, incarnation, log.last + 1))
        if found is None:
            return None
        restoring = Restoring.after(found.checkpoint.state, found.checkpoint.machine, found.checkpoint.quiet_since)
        for frame in found.frames:
            restoring.entry(map(decode_entry, entries(frame.events)), frame.notes)
        if found.torn:
            self._seen.add("torn")
        log.forget_recovered()
        return restoring.end()

    @property
    def in_doubt(self) -> bool:
        """As the log tells."""
        return self._may_lack

    def begin(self, publisher: SegmentPublisher) -> list[PublisherEffect]:
        """Say so in the log."""
        checkpoint = _checkpoint(publisher)
        effects, logged = doubted(publisher) if self.in_doubt else ([], None)
        if logged is None:
            self.log.begin(publisher.incarnation, checkpoint, relaxed=self.relaxed)
        else:
            self._seen.add("doubted")
            events = events_of(effects)
            self.log.begin(
                publisher.incarnation, checkpoint, encode_notes(logged.notes), count=len(events),
                events=[part for event in events for part in entry(event)], relaxed=self.relaxed,
            )  # fmt: skip
        self._publisher, self._vouched = publisher, False
        publisher.history.archive(*self.log.start)
        return effects

    def die(self) -> None:
        """The process ends: nothing is written any more, and the kernel keeps what was; perhaps half of a write."""
        log, self._log = self._log, None
        if log is None:
            return
        if self._publisher is not None and self._world.chance(0.5):
            self._cut_a_write_short(log)
        self._publisher = None
        self._shim.broken.add("sync")
        with suppress(LogFailed):
            log.close()
        self._shim.broken.clear()

    def _cut_a_write_short(self, log: SegmentLog) -> None:
        """An entry of which nobody knows is under way; not all of it is written."""
        tail = log._tail
        assert tail is not None
        before = tail.file.end
        with suppress(LogError):
            log.write(1, list(entry(m.Aborted(log.last + 1, log.last, ()))))
            pending = self._shim.open_files[tail._descriptor].pending
            offset, data = pending.pop()
            assert offset == before
            part = data[: self._world.random.randrange(len(data))]
            pending.append((offset, part))
            os.ftruncate(tail._descriptor, offset + len(part))

    def close(self) -> None:
        """The process ends in order."""
        log, self._log, self._publisher = self._log, None, None
        if log is not None:
            log.close()

    def lose(self) -> None:
        """The volume is gone, and there is an empty one."""
        self.die()
        self._directory = self._directory.with_name(f"{self._directory.name}+")

    def crash(self) -> None:
        """The machine dies: any part of what was not synced is gone."""
        super().crash()
        self.die()
        self._shim.crash(self._world.random)

    # ---- writing ----

    def next_checkpoint(self, publisher: SegmentPublisher) -> Checkpoint | None:
        """When the file is over its size or age."""
        return checkpoint_of(publisher) if self.log.roll_due else None

    def write(
        self,
        events: Sequence[m.Event],
        notes: Sequence[Note],
        checkpoint: Checkpoint | None,
        *,
        sync: bool,
    ) -> None:
        """A frame."""
        log, publisher = self.log, self._publisher
        assert publisher is not None
        log.write(len(events), [part for event in events for part in entry(event)], encode_notes(notes))
        if sync or self._vouched:  # as the store of a publisher does: what a vouched end is followed by is synced
            log.sync()
        else:
            log.mark_durable(log.last)
        self._vouched = False
        if checkpoint is not None:
            self._seen.add("rolled")
            log.roll(LogCheckpoint(*checkpoint))
            if log.retain():
                self._seen.add("removed")
        publisher.history.archive(*log.start)

    def sync(self) -> None:
        """What a tick does between commits, once the incarnation has begun."""
        if self._publisher is None:
            return
        self.log.sync()
        if self._world.chance(0.5):
            self.log.vouch()
            self._vouched = True

    # ---- reading ----

    def since(self, seq: int, count: int) -> list[m.Event]:
        """The next events behind `seq`."""
        self._seen.add("read")
        batch = self.log.read(seq, count, 1 << 20)
        return [] if batch is None else [decode_entry(raw) for data in batch.data for raw in entries(data)]

    def beginning(self, wanted: EpochQuery) -> SegmentState:
        """Where all that is wanted begins."""
        state, over = self.log.newest_state(wanted.untouched), False
        if not wanted.untouched(state):
            return state
        while not over:
            events = self.since(state.seq, STEP)
            state, over = wanted.pass_over(state, events)
            over = over or not events
        return state

    def state_at(self, seq: int) -> SegmentState:
        """The state just behind event `seq`."""
        opening = self.log.opening(seq)
        progress = opening.state.progress()
        for batch in opening.batches:
            for data in batch.data:
                for raw in entries(data):
                    apply(progress, decode_entry(raw))
        return SegmentState.of(seq, progress)


def _checkpoint(publisher: SegmentPublisher) -> LogCheckpoint:
    return LogCheckpoint(*checkpoint_of(publisher))


@contextmanager
def volumes(shim: Callable[[], Any], seen: set[str]) -> Iterator[Callable[[World, str], Disk]]:
    """Directories for the logs of one run, in memory where there is a file system for that."""
    memory = Path("/dev/shm")
    made: list[Files] = []
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:

        def make(world: World, segment: str) -> Disk:
            made.append(Files(world, Path(directory, segment), shim(), seen))
            return made[-1]

        try:
            yield make
        finally:
            for files in made:
                files.die()


def run(
    seed: int, shim: Callable[[], Any], seen: set[str], trace: Callable[[str], object] | None = None, **overrides: Any
) -> Report:
    """Run `seed` on files; also `python -m tests.simulation --files` does so."""
    with volumes(shim, seen) as make_disk:
        return simulate(seed, trace=trace, make_disk=make_disk, **{"durable": True, "longest_sync": 0.1, **overrides})


@pytest.mark.rule("E9", "E10", "E12", "E13", "E16")
@pytest.mark.parametrize(
    ("count", "overrides"),
    [
        pytest.param(FRESH, {"crash_rate": 0.2}, id="batch"),
        pytest.param(FRESH, {"retention_bytes": 6_000, "subscribers": 6, "crash_rate": 0.1}, id="history is on disk"),
        pytest.param(FRESH, {"interval": True, "crash_rate": 0.3}, id="interval"),
        pytest.param(MANY, {"interval": True, "crash_rate": 0.3}, id="interval, long", marks=pytest.mark.long),
        pytest.param(MANY, {"crash_rate": 0.2}, id="batch, long", marks=pytest.mark.long),
        pytest.param(MANY, {"retention_bytes": 6_000, "crash_rate": 0.1}, id="history, long", marks=pytest.mark.long),
    ],
)
def test_fresh_seeds_keep_every_rule_on_real_log_files(bench: Any, count: int, overrides: dict[str, Any]) -> None:
    base = fresh_seed(2**40)
    print(f"seeds {base} to {base + count - 1} on files, {overrides}")
    seen: set[str] = set()
    for seed in range(base, base + count):
        run(seed, type(bench.disk), seen, **overrides)


def test_a_run_on_files_is_replayed_as_its_failure_says(
    bench: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentPublisher, "completed", lambda machine: None)
    with pytest.raises(SimulationFailed) as failed:
        deque((run(seed, type(bench.disk), set(), all_finish=True) for seed in range(20)), maxlen=0)
    assert pickle.loads(pickle.dumps(failed.value)).args == failed.value.args
    command = shlex.split(str(failed.value).rpartition("replay: python -m tests.simulation ")[2])
    assert command[0] == "--files"
    assert __main__.main(command) == 1
    assert str(failed.value) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        pytest.param({"crash_rate": 0.2}, {"rolled", "torn", "clock set"}, id="batch"),
        pytest.param(
            {"retention_bytes": 6_000, "subscribers": 6, "crash_rate": 0.1},
            {"read", "removed"},
            id="history is on disk",
        ),
        pytest.param({"interval": True, "crash_rate": 0.3}, {"doubted"}, id="interval"),
    ],
)
def test_all_that_can_happen_to_log_files_happens(bench: Any, overrides: dict[str, Any], expected: set[str]) -> None:
    seen: set[str] = set()
    for seed in range(FIXED):
        run(seed, type(bench.disk), seen, seconds=60.0, **overrides)
    assert expected <= seen

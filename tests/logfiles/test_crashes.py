"""A segment's log against a list, on a disk that forgets whatever was not synced.

What was synced is there after any crash; what comes back is a prefix without holes, of events and notes alike.
"""

import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.scale import LONG

from epochal.errors import HistoryTruncated, LogFailed, LogFull
from epochal.logfiles import SegmentLog
from epochal.protocol.log.file_format import LogCheckpoint
from epochal.protocol.log.frames import entry


class LogMachine(RuleBasedStateMachine):
    """One frame is (its events' payloads, its notes); an incarnation's start is a frame too."""

    tools: dict[str, Callable[..., Any]]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.bench = self.tools["bench"](Path(self.folder.name) / "log")
        self.frames: list[tuple[list[bytes], bytes]] = []
        self.synced = 0
        self.first = -1
        self.log: SegmentLog
        self.start()

    def teardown(self) -> None:
        self.log.close()
        self.folder.cleanup()

    # ---- the model ----

    @property
    def events(self) -> list[bytes]:
        return [payload for some, _ in self.frames for payload in some]

    @property
    def durable(self) -> int:
        return sum(len(some) for some, _ in self.frames[: self.synced]) - 1

    def checkpoint(self) -> LogCheckpoint:
        return LogCheckpoint(self.tools["state"](len(self.events) - 1), b"%d" % len(self.frames))

    def start(self) -> None:
        """Open, compare what came back, and begin an incarnation."""
        self.log = self.bench.open(file_bytes=3000, file_age=50, max_bytes=9000, max_age=400)
        found = self.log.recovered
        if found is not None:
            frames = int(found.checkpoint.machine) + len(found.frames)
            assert self.synced <= frames <= len(self.frames)
            notes = [frame.notes for frame in found.frames]
            assert notes == [notes for _, notes in self.frames[frames - len(notes) : frames]]
            self.frames = self.frames[:frames]
        else:
            assert self.synced == 0
            self.frames = []
        assert self.log.last == self.log.durable == len(self.events) - 1
        assert self.log.incarnation >= self.bench.incarnation - 1  # the start of the last one may not have got through
        self.bench.incarnation = self.log.incarnation + 1
        self.frames.append(([], b"begun"))
        self.log.begin(self.bench.incarnation, self.checkpoint_before(), b"begun")
        self.synced = len(self.frames)
        assert self.log.incarnations[-1] == (self.bench.incarnation, len(self.events))

    def checkpoint_before(self) -> LogCheckpoint:
        return LogCheckpoint(self.tools["state"](len(self.events) - 1), b"%d" % (len(self.frames) - 1))

    # ---- what can happen ----

    @rule(sizes=st.lists(st.integers(0, 400), max_size=4), notes=st.binary(max_size=20), large=st.booleans())
    def append(self, sizes: list[int], notes: bytes, large: bool) -> None:
        some = [bytes([len(self.events) % 256]) * size for size in sizes]
        if large and some:
            some[0] = bytes(70_000)
        self.write(some, notes)
        self.frames.append((some, notes))

    def write(self, some: list[bytes], notes: bytes) -> None:
        seq = self.log.last + 1
        events = [part for at, one in enumerate(some) for part in entry(self.tools["event"](seq + at, one))]
        assert self.log.write(len(some), events, notes) == seq + len(some) - 1

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == len(self.events) - 1
        self.synced = len(self.frames)

    @rule()
    def vouch(self) -> None:
        """What says that all is on disk is a frame, too, in which nothing stands."""
        size = self.log.size
        self.log.vouch()
        if self.log.size > size:
            assert self.synced == len(self.frames)
            self.frames.append(([], b""))
            self.synced = len(self.frames)

    @rule(room=st.integers(0, 300))
    def run_full(self, room: int) -> None:
        """A frame that does not fit leaves no trace (fault 26)."""
        self.bench.disk.room = room
        with pytest.raises(LogFull):
            self.write([bytes(400)], b"")
        self.bench.disk.room = None

    @rule(room=st.integers(0, 300))
    def run_full_at_a_roll(self, room: int) -> None:
        self.bench.disk.room = room
        with suppress(LogFull):
            self.log.roll(self.checkpoint())
        self.bench.disk.room = None
        self.synced = len(self.frames)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.checkpoint())
        self.synced = len(self.frames)

    @rule(seconds=st.integers(0, 300))
    def retain(self, seconds: int) -> None:
        self.bench.clock.now += seconds * 1000
        self.log.retain()
        assert self.log.size <= 9000 or len(self.bench.files()) == 1
        assert self.log.first >= self.first
        self.first = self.log.first

    @rule()
    def keep_state(self) -> None:
        self.log.keep_state(self.tools["state"](self.log.last))

    @rule(data=st.data())
    def lose_an_index(self, data: st.DataObject) -> None:
        """Fault 30."""
        paths = sorted(self.bench.directory.glob("*.index"))
        if paths:
            path = data.draw(st.sampled_from(paths))
            path.write_bytes(path.read_bytes()[:-1] if data.draw(st.booleans()) else b"")

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        self.abandon()
        self.bench.disk.crash(random.Random(seed))
        self.start()

    @rule(seed=st.integers(0, 2**32), call=st.sampled_from(["sync", "truncate", "rename", "sync_directory"]))
    def fail(self, seed: int, call: str) -> None:
        """Fault 27: after a failure nothing more is written, and a crash loses nothing of what was synced."""
        self.bench.disk.broken.add(call)
        self.bench.disk.room = 0
        with suppress(LogFull, LogFailed):
            self.write([b"never"], b"")
        self.bench.disk.room = None
        with suppress(LogFailed):
            self.log.sync()
            self.synced = len(self.frames)
            self.log.roll(self.checkpoint())
        self.crash(seed)

    @rule()
    def stop(self) -> None:
        self.log.close()
        self.synced = len(self.frames)
        self.start()

    def abandon(self) -> None:
        """End without a word, as a process that is killed."""
        self.bench.disk.broken.add("sync")
        with suppress(LogFailed):
            self.log.close()

    # ---- what must hold ----

    @invariant()
    def counts(self) -> None:
        assert self.log.last == len(self.events) - 1
        assert self.log.durable == self.durable

    @rule(data=st.data(), max_events=st.integers(1, 9), max_bytes=st.integers(1, 3000))
    def read(self, data: st.DataObject, max_events: int, max_bytes: int) -> None:
        after = data.draw(st.integers(self.log.first, self.durable))
        expected = list(enumerate(self.events))[after + 1 : self.durable + 1]
        found: list[tuple[int, bytes]] = []
        while (batch := self.log.read(after, max_events, max_bytes)) is not None:
            assert 1 <= batch.count <= max_events
            assert batch.count == 1 or sum(map(len, batch.data)) <= max_bytes
            found.extend(self.tools["payloads"](batch))
            after = batch.last
        assert found == expected

    @precondition(lambda self: self.log.first > -1)
    @rule(data=st.data())
    def read_what_is_gone(self, data: st.DataObject) -> None:
        """Fault 31: a reader that is inside a removed file may finish it."""
        after = data.draw(st.integers(-1, self.log.first - 1))
        with suppress(HistoryTruncated):
            found = self.tools["payloads"](self.log.read(after, 1, 1))
            assert found == list(enumerate(self.events))[after + 1 : after + 2]

    @rule(data=st.data())
    def opening(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(self.log.first, self.durable))
        opening = self.log.opening(seq)
        assert opening.state == self.tools["state"](opening.state.seq)
        between = [found for batch in opening.batches for found in self.tools["payloads"](batch)]
        assert between == list(enumerate(self.events))[opening.state.seq + 1 : seq + 1]


@pytest.mark.parametrize(
    ("examples", "steps"), [(40, 25), pytest.param(250 * LONG, 60, marks=pytest.mark.long)], ids=["some", "many"]
)
@pytest.mark.rule("E9")
@pytest.mark.rule("Q2")
@pytest.mark.rule("Q3")
def test_the_log_is_the_list_whatever_the_disk_forgets(
    examples: int, steps: int, toolbox: dict[str, Callable[..., Any]]
) -> None:
    LogMachine.tools = toolbox
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

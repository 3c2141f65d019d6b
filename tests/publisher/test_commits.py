"""A segment's log as its publisher uses it: what is done between commits, on a clock that tests set."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import google_crc32c
import pytest

from epochal.catalog_api.answers import StreamInfo
from epochal.logfiles import LogSettings, SegmentLog
from epochal.logfiles.disk import OSDisk
from epochal.protocol import messages as m
from epochal.protocol.log.file_format import LogCheckpoint
from epochal.protocol.log.frames import entry
from epochal.protocol.log.history import SegmentState
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.committed_view import CommittedView
from epochal.protocol.publisher.effects import Log, ReadLog
from epochal.protocol.publisher.journal import encode_notes
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SegmentServer, ServingSettings
from epochal.protocol.times import TimeShape
from epochal_publisher.segments.segment import HostedSegment
from epochal_publisher.segments.store import HOUSEKEEPING, QUIET, Commit, SegmentStore, SegmentStores, log_directory
from epochal_publisher.settings import Settings

HOUR = 3_600_000
SETTINGS = Settings(catalog="http://127.0.0.1:1", stream="test/s", segments=("0",), publisher="p", sync_interval=30.0)


class Counting(OSDisk):
    """Counts how often a file was synced."""

    syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        super().sync(descriptor)


class Bench:
    """A store, the publisher whose log it is, and a writer."""

    def __init__(self, directory: Path, *, always_sync: bool) -> None:
        self.directory = directory
        self.now, self.disk = 10 * HOUR, Counting()
        clock: Callable[[], int] = lambda: self.now  # noqa: E731  # two parameters of one type
        log = SegmentLog.open(
            directory, "u", "0", instance="a test", disk=self.disk, clock=clock, steady=clock,
            settings=LogSettings(file_bytes=2**20, file_age=3600.0, max_age=5400.0),
        )  # fmt: skip
        self.store = SegmentStore(log, SETTINGS, always_sync=always_sync)
        limits = PublisherSettings(shape=TimeShape.parse("int"), durable=True)
        self.publisher = SegmentPublisher("u", "0", limits, incarnation=1, now=0.0)
        self.number = 0
        self.store.begin(1, self.publisher)
        self.carry_out(self.store.commit)
        self.publisher.receive(b"w", m.Open(1, "u", "0", "w", 1, None, None), 0.0)
        self.commit()

    def carry_out(self, commit: Commit | None) -> None:
        assert commit is not None
        commit.run()
        self.store.commit = None

    def commit(self) -> None:
        *effects, told = self.publisher.take()
        assert isinstance(told, Log)
        self.carry_out(self.store.prepare(self.publisher, effects, told))

    def append(self) -> None:
        append = m.Append("0", self.number, 0, b"", 1, google_crc32c.value(b"x"), b"x")
        self.publisher.receive(b"w", append, 0.0)
        self.number += 1
        self.commit()

    def sweep(self, seconds: float) -> bool:
        """Whether there was something to do so long from now."""
        commit = self.store.sweep(self.publisher, monotonic() + seconds)
        if commit is not None:
            self.carry_out(commit)
        return commit is not None

    @property
    def files(self) -> list[int]:
        return [path.stat().st_ino for path in self.directory.glob("*.log")]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(always_sync: bool = True) -> Bench:
        made.append(Bench(tmp_path / "log", always_sync=always_sync))
        return made[-1]

    yield make
    for bench in made:
        bench.store.log.close()


@pytest.mark.rule("E13")
def test_the_files_of_a_quiet_log_end_too_and_go_when_they_are_too_old(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.append()
    assert len(bench.files) == 1
    bench.sweep(QUIET + 0.5)
    bench.now += HOUR
    bench.sweep(HOUSEKEEPING + 1)
    assert (len(bench.files), bench.store.log.first) == (2, -1), "its age ends it, though nothing is written"
    bench.now += 6 * HOUR // 10
    bench.sweep(2 * HOUSEKEEPING + 2)
    (left,) = bench.files
    assert bench.store.log.first == bench.publisher.seq
    bench.now += 3 * HOUR
    bench.sweep(3 * HOUSEKEEPING + 3)
    assert bench.files == [left], "a file without events is not ended for another one"


@pytest.mark.rule("E10")
def test_under_interval_what_was_written_is_synced_when_the_interval_is_over(make: Callable[..., Bench]) -> None:
    bench = make(always_sync=False)
    bench.append()  # begins the epoch, and is secured whatever the policy (E10)
    assert bench.sweep(SETTINGS.sync_interval + 1), "the log is vouched for"
    bench.append()  # the first one behind that is secured, too (E11)
    syncs = bench.disk.syncs
    bench.append()
    bench.append()
    assert (bench.disk.syncs, bench.store.log.durable) == (syncs, bench.publisher.seq), "served, and not synced"
    assert not bench.sweep(1.5), "nothing is vouched for that is not on disk"
    assert bench.disk.syncs == syncs
    assert bench.sweep(2 * SETTINGS.sync_interval + 2)
    assert bench.disk.syncs == syncs + 1
    assert bench.sweep(2 * SETTINGS.sync_interval + 2.5), "now that it is on disk, the log is vouched for"
    assert not bench.sweep(2 * SETTINGS.sync_interval + 3), "once is enough"


def test_a_commit_syncs_when_the_interval_is_over(make: Callable[..., Bench], monkeypatch: Any) -> None:
    bench = make(always_sync=False)
    bench.append()
    syncs, now = bench.disk.syncs, monotonic()
    bench.append()
    assert bench.disk.syncs == syncs
    monkeypatch.setattr("epochal_publisher.segments.store.monotonic", lambda: now + SETTINGS.sync_interval + 1)
    bench.append()
    assert bench.disk.syncs == syncs + 1
    bench.append()
    assert bench.disk.syncs == syncs + 1


def test_a_log_is_vouched_for_once_it_is_quiet_and_never_under_load(make: Callable[..., Bench]) -> None:
    """Fault 29: else damage to the last frame cannot be told from a crash."""
    bench = make()
    assert bench.sweep(1.5), "the first look at what was found when the log was opened"
    for _ in range(5):
        size = bench.store.log.size
        bench.append()
        frame = bench.store.log.size - size
        assert not bench.sweep(QUIET / 2)
        assert bench.store.log.size == size + frame
    size, syncs = bench.store.log.size, bench.disk.syncs
    assert bench.sweep(QUIET + 0.5)
    assert (bench.store.log.size - size, bench.disk.syncs) == (50, syncs + 1), "a frame's head, and one sync"
    assert not bench.sweep(QUIET + 0.7), "once is enough"


@pytest.mark.rule("E9")
def test_what_is_not_durable_yet_is_no_answer_and_no_error(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.append()
    assert bench.store.answer(ReadLog(b"", 1, bench.publisher.seq, 10, 1000), bench.publisher.seq) is None


@pytest.mark.rule("E9")
def test_a_frontier_is_reported_to_the_catalog_once_it_is_on_disk(make: Callable[..., Bench]) -> None:
    """Else the next incarnation would start behind what its own log holds, which it then must refuse."""
    bench = make()
    bench.append()
    publisher, store = bench.publisher, bench.store
    told = CommittedView(publisher, publisher.seq)
    server = SegmentServer(told, Channels(lambda: b"c" * 8), ServingSettings(), 0.0)
    served = HostedSegment(publisher, server, server.channels, 0.0, store, (0,), publisher.seq, told)
    publisher.receive(b"w", m.Hold(2, "0", (3,)), 0.0)
    *effects, log = publisher.take()
    assert isinstance(log, Log)
    commit = store.prepare(publisher, effects, log)
    assert served.report(0.0).lower == [0], "the disk has not been asked yet"
    commit.run()
    assert served.report(0.0).lower == [0], "nothing of it was carried out yet"
    assert commit.lower == (3,)
    assert store.log.durable == publisher.seq


class Declared:
    """A stream, as far as its logs are concerned."""

    uid = "0" * 32

    def declared(self) -> Any:
        retention = type("Retention", (), {"bytes": 2**20, "time_seconds": 60.0})
        history = type("History", (), {"policy": "batch", "retention": retention})
        return type("Declared", (), {"spec": type("Spec", (), {"history": history})})


@pytest.mark.rule("E13")
async def test_what_is_too_old_goes_when_a_log_is_opened(tmp_path: Path) -> None:
    """A disk may be full of it, so that nothing could be written before the first look for old files."""
    stream: StreamInfo = Declared()  # type: ignore[assignment]  # no catalog is needed to open a log
    directory = log_directory(tmp_path, stream.uid, "0")
    limits = PublisherSettings(shape=TimeShape.parse("int"))
    publisher = SegmentPublisher(stream.uid, "0", limits, incarnation=1, now=0.0)
    machine = encode_notes(publisher.checkpoint())
    with SegmentLog.open(directory, stream.uid, "0", instance="of 1970", clock=lambda: HOUR) as log:
        log.begin(1, LogCheckpoint(publisher.state(), machine))
        for seq in range(3):
            log.write(1, entry(m.Data(seq, seq - 1, 0, b"", 1, 0, b"")))
            log.roll(LogCheckpoint(SegmentState(seq, (0,), (0,), ()), machine))
    assert len(list(directory.glob("*.log"))) == 4
    settings = SETTINGS.model_copy(update={"data": tmp_path})
    async with SegmentStores(settings, stream, "now") as stores:
        assert stores.of("0") is not None
        assert [path.name for path in directory.glob("*.log")] == [f"{3:020d}.log"]

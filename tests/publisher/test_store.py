"""Where a publisher may keep its logs, and what it reads from them."""

import asyncio
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from epochal.catalog_api.answers import StreamInfo
from epochal.errors import ConfigError, LogMismatch
from epochal.logfiles import LogSettings, SegmentLog
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.log.file_format import LogCheckpoint
from epochal.protocol.log.frames import entry
from epochal.protocol.log.history import Lull, SegmentState
from epochal.protocol.publisher.effects import Log, ReadLog, Reply
from epochal.protocol.publisher.journal import encode_notes
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.times import TimeShape
from epochal.protocol.topics.filter import TopicFilter
from epochal.service import filesystems
from epochal_publisher.segments.store import SegmentStore, SegmentStores, _checkpoint
from epochal_publisher.settings import Settings


@pytest.mark.rule("E9")
def test_what_is_read_from_disk_ends_at_the_last_published_event(tmp_path: Path) -> None:
    """Events can be on disk while nothing of them was carried out: the server that asks does not know of them yet."""
    settings = Settings(catalog="http://127.0.0.1:1", stream="a/b", segments=("0",), publisher="p", data=tmp_path)
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        log.begin(1, LogCheckpoint(SegmentState(-1, (0,), (), ())))
        events = [part for seq in range(9) for part in entry(m.Data(seq, seq - 1, 0, b"", 1, 0, b"x"))]
        log.write(9, events)
        log.sync()
        found = SegmentStore(log, settings, always_sync=True).chunk(ReadLog(b"p", 1, 1, 256, 2**20), last=4)
    assert found is not None
    assert found[1] == 4


@pytest.mark.rule("F10", "S12")
def test_a_filtered_chunk_from_disk_has_what_is_wanted_and_says_how_far_it_goes(tmp_path: Path) -> None:
    settings = Settings(catalog="http://127.0.0.1:1", stream="a/b", segments=("0",), publisher="p", data=tmp_path)
    topics, large = TopicFilter([b"a"], [b"ab"]), bytes(70_000)
    events: list[m.Event] = [
        m.Data(seq, seq - 1, 0, (b"a", b"ab", b"b")[seq % 3], 1, 0, large if seq % 30 == 0 else b"x")
        for seq in range(600)
    ]
    events.append(m.Frontier(600, 599, ((0, -1), (1, 1))))
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        log.begin(1, LogCheckpoint(SegmentState(-1, (0,), (), ())))
        for first in range(0, len(events), 50):
            some = events[first : first + 50]
            log.write(len(some), [part for event in some for part in entry(event)])
        log.sync()
        store = SegmentStore(log, settings, always_sync=True)
        found: list[m.Message] = []
        at = 9
        while at < 600:
            answer = store.chunk(ReadLog(b"p", 1, at, 256, 2**20, topics), last=600)
            assert answer is not None
            frames, upto = answer
            chunk, *got = [message for each in frames for message in wire.decode(each)]
            assert chunk == m.Chunk(1, len(got), False, upto)
            assert at < upto <= 600
            found, at = found + got, upto
        assert store.chunk(ReadLog(b"p", 1, 600, 256, 2**20, topics), last=600) is None
    assert found == [event for event in events[10:] if type(event) is not m.Data or topics.wants(event.topic)]


SETTINGS = Settings(catalog="http://127.0.0.1:1", stream="a/b", segments=("0",), publisher="p")


class Life:
    """A publisher's machine with its log, from its beginning on."""

    def __init__(
        self, log: SegmentLog, incarnation: int, lower: tuple[int, ...] = (0,), horizon: tuple[int, ...] = ()
    ) -> None:
        self.store = SegmentStore(log, SETTINGS, always_sync=True)
        self.publisher = SegmentPublisher(
            "uid", "0", PublisherSettings(TimeShape(), durable=True),
            incarnation=incarnation, now=0.0, lower=lower, horizon=horizon, restored=self.store.restored,
        )  # fmt: skip
        self.publisher.take()
        self.store.begin(incarnation, self.publisher)
        self.commit()

    def commit(self) -> None:
        assert self.store.commit is not None
        self.store.commit.run()
        self.store.commit = None

    def told(self, *messages: m.Message) -> list[Any]:
        """What a writer is answered, with what led to it on disk."""
        for message in messages:
            self.publisher.receive(b"w", message, 0.0)
        *effects, log = self.publisher.take()
        if isinstance(log, Log):
            self.store.prepare(self.publisher, effects, log)
            self.commit()
        return [effect.message for effect in (*effects, log) if isinstance(effect, Reply)]


def append(number: int) -> m.Append:
    return m.Append("0", number, 5, b"", 1, google_crc32c.value(b"x"), b"x")


@pytest.mark.rule("E17")
def test_a_log_that_ends_before_what_was_published_is_refused(tmp_path: Path) -> None:
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        Life(log, 1, lower=(3,))
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        store = SegmentStore(log, SETTINGS, always_sync=True)
        for told in (None, (2,), (3,)):
            store.check("0", told)
        with pytest.raises(LogMismatch, match=r"readers were sent \[9\]"):
            store.check("0", (9,))


@pytest.mark.rule("E2", "E10")
def test_what_was_aborted_stays_so_when_all_that_is_left_of_it_is_the_head_of_a_file(tmp_path: Path) -> None:
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        first = Life(log, 1)
        first.told(m.Open(1, "uid", "0", "w", 1, None, None), append(0))
        first.told(m.Abort(2, "0", (5,)))
        log.roll(LogCheckpoint(first.publisher.state(), encode_notes(first.publisher.checkpoint())))
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        second = Life(log, 2)
        assert second.publisher.state().aborted == (5,)
        (opened, *_) = second.told(m.Open(1, "uid", "0", "w", 1, None, m.Resume(0, (0,), ())))
        assert isinstance(opened, m.Opened)
        (refused,) = second.told(append(1))
        assert isinstance(refused, m.AppendRefused)
        assert refused.code == "epoch_aborted"
        assert log.last == 1


@pytest.mark.rule("E13")
@pytest.mark.parametrize("restart", [False, True])
def test_a_log_knows_of_what_retention_removed_whether_it_was_progress_alone(tmp_path: Path, restart: bool) -> None:
    """Through restarts too: each file begins with the state since which only the frontier had moved."""
    settings = LogSettings(max_bytes=1)
    log = SegmentLog.open(tmp_path, "uid", "0", instance="i", settings=settings)
    life = Life(log, 1)
    life.told(m.Open(1, "uid", "0", "w", 1, None, None), append(0))
    batch, held = life.publisher.state(), 0
    for file in range(1, 4):
        for _ in range(2):
            held += 1
            life.told(m.Hold(held, "0", (held,)))
        if restart and file == 2:
            log.close()
            log = SegmentLog.open(tmp_path, "uid", "0", instance="i", settings=settings)
            assert log.start == (2, Lull(batch, 2, (2,))), "as the file says"
            life = Life(log, 2)
            life.told(m.Open(1, "uid", "0", "w", 1, None, m.Resume(0, (held,), ())))
        log.roll(_checkpoint(life.publisher))
        assert log.retain() == 1
        assert log.start == (2 * file, Lull(batch, 2 * file, (2 * file,)))
    life.told(append(1)._replace(time=held))
    log.roll(_checkpoint(life.publisher))
    assert log.retain() == 1
    now = life.publisher.state()
    assert log.start == (7, Lull(now, 7, now.lower)), "a batch is gone"
    log.close()


@pytest.mark.rule("E2", "E11")
def test_what_was_lost_before_a_log_began_stays_aborted_over_its_restarts(tmp_path: Path) -> None:
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        assert Life(log, 1, lower=(3,), horizon=(5,)).publisher.state().below == (5,)
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        second = Life(log, 2, lower=(3,))
        assert second.publisher.state().below == (5,)
        opened, refused = second.told(m.Open(1, "uid", "0", "w", 1, None, None), append(0))
        assert (opened.held, refused.code) == ((3,), "epoch_aborted")


class Declared:
    """A stream, as far as its logs are concerned."""

    def __init__(self, durability: str) -> None:
        self.uid = "0" * 32
        retention = type("Retention", (), {"bytes": 2**20, "time_seconds": 60.0})
        history = type("History", (), {"policy": durability, "retention": retention})
        self.spec = type("Spec", (), {"history": history})

    def declared(self) -> Any:
        return self


def opened(data: Path, durability: str = "batch", trusted: str = "") -> list[str]:
    """The segments whose logs a publisher opens."""
    settings = Settings(
        catalog="http://127.0.0.1:1", stream="a/b", segments=("0",), publisher="p", data=data, trust_file_system=trusted
    )
    stream: StreamInfo = Declared(durability)  # type: ignore[assignment]  # no catalog is needed to look at a directory

    async def open_all() -> list[str]:
        async with SegmentStores(settings, stream, "instance") as stores:
            return list(stores.incarnations)

    return asyncio.run(open_all())


def mounted(monkeypatch: pytest.MonkeyPatch, path: Path, kind: str) -> None:
    monkeypatch.setattr(filesystems, "mountinfo", lambda: f"30 1 0:40 / {path} rw shared:1 - {kind} source rw")


@pytest.mark.rule("E10", "E12")
@pytest.mark.parametrize("kind", ["nfs4", "cifs", "ceph", "fuse.s3fs"])
def test_a_file_system_that_may_lose_what_was_acknowledged_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(monkeypatch, tmp_path, kind)
    with pytest.raises(ConfigError, match=f"is on a {kind} file system, where a log can lose what was acknowledged"):
        opened(tmp_path / "logs")
    assert opened(tmp_path / "logs", "memory") == [], "who keeps nothing on disk needs none"


def test_a_program_s_file_system_is_taken_when_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, tmp_path, "fuse.mergerfs")
    with pytest.raises(ConfigError, match=r"EPOCHAL_PUBLISHER_TRUST_FILE_SYSTEM=fuse\.mergerfs"):
        opened(tmp_path)
    assert opened(tmp_path, trusted="fuse.mergerfs") == ["0"]
    mounted(monkeypatch, tmp_path, "nfs")
    with pytest.raises(ConfigError):
        opened(tmp_path, trusted="nfs")


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        opened(tmp_path / "file" / "logs")

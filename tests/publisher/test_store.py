"""Where a publisher may keep its logs, and what it reads from them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from epochal.client.catalog_types import StreamInfo
from epochal.errors import ConfigError, LogMismatch
from epochal.logfiles import SegmentLog
from epochal.protocol import messages as m
from epochal.protocol.effects import ReadLog
from epochal.protocol.history import State
from epochal.protocol.logfile import Checkpoint
from epochal.protocol.logframes import entry
from epochal.protocol.publishing import PublisherSettings, SegmentPublisher
from epochal.protocol.times import TimeShape
from epochal.service import filesystems
from epochal_publisher.settings import Settings
from epochal_publisher.store import Store, Stores


@pytest.mark.rule("E9")
def test_what_is_read_from_disk_ends_where_readers_were_told(tmp_path: Path) -> None:
    """Events can be on disk while nothing of them was carried out: the server that asks does not know of them yet."""
    settings = Settings(catalog="http://127.0.0.1:1", stream="a/b", segments=("0",), publisher="p", data=tmp_path)
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        log.begin(1, Checkpoint(State(-1, (0,), (), ())))
        events = [part for seq in range(9) for part in entry(m.Data(seq, seq - 1, 0, b"", 1, 0, b"x"))]
        log.write(9, events)
        log.sync()
        found = Store(log, settings, always_sync=True).chunk(ReadLog(b"p", 1, 1, 256, 2**20), told=4)
    assert found is not None
    assert found[1] == 4


@pytest.mark.rule("E17")
def test_a_log_that_ends_before_what_readers_were_told_is_refused(tmp_path: Path) -> None:
    settings = Settings(catalog="http://127.0.0.1:1", stream="a/b", segments=("0",), publisher="p", data=tmp_path)
    limits = PublisherSettings(TimeShape(), durable=True)
    publisher = SegmentPublisher("uid", "0", limits, incarnation=1, now=0.0, lower=(3,))
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        store = Store(log, settings, always_sync=True)
        publisher.take()
        store.begin(1, publisher)
        assert store.commit is not None
        store.commit.run()
    with SegmentLog.open(tmp_path, "uid", "0", instance="i") as log:
        store = Store(log, settings, always_sync=True)
        for told in (None, (2,), (3,)):
            store.check("0", told)
        with pytest.raises(LogMismatch, match=r"readers were told \[9\]"):
            store.check("0", (9,))


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
        async with Stores(settings, stream, "instance") as stores:
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


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        opened(tmp_path / "file" / "logs")

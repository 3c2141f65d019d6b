"""A log on a disk that is full or fails: nothing half written, nothing tried twice, nothing durable lost."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from epochal.errors import LocalProtocolError, LogFailed, LogFull
from epochal.logfiles import SegmentLog
from epochal.logfiles.disk import OSDisk
from epochal.protocol.log.file_format import LogCheckpoint
from epochal.protocol.log.history import SegmentState

START = LogCheckpoint(SegmentState(-1, (0,), (), ()), b"-1")


@pytest.mark.parametrize("room", [0, 1, 49, 53, 54, 60, 153])
def test_a_frame_that_does_not_fit_leaves_no_trace_and_can_be_tried_again(
    bench: Any, log: SegmentLog, room: int
) -> None:
    """Fault 26."""
    bench.append(log, 10)
    size = log.size
    bench.disk.room = room
    with pytest.raises(LogFull) as full:
        bench.append(log, 100)
    assert full.value.retryable
    assert (log.size, log.last, bench.files()[-1].stat().st_size) == (size, 0, size)
    bench.disk.room = None
    bench.append(log, 100)
    log.close()
    with bench.open() as again:
        assert bench.read(again) == [0, 1]


def test_a_crash_does_not_bring_back_what_was_refused(bench: Any) -> None:
    """Fault 26: neither alone, nor in the place of what was written after it."""
    for seed in range(40):
        log = bench.begin()
        last = log.last
        bench.disk.room = 200
        with pytest.raises(LogFull):
            bench.append(log, 400, notes=b"refused")  # the rest of its bytes are zeros, which a hole gives too
        bench.disk.room = None
        bench.append(log, 7000, notes=b"taken", sync=False)
        bench.kill(log, seed)
        with bench.open() as log:
            assert b"refused" not in [frame.notes for frame in log.recovered.frames]
            assert log.last in (last, last + 1)


@pytest.mark.parametrize("room", [0, 60, 80, 100])
def test_a_roll_that_does_not_fit_leaves_the_old_file_in_use(bench: Any, log: SegmentLog, room: int) -> None:
    """Fault 26."""
    bench.append(log, 10)
    bench.disk.room = room
    with pytest.raises(LogFull):
        log.roll(LogCheckpoint(SegmentState(0, (1,), (), ()), b""))
    bench.disk.room = None
    assert [path.suffix for path in bench.directory.iterdir() if path.suffix] == [".lock", ".log"]
    bench.append(log, 10)
    log.roll(LogCheckpoint(SegmentState(1, (2,), (), ()), b""))
    log.close()
    with bench.open() as again:
        assert bench.read(again) == [0, 1]


def test_a_full_file_system_is_reported_and_survived(bench: Any, tmp_path: Path) -> None:
    """Fault 26, on a real one."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with SegmentLog.open(tmp_path / "log", "uid", "0", instance="a test") as log:
            log.begin(1, START)
            ballast = tmp_path / "ballast"
            ballast.write_bytes(bytes(150_000))
            with pytest.raises(LogFull):
                fill_up(bench, log)
            full_at = log.last
            ballast.unlink()
            log.write(1, bench.entry(full_at + 1, 3000))
            log.sync()
        with SegmentLog.open(tmp_path / "log", "uid", "0", instance="a test") as log:
            assert log.last == full_at + 1 > 10
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("call", ["sync", "truncate"])
def test_after_a_failure_nothing_is_written_and_everything_durable_is_read(
    bench: Any, log: SegmentLog, call: str
) -> None:
    """Fault 27: a failed fsync is never tried again."""
    bench.append(log, 10, 10)
    bench.disk.broken.add(call)
    bench.disk.room = 5 if call == "truncate" else None
    with pytest.raises(LogFailed):
        bench.append(log, 10)
    bench.disk.broken, bench.disk.room = set(), None
    syncs = bench.disk.syncs
    for attempt in (log.sync, lambda: bench.append(log, 1), log.retain, lambda: log.roll(START)):
        with pytest.raises((LogFailed, LocalProtocolError)):
            attempt()
    assert bench.disk.syncs == syncs
    assert bench.read(log) == [0, 1]
    log.close()
    with bench.begin() as again:
        assert bench.read(again)[:2] == [0, 1]


def test_an_input_output_error_while_writing_is_a_failure(bench: Any, log: SegmentLog) -> None:
    bench.append(log, 10)
    bench.disk.broken.add("write")
    with pytest.raises(LogFailed):
        bench.append(log, 10)


def test_a_write_that_stops_half_way_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, whole = OSDisk(), [b"abc", b"", b"defgh"] * 700  # more buffers than one call takes
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda descriptor, some, offset: real(descriptor, some[:2], offset))
    descriptor = disk.create(tmp_path / "file")
    disk.write(descriptor, whole, 10)
    assert disk.read(descriptor, 10_000, 10) == b"".join(whole)
    disk.close(descriptor)


def fill_up(bench: Any, log: SegmentLog) -> None:
    """Write until it fails."""
    while True:
        log.write(1, bench.entry(log.last + 1, 3000))
        log.sync()

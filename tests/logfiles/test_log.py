"""A segment's log as a publisher uses it, and what it does when the disk, or somebody else, gets in its way."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.errors import (
    CorruptLog,
    HistoryTruncated,
    LocalProtocolError,
    LogFailed,
    LogMismatch,
    LogTaken,
    Superseded,
)
from epochal.logfiles import SegmentLog
from epochal.logfiles.log_reader import LogCursor
from epochal.protocol.log.file_format import LogCheckpoint
from epochal.protocol.log.history import SegmentState

START = LogCheckpoint(SegmentState(-1, (0,), (), ()), b"-1")


# ---- one life after another ----


def test_a_new_log_is_empty_and_has_had_no_incarnation(bench: Any) -> None:
    with bench.open() as log:
        assert (log.recovered, log.incarnation, log.first, log.last, log.durable, log.size) == (None, 0, -1, -1, -1, 0)
        assert log.read(-1, 1, 1) is None


def test_a_log_goes_on_where_it_was(bench: Any) -> None:
    with bench.begin() as log:
        bench.append(log, 10, 20, notes=b"writers")
        bench.append(log, notes=b"no events")
    with bench.open() as log:
        assert log.recovered is not None
        assert log.recovered.checkpoint == LogCheckpoint(SegmentState(-1, (0,), (), ()), b"-1")
        assert [frame.notes for frame in log.recovered.frames] == [b"", b"writers", b"no events"]
        assert [frame.incarnation for frame in log.recovered.frames] == [1, None, None]
        assert log.recovered.torn == 0
        assert bench.read(log) == [0, 1]


@pytest.mark.rule("E10")
def test_each_incarnation_is_kept_with_its_first_seq_also_after_a_roll(bench: Any) -> None:
    for events in (2, 0, 3):
        with bench.begin() as log:
            bench.append(log, *[10] * events)
            log.roll(LogCheckpoint(SegmentState(log.last, (0,), (), ()), b""))
    with bench.open() as log:
        assert log.incarnations == ((1, 0), (2, 2), (3, 2))
        assert log.incarnation == 3
    with bench.begin() as log:
        bench.append(log, 10)
    with bench.open() as log:
        assert log.incarnations == ((1, 0), (2, 2), (3, 2), (4, 5)), "that of the last file as well"


@pytest.mark.rule("E12")
def test_an_incarnation_must_be_above_all_before_it(bench: Any) -> None:
    with bench.begin() as log, pytest.raises(Superseded):
        log.begin(1, START)
    (bench.directory / "incarnation").unlink()
    with bench.open() as log:
        assert log.incarnation == 1, "the log itself says so too"
        with pytest.raises(Superseded):
            log.begin(1, START)
        log.begin(7, START)
        assert log.incarnations == ((1, 0), (7, 0))


def test_a_log_is_written_after_begin_only(bench: Any) -> None:
    with bench.open() as log, pytest.raises(LocalProtocolError):
        bench.append(log, 1)
    bench.begin().close()
    with bench.open() as log, pytest.raises(LocalProtocolError):
        bench.append(log, 1)


def test_a_log_of_another_segment_is_refused(bench: Any) -> None:
    bench.begin().close()
    with pytest.raises(LogMismatch, match="segment 0"):
        SegmentLog.open(bench.directory, "uid", "1", instance="a test")


def test_a_log_in_a_place_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogFailed, match="file"):
        SegmentLog.open(tmp_path / "file" / "log", "uid", "0", instance="a test")


# ---- one owner ----


@pytest.mark.rule("E12")
def test_a_second_process_learns_who_owns_the_log(bench: Any) -> None:
    bench.begin().close()
    script = (
        "import sys; from pathlib import Path; from epochal.logfiles import SegmentLog\n"
        "log = SegmentLog.open(Path(sys.argv[1]), 'uid', '0', instance='publisher-7')\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, bench.directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(LogTaken, match="publisher-7"):
            bench.open()
        other.kill()
    bench.open().close()


@pytest.mark.rule("E12")
def test_who_lost_the_volume_writes_nothing_more(bench: Any, log: SegmentLog) -> None:
    bench.append(log, 1)
    other = bench.directory / "incarnation.other"
    other.write_text('{"incarnation": 2, "instance": "another"}')
    other.rename(bench.directory / "incarnation")
    with pytest.raises(Superseded):
        bench.append(log, 1)
    with pytest.raises(Superseded):
        log.roll(LogCheckpoint(SegmentState(log.last, (0,), (), ()), b""))
    assert log.last == 0


def test_an_incarnation_file_that_names_none_is_reported(bench: Any) -> None:
    bench.begin().close()
    (bench.directory / "incarnation").write_text("{}")
    with pytest.raises(CorruptLog, match="incarnation"), bench.open() as log:
        log.begin(2, START)


# ---- what is served ----


@pytest.mark.rule("E9")
def test_only_what_is_durable_is_served(bench: Any, log: SegmentLog) -> None:
    bench.append(log, 1, 1)
    bench.append(log, 1, 1, sync=False)
    assert (log.last, log.durable, bench.read(log)) == (3, 1, [0, 1])
    log.mark_durable(2)
    assert bench.read(log) == [0, 1, 2]
    log.sync()
    assert bench.read(log) == [0, 1, 2, 3]
    with pytest.raises(LocalProtocolError):
        log.mark_durable(4)


@pytest.mark.rule("Q3")
def test_a_read_may_begin_and_end_within_a_commit(bench: Any, log: SegmentLog) -> None:
    bench.append(log, *[10] * 7)
    for after in reversed(range(-1, 6)):  # forwards, each would go on where one before it has stopped
        assert bench.read(log, after) == list(range(after + 1, 7))
        for count in range(1, 6 - after):
            batch = log.read(after, count, 10_000)
            assert batch is not None
            assert (batch.first, batch.last) == (after + 1, after + count)


def test_an_event_larger_than_asked_for_comes_alone(bench: Any, log: SegmentLog) -> None:
    bench.append(log, 10, 100_000, 10)
    assert [log.read(after, 100, 500).count for after in (-1, 0, 1)] == [1, 1, 1]  # type: ignore[union-attr]


def test_events_between_frames_of_notes_are_found(bench: Any, log: SegmentLog) -> None:
    for _ in range(60):
        bench.append(log, notes=bytes(3000))
        bench.append(log, 10)
    assert bench.read(log, 40) == list(range(41, 60))


@pytest.mark.rule("Q2")
@pytest.mark.rule("E13")
def test_what_retention_removed_is_refused_by_name(bench: Any) -> None:
    with bench.begin(file_bytes=2000, max_bytes=6000) as log:
        bench.fill(log, 100)
        assert log.retain() > 0
        assert 0 < log.size <= 6000
        assert log.first == int(bench.files()[0].stem) - 1
        with pytest.raises(HistoryTruncated, match=f"first retained position is {log.first}"):
            log.read(log.first - 1, 1, 1)
        assert bench.read(log, log.first) == list(range(log.first + 1, 100))
        assert log.opening(log.first).state == SegmentState(log.first, (log.first + 1,), (), ())
        with pytest.raises(HistoryTruncated):
            log.opening(log.first - 1)
    with bench.open() as log:
        assert log.read(log.first, 1, 1) is not None


@pytest.mark.rule("E13")
def test_retention_by_age_keeps_the_last_file(bench: Any) -> None:
    with bench.begin(file_bytes=2000, max_age=60) as log:
        bench.fill(log, 30)
        bench.clock.now += 59_000
        assert log.retain() == 0
        bench.clock.now += 2000
        assert log.retain() > 0
        assert len(bench.files()) == 1


@pytest.mark.rule("E13")
def test_a_clock_that_is_set_forward_makes_no_file_old(bench: Any) -> None:
    """One wrong answer of a time server must not cost a week of history."""
    with bench.begin(file_bytes=1000, max_age=3600) as log:
        bench.fill(log, 20)
        bench.clock.now += 30 * 24 * 3_600_000
        bench.clock.jumped = 30 * 24 * 3_600_000
        assert log.retain() == 0
        bench.clock.now += 3_601_000
        assert log.retain() > 0, "time that passes makes them old all the same"


def test_a_clock_that_is_set_back_makes_no_file_older(bench: Any) -> None:
    with bench.begin(file_bytes=2000, max_age=60) as log:
        bench.clock.now += 1_800_000
        bench.fill(log, 3)
        bench.clock.now -= 1_800_000
        bench.fill(log, 20)
        bench.clock.now += 120_000
        assert log.retain() == 0


def test_a_file_ends_by_age_too(bench: Any) -> None:
    with bench.begin(file_age=60) as log:
        assert not log.roll_due
        bench.clock.now += 60_000
        assert log.roll_due


def test_a_file_without_events_is_replaced(bench: Any, log: SegmentLog) -> None:
    """Else a segment that only takes notes could not end a file, whose name is its first event."""
    for _ in range(3):
        bench.append(log, notes=bytes(5000))
        assert log.roll_due
        log.roll(LogCheckpoint(SegmentState(-1, (0,), (), ()), b"again"))
    assert len(bench.files()) == 1
    assert not list(bench.directory.glob("*.index"))
    assert log.size < 500
    bench.append(log, 1)
    assert bench.read(log) == [0]
    assert log.incarnations == ((1, 0),)


def test_a_checkpoint_that_is_not_of_the_last_event_is_refused(bench: Any, log: SegmentLog) -> None:
    bench.append(log, 1)
    with pytest.raises(LocalProtocolError):
        log.roll(START)


def test_a_reader_inside_a_removed_file_finishes_it_and_gets_the_error_at_the_next(bench: Any) -> None:
    """Fault 31."""
    with bench.begin(file_bytes=2000, max_bytes=2000) as log:
        bench.fill(log, 60)
        bases = [int(path.stem) for path in bench.files()]
        batch = log.read(-1, 2, 10_000)
        assert batch is not None
        log.retain()
        assert [log.read(seq - 1, 1, 1).first for seq in range(2, bases[1])] == list(range(2, bases[1]))
        with pytest.raises(HistoryTruncated):
            log.read(bases[1] - 1, 1, 1)


def test_readers_beside_the_writer_see_every_event_once(bench: Any) -> None:
    with bench.begin(file_bytes=20_000) as log:
        total, found, wrong = 1500, [list[int]() for _ in range(3)], list[BaseException]()
        written = threading.Event()

        def follow(seqs: list[int]) -> None:
            try:
                while not (written.is_set() and log.durable == len(seqs) - 1):
                    seqs.extend(bench.read(log, len(seqs) - 1, 7, 700))
            except BaseException as error:
                wrong.append(error)

        readers = [threading.Thread(target=follow, args=(seqs,)) for seqs in found]
        for reader in readers:
            reader.start()
        bench.fill(log, total, 20)
        written.set()
        for reader in readers:
            reader.join(PATIENCE)
        assert not wrong
        assert found == [list(range(total))] * 3


def test_many_places_are_read_at_once_with_few_files_open(bench: Any, log: SegmentLog) -> None:
    bench.fill(log, 200)
    held = bench.held()
    for step in range(3):
        for place in range(60):
            batch = log.read(place * 3 + step - 1, 1, 10_000)
            assert batch is not None
            assert batch.first == place * 3 + step
    assert held <= bench.held() <= held + 16


# ---- openings ----


def test_an_opening_begins_with_the_nearest_state(bench: Any, log: SegmentLog) -> None:
    log.roll(LogCheckpoint(SegmentState(-1, (0,), (), ()), b""))
    for seq in range(40):
        bench.append(log, 10)
        if seq % 10 == 9:
            log.keep_state(SegmentState(seq, (seq + 1,), (), ()))
    for seq, nearest in ((-1, -1), (8, -1), (9, 9), (15, 9), (39, 39)):
        opening = log.opening(seq)
        assert opening.state == SegmentState(nearest, (nearest + 1,), (), ())
        assert sum(batch.count for batch in opening.batches) == seq - nearest
    with pytest.raises(LocalProtocolError):
        log.opening(40)


def known_states(bench: Any, log: SegmentLog, every: int, count: int = 200) -> list[int]:
    """Fill a log of small files, and keep the state at every so many events; where a state is known, oldest first."""
    known = {-1}
    for seq in range(count):
        bench.append(log, 100)
        if seq % every == 0:
            log.keep_state(bench_state(seq))
            known.add(seq)
        if log.roll_due:
            log.roll(LogCheckpoint(bench_state(seq), b""))
            known.add(seq)
    assert len(bench.files()) > 4
    return sorted(known)


def bench_state(seq: int) -> SegmentState:
    return SegmentState(seq, (seq + 1,), (), ())


@pytest.mark.rule("E20")
@pytest.mark.parametrize("every", [3, 1000])
def test_the_last_state_that_holds_is_found_by_looking_into_few_files(bench: Any, every: int) -> None:
    with bench.begin(file_bytes=2048) as log:
        known = known_states(bench, log, every)
        opened = bench.count_opens()
        for end in range(-1, 201):
            before = opened()
            found = log.newest_state(lambda state, end=end: state.seq <= end)
            assert found == bench_state(max(seq for seq in known if seq <= end))
            assert opened() - before <= len(bench.files()).bit_length() + 1
    with bench.open() as log:  # as the next life finds it: of the last file only the head is known
        for end in range(-1, 201):
            found = log.newest_state(lambda state, end=end: state.seq <= end)
            assert found.seq in known
            assert found.seq <= end


@pytest.mark.rule("E20", "E13")
def test_where_no_state_holds_the_first_one_is_given(bench: Any) -> None:
    with bench.begin(file_bytes=2048, max_bytes=8192) as log:
        known_states(bench, log, 3)
        log.retain()
        assert log.first > 0
        assert log.newest_state(lambda _: False) == bench_state(log.first)


@pytest.mark.rule("E9", "E20")
def test_a_state_after_what_is_durable_is_not_found(bench: Any, log: SegmentLog) -> None:
    bench.append(log, 10)
    bench.append(log, 10, sync=False)
    log.keep_state(bench_state(1))
    assert log.newest_state(lambda _: True).seq == -1
    log.sync()
    assert log.newest_state(lambda _: True).seq == 1


@pytest.mark.rule("E20")
def test_after_a_damaged_header_no_state_is_looked_for(bench: Any) -> None:
    """Fault 29: what begins before it is right as well, and who reads on is told what the damage costs."""
    with bench.begin(file_bytes=2048) as log:
        known_states(bench, log, 3)
        files = bench.files()
        for path in files[2:]:
            data = bytearray(path.read_bytes())
            data[20] ^= 1
            path.write_bytes(data)
        found = log.newest_state(lambda state: state.seq < 190)
        assert found.seq <= int(files[2].stem)
        assert found.seq > int(files[1].stem), "from the index of the last file whose head is sound"


@pytest.mark.parametrize("left", [None, b"", b"damaged", "older"])
def test_the_same_answers_come_without_an_index(bench: Any, left: bytes | str | None) -> None:
    """Fault 30."""
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 200)
        older = {path: path.read_bytes() for path in bench.directory.glob("*.index")}
        assert len(older) > 3
    paths = sorted(older)
    for path, following in zip(paths, [*paths[1:], paths[0]], strict=True):
        if left is None:
            path.unlink()
        else:
            path.write_bytes(older[following] if left == "older" else left)
    with bench.open() as log:
        assert bench.read(log) == list(range(200))
        assert bench.read(log, 77) == list(range(78, 200))
        assert log.opening(100).state.seq <= 100


def test_ten_thousand_frames_are_opened_at_once(bench: Any, tmp_path: Path) -> None:
    with SegmentLog.open(tmp_path, "uid", "0", instance="a test") as log:
        log.begin(1, START)
        for seq in range(10_000):
            log.write(1, bench.entry(seq, 50), b"notes")
    with SegmentLog.open(tmp_path, "uid", "0", instance="a test") as log:
        assert log.recovered is not None
        assert len(log.recovered.frames) == 10_001
        assert log.recovered.torn == 0


@pytest.mark.rule("E9")
def test_what_was_written_before_a_file_ends_is_on_disk_and_served_with_its_end(bench: Any) -> None:
    with bench.begin() as log:
        bench.append(log, 10, sync=False)
        assert log.durable < log.last
        log.roll(LogCheckpoint(bench_state(log.last), b""))
        assert log.durable == log.last
        assert bench.read(log) == [0]


def test_a_reader_that_is_busy_while_the_log_closes_keeps_nothing_open(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.begin()
    bench.append(log, 10)
    take = LogCursor.take

    def taken(self: LogCursor, *given: int) -> Any:
        log.close()
        return take(self, *given)

    monkeypatch.setattr(LogCursor, "take", taken)
    assert log.read(-1, 10, 1000) is not None
    assert not log._retained._parked

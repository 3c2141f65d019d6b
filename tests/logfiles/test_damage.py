"""What a crash leaves, and what a bad disk does: the one is mended, the other told, and neither served."""

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epochal.errors import CorruptLog, LogFull, Superseded
from epochal.logfiles import LogSettings, SegmentLog
from epochal.logfiles.disk import PIECE, OSDisk
from epochal.logfiles.survey import verify
from epochal.protocol import messages as m
from epochal.protocol.log.file_format import FOOTER_BYTES, LogCheckpoint, decode_header
from epochal.protocol.log.frames import Damage, Frame, entry, recover, scan
from epochal.protocol.log.history import SegmentState


@pytest.mark.rule("E10")
def test_a_torn_end_is_cut_off_reported_and_on_disk_before_the_first_append(bench: Any) -> None:
    """Fault 28."""
    with bench.begin() as log:
        bench.append(log, 10)
        sound = log.size
        bench.append(log, 200)
        path = bench.files()[-1]
        whole = path.read_bytes()  # as a process that is killed leaves it
    for size in range(sound, len(whole), 7):
        path.write_bytes(whole[:size])
        syncs = bench.disk.syncs
        with bench.open() as log:
            assert log.recovered is not None
            assert (log.last, log.recovered.torn, path.stat().st_size) == (0, size - sound, sound)
            assert bench.disk.syncs == syncs + 1


def test_a_crash_that_keeps_a_later_frame_and_loses_an_earlier_one_is_no_damage(bench: Any) -> None:
    """Fault 28: what is not synced reaches the disk in any order."""
    torn = 0
    for seed in range(40):
        log = bench.begin()
        last = log.last
        for _ in range(3):
            bench.append(log, 100, sync=False)
        bench.kill(log, seed)
        with bench.open() as log:
            assert last <= log.last <= last + 3
            torn += log.recovered.torn > 200
    assert torn


def test_a_crash_in_the_midst_of_removing_leaves_no_hole(bench: Any) -> None:
    for seed in range(30):
        with bench.begin(file_bytes=1000, max_bytes=3000) as log:
            bench.fill(log, 40)
        log = bench.begin(max_bytes=3000)
        assert log.retain() > 2
        bench.kill(log, seed)
        bench.open().close()


def test_damage_in_the_middle_of_the_last_file_is_never_cut_off(bench: Any) -> None:
    """Fault 29."""
    with bench.begin() as log:
        starts = []
        for _ in range(3):
            starts.append(log.size)
            bench.append(log, 50)
    path = bench.files()[-1]
    whole = path.read_bytes()
    flip(path, starts[1] + 70)
    with pytest.raises(CorruptLog) as damage:
        bench.open()
    assert (damage.value.first, damage.value.last, damage.value.behind) == (starts[1], starts[2], 1)
    assert len(path.read_bytes()) == len(whole)
    path.write_bytes(whole)
    with bench.open() as log:
        assert bench.read(log) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_in_a_sealed_file_is_reported_and_all_else_is_served(bench: Any, seed: int) -> None:
    """Fault 29: never silently wrong data, never a shorter answer that looks whole."""
    chance = random.Random(seed)
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 90)
    path = chance.choice(bench.files()[:-1])
    at = flip(path, chance.randrange(path.stat().st_size), chance.randrange(8))
    log = attempt(bench.open)
    if isinstance(log, CorruptLog):  # at either end, which opening looks at
        assert log.path == path
        assert at < 200 or at >= path.stat().st_size - FOOTER_BYTES
        return
    with log:
        found, lost, after = list[int](), list[int](), -1
        while after < log.durable:
            batch = attempt(lambda: log.read(after, chance.randint(1, 20), 2000))  # noqa: B023  # called at once
            if isinstance(batch, CorruptLog):
                assert batch.behind is not None
                assert batch.path == path
                assert batch.first <= at < batch.last
                lost.extend(range(after + 1, batch.behind + 1))
                after = batch.behind
            else:
                found.extend(range(batch.first, batch.last + 1))
                after = batch.last
        assert sorted(found + lost) == list(range(90))
        assert len(lost) == 1
        assert [log.read(seq - 1, 1, 1).first for seq in found] == found
        with pytest.raises(CorruptLog):
            log.read(lost[0] - 1, 1, 1)


def test_a_flip_of_any_bit_of_a_log_that_was_closed_is_found_and_no_event_is_lost_by_it(bench: Any) -> None:
    """Fault 29: the last frame, which no later one vouches for, is vouched for by the end of the file."""
    with bench.begin() as log:
        for size in (5, 0, 9):
            bench.append(log, size, notes=b"note")
    path = bench.files()[-1]
    whole = path.read_bytes()
    header = decode_header(whole)
    for at, bit in itertools.product(range(len(whole)), range(8)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        path.write_bytes(flipped)
        (checked,) = verify(bench.directory)
        assert checked.damage, f"bit {bit} of byte {at}"
        if header.length <= at:
            kept = recover(bytes(flipped), header)
            assert isinstance(kept, Damage) or len(kept.frames) == 4, f"bit {bit} of byte {at}"
    for at in range(3, len(whole), 23):
        path.write_bytes(whole)
        flip(path, at)
        opened = attempt(bench.open)
        assert isinstance(opened, CorruptLog) == (at < len(whole) - FOOTER_BYTES)
        if isinstance(opened, SegmentLog):
            assert (opened.last, opened.recovered.torn) == (2, FOOTER_BYTES)  # type: ignore[union-attr]  # found
            opened.close()


def test_damage_to_the_last_frame_is_distinguished_from_a_crash_once_the_log_has_vouched_for_it(bench: Any) -> None:
    """Fault 29, without an orderly end: what is quiet for a moment is vouched for."""
    with bench.begin() as log:
        bench.append(log, 50)
        start = log.size
        bench.append(log, 50)
        end = log.size
        log.vouch()
        vouched, path = log.size, bench.files()[-1]
        assert vouched > end
        log.vouch()
        assert log.size == vouched, "once is enough"
        whole = path.read_bytes()
        bench.append(log, 50, sync=False)
        size = log.size
        log.vouch()
        assert log.size == size, "it is not on disk"
    path.write_bytes(whole)
    assert [one.events for one in verify(bench.directory)] == [2]
    for at in range(start, end):
        path.write_bytes(whole)
        flip(path, at, at % 8)
        with pytest.raises(CorruptLog, match="it was on disk once"):
            bench.open()


def test_a_disk_that_is_full_leaves_a_log_without_its_end_and_whole(bench: Any) -> None:
    log = bench.begin()
    bench.append(log, 50)
    size = log.size
    bench.disk.room = 0
    with pytest.raises(LogFull):
        log.vouch()
    log.close()
    assert bench.files()[-1].stat().st_size == size
    bench.disk.room = None
    with bench.open() as log:
        assert (log.last, log.recovered.torn) == (0, 0)


def test_who_does_not_own_the_log_any_more_does_not_end_it(bench: Any) -> None:
    """Rule E12."""
    log = bench.begin()
    bench.append(log, 50)
    size = log.size
    (bench.directory / "incarnation").write_text('{"incarnation": 9, "instance": "another"}')
    with pytest.raises(Superseded):
        log.vouch()
    log.close()
    assert bench.files()[-1].stat().st_size == size


def test_what_the_disk_cannot_read_is_reported_with_its_place(bench: Any, log: SegmentLog) -> None:
    bench.fill(log, 60)
    bench.disk.broken.add("read")
    held = bench.held()
    with pytest.raises(CorruptLog, match="Input/output error") as damage:
        log.read(-1, 1, 1)
    assert bench.held() == held, "nothing stays open for a reader that was told so"
    assert damage.value.path == bench.files()[0]
    assert damage.value.behind == int(bench.files()[1].stem) - 1
    bench.disk.broken.clear()
    assert bench.read(log) == list(range(60))


def test_frames_that_changed_places_are_reported(bench: Any) -> None:
    """Fault 29: each is sound by itself."""
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 60)
        path = bench.files()[0]
        data = path.read_bytes()
        header = decode_header(data)
        frames = [one for one in scan(data, header.length, len(data), header.seed, 0) if isinstance(one, Frame)]
        one, two = frames[5], frames[6]
        swapped = data[two.offset : two.end] + data[one.offset : one.end]
        path.write_bytes(data[: one.offset] + swapped + data[two.end :])
        with pytest.raises(CorruptLog) as damage:
            bench.read(log)
        assert damage.value.first == two.end, "event 4 is still there, event 5 is not behind it"
    assert any(checked.damage for checked in verify(bench.directory))


def test_damage_to_notes_alone_loses_no_events(bench: Any) -> None:
    with bench.begin(file_bytes=4096) as log:
        bench.append(log, 10)
        at = log.size
        bench.append(log, notes=bytes(100))
        bench.fill(log, 60)
    flip(bench.files()[0], at + 80)
    with bench.open() as log:
        assert bench.read(log) == list(range(61))


def test_a_sealed_file_that_was_cut_is_reported_at_opening_or_at_reading(bench: Any) -> None:
    """A cut between two frames too: the footer is missing then."""
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 60)
        path = bench.files()[0]
        whole = path.read_bytes()
        path.write_bytes(whole[:1000])
        with pytest.raises(CorruptLog) as damage:
            bench.read(log)
        assert damage.value.behind == int(bench.files()[1].stem) - 1
    with pytest.raises(CorruptLog, match="footer"):
        bench.open()


def test_a_missing_file_is_reported(bench: Any) -> None:
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 90)
    bench.files()[1].unlink()
    with pytest.raises(CorruptLog, match="would be next"):
        bench.open()


def test_a_file_under_another_name_is_reported(bench: Any) -> None:
    bench.begin().close()
    path = bench.files()[0]
    path.rename(path.with_name(f"{5:020d}.log"))
    with pytest.raises(CorruptLog, match="its name"):
        bench.open()


def test_what_was_never_finished_is_removed(bench: Any) -> None:
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 60)
        last = log.last
    for name in (f"{last + 1:020d}.log.tmp", f"{77777:020d}.index", "incarnation.tmp"):
        (bench.directory / name).write_bytes(b"EPOCHLOG")
    names = {path.name for path in bench.directory.iterdir()}
    with bench.open() as log:
        assert log.last == last
        assert len(names) - len({path.name for path in bench.directory.iterdir()} - {"owner.lock"}) == 3


@pytest.mark.parametrize("size", [0, 7, 40, 60])
def test_a_last_file_that_was_cut_inside_its_header_is_damage_and_stays(bench: Any, size: int) -> None:
    """No crash leaves one: it had its header on disk before it had its name, and events behind it since."""
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 60)
    path = bench.files()[-1]
    os.truncate(path, size)
    with pytest.raises(CorruptLog, match="ends inside its header; nothing was changed; bring the file back") as damage:
        bench.open()
    assert damage.value.path == path
    assert path.stat().st_size == size
    assert [one.path for one in verify(bench.directory) if one.damage] == [path]


def test_a_crash_between_the_footer_and_the_next_file_is_mended(bench: Any) -> None:
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 60)
    bench.files()[-1].unlink()
    with bench.begin() as log:
        assert log.recovered is None
        bench.append(log, 10)
        last = log.last
        assert bench.read(log) == list(range(last + 1))


@pytest.mark.rule("E10")
def test_a_file_that_was_sealed_is_cut_where_it_is_mended(bench: Any) -> None:
    """Else a frame that is shorter than the footer leaves a piece of it, which is no frame."""
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 60)
    bench.files()[-1].unlink()
    path = bench.files()[-1]
    sealed = path.read_bytes()
    with bench.open() as log:
        kept = path.read_bytes()
        assert len(kept) < len(sealed)
        assert sealed.startswith(kept)
        assert not log.recovered.torn
        assert bench.read(log) == list(range(log.last + 1))


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns, or the damage that it tells of."""
    try:
        return call()
    except CorruptLog as damage:
        return damage


def flip(path: Path, at: int, bit: int = 3) -> int:
    """Flip one bit of a file; returns where."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    return at


class Measured(OSDisk):
    """Counts what is held at once, by the largest piece that was ever asked for."""

    largest = 0

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        type(self).largest = max(self.largest, size)
        return super().read(descriptor, size, offset)


def test_a_log_is_recovered_piece_by_piece_however_long_its_last_file_is(tmp_path: Path) -> None:
    """Also where it was torn, and where all that follows has to be looked through for a frame."""
    settings = LogSettings(file_bytes=2**30)
    with SegmentLog.open(tmp_path, "uid", "0", instance="one", settings=settings) as log:
        log.begin(1, LogCheckpoint(SegmentState(-1, (0,), (), ())))
        for number in range(64):
            log.write(1, entry(m.Data(number, number - 1, 0, b"", 1, 0, bytes(2**17))), b"notes")
        log.sync()
        (path,) = tmp_path.glob("*.log")
        sound = path.stat().st_size
    os.truncate(path, sound)  # as a process that is killed leaves it
    with path.open("ab") as file:
        file.write(os.urandom(2**20) + b"\xe7\x0c\xf4\xa3" * 2**18)
    Measured.largest = 0
    with SegmentLog.open(tmp_path, "uid", "0", instance="two", settings=settings, disk=Measured()) as log:
        assert log.recovered is not None
        assert (log.last, log.recovered.torn, path.stat().st_size) == (63, 2**21, sound)
        twice = [[frame.head.base for frame in log.recovered.frames] for _ in range(2)]
        assert twice == [[0, *range(64)]] * 2
    assert Measured.largest <= PIECE < 2**20


@pytest.mark.parametrize("sealed", [False, True])
def test_history_opens_after_damage_at_the_next_known_state(bench: Any, sealed: bool) -> None:
    """Fault 29: between the two the state cannot be known, and where it can be again is told."""
    starts = []
    with bench.begin() as log:
        for seq in range(40):
            starts.append(log.size)
            bench.append(log, 50)
            if seq == 20:
                log.keep_state(SegmentState(seq, (seq,), (), ()))
        if sealed:
            log.roll(LogCheckpoint(SegmentState(39, (39,), (), ())))
        flip(bench.files()[0], starts[10] + 60)
        for refused in (10, 15, 19):
            with pytest.raises(CorruptLog, match="history can be asked for from position 20 on") as damage:
                log.opening(refused)
            assert (damage.value.first, damage.value.last, damage.value.behind) == (starts[10], starts[11], 20)
        for served in (0, 9, 20, 21, 39):
            assert log.opening(served).state.seq in (-1, 20, 39)
        assert bench.read(log, 15) == list(range(16, 40)), "the events themselves can all be read"
        flip(bench.files()[0], starts[30] + 60)
        with pytest.raises(CorruptLog) as damage:
            log.opening(35)
        assert damage.value.behind == (39 if sealed else None), "the next file begins with a state"

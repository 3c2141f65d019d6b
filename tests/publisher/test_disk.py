"""Publishers whose log is on disk: full disks, failing disks, other owners, and what is asked of history there."""

import contextlib
import itertools
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from epochal.protocol import messages as m

STORED: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}, "push": {"heartbeat": "200ms"}}
KILOBYTE = bytes(1000)


@pytest.mark.rule("E10")
def test_a_full_disk_holds_acknowledgements_back(start, wires, wait_until, small_disk) -> None:
    """Fault 26: what is not written is not acknowledged, and goes on by itself when there is space."""
    stream, publisher = start({"data": small_disk, "log_retry": 0.1}, **STORED)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    writer = wires.writer(publisher, stream)
    writer.open()
    subscriber = wires.subscriber(publisher, stream)
    subscriber.join()
    writer.append(0, *[KILOBYTE] * 300)
    wait_until(lambda: publisher.metric("log_full", "0") == 1)
    assert "no space" in publisher.log.read_text().lower()
    assert publisher.get("/healthz")[0] == 200
    acked = 0
    while writer.line.poll():
        acked = max(acked, writer.line.receive().number + 1)
    assert acked < 300
    ballast.unlink()
    while acked < 300:
        acked = max(acked, writer.line.await_(m.Ack).number + 1)
    assert wait_until(lambda: publisher.metric("log_full", "0") == 0) is True
    seqs = [subscriber.next_event().seq for _ in range(300)]
    assert seqs == list(range(300)), "pushed once each, in order, and only what was acknowledged"


def filled(disk: Path) -> Path:
    """Something else that takes most of the disk."""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    return ballast


@pytest.mark.rule("E8", "E9")
def test_while_the_disk_is_full_readers_hear_that_the_publisher_lives(start, wires, wait_until, small_disk) -> None:
    stream, publisher = start({"data": small_disk, "log_retry": 0.1}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    last = writer.acked(0, b"x").seq
    subscriber = wires.subscriber(publisher, stream)
    subscriber.join()
    filled(small_disk)
    writer.append(0, *[KILOBYTE] * 300)
    wait_until(lambda: publisher.metric("log_full", "0") == 1)
    told = last
    for _ in range(3):
        while not isinstance(message := subscriber.events.receive(), m.Heartbeat):
            told = message.seq
        assert message.seq == told, "of nothing that is not on disk"


@pytest.mark.rule("E9", "S9", "Q2")
def test_while_the_disk_is_full_what_is_on_it_is_served_and_nothing_else(start, wires, wait_until, small_disk) -> None:
    """Joins and history do not wait with the acknowledgements, and tell of nothing that is not durable."""
    stream, publisher = start({"data": small_disk, "log_retry": 0.1}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(0, b"x")
    ballast = filled(small_disk)
    writer.append(0, *[KILOBYTE] * 300)
    wait_until(lambda: publisher.metric("log_full", "0") == 1)
    acked = 0
    while writer.line.poll():
        acked = writer.line.receive().seq
    writer.append(1, b"of an epoch that nobody may hear of")  # decided, and not on disk
    subscriber, other = wires.subscriber(publisher, stream), wires.subscriber(publisher, stream)
    snapshot = subscriber.join()
    assert (snapshot.seq, snapshot.lower, snapshot.upper) == (acked, (0,), (0,))
    opening, *events = other.since(None)
    assert isinstance(opening, m.Opening)
    assert [event.seq for event in events] == list(range(acked + 1))
    assert other.since(m.Position(1, acked))[1:] == []
    assert isinstance(other.since(m.Position(1, acked + 1))[0], m.Refused), "it is ahead of all that was told"
    status, body = publisher.get("/v1/segments/0/events?since=start")
    assert (status, body.count('"kind":"data"')) == (200, acked + 1)
    assert publisher.metric("log_full", "0") == 1, "and all that while it was full"
    ballast.unlink()
    first = subscriber.next_event()
    assert (first.seq, first.prev) == (acked + 1, acked), "live events join the snapshot without a gap"
    while subscriber.next_event().time != 1:
        pass


@pytest.mark.rule("E9", "E12")
def test_a_publisher_that_starts_on_a_full_disk_serves_what_is_on_it(start, wires, wait_until, small_disk) -> None:
    stream, publisher = start({"data": small_disk, "log_retry": 0.1}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    last = writer.acked(0, b"a", b"b", b"c").seq
    publisher.stop()
    ballast = fill_up(small_disk)
    again = stream.start("0", data=small_disk, log_retry=0.1)
    try:
        assert again.metric("log_full", "0") == 1
        reader = wires.subscriber(again, stream)
        snapshot = reader.join()
        assert (snapshot.seq, snapshot.incarnation) == (last, 2)
        opening, *events = wires.subscriber(again, stream).since(m.Position(1, 0))
        assert ([event.payload for event in events], opening.position) == ([b"b", b"c"], (1, 0))
        back = wires.writer(again, stream)
        back.line.send(m.Open(1, stream.uid, "0", "w1", 1, None, m.Resume(2, (0,), (0,))))
        assert not back.line.poll(1.0), "it is told when it is on disk"
        ballast.unlink()
        assert back.line.await_(m.Opened).incarnation == 2
        wait_until(lambda: again.metric("log_full", "0") == 0)
        again.stop()
        third = stream.start("0", data=small_disk)
        assert stream.segment()["incarnation"] == 3
        third.stop()
    finally:
        again.stop()


@pytest.mark.rule("E12")
def test_a_publisher_whose_log_cannot_even_be_made_says_so_and_waits(declare, wait_until, small_disk) -> None:
    stream = declare(**STORED)
    subprocess.run(["mount", "-o", "remount,nr_inodes=3", str(small_disk)], check=True)
    (small_disk / "one").touch()
    (small_disk / "another").touch()
    publisher = stream.start("0", data=small_disk, log_retry=0.1, wait=False)
    try:
        wait_until(lambda: "waiting for space" in publisher.log.read_text())
        subprocess.run(["mount", "-o", "remount,nr_inodes=100", str(small_disk)], check=True)
        publisher.await_ready()
    finally:
        publisher.stop()


def fill_up(disk: Path) -> Path:
    """Something else that takes all of the disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return ballast


@pytest.mark.rule("E9")
def test_what_waits_for_a_full_disk_is_bounded_whatever_writers_send(start, wires, wait_until, small_disk) -> None:
    """And no more than fits one entry of the log, which goes on as soon as there is space.

    What writers send beyond their credit stays unread, in queues that the library bounds in messages only
    (docs/hostile-input.md).
    """
    stream, publisher = start({"data": small_disk, "log_retry": 0.1}, **STORED)
    ballast = filled(small_disk)
    writers = [wires.writer(publisher, stream) for _ in range(12)]
    for number, writer in enumerate(writers):
        writer.open(f"w{number}")
    writers[0].append(0, *[KILOBYTE] * 300)
    wait_until(lambda: publisher.metric("log_full", "0") == 1)
    before = publisher.rss()
    for writer in writers[1:]:
        writer.append(0, *[bytes(2**20 - 100)] * 8)
    wait_until(lambda: publisher.rss() - before > 80 * 2**20)  # all that they sent has come into the process

    def received() -> float:
        return publisher.metric("received_bytes_total")

    wait_until(lambda: 30 * 2**20 < received() == received())  # it reads no more
    assert received() < 48 * 2**20, "and most of it is not read"
    subprocess.run(["mount", "-o", "remount,size=400m", str(small_disk)], check=True)
    ballast.unlink()
    for writer in writers[1:]:
        while writer.line.await_(m.Ack).number != writer.number - 1:
            pass
    assert publisher.popen.poll() is None


@pytest.mark.rule("E9")
def test_what_waits_for_a_full_disk_is_bounded_also_where_payloads_are_empty(
    start, wires, wait_until, small_disk
) -> None:
    """What an append costs beside its payload counts, or an entry of the log would grow too large for it."""
    stream, publisher = start({"data": small_disk, "log_retry": 0.1}, **STORED)
    ballast = filled(small_disk)
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.append(0, *[KILOBYTE] * 300)
    wait_until(lambda: publisher.metric("log_full", "0") == 1)
    topic, first = bytes(1000), writer.number
    for number in range(first, first + 80_000):
        writer.line.send(m.Append(writer.segment, number, 0, topic, 1, 0, b""))
    received = [0.0]
    while received[-1] == 0 or received[-1] != received[-2]:
        time.sleep(0.5)
        received.append(publisher.metric("received_bytes_total"))
    assert received[-1] < 48 * 2**20
    subprocess.run(["mount", "-o", "remount,size=400m", str(small_disk)], check=True)
    ballast.unlink()
    while writer.line.await_(m.Ack).number != first + 80_000 - 1:
        pass
    assert publisher.popen.poll() is None


@pytest.mark.rule("E13")
def test_a_full_disk_is_freed_by_what_gets_too_old(start, wires, wait_until, small_disk) -> None:
    kept = {"storage": {"size": "1Gi"}, "retention": {"time": "4s", "bytes": "1Mi"}}
    stream, publisher = start({"data": small_disk, "log_retry": 0.1}, history=kept)
    writer = wires.writer(publisher, stream)
    writer.open()
    full = False

    def answered() -> bool:
        nonlocal full
        # Nothing else is asked meanwhile: the disk must be full before anything is too old.
        if writer.line.poll(1.0):  # load: where nothing has come, it looks again
            writer.line.receive()
            return True
        full = publisher.metric("log_full", "0") == 1
        return full

    for number in itertools.count():
        writer.append(number, *[KILOBYTE] * 30)
        wait_until(answered)
        while writer.line.poll():
            writer.line.receive()
        if full:
            break
    wait_until(lambda: publisher.metric("log_full", "0") == 0)


@pytest.mark.rule("E17")
def test_a_log_that_ends_before_what_was_published_is_not_continued(start, wires, wait_until, tmp_path) -> None:
    stream, publisher = start({"data": tmp_path / "d"}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(0, b"x")
    publisher.stop()
    subprocess.run(["cp", "-a", tmp_path / "d", tmp_path / "older"], check=True)
    second = stream.start("0", data=tmp_path / "d")
    opened = wires.writer(second, stream)
    opened.open(resume=m.Resume(0, (0,), (0,)))
    opened.advance(9)
    wait_until(lambda: stream.segment()["lower"] == [9])
    second.stop()
    third = stream.start("0", data=tmp_path / "older", wait=False)
    assert third.ended() == 1
    assert "readers were sent [9]: it is an older copy" in third.log.read_text()


@pytest.mark.rule("E10")
def test_a_disk_that_fails_ends_the_process_and_what_was_acknowledged_is_there(start, wires, tmp_path) -> None:
    """Fault 27. A limit on the size of files fails a write as a broken disk does, and not as a full one."""
    stream, publisher = start({"data": tmp_path}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    first = writer.acked(0, KILOBYTE)
    log = next(tmp_path.rglob("*.log"))
    subprocess.run(["prlimit", f"--pid={publisher.pid}", f"--fsize={log.stat().st_size + 500}"], check=True)
    writer.append(0, KILOBYTE)
    assert publisher.ended() == 1
    assert "the log cannot be written, nothing more is sent" in publisher.log.read_text()
    again = stream.start("0", data=tmp_path)
    try:
        opening, *events = wires.subscriber(again, stream).since(None)
        assert isinstance(opening, m.Opening)
        assert [event.seq for event in events] == [first.seq]
    finally:
        again.stop()


@pytest.mark.rule("E12")
def test_a_second_publisher_waits_for_the_log_of_the_first_and_continues_it(start, wires, wait_until, tmp_path):
    stream, first = start({"data": tmp_path}, **STORED)
    writer = wires.writer(first, stream)
    writer.open()
    assert writer.acked(0, b"a").seq == 0
    second = stream.start("0", data=tmp_path, publisher="second", log_retry=0.05, wait=False)
    try:
        wait_until(lambda: "waiting for it to end" in second.log.read_text())
        assert writer.acked(0, b"b").seq == 1, "the first is not disturbed"
        first.signal(signal.SIGKILL)
        second.await_ready()
        assert stream.segment()["incarnation"] == 2
        opened = wires.writer(second, stream).open(resume=m.Resume(0, (0,), (0,)))
        assert (opened.incarnation, opened.number, opened.touched) == (2, 1, (0,))
    finally:
        second.stop()


@pytest.mark.rule("E10")
def test_where_a_log_goes_on_and_what_was_cut_off_is_reported(start, wires, tmp_path) -> None:
    """Fault 28."""
    stream, publisher = start({"data": tmp_path}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    assert writer.acked(0, b"x").seq == 0
    publisher.stop()
    (path,) = tmp_path.glob("*/0/*.log")
    with path.open("ab") as file:
        file.write(bytes(77))
    second = stream.start("0", data=tmp_path)
    second.stop()
    told = second.log.read_text()
    assert f"the log in {path.parent} continues after event 0 of incarnation 1" in told
    assert f"{path.parent}: 77 bytes at its end form no whole entry and are cut off" in told


@pytest.mark.rule("E10")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_damage_to_the_last_acknowledged_event_is_reported_and_nothing_is_cut(start, wires, wait_until, tmp_path, how):
    """Fault 29: after an orderly stop, and after a crash once nothing had been written for a second."""
    stream, publisher = start({"data": tmp_path}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(0, b"a payload that was acknowledged")
    size = publisher.metric("log_size_bytes", "0")
    if how is signal.SIGKILL:
        wait_until(lambda: publisher.metric("log_size_bytes", "0") > size)
    publisher.signal(how)
    publisher.ended()
    (path,) = tmp_path.glob("*/0/*.log")
    data = bytearray(path.read_bytes())
    data[data.index(b"acknowledged")] ^= 4
    path.write_bytes(data)
    again = stream.start("0", data=tmp_path, wait=False)
    assert again.ended() == 1
    assert f"{path}: bytes" in again.log.read_text()
    assert path.read_bytes() == data


@pytest.mark.rule("E12")
def test_a_log_that_is_taken_holds_up_the_recovery_of_no_other(start, wires, wait_until, tmp_path) -> None:
    stream, first = start({"data": tmp_path}, segments=2, **STORED)
    first.stop()
    holder = stream.start("0", data=tmp_path, publisher="holder")
    second = stream.start("0,1", data=tmp_path, publisher="second", log_retry=0.05, wait=False)
    try:
        wait_until(lambda: "waiting for it to end" in second.log.read_text())
        wait_until((tmp_path / stream.uid / "1" / "owner.lock").exists)
        holder.signal(signal.SIGKILL)
        second.await_ready()
    finally:
        holder.stop()
        second.stop()


@pytest.mark.rule("E12")
def test_incarnations_rise_above_those_of_the_volume(start, declare, wires, tmp_path) -> None:
    """A catalog that has lost its database must not hand out an incarnation that the log has seen."""
    stream, publisher = start({"data": tmp_path}, **STORED)
    wires.writer(publisher, stream).open()
    publisher.stop()
    (directory,) = tmp_path.iterdir()
    (directory / "0" / "incarnation").write_text('{"incarnation": 41, "instance": "of another catalog"}')
    again = stream.start("0", data=tmp_path)
    try:
        assert stream.segment()["incarnation"] == 42
    finally:
        again.stop()


@pytest.mark.rule("E10", "Q2")
def test_since_is_answered_from_disk_in_order_as_it_was_pushed(start, wires, tmp_path) -> None:
    """Small, large and very large payloads; entries are sent as they stand in the file, and are the same events."""
    stream, publisher = start({"data": tmp_path}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    subscriber = wires.subscriber(publisher, stream)
    subscriber.join()
    for number, size in enumerate((0, 1, 1000, 65_000, 65_535, 65_536, 70_000, 200_000, 3, 1_000_000, 7)):
        writer.acked(number // 3, os.urandom(size))
    writer.advance(2)
    pushed = [subscriber.next_event() for _ in range(12)]
    publisher.stop()
    again = stream.start("0", data=tmp_path)
    try:
        reader = wires.subscriber(again, stream)
        opening, *events = reader.since(None)
        assert isinstance(opening, m.Opening)
        assert events == pushed
        opening, *events = reader.since(m.Position(1, 6), credit=1)
        assert opening.position == m.Position(1, 6)
        assert (opening.lower, opening.upper) == ((0,), (2,))
        assert events == pushed[7:]
    finally:
        again.stop()


def stored_epochs(start, wires, path: Path, count: int) -> tuple[Any, Any]:
    """A publisher of so many epochs in small log files, of which its memory holds none; epoch T begins at 2 T."""
    kept = {"storage": {"size": "1Gi"}, "retention": {"bytes": "1Mi"}}  # in files of an eighth of it
    stream, publisher = start({"data": path}, history=kept)
    writer = wires.writer(publisher, stream)
    writer.open()
    for hour in range(count):
        writer.append(hour, KILOBYTE)
        writer.line.await_(m.Ack)
        writer.advance(hour + 1)
    publisher.stop()
    assert len(list(path.rglob("*.log"))) > 3
    return stream, stream.start("0", data=path)


@pytest.mark.rule("E13", "Q2")
def test_the_first_position_that_can_be_had_moves_with_retention(start, wires, tmp_path) -> None:
    """Over HTTP and for `since` alike, in a publisher that goes on: its memory does not reach back to the files."""
    kept = {"storage": {"size": "1Gi"}, "retention": {"bytes": "256Ki"}}
    stream, publisher = start({"data": tmp_path}, history=kept)
    writer = wires.writer(publisher, stream)
    writer.open()
    # It ends as a file is removed. Elsewhere a full file may wait for the next commit, or for the sweep every 10 s.
    first = 0
    for number in itertools.count():
        writer.append(number, *[KILOBYTE] * 15)
        writer.advance(number + 1)
        before, first = first, int(publisher.metric("log_first", "0"))
        if first > before > 0:
            break
    status, body = publisher.get("/v1/segments/0/events?since=start&limit=1")
    assert (status, f'"position":[1,{first - 1}]' in body) == (200, True)
    opening, *_ = wires.subscriber(publisher, stream).since(None)
    # Where only the frontier moved just before, the answer begins with the state in which that began.
    assert (opening.position.incarnation, max(opening.position.seq, opening.lull)) == (1, first - 1)
    gone = wires.subscriber(publisher, stream).since(opening.position._replace(seq=opening.position.seq - 1))[0]
    assert (type(gone), gone.first_available) == (m.Truncated, m.Position(1, first - 1))
    assert publisher.metric("since_truncated_total", "0") == 1
    assert publisher.metric("commit_duration_seconds_count") >= number


@pytest.mark.rule("E20", "Q3")
def test_what_is_wanted_is_found_on_disk_and_sent_from_there_on(start, wires, tmp_path) -> None:
    stream, publisher = stored_epochs(start, wires, tmp_path, 400)
    try:
        reader = wires.subscriber(publisher, stream)
        everything = reader.since(None)[1:]
        for time in (0, 1, 77, 250, 399, 400, 1000):
            opening, *events = reader.since(None, wanted=(time,))
            assert opening.position == m.Position(2, 2 * min(time, 400) - 1)
            assert (opening.lower, opening.upper, opening.aborted) == ((min(time, 400),), (), ())
            assert events == everything[opening.position.seq + 1 :]
        assert reader.since(None, wanted=()) == [m.Opening(reader.request, m.Position(2, 799), (400,), (), ())]
    finally:
        publisher.stop()


@pytest.mark.rule("E20")
def test_damage_before_what_is_wanted_costs_nothing_and_after_it_is_reported(start, wires, tmp_path) -> None:
    """Fault 29."""
    stream, publisher = stored_epochs(start, wires, tmp_path, 400)
    try:
        reader = wires.subscriber(publisher, stream)
        first, second, *_ = sorted(tmp_path.rglob("*.log"))
        data = bytearray(first.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 2000] = bytes(2000)
        first.write_bytes(data)
        behind = (int(second.stem) + 20) // 2
        opening, *events = reader.since(None, wanted=(behind,))
        assert opening.position.seq == 2 * behind - 1
        assert events[-1].seq == 799
        for wanted in (None, (5,), (behind - 30,)):  # before the damage, and in its file behind it
            refused = reader.since(None, wanted=wanted)[-1]
            assert isinstance(refused, m.Refused), wanted
            assert refused.code == "corrupt_log"
        assert publisher.metric("since_corrupt_total", "0") == 3
    finally:
        publisher.stop()


@pytest.mark.rule("E10")
def test_a_cursor_of_an_incarnation_is_good_in_the_next_and_led_back_where_events_were_lost(start, wires, tmp_path):
    stream, publisher = start({"data": tmp_path}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(0, b"a", b"b", b"c")
    publisher.stop()
    again = stream.start("0", data=tmp_path)
    try:
        reader = wires.subscriber(again, stream)
        opening, *events = reader.since(m.Position(1, 1))
        assert (opening.position, [event.payload for event in events]) == ((1, 1), [b"c"])
        opening, *events = reader.since(m.Position(1, 9))  # as if the disk had lost what was pushed
        assert (opening.position, events) == ((2, 2), [])
        assert isinstance(reader.since(m.Position(0, 1))[0], m.Truncated), "of before this log"
    finally:
        again.stop()


def test_a_stream_with_storage_needs_a_directory(declare) -> None:
    stream = declare(**STORED)
    process = stream.start("0", wait=False)
    assert process.ended() == 1
    assert "name the directory with --data or EPOCHAL_PUBLISHER_DATA" in process.log.read_text()


@pytest.mark.rule("E10")
def test_stopping_secures_everything_and_aborts_nothing(start, wires, tmp_path) -> None:
    """Fault 60, with a volume."""
    stream, publisher = start({"data": tmp_path}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.append(4, b"under way")
    writer.line.await_(m.Ack)
    publisher.signal(signal.SIGTERM)
    assert publisher.ended() == 0
    again = stream.start("0", data=tmp_path)
    try:
        (snapshot, *_) = [wires.subscriber(again, stream).join()]
        assert (snapshot.upper, snapshot.aborted) == ((4,), ())
    finally:
        again.stop()

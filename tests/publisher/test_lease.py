"""Who owns a segment, and what a successor starts from; with real processes that are killed, stopped and superseded."""

import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.publisher.counting_catalog import COMMAND as COUNTING

from epochal.protocol import messages as m
from epochal_publisher.segments.lease import find_mark, leave_mark

LONG_TIMEOUT = {"writerTimeout": "10m"}
"""A writer by hand sends no heartbeats, and a catalog that starts again beside much load takes long."""


@pytest.fixture
def own_catalog(process, tmp_path: Path) -> Iterator[Any]:
    """Starts, and starts again, a catalog of the test's own at one port."""
    running: list[Any] = []

    def begin(port: int = 0) -> Any:
        running.append(
            process.start(
                tmp_path / "catalog.log", *COUNTING, "serve", "--port", str(port), "--data", str(tmp_path / "d")
            )
        )
        return running[-1]

    yield begin
    for catalog in running:
        catalog.stop()


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


@pytest.mark.rule("E11", "E12")
def test_a_successor_starts_a_new_incarnation_at_the_reported_frontier(start, wires, wait_until):
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open("w1")
    writer.acked(0, b"done")
    writer.advance(7)
    writer.acked(7, b"half")
    wait_until(lambda: stream.segment()["lower"] == [7] and stream.described()["writers"] == ["w1"])
    publisher.signal(signal.SIGKILL)
    publisher.ended()
    successor = stream.start()
    try:
        subscriber = wires.subscriber(successor, stream)
        assert subscriber.hello().incarnation == 2
        subscriber.subscribe()
        snapshot = subscriber.events.receive()
        assert (snapshot.incarnation, snapshot.lower, snapshot.seq) == (2, (7,), -1)
        assert snapshot.below[0] >= 7  # what was appended to 7 is lost, and said to be so at once (E11)
        other = wires.writer(successor, stream)
        other.open("w2")
        other.advance(9)  # w1 is awaited: nothing completes before it is back
        # load: nothing else comes, however long one waits
        assert not subscriber.events.poll(0.3) or isinstance(subscriber.events.receive(), m.Heartbeat)
        resumed = wires.writer(successor, stream)
        opened = resumed.open("w1", resume=m.Resume(1, (7,), (7,)))
        assert (opened.incarnation, opened.held, opened.lost) == (2, (7,), (7,))
        resumed.number = 2
        resumed.advance(8)
        assert set(subscriber.next_event().changes) == {(7, -1), (8, 1)}
        (refused,) = subscriber.since(m.Position(1, 0))
        assert isinstance(refused, m.Truncated)  # of the incarnation that is gone
    finally:
        successor.stop()


@pytest.mark.rule("E12")
def test_a_publisher_that_slept_while_another_took_over_sends_nothing_more(start, wires, wait_until):
    stream, publisher = start()
    writer, subscriber = wires.writer(publisher, stream), wires.subscriber(publisher, stream)
    writer.open()
    writer.acked(0, b"a")
    subscriber.join()
    publisher.signal(signal.SIGSTOP)
    writer.append(0, b"too late")
    subscriber.requests.send(m.Since(9, "0", None, 5))
    successor = stream.start()
    try:
        time.sleep(1.1)  # a stall is what lasts more than a second
        publisher.signal(signal.SIGCONT)
        assert publisher.ended() == 3
        assert "superseded" in publisher.log.read_text()
        assert not writer.line.poll(0.1)
        while subscriber.events.poll():
            assert isinstance(subscriber.events.receive(), m.Heartbeat)
        assert not subscriber.requests.poll()
        assert stream.segment()["incarnation"] == 2
    finally:
        successor.stop()


@pytest.mark.rule("E8", "E9", "E12", "S9")
def test_a_publisher_that_slept_asks_for_its_lease_and_goes_on(start, wires, wait_until):
    stream, publisher = start(progress={"writerTimeout": "3s"})
    writer, subscriber = wires.writer(publisher, stream), wires.subscriber(publisher, stream)
    writer.open()
    subscriber.join()
    late = wires.subscriber(publisher, stream)
    late.hello()
    late.events.socket.subscribe(b"C" + late.channel)
    writer.acked(0, b"before")
    assert late.events.await_(m.Data).payload == b"before"
    publisher.signal(signal.SIGSTOP)
    time.sleep(3.5)  # longer than the writer's time-out, in which the publisher read nothing
    writer.append(0, b"meanwhile")
    late.events.socket.subscribe(b"P" + late.nonce)
    publisher.signal(signal.SIGCONT)
    assert isinstance(writer.line.receive(), m.Ack)
    assert [subscriber.events.await_(m.Data).payload for _ in range(2)] == [b"before", b"meanwhile"]
    # The append and the join were handled while nothing could be sent; their order holds all the same.
    arrived = [(type(message), message.seq) for message in (late.next_event(), late.next_event())]
    assert arrived in ([(m.Data, 1), (m.Snapshot, 1)], [(m.Snapshot, 0), (m.Data, 1)])
    assert publisher.metric("stalls_total") >= 1
    assert publisher.get("/readyz")[0] == 200


def test_a_newer_registration_ends_the_older_process(start, wires):
    stream, publisher = start()
    successor = stream.start()
    try:
        assert publisher.ended() == 3
        assert wires.writer(successor, stream).open().incarnation == 2
    finally:
        successor.stop()


def test_a_catalog_that_is_away_keeps_a_start_waiting_and_a_running_stream_going(
    own_catalog, at_catalog, wires, wait_until, process
):
    catalog = own_catalog()
    stream = at_catalog(catalog.ready, "away", progress=LONG_TIMEOUT)
    port = port_of(catalog.ready)
    catalog.signal(signal.SIGTERM)
    assert catalog.ended() == 0
    publisher = stream.start(publisher="early", wait=False)
    try:
        wait_until(lambda: "no catalog answers" in publisher.log.read_text())
        catalog = own_catalog(port)
        publisher.await_ready()
        writer, subscriber = wires.writer(publisher, stream), wires.subscriber(publisher, stream)
        writer.open()
        subscriber.join()
        writer.acked(0, b"recorded")  # a time that the catalog has heard of needs no more of it
        assert subscriber.next_event().payload == b"recorded"
        catalog.signal(signal.SIGKILL)
        catalog.ended()
        wait_until(lambda: "cannot be renewed" in publisher.log.read_text())
        writer.acked(0, b"still")
        writer.advance(4)
        assert subscriber.next_event().payload == b"still"
        catalog = own_catalog(port)
        wait_until(lambda: stream.segment()["lower"] == [4])
        assert stream.segment()["incarnation"] == 1
        wait_until(lambda: "renewed again" in publisher.log.read_text())
    finally:
        publisher.stop()


@pytest.mark.rule("E11")
def test_an_append_beyond_the_horizon_waits_while_the_catalog_is_away_and_is_in_it_before_it_counts(
    own_catalog, at_catalog, wires, wait_until
):
    catalog = own_catalog()
    stream = at_catalog(catalog.ready, "beyond", progress=LONG_TIMEOUT)
    port = port_of(catalog.ready)
    publisher = stream.start()
    try:
        writer = wires.writer(publisher, stream)
        writer.open()
        writer.acked(0, b"recorded")
        assert [publisher.metric(name) for name in ("horizon_waiting_bytes", "memory_lost")] == [0, 0]
        catalog.signal(signal.SIGKILL)
        catalog.ended()
        wait_until(lambda: "cannot be renewed" in publisher.log.read_text())
        writer.append(5, b"beyond")
        wait_until(lambda: publisher.metric("horizon_waiting_bytes") > 0)
        assert not writer.line.poll(0.5)
        own_catalog(port)
        assert writer.line.await_(m.Ack).number == writer.number - 1
        assert publisher.metric("horizon_waiting_bytes") == 0
        publisher.signal(signal.SIGKILL)
        publisher.ended()
        publisher = stream.start()
        (last,) = wires.subscriber(publisher, stream).join().below
        assert last >= 5  # what waited was recorded, perhaps with more that was asked ahead
        assert publisher.metric("memory_lost") == 1
        resumed = wires.writer(publisher, stream)
        assert resumed.open(resume=m.Resume(1, (0,), (0, 5))).lost == (0, 5)
        resumed.advance(last + 1)
        wait_until(lambda: publisher.metric("memory_lost") == 0)
    finally:
        publisher.stop()


@pytest.mark.rule("E11")
def test_the_last_record_of_a_publisher_that_stops_is_the_one_that_stays(own_catalog, at_catalog, wires, wait_until):
    """What was asked for before the stop is answered after it, and changes nothing any more."""
    catalog = own_catalog()
    stream = at_catalog(catalog.ready, "last", progress=LONG_TIMEOUT)
    publisher = stream.start()
    try:
        writer = wires.writer(publisher, stream)
        writer.open()
        writer.acked(0, b"recorded")
        catalog.signal(signal.SIGSTOP)
        writer.append(5, b"asked for, and not answered")
        waiting = wait_until(lambda: publisher.metric("horizon_waiting_bytes"))
        writer.append(9, b"to be asked for next")
        wait_until(lambda: publisher.metric("horizon_waiting_bytes") > waiting)
        publisher.signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in publisher.log.read_text())
        time.sleep(1.1)  # a renewal is due when the catalog goes on
        catalog.signal(signal.SIGCONT)
        assert publisher.ended() == 0
        assert "not given up" not in publisher.log.read_text()
        while writer.line.poll(0.2):
            assert not isinstance(writer.line.receive(), m.Ack)
        assert handed_over(stream)["horizon"] == [0], "5 and 9 were never active"
    finally:
        publisher.stop()


def handed_over(stream: Any) -> Any:
    """What a next publisher of segment 0 is told."""
    body = {
        "publisher": "next", "instance": "i", "stream": stream.name, "uid": stream.uid, "segments": ["0"],
        "addresses": {"events": "tcp://h:1", "requests": "tcp://h:2", "ingest": "tcp://h:3"},
    }  # fmt: skip
    request = urllib.request.Request(
        f"{stream.catalog}/v1/publishers", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)["segments"][0]


@pytest.mark.rule("S26")
def test_a_deleted_stream_ends_its_publisher_and_notifies_the_writers(start, wires):
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()
    stream.delete()
    assert writer.line.await_(m.Lost).code == "stream_gone"
    assert publisher.ended() == 0


@pytest.mark.rule("E7", "S20")
def test_finish_at_all_segments_empties_the_frontier_and_the_stream_stays_readable(declare, wires, wait_until):
    stream = declare(segments=2)
    publishers = [stream.start(segment, publisher=f"{stream.name}-{segment}".replace("/", ".")) for segment in "01"]
    try:
        writers = [wires.writer(publishers[int(segment)], stream, segment) for segment in "01"]
        subscribers = [wires.subscriber(publishers[int(segment)], stream, segment) for segment in "01"]
        for writer, subscriber in zip(writers, subscribers, strict=True):
            writer.open()
            subscriber.join()
        writers[0].acked(0, b"all")
        assert isinstance(writers[0].leave(m.Leaving.FINISH), m.Done)
        wait_until(lambda: stream.segment("0")["finishing"])
        assert stream.described()["phase"] == "Ready"
        writers[1].leave(m.Leaving.FINISH)
        assert isinstance(subscribers[0].next_event(), m.Data)
        for subscriber in subscribers:
            assert subscriber.next_event().changes == ((0, -1),)
        assert stream.described()["phase"] == "Complete"
        late = wires.writer(publishers[0], stream)
        assert late.open("w2").code == "stream_complete"
        _, *events = subscribers[0].since(None)
        assert [type(event) for event in events] == [m.Data, m.Frontier]
    finally:
        for publisher in publishers:
            publisher.stop()


@pytest.mark.rule("E7")
def test_an_open_before_completion_cancels_it(declare, wires, wait_until):
    stream = declare(segments=2)
    publisher = stream.start("0,1")
    try:
        writers = [wires.writer(publisher, stream, segment) for segment in "01"]
        for writer in writers:
            writer.open()
        writers[0].leave(m.Leaving.FINISH)
        wait_until(lambda: stream.segment("0")["finishing"])
        second = wires.writer(publisher, stream, "0")
        assert isinstance(second.open("w2"), m.Opened)
        assert not stream.segment("0")["finishing"]
        writers[1].leave(m.Leaving.FINISH)
        wait_until(lambda: stream.segment("1")["finishing"])
        assert stream.described()["phase"] == "Ready"
        second.leave(m.Leaving.FINISH)
        wait_until(lambda: stream.described()["phase"] == "Complete")
    finally:
        publisher.stop()


@pytest.mark.rule("E7")
def test_an_open_after_a_restart_cancels_what_the_last_incarnation_finished(declare, wires, wait_until):
    stream = declare(segments=2)
    publisher = stream.start("0,1")
    writers = [wires.writer(publisher, stream, segment) for segment in "01"]
    for writer in writers:
        writer.open()
    writers[0].leave(m.Leaving.FINISH)
    wait_until(lambda: stream.segment("0")["finishing"])
    publisher.signal(signal.SIGKILL)
    publisher.ended()
    successor = stream.start("0,1")
    try:
        assert stream.segment("0")["finishing"]
        assert isinstance(wires.writer(successor, stream, "0").open("w2"), m.Opened)
        assert not stream.segment("0")["finishing"]
    finally:
        successor.stop()


@pytest.mark.rule("E7")
def test_a_complete_stream_is_served_again_after_a_restart(declare, wires, wait_until):
    stream = declare()
    publisher = stream.start()
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.leave(m.Leaving.FINISH)
    wait_until(lambda: stream.described()["phase"] == "Complete")
    publisher.signal(signal.SIGKILL)
    publisher.ended()
    successor = stream.start()
    try:
        assert wires.subscriber(successor, stream).join().lower == ()
        assert wires.writer(successor, stream).open().code == "stream_complete"
    finally:
        successor.stop()


@pytest.mark.rule("E11")
def test_the_catalog_learns_of_a_writer_as_it_opens(start, wires, wait_until, monkeypatch):
    monkeypatch.setenv("EPOCHAL_PUBLISHER_RENEW_INTERVAL", "60")
    stream, publisher = start()
    wait_until(lambda: stream.segment()["counters"])  # the first renewal is over, and the next one a minute away
    wires.writer(publisher, stream).open("w1")
    wait_until(lambda: stream.described()["writers"] == ["w1"])


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the first publisher leaves its mark; as on two nodes, the others know nothing of it."""
    path = tmp_path / "superseded"
    monkeypatch.setenv("EPOCHAL_PUBLISHER_SUPERSEDED_MARK", str(path))
    return path


@pytest.mark.rule("E12")
def test_a_superseded_publisher_that_is_started_again_leaves_the_winner_its_segments(
    start: Any, wires: Any, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, loser = start()
    assert not mark.exists()
    with monkeypatch.context() as elsewhere:
        elsewhere.delenv("EPOCHAL_PUBLISHER_SUPERSEDED_MARK")
        winner = stream.start()
    try:
        assert loser.ended() == 3
        assert "registered again" in mark.read_text()
        before = stream.segment()
        for _ in range(3):
            again = stream.start(wait=False)
            assert again.ended() == 3
        *_, line = again.log.read_text().splitlines()
        assert "not started again" in line
        assert str(mark) in line
        assert "registered again" in line
        after = stream.segment()
        assert [after[key] for key in ("incarnation", "publisher")] == [
            before[key] for key in ("incarnation", "publisher")
        ]
        assert wires.writer(winner, stream).open().incarnation == 2
    finally:
        winner.stop()


def test_once_the_mark_is_gone_it_serves_again(declare: Any, mark: Path) -> None:
    stream = declare()
    mark.write_text("superseded\n")
    assert stream.start(wait=False).ended() == 3
    mark.unlink()
    publisher = stream.start()
    assert stream.segment()["incarnation"] == 1
    publisher.signal(signal.SIGTERM)
    assert publisher.ended() == 0
    assert not mark.exists(), "a stop is no defeat"


def test_a_catalog_that_lost_its_database_leaves_no_mark(
    process: Any, at_catalog: Any, tmp_path: Path, mark: Path
) -> None:
    def catalog(data: str, port: str) -> Any:
        return process.start(
            tmp_path / "catalog.log", *COUNTING, "serve", "--port", port, "--data", str(tmp_path / data)
        )

    first = catalog("one", "0")
    port = first.ready.rsplit(":", 1)[1]
    publisher = at_catalog(first.ready, "lost").start()
    first.stop()
    second = catalog("two", port)
    try:
        at_catalog(second.ready, "lost")
        assert publisher.ended() == 3
        assert not mark.exists()
    finally:
        second.stop()
        publisher.stop()


def test_a_disk_that_takes_no_mark_is_reported_and_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = tmp_path / "missing" / "superseded"
    leave_mark(missing, "superseded")
    assert str(missing) in caplog.text
    assert find_mark(missing) is None


def test_without_a_setting_there_is_no_mark() -> None:
    leave_mark(None, "superseded")
    assert find_mark(None) is None

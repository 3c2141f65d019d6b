"""The publisher process as writers and subscribers see it, over real sockets."""

import random
import threading
from typing import Any

import pytest

from epochal.protocol import messages as m


@pytest.fixture
def segment(shared) -> str:
    return shared.segment()


@pytest.fixture
def writer(shared, wires, segment) -> Any:
    writer = wires.writer(shared.publisher, shared.stream, segment)
    assert isinstance(writer.open(), m.Opened)
    return writer


@pytest.fixture
def subscriber(shared, wires, segment) -> Any:
    return wires.subscriber(shared.publisher, shared.stream, segment)


def collect(subscriber, last: int, seq: int) -> list[Any]:
    """The events on the channel after `seq` up to `last`, checked to follow one another (E14)."""
    events: list[Any] = []
    while seq < last:
        event = subscriber.next_event()
        assert event.seq > seq, "an event came behind the snapshot that stands for it"
        assert event.prev <= seq if not events else event.prev == seq
        events.append(event)
        seq = event.seq
    return events


@pytest.mark.rule("S8", "S9", "S24")
def test_a_snapshot_comes_first_and_every_later_event_follows_it(writer, subscriber):
    writer.acked(0, b"before")
    snapshot = subscriber.join()
    assert (snapshot.seq, snapshot.lower, snapshot.upper) == (0, (0,), (0,))
    writer.acked(0, b"after", b"again")
    writer.advance(1)
    data, more, frontier = (subscriber.next_event() for _ in range(3))
    assert (data.payload, more.payload) == (b"after", b"again")
    assert (data.prev, more.prev, frontier.prev) == (0, 1, 2)
    assert set(frontier.changes) == {(0, -1), (1, 1)}


@pytest.mark.rule("S8", "S9", "S22", "E14")
def test_joins_are_atomic_while_appends_run(shared, wires, writer, segment):
    done = threading.Event()

    def append() -> None:
        while not done.is_set():
            writer.append(0, *[b"x" * 50] * 20)
            writer.line.await_(m.Ack)

    appender = threading.Thread(target=append)
    appender.start()
    try:
        for _ in range(40):
            subscriber = wires.subscriber(shared.publisher, shared.stream, segment)
            snapshot = subscriber.join()
            assert isinstance(snapshot, m.Snapshot)
            collect(subscriber, snapshot.seq + 50, snapshot.seq)
            if random.random() < 0.7:
                subscriber.close()
    finally:
        done.set()
        appender.join()


@pytest.mark.rule("S21")
def test_events_without_a_listener_are_not_even_encoded(shared, writer, subscriber, segment, wait_until):
    writer.acked(0, b"a", b"b")
    assert shared.publisher.metric("unsent_events_total", segment) == 2
    assert shared.publisher.metric("pushed_messages_total", segment) == 0
    subscriber.join()
    writer.acked(0, b"c")
    assert subscriber.next_event().payload == b"c"
    subscriber.close()
    wait_until(lambda: shared.publisher.metric("subscribers", segment) == 0)
    pushed = shared.publisher.metric("pushed_messages_total", segment)
    writer.acked(0, b"d")
    assert shared.publisher.metric("pushed_messages_total", segment) == pushed


@pytest.mark.rule("S22", "S23")
def test_leaving_and_breaking_off_are_noticed(shared, wires, segment, wait_until):
    first, second, third = (wires.subscriber(shared.publisher, shared.stream, segment) for _ in range(3))
    for subscriber in (first, second, third):
        assert isinstance(subscriber.join(), m.Snapshot)
    assert shared.publisher.metric("subscribers", segment) == 3
    first.events.socket.unsubscribe(b"P" + first.nonce)
    wait_until(lambda: shared.publisher.metric("subscribers", segment) == 2)
    second.close()
    wait_until(lambda: shared.publisher.metric("subscribers", segment) == 1)
    assert isinstance(first.join(), m.Snapshot)  # it comes back on the same socket, under a new id
    assert shared.publisher.metric("subscribers", segment) == 2


@pytest.mark.rule("S8", "S22")
def test_an_unknown_or_used_subscription_id_is_refused(subscriber):
    subscriber.hello()
    subscriber.nonce = bytes(16)
    subscriber.subscribe()
    refused = subscriber.events.await_(m.Refused)
    assert refused.code == "remote_protocol"
    snapshot = subscriber.join()
    assert isinstance(snapshot, m.Snapshot)
    subscriber.requests.send(m.Hello(77, (1,), subscriber.uid, subscriber.segment, subscriber.nonce))
    assert subscriber.requests.receive().code == "remote_protocol"


def test_a_hello_of_another_version_stream_or_segment_is_refused(subscriber):
    ask = subscriber.requests
    ask.send(m.Hello(1, (9,), subscriber.uid, subscriber.segment, b"a" * 16))
    assert ask.receive().code == "version_mismatch"
    ask.send(m.Hello(2, (1,), "another", subscriber.segment, b"b" * 16))
    assert ask.receive().code == "stream_gone"
    ask.send(m.Hello(3, (1,), subscriber.uid, "nowhere", b"c" * 16))
    answer = ask.receive()
    assert (answer.op, answer.code) == (3, "no_publisher")


def test_a_writer_of_another_stream_or_segment_is_refused(shared, wires, segment):
    writer = wires.writer(shared.publisher, shared.stream, "nowhere")
    assert writer.open().code == "no_publisher"
    writer = wires.writer(shared.publisher, shared.stream, segment)
    writer.uid = "another"
    assert writer.open().code == "stream_gone"
    writer = wires.writer(shared.publisher, shared.stream, "nowhere")
    writer.append(0, b"x")
    lost = writer.line.receive()
    assert (lost.segment, lost.code) == ("nowhere", "no_publisher")


@pytest.mark.rule("S5")
def test_only_visible_changes_of_the_frontier_are_pushed(shared, wires, writer, subscriber, segment):
    other = wires.writer(shared.publisher, shared.stream, segment)
    other.open("w2")
    snapshot = subscriber.join()
    writer.advance(5)  # w2 still holds 0
    other.advance(3)
    event = subscriber.next_event()
    assert (event.seq, set(event.changes)) == (snapshot.seq + 1, {(0, -1), (3, 1)})


@pytest.mark.rule("E6")
def test_a_newer_session_fences_the_older(shared, wires, writer, segment):
    writer.acked(0, b"a")
    newer = wires.writer(shared.publisher, shared.stream, segment)
    opened = newer.open(session=2)
    assert (opened.number, opened.touched) == (0, (0,))
    assert writer.line.await_(m.Lost).code == "writer_fenced"
    writer.append(0, b"late")
    assert writer.line.await_(m.Lost).code == "remote_protocol"
    third = wires.writer(shared.publisher, shared.stream, segment)
    assert third.open(session=1).code == "writer_fenced"
    assert newer.acked(0, b"b").seq == 1


@pytest.mark.rule("E6")
def test_appends_are_numbered_without_holes_and_acknowledged_again(writer):
    first = writer.acked(0, b"a")
    writer.number = 0
    assert writer.acked(0, b"a").seq == first.seq
    writer.number = 7
    writer.append(0, b"x")
    assert writer.line.await_(m.Lost).code == "remote_protocol"


@pytest.mark.rule("E2", "S35")
def test_appends_below_what_is_held_or_damaged_or_aborted_are_refused(writer, subscriber):
    subscriber.join()
    writer.advance(2)
    writer.append(1, b"x")
    assert writer.line.receive().code == "capability"
    writer.operate(lambda op, segment: m.Abort(op, segment, (3,)))
    writer.append(3, b"x")
    assert writer.line.receive().code == "epoch_aborted"
    writer.append((1, 2), b"x")
    assert writer.line.receive().code == "time_shape"
    writer.line.send(m.Append(writer.segment, writer.number, 2, b"", 1, 12345, b"not that"))
    assert writer.line.receive().code in ("remote_protocol", "checksum_mismatch")
    events = [subscriber.next_event() for _ in range(2)]
    assert [type(event) for event in events] == [m.Frontier, m.Aborted]


@pytest.mark.rule("E13", "S33")
def test_history_is_answered_from_any_position(writer, subscriber):
    writer.acked(0, b"a")
    writer.advance(1)
    writer.acked(1, b"b")
    opening, *events = subscriber.since(None)
    assert (opening.position.seq, opening.lower) == (-1, (0,))
    assert [event.seq for event in events] == [0, 1, 2]
    opening, *events = subscriber.since(m.Position(opening.position.incarnation, 1))
    assert (opening.lower, [event.payload for event in events]) == ((1,), [b"b"])
    (refused,) = subscriber.since(m.Position(opening.position.incarnation, 99))
    assert refused.code == "remote_protocol"


def test_a_long_answer_waits_for_credit(writer, subscriber):
    for _ in range(6):
        writer.acked(0, *[b"x" * 1000] * 128)
    subscriber.request += 1
    subscriber.requests.send(m.Since(subscriber.request, subscriber.segment, None, 1))
    seen: list[int] = []
    subscriber.requests.await_(m.Opening)
    chunk = subscriber.requests.receive()
    while not chunk.last:
        seen += [subscriber.requests.receive().seq for _ in range(chunk.events)]
        assert not subscriber.requests.poll()
        subscriber.requests.send(m.Credit(subscriber.request, 1))
        chunk = subscriber.requests.receive()
    seen += [subscriber.requests.receive().seq for _ in range(chunk.events)]
    assert seen == list(range(6 * 128))


def test_a_large_payload_travels_apart(writer, subscriber):
    subscriber.join()
    payload = bytes(range(256)) * 1024
    writer.acked(0, payload)
    assert subscriber.next_event().payload == payload


@pytest.mark.rule("E14")
def test_a_heartbeat_names_the_last_event(writer, subscriber):
    subscriber.join()
    writer.acked(0, b"a")
    subscriber.events.await_(m.Data)
    assert subscriber.events.await_(m.Heartbeat).seq == 0


@pytest.mark.rule("E13", "E20")
def test_what_is_no_longer_retained_is_reported_as_truncated(start, wires):
    stream, publisher = start(history={"retention": {"bytes": "64Ki"}})
    writer, subscriber = wires.writer(publisher, stream), wires.subscriber(publisher, stream)
    writer.open()
    for epoch in range(30):
        writer.acked(epoch, b"x" * 5000)
        writer.advance(epoch + 1)
    (truncated,) = subscriber.since(m.Position(1, 0))
    assert isinstance(truncated, m.Truncated)
    opening, *events = subscriber.since(None)
    assert opening.position == truncated.first_available
    assert [event.seq for event in events] == list(range(opening.position.seq + 1, 60))
    writer.append(30, *[b"x" * 5000] * 20)
    assert writer.line.await_(m.AppendRefused).code == "epoch_too_large"


@pytest.mark.rule("S21")
def test_without_retention_nothing_is_kept(start, wires):
    stream, publisher = start(history={"retention": {"mode": "none"}})
    writer, subscriber = wires.writer(publisher, stream), wires.subscriber(publisher, stream)
    writer.open()
    writer.acked(0, b"x" * 100)
    assert publisher.metric("history_size_bytes", "0") == 0
    assert isinstance(subscriber.since(m.Position(1, -1))[0], m.Truncated)
    assert subscriber.join().upper == (0,)


@pytest.mark.rule("E3")
def test_a_silent_writer_is_lost_and_its_open_epoch_aborted(start, wires):
    stream, publisher = start(progress={"writerTimeout": "2s"}, segments=2)
    silent, other = (wires.writer(publisher, stream) for _ in range(2))
    subscriber = wires.subscriber(publisher, stream)
    subscriber.join()
    other.open("other")
    silent.open("silent")
    silent.acked(0, b"half")
    assert isinstance(subscriber.next_event(), m.Data)
    lost = silent.line
    while not lost.poll(0.1):
        other.line.send(m.Alive("0"))
    assert lost.receive().code == "writer_lost"
    assert subscriber.next_event().times == (0,)
    other.advance(4)
    assert set(subscriber.next_event().changes) == {(0, -1), (4, 1)}


def test_a_peer_that_left_disturbs_no_one(shared, wires, writer, subscriber, segment):
    for _ in range(20):
        gone = wires.writer(shared.publisher, shared.stream, segment)
        gone.line.send(m.Open(1, shared.stream.uid, segment, "gone", 1, None, None))
        gone.line.close()
    subscriber.join()
    writer.acked(0, b"a")
    assert subscriber.next_event().payload == b"a"


@pytest.mark.clock
def test_a_subscriber_that_asks_for_everything_and_reads_nothing_costs_bounded_memory(start, wires):
    stream, publisher = start(history={"retention": {"bytes": "64Mi"}})
    writer = wires.writer(publisher, stream)
    writer.open()
    for _ in range(30):
        writer.acked(0, *[b"x" * 100_000] * 20)  # 60 MB of history
    before = publisher.rss()
    greedy = wires.subscriber(publisher, stream)
    for request in range(1, 40):
        greedy.requests.send(m.Since(request, "0", None, 2**31))
    other = wires.subscriber(publisher, stream)
    assert other.join().seq == 599
    assert len(other.since(None)) == 601
    assert publisher.rss() - before < 160 * 2**20


@pytest.mark.rule("S22")
def test_who_stays_is_pushed_to_after_another_has_left(shared, wires, segment, wait_until):
    leaves, stays = (wires.subscriber(shared.publisher, shared.stream, segment) for _ in range(2))
    for subscriber in (leaves, stays):
        assert isinstance(subscriber.join(), m.Snapshot)
    leaves.close()
    wait_until(lambda: shared.publisher.metric("subscribers", segment) == 1)
    writer = wires.writer(shared.publisher, shared.stream, segment)
    writer.open("w")
    writer.acked(0, b"for who stays")
    assert stays.events.await_(m.Data).payload == b"for who stays"

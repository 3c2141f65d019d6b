"""Live push under slow readers, hostile subscriptions, and many who come and go."""

import os
from itertools import pairwise

import pytest
import zmq
from tests.patience import PATIENCE

from epochal.protocol import messages as m

MIB = 2**20


@pytest.mark.clock
@pytest.mark.rule("S9")
def test_a_stalled_subscriber_costs_bounded_memory_sees_a_gap_and_heals(start, wires):
    stream, publisher = start(push={"bufferBytes": "4Mi"}, history={"retention": {"bytes": "64Mi"}})
    writer, quick = wires.writer(publisher, stream), wires.subscriber(publisher, stream)
    slow = wires.subscriber(publisher, stream, receive_buffer=64 * 1024)
    slow.events.socket.setsockopt(zmq.RCVHWM, 1)
    writer.open()
    slow.join()
    quick.join()
    before = publisher.rss()
    payload = os.urandom(30_000)
    total = 1400  # 42 MB, of which the history keeps all
    for _ in range(total // 20):
        writer.acked(0, *[payload] * 20)
        for _ in range(20):
            quick.events.await_(m.Data)
    held = publisher.rss() - before - total * len(payload)
    assert held < 24 * MIB, f"{held / MIB:.1f} MiB beyond the history"  # the bound, and what sockets and heaps take
    seen = [slow.events.await_(m.Data) for _ in range(10)]
    while slow.events.poll(0.5):
        message = slow.events.receive()
        if isinstance(message, m.Data):
            seen.append(message)
    gaps = [b for a, b in pairwise(seen) if b.prev != a.seq]
    assert gaps or seen[-1].seq < total - 1, "nothing was dropped; the test does not stall it enough"
    last = next((a for a, b in pairwise(seen) if b.prev != a.seq), seen[-1])
    _, *missed = slow.since(m.Position(1, last.seq))
    assert [event.seq for event in missed] == list(range(last.seq + 1, total))


@pytest.mark.rule("S9")
def test_a_stalled_subscriber_has_as_much_held_as_the_stream_declares(start, wires):
    """Beside what the system's own buffers hold: 3 to 4 MB, more at one time than at another."""

    def held(buffer: str) -> int:
        stream, publisher = start(push={"bufferBytes": buffer}, history={"retention": {"bytes": "64Mi"}})
        writer, slow = wires.writer(publisher, stream), wires.subscriber(publisher, stream, receive_buffer=64 * 1024)
        slow.events.socket.setsockopt(zmq.RCVHWM, 1)
        writer.open()
        slow.join()
        for _ in range(30):
            writer.acked(0, *[bytes(40_000)] * 20)
        seen = 0
        while slow.events.poll(0.5):
            seen += isinstance(slow.events.receive(), m.Data)
        return seen

    assert held("16Mi") - held("64Ki") > 250  # of 40 kB: 10 of the 16 MiB


def test_the_library_silences_a_subscriber_for_good_when_its_mark_is_lowered():
    """Why `Events` sends padding instead: if this test ever fails, it could lower the mark as messages grow."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher, context.socket(zmq.SUB) as subscriber:
        publisher.linger = subscriber.linger = 0
        publisher.sndhwm = 2048
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        subscriber.subscribe(b"")
        subscriber.connect(f"tcp://127.0.0.1:{port}")
        publisher.recv()
        for _ in range(500):
            publisher.send(b"small")
            assert subscriber.poll(int(PATIENCE * 1000))
            subscriber.recv()
        publisher.sndhwm = 128
        publisher.send(b"large")
        assert not subscriber.poll(300)


def test_a_large_message_after_many_small_ones_reaches_who_reads(start, wires):
    """It was dropped, and so was everything after it, for whoever had read hundreds of messages before."""
    stream, publisher = start(push={"bufferBytes": "4Mi"})
    writer, subscriber = wires.writer(publisher, stream), wires.subscriber(publisher, stream)
    writer.open()
    subscriber.join()
    for size in (10, 5_000, 70_000, 1_000_000, 10):
        for _ in range(130):
            writer.acked(0, b"x" * size)
            assert len(subscriber.next_event().payload) == size
            if size > 100_000:
                break


@pytest.mark.parametrize(
    "notice",
    [
        b"\x01", b"\x01C", b"\x01P", b"\x01Cshort", b"\x01P" + b"n" * 15, b"\x01P" + b"n" * 17, b"\x01X" + b"n" * 16,
        b"\x00P" + b"n" * 16, b"\x00", b"\x01" + b"C" * 4000, b"\x02hello", os.urandom(500),
    ],
)  # fmt: skip
def test_a_strange_subscription_changes_nothing(shared, wires, notice):
    segment = shared.segment() if notice == b"\x01" else "0"
    line = wires.line(zmq.XSUB, shared.publisher.addresses["events"])
    line.raw(notice)
    line.raw(b"\x01C" + b"x" * 8, b"and", b"more", b"frames")
    subscriber = wires.subscriber(shared.publisher, shared.stream, segment)
    assert isinstance(subscriber.join(), m.Snapshot)
    assert shared.publisher.get("/healthz")[0] == 200


@pytest.mark.rule("F11")
def test_who_has_seen_the_ids_of_others_cannot_end_their_subscriptions(start, wires, wait_until):
    """All ids can be seen by who subscribes to `P`; a second subscription to one of them is counted, not answered."""
    stream, publisher = start()
    counted = 'socket="events"'

    def refused() -> float:
        lines = publisher.get("/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if "refusals_total" in line and counted in line)

    spy = wires.line(zmq.SUB, publisher.addresses["events"], prefix=1)
    spy.socket.subscribe(b"P")
    wait_until(lambda: refused() == 1)
    victim = wires.subscriber(publisher, stream)
    victim.join()
    nonce = spy.await_(m.Snapshot).subscription
    spy.socket.subscribe(b"P" + nonce)
    wait_until(lambda: refused() == 2)
    wires.subscriber(publisher, stream).join()
    assert isinstance(spy.receive(), m.Snapshot)  # that of the newcomer: nothing was sent to the victim before


@pytest.mark.clock
def test_an_oversized_subscription_cuts_its_sender(shared, wires):
    before = shared.publisher.rss()
    line = wires.line(zmq.XSUB, shared.publisher.addresses["events"])
    monitor = line.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    line.raw(b"\x01" + b"C" * 5000)
    assert monitor.poll(int(PATIENCE * 1000)), "the peer was not cut"
    line.socket.disable_monitor()
    monitor.close(0)
    assert shared.publisher.rss() - before < 4 * MIB


@pytest.mark.clock
@pytest.mark.rule("S22", "S23")
def test_500_joins_and_leaves_leave_the_process_as_it_was(start, wires, wait_until):
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()

    def join_and_leave(times: int) -> None:
        for number in range(times):
            subscriber = wires.subscriber(publisher, stream)
            subscriber.hello()
            subscriber.subscribe()
            if number % 3:
                assert isinstance(subscriber.events.await_(m.Snapshot), m.Snapshot)
            subscriber.close()
            if number % 10 == 0:
                writer.line.send(m.Alive("0"))

    def settled() -> bool:
        return publisher.metric("subscribers", "0") == 0 and publisher.fds() <= files

    join_and_leave(200)
    wait_until(lambda: publisher.metric("subscribers", "0") == 0)
    files, threads = publisher.fds() + 2, publisher.threads()
    memory = publisher.rss()
    join_and_leave(500)
    wait_until(settled)
    assert publisher.threads() == threads
    assert publisher.rss() <= memory * 1.1

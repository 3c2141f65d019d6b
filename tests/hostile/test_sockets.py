"""Real publisher processes under real abuse, while one honest writer and one honest subscriber go on undisturbed."""

import contextlib
import os
import resource
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import msgpack
import pytest
import zmq

from epochal.protocol import messages as m
from epochal.protocol.wire import encode

sys.path.insert(0, str(Path(__file__).parent))  # no package: what these tests share is imported by its plain name
from abuse import (
    ESTABLISHED,
    GREETING,
    IMPATIENT,
    JUNK,
    MIB,
    SOCKETS,
    Honest,
    address,
    alive,
    connected,
    connections,
    cut,
    files,
    flood,
    stopped_subscriber,
)
from tests.patience import PATIENCE


@pytest.fixture
def impatient(start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Starts a publisher that cuts silent peers soon."""
    for name, value in IMPATIENT.items():
        monkeypatch.setenv(name, value)
    return start


def framed(*fields: Any, payload: bytes = b"") -> bytes:
    header = msgpack.packb(list(fields))
    return struct.pack(">HI", len(header), len(payload)) + header + payload


def test_junk_on_every_port_is_cut_and_disturbs_no_one(impatient, wait_until):
    """Fault 25: also those who keep the connection open and say no more are closed, and their descriptors with them."""
    stream, publisher = impatient()
    with Honest(publisher, stream.uid, "0") as honest:
        honest.check()
        before = publisher.fds()
        held = [(where, name, each) for where in SOCKETS for name, junk in JUNK.items()
                for each in connections(address(publisher, where), 3, junk)]  # fmt: skip
        honest.check()
        alive(publisher)
        deadline = time.monotonic() + PATIENCE
        lingering = sorted({f"{name} on {where}" for where, name, each in held if not cut(each, deadline)})
        for _, _, connection in held:
            connection.close()
        wait_until(lambda: publisher.fds() <= before, PATIENCE)
        honest.check()
    assert honest.error is None, repr(honest.error)
    assert not lingering


def refusals(publisher, where: str, code: str) -> float:
    for line in publisher.get("/metrics")[1].splitlines():
        if line.startswith("epochal_publisher_refusals_total{") and f'socket="{where}"' in line and code in line:
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def test_broken_and_unknown_messages_are_counted_by_socket_and_kind(shared, wires, wait_until):
    publisher = shared.publisher

    def counted(where: str, code: str) -> float:
        return refusals(publisher, where, code)

    for where in ("ingest", "requests"):
        for sent, code in (([framed(999, 1)], "remote_protocol"), ([b"x"] * 5, "limit_exceeded")):
            before = counted(where, code)
            line = wires.line(zmq.DEALER, publisher.addresses[where])
            line.raw(*sent)
            assert line.receive().code == code
            assert counted(where, code) == before + 1
    before = counted("events", "remote_protocol")
    wires.line(zmq.XSUB, publisher.addresses["events"]).raw(b"\x01what is this")
    wait_until(lambda: counted("events", "remote_protocol") == before + 1)


def test_a_time_that_is_huge_to_spell_neither_ends_the_process_nor_silences_others(shared, wires):
    """It made an answer that fitted no header, raised in the middle of everybody's answers."""
    first, second = shared.segment(), shared.segment()
    writer = wires.writer(shared.publisher, shared.stream, first)
    writer.open()
    failures = shared.publisher.metric("failures_total")
    monstrous = ((0,) * 8192,) * 7
    crc = google_crc32c.value(b"x")
    writer.line.send(m.Append(first, 0, monstrous, b"", 1, crc, b"x"))
    assert writer.line.receive().code == "time_shape"
    hostile = wires.writer(shared.publisher, shared.stream, second)
    assert hostile.open("w", resume=m.Resume(-1, (monstrous,), ())).code == "time_shape"
    assert shared.publisher.popen.poll() is None
    assert shared.publisher.metric("failures_total") == failures


def test_an_append_above_a_lowered_limit_is_refused_by_name_and_the_writer_goes_on(start, wires, monkeypatch):
    """It was cut off by the library without a word, connected again, sent the same, and so for ever."""
    monkeypatch.setenv("EPOCHAL_PUBLISHER_MAX_PAYLOAD", "65536")
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()
    for size in (65_537, 300_000, 16 * MIB):
        writer.append(0, b"x" * size)
        refused = writer.line.await_(m.AppendRefused)
        assert (refused.code, "65536" in refused.detail) == ("payload_too_large", True)
    writer.acked(0, b"x" * 65_536)


@pytest.mark.clock
def test_20000_parts_and_oversized_frames_cost_what_they_weigh_at_most(shared, wires, wait_until):
    """Faults 21 and 22."""
    publisher = shared.publisher
    with Honest(publisher, shared.stream.uid, shared.segment()) as honest:
        honest.check()
        memory = publisher.rss()
        for where in ("ingest", "requests", "events"):
            line = wires.line(zmq.XSUB if where == "events" else zmq.DEALER, publisher.addresses[where])
            line.raw(*([b"\x05" + b"x" * 99] * 20_000))
            large = wires.line(zmq.XSUB if where == "events" else zmq.DEALER, publisher.addresses[where])
            monitor = large.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            large.raw(b"\x05" + b"x" * (17 * MIB))
            assert monitor.poll(int(PATIENCE * 1000)), "the peer was not cut"
            large.socket.disable_monitor()
            monitor.close(0)
        honest.check()
        alive(publisher)
    assert honest.error is None, repr(honest.error)
    assert publisher.rss() - memory < 24 * MIB


@pytest.mark.clock
def test_a_flood_of_tiny_messages_of_one_peer_holds_up_no_other_peer_for_long(start, wires):
    stream, publisher = start(segments=2)
    with Honest(publisher, stream.uid, "0") as honest:
        honest.check()
        memory = publisher.rss()
        line = wires.line(zmq.DEALER, publisher.addresses["ingest"])
        (frames,) = encode(*[m.Alive("1")] * 5000)
        for _ in range(40):
            line.raw(frames[0])
        honest.check(20)
        assert isinstance(line.receive(), m.Lost)
        alive(publisher)
        print(f"200,000 messages: an honest epoch took {honest.slowest * 1000:.0f} ms at most, "
              f"{(publisher.rss() - memory) / MIB:.1f} MiB")  # fmt: skip
    assert honest.error is None, repr(honest.error)
    assert publisher.rss() - memory < 32 * MIB


def test_peers_that_offend_under_ever_new_names_are_remembered_within_bounds(start, wires, monkeypatch, wait_until):
    monkeypatch.setenv("EPOCHAL_PUBLISHER_MAX_DISCARDED", "50")
    monkeypatch.setenv("EPOCHAL_PUBLISHER_DISCARD_TTL", "1")
    _, publisher = start()
    for _ in range(150):
        line = wires.line(zmq.DEALER, publisher.addresses["ingest"])
        line.raw(b"broken")
        assert isinstance(line.receive(), m.Refused)
        line.close()
    assert publisher.metric("refused_messages_total") == 150
    assert 0 < publisher.metric("discarded_peers") <= 50
    wait_until(lambda: publisher.metric("discarded_peers") == 0)


def test_hellos_without_a_subscription_and_used_nonces_keep_no_one_out(shared, wires):
    publisher, segment = shared.publisher, shared.segment()
    greedy = wires.line(zmq.DEALER, publisher.addresses["requests"])
    answers = []
    for number in range(500):
        greedy.send(m.Hello(number, (1,), shared.stream.uid, segment, secrets.token_bytes(16)))
        answers.append(greedy.receive())  # of more than 256 unread ones the rest is dropped
    refused = [answer for answer in answers if isinstance(answer, m.Refused)]
    assert len(refused) == 500 - 64
    assert {answer.code for answer in refused} == {"unavailable"}
    honest = wires.subscriber(publisher, shared.stream, segment)
    assert isinstance(honest.join(), m.Snapshot)
    greedy.send(m.Hello(900, (1,), shared.stream.uid, segment, honest.nonce))
    assert greedy.receive().code in ("remote_protocol", "unavailable")


@pytest.mark.clock
def test_a_stalled_reader_of_history_costs_bounded_memory(start, wires):
    """It asks for everything again and again and reads nothing."""
    stream, publisher = start(history={"retention": {"bytes": "32Mi"}})
    writer = wires.writer(publisher, stream)
    writer.open()
    payload = os.urandom(30_000)
    for _ in range(40):
        writer.acked(0, *[payload] * 20)
    writer.leave(m.Leaving.CLOSE)
    memory = publisher.rss()
    stalled = publisher.addresses["requests"]
    line = wires.line(zmq.DEALER, stalled)
    line.socket.setsockopt(zmq.RCVHWM, 1)
    for number in range(200):
        line.send(m.Since(number, "0", None, 2**32 - 1))
    with Honest(publisher, stream.uid, "0") as honest:
        honest.check()
        alive(publisher)
    assert honest.error is None, repr(honest.error)
    held = publisher.rss() - memory
    print(f"a reader that asks 200 times for 24 MB and reads nothing holds {held / MIB:.1f} MiB")
    assert held < 96 * MIB


@pytest.mark.clock
@pytest.mark.rule("S22")
@pytest.mark.parametrize("patient", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_subscriber_that_is_stopped_holds_bounded_memory_and_is_cut(start, wires, wait_until, monkeypatch, patient):
    """Faults 16 and 17: the library's heartbeat ends it; nobody else loses anything, whether it is cut or not."""
    for name, value in IMPATIENT.items() if not patient else ():
        monkeypatch.setenv(name, value)
    stream, publisher = start(segments=2, push={"bufferBytes": "8Mi"}, history={"retention": {"bytes": "2Mi"}})
    subscriber = wires.subscriber(publisher, stream, "1")
    assert isinstance(subscriber.hello(), m.Welcome)
    writer = wires.writer(publisher, stream, "1")
    writer.open("loud")
    with Honest(publisher, stream.uid, "0") as honest:
        honest.check()
        before = publisher.fds()
        with stopped_subscriber(publisher, subscriber.channel):
            memory, peak, payload = publisher.rss(), 0, os.urandom(30_000)
            for at in range(40):
                writer.acked(at, *[payload] * 20)
                assert isinstance(writer.advance(at + 1), m.Done)
                peak = max(peak, publisher.rss() - memory)
            honest.check()
            print(f"24 MB pushed past a stopped subscriber, buffer 8 MiB, history 2 MiB: {peak / MIB:.1f} MiB more")
            assert peak < 32 * MIB  # buffer, history, and what sockets and heaps take: they grow in steps of 16 MiB
            if not patient:
                wait_until(lambda: publisher.fds() <= before, PATIENCE)
        wait_until(lambda: publisher.fds() <= before, PATIENCE)
        honest.check()
    assert honest.error is None, repr(honest.error)


# ---- long ----


@pytest.mark.clock
@pytest.mark.long
@pytest.mark.parametrize("where", SOCKETS)
def test_5000_idle_and_1000_half_open_connections_leave_the_process_as_it_was(impatient, wait_until, where):
    """Nobody can be kept from connecting, but from staying: a connection that says nothing ends, and costs little."""
    with files(9000):
        stream, publisher = impatient()
        with Honest(publisher, stream.uid, "0") as honest:
            honest.check()
            before, memory = publisher.fds(), publisher.rss()
            held, after = [], [memory]
            while len(after) < 3 or after[-1] > after[-2] + 2 * MIB:  # heaps keep what they took, and take no more
                assert len(after) <= 6, f"each time it keeps more: {[f'{rss / MIB:.1f} MiB' for rss in after]}"
                held.append(flood(publisher, where, 5000, lambda: honest.check()))
                wait_until(lambda: publisher.fds() <= before + 5, PATIENCE)
                after.append(publisher.rss())
            honest.check()
            each = (max(held) - memory) / 6000
            sizes = [f"{rss / MIB:.1f} MiB" for rss in after]
            print(f"{where}: {each:.0f} bytes a connection at most; {sizes} before, and after each time; an honest "
                  f"epoch took {honest.slowest * 1000:.0f} ms at most")  # fmt: skip
        assert honest.error is None, repr(honest.error)
        assert max(held) - memory < 6000 * 8192


@pytest.mark.long
def test_a_publisher_out_of_descriptors_goes_on_with_those_it_serves(start, wait_until):
    """Its lease as well: the connection to the catalog stands already. Newcomers wait until the flood ends."""
    stream, publisher = start()
    with Honest(publisher, stream.uid, "0") as honest:
        honest.check()
        before = publisher.fds()
        resource.prlimit(publisher.pid, resource.RLIMIT_NOFILE, (150, 150))
        started = time.monotonic()
        while time.monotonic() < started + 12:  # a lease that nobody renews is over by then
            held = connections(address(publisher, "events"), 300, GREETING[:11])
            wait_until(lambda: publisher.fds() == 150)
            honest.check(50)
            for connection in held:
                connection.close()
        wait_until(lambda: publisher.fds() <= before + 5, PATIENCE)
        alive(publisher)
        honest.check()
        print(f"out of descriptors: an honest epoch took {honest.slowest * 1000:.0f} ms at most")
    assert honest.error is None, repr(honest.error)


def begin(where: tuple[str, int], kind: bytes) -> socket.socket:
    """A connection that has shaken hands as ZeroMQ's DEALER or SUB would, and may send frames."""
    connection = socket.create_connection(where, timeout=PATIENCE)
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    connection.sendall(GREETING + b"\x04" + bytes([len(ready)]) + ready)
    connection.recv(len(GREETING), socket.MSG_WAITALL)
    connection.recv(1)  # of what follows: before that, a message would be an error
    return connection


@pytest.mark.parametrize("where", SOCKETS)
def test_a_burst_and_a_reset_do_not_end_the_process(start, where):
    """The library ends it where a heartbeat is to be answered on a connection that broke while its queue was full."""
    _, publisher = start()
    kind, message = (b"SUB", b"\x00\x02\x01C") if where == "events" else (b"DEALER", b"\x00\x01x")
    ping = b"\x04\x07\x04PING\x00\x00"
    for attempt in range(40):  # one is enough where the process has not read all before the reset
        with contextlib.suppress(OSError), begin(address(publisher, where), kind) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(message * 2000 + ping + message)
            time.sleep((0.0001, 0.0003, 0.001, 0.003)[attempt % 4])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert publisher.popen.poll() is None, publisher.log.read_text()
    alive(publisher)


@pytest.mark.clock
@pytest.mark.long
def test_a_message_that_never_ends_is_held_until_its_sender_is_gone(start, wait_until):
    """The library shows nobody a message before its last part: docs/hostile-input.md names this as not defended."""
    _, publisher = start()
    part = b"\x03" + struct.pack(">Q", MIB) + bytes(MIB)
    memory, held = publisher.rss(), []
    for _ in range(2):
        with begin(address(publisher, "ingest"), b"DEALER") as connection:
            for _ in range(64):
                connection.sendall(part)
            alive(publisher)
            held.append(publisher.rss() - memory)
        wait_until(lambda: connected(publisher, "ingest", ESTABLISHED) == 0, PATIENCE)
    print(f"64 MiB of a message that does not end: {held[0] / MIB:.1f} MiB, then {held[1] / MIB:.1f} MiB")
    assert held[1] < held[0] + 16 * MIB, "what the first one took is free again"


@pytest.mark.clock
@pytest.mark.long
def test_a_million_tiny_messages_of_one_peer(start, wires):
    stream, publisher = start(segments=2)
    with Honest(publisher, stream.uid, "0") as honest:
        honest.check()
        memory = publisher.rss()
        for where, message in (("ingest", m.Alive("1")), ("requests", m.Credit(1, 0))):
            line = wires.line(zmq.DEALER, publisher.addresses[where])
            (frames,) = encode(*[message] * (5000 if where == "ingest" else 16))
            for _ in range(200 if where == "ingest" else 2000):
                line.raw(frames[0])
        honest.check(30)
        alive(publisher)
        print(f"an honest epoch took {honest.slowest * 1000:.0f} ms at most; "
              f"{(publisher.rss() - memory) / MIB:.1f} MiB more")  # fmt: skip
    assert honest.error is None, repr(honest.error)
    assert publisher.rss() - memory < 96 * MIB


@pytest.mark.clock
@pytest.mark.long
def test_messages_that_come_faster_than_they_are_read_wait_in_memory(start, wait_until, monkeypatch):
    """The queue of a connection has no bound, for a full one could end the process: docs/hostile-input.md."""
    monkeypatch.setenv("EPOCHAL_PUBLISHER_HEARTBEAT_TIMEOUT", "600")  # what sends here answers no heartbeat
    stream, publisher = start()
    with Honest(publisher, stream.uid, "0") as honest:
        honest.check()
        memory, sent, grown = publisher.rss(), 1_000_000, []
        for _ in range(2):
            read = publisher.metric("discarded_messages_total") + sent - 100  # one a minute is answered
            with begin(address(publisher, "ingest"), b"DEALER") as connection:
                for _ in range(sent // 100_000):
                    connection.sendall(b"\x00\x01x" * 100_000)
                honest.check()
                grown.append(publisher.rss() - memory)
                wait_until(lambda read=read: publisher.metric("discarded_messages_total") >= read, PATIENCE)
        print(f"{sent:,} raw messages of one byte: {grown[0] / MIB:.1f} MiB, then {grown[1] / MIB:.1f} MiB; an honest "
              f"epoch took {honest.slowest * 1000:.0f} ms at most")  # fmt: skip
    assert honest.error is None, repr(honest.error)
    assert grown[1] < 100 * sent


@pytest.mark.clock
@pytest.mark.long
def test_a_flood_of_subscriptions_costs_what_is_documented_and_is_freed(start, wires, wait_until):
    """The library keeps every subscription of every connection; docs/hostile-input.md says what that can cost."""
    stream, publisher = start()
    with Honest(publisher, stream.uid, "0") as honest:
        honest.check()

        def subscribe(count: int) -> int:
            memory = publisher.rss()
            seen = refusals(publisher, "events", "remote_protocol") + count
            line = wires.line(zmq.XSUB, publisher.addresses["events"])
            for _ in range(count):
                line.raw(b"\x01P" + secrets.token_bytes(16))
            wait_until(lambda: refusals(publisher, "events", "remote_protocol") >= seen, 60)
            cost = publisher.rss() - memory
            line.close()
            return int(cost)

        cost = subscribe(20_000)
        honest.check()
        again = subscribe(20_000)  # into the room that the first ones left
        print(f"20,000 subscriptions: {cost / 20_000:.0f} bytes each, then {again / 20_000:.0f}")
        alive(publisher)
        honest.check()
    assert honest.error is None, repr(honest.error)
    assert cost < 20_000 * 4096
    assert again < cost / 2 + 4 * MIB

"""What arrives on the ROUTER sockets and is no sound message: one peer is refused, nothing else changes."""

import os
import socket
import struct

import msgpack
import pytest
import zmq
from tests.patience import PATIENCE

from epochal.protocol import messages as m
from epochal.protocol.wire import encode

MIB = 2**20


def framed(header: bytes, payload: bytes = b"", claimed: int | None = None) -> bytes:
    return struct.pack(">HI", len(header), len(payload) if claimed is None else claimed) + header + payload


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\x00"


BROKEN: dict[str, list[bytes]] = {
    "noise": [os.urandom(200)],
    "text": [b"GET / HTTP/1.1\r\n\r\n"],
    "cut in the lengths": [b"\x00\x05\x00"],
    "cut in the header": [framed(msgpack.packb([41, "0"]))[:-1]],
    "cut in the payload": [framed(msgpack.packb([34, "0", 0, 0, b"", 1, 1]), b"x", claimed=100)],
    "no array": [framed(msgpack.packb({"kind": 41}))],
    "unknown kind": [framed(msgpack.packb([999, "0"]))],
    "too few fields": [framed(msgpack.packb([32, 1]))],
    "wrong types": [framed(msgpack.packb([41, 5]))],
    "deep nesting": [framed(b"\x95\x25\x01\xa10" + nested(2000) + b"\x00")],
    "huge array claimed": [framed(b"\xdd\xff\xff\xff\xff")],
    "huge string claimed": [framed(b"\x92\x29\xdb\xff\xff\xff\xff")],
    "extension type": [framed(b"\x92\x29\xd4\x01\x00")],
    "map": [framed(b"\x92\x29\x81\x01\x02")],
    "sixty thousand empty maps": [b"\x80" * 60_000],
    "five frames": [b"x"] * 5,
    "20,000 frames": [b"x" * 1000] * 20_000,
    "payload apart missing": [framed(msgpack.packb([34, "0", 0, 0, b"", 1, 1]), claimed=0xFFFFFFFF)],
    "a frame too many": [b"", b"more"],
    "from a publisher": encode(m.Heartbeat(3))[0],
}


@pytest.mark.parametrize("where", ["ingest", "requests"])
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_message_is_refused_once_and_the_peer_ignored(shared, wires, wait_until, where, fault):
    publisher = shared.publisher
    before = publisher.metric("refused_messages_total")
    line = wires.line(zmq.DEALER, publisher.addresses[where])
    line.raw(*BROKEN[fault])
    refused = line.receive()
    assert isinstance(refused, m.Refused)
    assert refused.code in ("remote_protocol", "limit_exceeded")
    assert publisher.metric("refused_messages_total") == before + 1
    ignored = publisher.metric("discarded_messages_total")
    line.raw(*BROKEN[fault])
    line.send(m.Hello(1, (1,), shared.stream.uid, "0", b"n" * 16))
    healthy = wires.line(zmq.DEALER, publisher.addresses["requests"])
    healthy.send(m.Hello(1, (1,), shared.stream.uid, "0", os.urandom(16)))
    assert isinstance(healthy.receive(), m.Welcome)
    assert not line.poll(0.05)
    wait_until(lambda: publisher.metric("discarded_messages_total") == ignored + 2)


def test_sound_messages_before_a_broken_one_take_effect(shared, wires):
    segment = shared.segment()
    writer = wires.writer(shared.publisher, shared.stream, segment)
    (opening,) = encode(m.Open(1, shared.stream.uid, segment, "w", 1, None, None))
    writer.line.raw(opening[0] + b"broken")
    assert {type(writer.line.receive()) for _ in range(2)} == {m.Opened, m.Refused}


@pytest.mark.clock
def test_a_frame_above_the_limit_cuts_the_peer_without_an_allocation(shared, wires, wait_until):
    publisher = shared.publisher
    for where in ("ingest", "requests"):
        before = publisher.rss()
        line = wires.line(zmq.DEALER, publisher.addresses[where])
        monitor = line.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        line.raw(b"x" * (17 * MIB))
        assert monitor.poll(int(PATIENCE * 1000)), "the peer was not cut"
        line.socket.disable_monitor()
        monitor.close(0)
        assert publisher.rss() - before < 16 * MIB
    assert publisher.get("/healthz")[0] == 200


def test_a_payload_above_the_limit_is_refused(shared, wires):
    segment = shared.segment()
    writer = wires.writer(shared.publisher, shared.stream, segment)
    writer.open()
    writer.append(0, b"x" * (16 * MIB + 1))
    assert writer.line.receive().code == "limit_exceeded"


JUNK = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(400),
    "zeros": bytes(5000),
    "ones": b"\xff" * 5000,
    "random": os.urandom(20_000),
    "a greeting that stops": b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03",
}


@pytest.mark.parametrize("where", ["events", "requests", "ingest"])
def test_bytes_of_another_protocol_on_a_port_disturb_no_one(shared, wires, where, wait_until):
    publisher, segment = shared.publisher, shared.segment()
    writer = wires.writer(publisher, shared.stream, segment)
    writer.open()
    subscriber = wires.subscriber(publisher, shared.stream, segment)
    subscriber.join()
    files = publisher.fds()
    host, port = publisher.addresses[where].removeprefix("tcp://").split(":")
    for _ in range(5):
        for junk in JUNK.values():
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(junk)
    writer.acked(0, b"still here")
    assert subscriber.next_event().payload == b"still here"
    assert publisher.get("/healthz")[0] == 200
    wait_until(lambda: publisher.fds() <= files + 1)

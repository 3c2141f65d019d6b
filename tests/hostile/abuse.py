"""What the tests of abuse share: honest clients to disturb, junk, floods, and a subscriber that froze.

Apart from the tests because slow readers, floods and broken frames are judged by the same honest pair.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.patience import PATIENCE

from epochal.protocol import messages as m

MIB = 2**20
SOCKETS = ("events", "requests", "ingest")
IMPATIENT = {
    "EPOCHAL_PUBLISHER_HANDSHAKE_TIMEOUT": "2",
    "EPOCHAL_PUBLISHER_HEARTBEAT_INTERVAL": "0.5",
    "EPOCHAL_PUBLISHER_HEARTBEAT_TIMEOUT": "10",  # a busy machine may hold up an honest peer for seconds
}


class Honest:
    """One writer and one subscriber in a thread: epoch after epoch of three records, each checked as it completes."""

    def __init__(self, publisher: Any, uid: str, segment: str) -> None:
        self._publisher, self._uid, self._segment = publisher, uid, segment
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="honest")
        self.epochs = 0
        self.slowest = 0.0
        self.error: BaseException | None = None

    def __enter__(self) -> "Honest":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def check(self, more: int = 3) -> None:
        """Wait until `more` further epochs came exactly."""
        target, deadline = self.epochs + more, time.monotonic() + PATIENCE
        while self.epochs < target:
            assert self.error is None, repr(self.error)
            assert time.monotonic() < deadline, f"only {self.epochs} of {target} epochs came"
            time.sleep(0.01)

    def _run(self) -> None:
        try:
            with zmq.Context() as context:
                self._go_on(context)
        except BaseException as error:
            self.error = error

    def _socket(self, context: "zmq.Context[Any]", kind: int, name: str) -> Any:
        made = context.socket(kind)
        made.linger, made.rcvtimeo = 0, int(PATIENCE * 1000)
        made.set_hwm(0)
        made.connect(self._publisher.addresses[name])
        return made

    def _go_on(self, context: "zmq.Context[Any]") -> None:
        fixtures = sys.modules["hostile_publisher_fixtures"]
        lines = [self._socket(context, kind, name) for kind, name in
                 ((zmq.DEALER, "ingest"), (zmq.DEALER, "requests"), (zmq.SUB, "events"))]  # fmt: skip
        try:
            writer = fixtures.RawWriter(fixtures.Line(lines[0]), self._uid, self._segment)
            subscriber = fixtures.RawSubscriber(
                fixtures.Line(lines[1]), fixtures.Line(lines[2], prefix=1), self._uid, self._segment
            )
            opened = writer.open("honest")
            assert isinstance(opened, m.Opened), opened
            assert isinstance(subscriber.join(), m.Snapshot)
            at, last = int(str(opened.held[0])), None
            while not self._over.is_set():
                last = self._one_epoch(writer, subscriber, at, last)
                at += 1
                self.epochs += 1
            writer.leave(m.Leaving.CLOSE)
        finally:
            for line in lines:
                line.close(0)

    def _one_epoch(self, writer: Any, subscriber: Any, at: int, last: int | None) -> int:
        payloads = [b"%d of %d" % (number, at) for number in range(3)]
        started = time.monotonic()
        writer.append(at, *payloads)
        events = [subscriber.next_event() for _ in range(3)]
        # Only now: appends that wait for the catalog are asked for after every move that is sent (E1).
        writer.line.send(m.Hold(at + 1000, self._segment, (at + 1,)))
        events.append(subscriber.next_event())
        self.slowest = max(self.slowest, time.monotonic() - started)
        assert [event.payload for event in events[:3]] == payloads
        assert all(event.time == at for event in events[:3])
        assert events[3].changes == ((at, -1), (at + 1, 1))
        assert last is None or events[0].prev == last, "an event was lost"
        answer = writer.line.await_other(m.Ack)
        assert isinstance(answer, m.Done), answer
        time.sleep(0.005)
        return int(events[3].seq)


ESTABLISHED, FIN_WAIT_1 = "01", "04"


def connected(publisher: Any, where: str, *states: str) -> int:
    """Connections to a socket in these states of the kernel; `FIN_WAIT_1`: closed here, with bytes yet to be sent."""
    port = int(publisher.addresses[where].rpartition(":")[2])
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] in states for row in rows)


def address(publisher: Any, name: str) -> tuple[str, int]:
    host, port = publisher.addresses[name].removeprefix("tcp://").split(":")
    return host, int(port)


def alive(publisher: Any) -> None:
    host, port = publisher.addresses["http"].removeprefix("http://").split(":")
    with urllib.request.urlopen(f"http://{host}:{port}/healthz", timeout=PATIENCE) as answer:
        assert answer.status == 200


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\x00" + bytes(31)
JUNK = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(400),
    "random": os.urandom(20_000),
    "ZMTP 1": b"\x01\x00" + b"\x06\x00hello",
    "ZMTP 2": b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x00",
    "half a greeting": GREETING[:11],
    "a greeting and silence": GREETING,
    "a greeting and a command that never ends": GREETING + b"\x06\xff\xff\xff\xff\xff\xff\xff\xff",
    "nothing": b"",
}


@contextmanager
def files(count: int) -> Iterator[None]:
    """At least `count` descriptors in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this system allows {hard} descriptors, and {count} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connections(where: tuple[str, int], count: int, sent: bytes = b"") -> list[socket.socket]:
    made = []
    for _ in range(count):
        connection = socket.create_connection(where, timeout=PATIENCE)
        if sent:
            connection.sendall(sent)
        made.append(connection)
    return made


def cut(connection: socket.socket, deadline: float) -> bool:
    """Whether the other side closes a connection in time."""
    while True:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            if not connection.recv(1 << 16):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True


SUBSCRIBER = """
import sys, time, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.RCVHWM, 1)
socket.setsockopt(zmq.RCVBUF, 4096)
socket.subscribe(b"C" + bytes.fromhex(sys.argv[2]))
socket.connect(sys.argv[1])
socket.recv()
print("subscribed", flush=True)
time.sleep(600)
"""


@contextmanager
def stopped_subscriber(publisher: Any, channel: bytes) -> Iterator[None]:
    """A process that subscribed to a channel and was then stopped as a whole, as a machine that froze."""
    command = [sys.executable, "-c", SUBSCRIBER, publisher.addresses["events"], channel.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "subscribed\n"
            os.kill(child.pid, signal.SIGSTOP)
            yield
        finally:
            child.kill()


def flood(publisher: Any, where: str, idle: int, meanwhile: Callable[[], None] = lambda: None) -> int:
    """Connections that say nothing, and a fifth as many that stop within the greeting; returns the RSS with all."""
    held = connections(address(publisher, where), idle) + connections(
        address(publisher, where), idle // 5, GREETING[:11]
    )
    try:
        meanwhile()
        alive(publisher)
        return int(publisher.rss())
    finally:
        for connection in held:
            connection.close()

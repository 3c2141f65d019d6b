"""A real catalog, real publishers on free ports, and raw sockets that speak the protocol to them."""

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import zmq
from tests.patience import PATIENCE
from tests.publisher.counting_catalog import COMMAND as COUNTING

from epochal.protocol import messages as m
from epochal.protocol.wire import decode, encode

BIN = Path(sys.executable).parent
SHARED_SEGMENTS = 64


def until(true: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What `true` returns once it is truthy; for states that nobody announces."""
    deadline = time.monotonic() + patience
    while not (found := true()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


def fetch(url: str, method: str = "GET", body: Any = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


PATIENT_HANDSHAKE = "30"
"""Seconds, for the raw sockets of tests: unlike clients they do not ask again when a busy machine has cut them off."""


@dataclass
class Process:
    """A service process; `ready` is what follows `ready ` on its first line."""

    popen: "subprocess.Popen[str]"
    log: Path
    ready: str = ""

    @classmethod
    def start(cls, log: Path, *command: str, wait: bool = True) -> "Process":
        environment = {"EPOCHAL_PUBLISHER_HANDSHAKE_TIMEOUT": PATIENT_HANDSHAKE, **os.environ}
        with log.open("a") as stderr:
            popen = subprocess.Popen(
                [str(BIN / command[0]), *command[1:], "--exit-with-stdin"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment,
            )  # fmt: skip
        process = cls(popen, log)
        if wait:
            process.await_ready()
        return process

    def await_ready(self) -> None:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line.startswith("ready "), self.log.read_text()
        self.ready = line.removeprefix("ready ").strip()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def addresses(self) -> dict[str, str]:
        return dict(part.split("=") for part in self.ready.split())

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def ended(self, patience: float = PATIENCE) -> int:
        code = self.popen.wait(patience)
        for stream in (self.popen.stdin, self.popen.stdout):
            assert stream is not None
            stream.close()
        return code

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.signal(signal.SIGCONT)
            self.popen.kill()
        self.ended()

    def get(self, path: str) -> tuple[int, str]:
        status, body = fetch(self.addresses["http"] + path)
        return status, body.decode()

    def metric(self, name: str, segment: str | None = None, service: str = "publisher") -> float:
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith((f"epochal_{service}_{name}{{", f"epochal_{service}_{name} ")) and (
                segment is None or f'segment="{segment}"' in line
            ):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}")

    def rss(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))


@dataclass
class Stream:
    """A declared stream at the catalog of the test."""

    catalog: str
    name: str
    uid: str
    logs: Path

    def start(self, segments: str = "0", *, publisher: str = "", wait: bool = True, **given: Any) -> Process:
        """Start a publisher of `segments`."""
        publisher = publisher or self.name.replace("/", ".")
        options = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
        return Process.start(
            self.logs / f"{publisher}.log", "epochal-publisher", "serve", "--catalog", self.catalog,
            "--stream", self.name, "--segments", segments, "--publisher", publisher, *options, wait=wait,
        )  # fmt: skip

    def relay(self, **settings: object) -> Process:
        """Start a relay of it."""
        environment = [f"EPOCHAL_RELAY_{name.upper()}={value}" for name, value in settings.items()]
        return Process.start(
            self.logs / f"{self.name.replace('/', '.')}-relay.log", "/usr/bin/env", *environment,
            str(BIN / "epochal-publisher"), "relay", "--catalog", self.catalog, "--stream", self.name,
        )  # fmt: skip

    def described(self) -> dict[str, Any]:
        described: dict[str, Any] = json.loads(fetch(f"{self.catalog}/v1/streams/{self.name}")[1])
        return described

    def segment(self, segment: str = "0") -> dict[str, Any]:
        return next(item for item in self.described()["segments"] if item["id"] == segment)

    def delete(self) -> None:
        fetch(f"{self.catalog}/v1/streams/{self.name}", "DELETE")


@dataclass
class Line:
    """One raw socket; `receive` gives single messages, in order."""

    socket: "zmq.Socket[bytes]"
    prefix: int = 0
    waiting: deque[Any] = field(default_factory=deque)

    def send(self, *messages: m.Message) -> None:
        for frames in encode(*messages):
            self.socket.send_multipart(frames)

    def raw(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def poll(self, seconds: float = 0.0) -> bool:
        return bool(self.waiting) or bool(self.socket.poll(int(seconds * 1000)))

    def receive(self, patience: float = PATIENCE) -> Any:
        while not self.waiting:
            assert self.socket.poll(int(patience * 1000)), "nothing came in time"
            frames = self.socket.recv_multipart()
            prefix = {b"C": 9, b"P": 17}[frames[0][:1]] if self.prefix else 0
            self.waiting += decode(frames, prefix=prefix)
        return self.waiting.popleft()

    def await_(self, kind: Any, wanted: Callable[[Any], bool] = lambda _: True, patience: float = PATIENCE) -> Any:
        """The next message of one kind, or of a union of kinds, that is `wanted`; others are skipped."""
        return self._first(lambda message: isinstance(message, kind) and wanted(message), str(kind), patience)

    def await_other(self, kind: type[Any], patience: float = PATIENCE) -> Any:
        """The next message that is not of this kind."""
        return self._first(lambda message: not isinstance(message, kind), f"other than {kind}", patience)

    def _first(self, wanted: Callable[[Any], bool], what: str, patience: float) -> Any:
        # Heartbeats come for ever, so each message in time is not enough.
        deadline = time.monotonic() + patience
        while not wanted(message := self.receive(patience)):
            assert time.monotonic() < deadline, f"no message {what} came in time"
        return message

    def close(self) -> None:
        self.socket.close(0)


@dataclass
class RawWriter:
    """A writer by hand: `uid` of the stream, one segment."""

    line: Line
    uid: str
    segment: str
    number: int = 0
    op: int = 0

    def open(self, writer: str = "w1", session: int = 1, resume: m.Resume | None = None) -> Any:
        self.op += 1
        self.line.send(m.Open(self.op, self.uid, self.segment, writer, session, None, resume))
        answer = self.line.receive()
        if isinstance(answer, m.Opened):
            self.number = answer.number + 1
        return answer

    def append(self, at: Any, *payloads: bytes, records: int = 1) -> None:
        appends = []
        for payload in payloads:
            crc = google_crc32c.value(payload)
            appends.append(m.Append(self.segment, self.number, at, b"", records, crc, payload))
            self.number += 1
        self.line.send(*appends)

    def acked(self, at: Any, *payloads: bytes, records: int = 1) -> m.Ack:
        self.append(at, *payloads, records=records)
        ack: m.Ack = self.line.await_(m.Ack, lambda ack: ack.number == self.number - 1)
        return ack

    def operate(self, make: Callable[[int, str], m.Message]) -> Any:
        self.op += 1
        self.line.send(make(self.op, self.segment))
        return self.line.await_(m.Done | m.Refused | m.Lost)

    def advance(self, *times: Any) -> Any:
        return self.operate(lambda op, segment: m.Hold(op, segment, times))

    def leave(self, how: m.Leaving) -> Any:
        return self.operate(lambda op, segment: m.Leave(op, segment, how))


@dataclass
class RawSubscriber:
    """A subscriber by hand."""

    requests: Line
    events: Line
    uid: str
    segment: str
    channel: bytes = b""
    nonce: bytes = b""
    request: int = 0

    def hello(self) -> Any:
        self.nonce, self.request = secrets.token_bytes(16), self.request + 1
        self.requests.send(m.Hello(self.request, (1,), self.uid, self.segment, self.nonce))
        welcome = self.requests.receive()
        if isinstance(welcome, m.Welcome):
            self.channel = welcome.channel
        return welcome

    def subscribe(self) -> None:
        self.events.socket.subscribe(b"C" + self.channel)
        self.events.socket.subscribe(b"P" + self.nonce)

    def join(self) -> Any:
        """Hello, subscribe, and the first message on `P<nonce>`."""
        assert isinstance(self.hello(), m.Welcome)
        self.subscribe()
        return self.events.await_(m.Snapshot | m.Refused)

    def next_event(self) -> Any:
        return self.events.await_other(m.Heartbeat)

    def since(self, position: m.Position | None, credit: int = 8, wanted: tuple[Any, ...] | None = None) -> list[Any]:
        """The whole answer, opening first; a refusal is the last of it, or all."""
        self.request += 1
        self.requests.send(m.Since(self.request, self.segment, position, credit, wanted))
        answer = [self.requests.receive()]
        while isinstance(answer[0], m.Opening):
            chunk = self.requests.receive()
            if isinstance(chunk, m.Refused):
                answer.append(chunk)
                break
            assert isinstance(chunk, m.Chunk)
            self.requests.send(m.Credit(self.request, 1))
            answer += [self.requests.receive() for _ in range(chunk.events)]
            if chunk.last:
                break
        return answer

    def close(self) -> None:
        self.requests.close()
        self.events.close()


class Wires:
    """Makes sockets, and closes them at the end of the test."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.max_sockets = 4000
        self._lines: list[Line] = []

    def line(self, kind: int, address: str, prefix: int = 0, receive_buffer: int = -1) -> Line:
        """A connected socket; `receive_buffer`: bytes that the system holds for it, by default what it likes."""
        socket = self.context.socket(kind)
        self._lines.append(Line(socket, prefix))
        socket.linger = 0
        socket.set_hwm(0)
        socket.rcvbuf = receive_buffer
        socket.connect(address)
        return self._lines[-1]

    def writer(self, publisher: Process, stream: Stream, segment: str = "0") -> RawWriter:
        return RawWriter(self.line(zmq.DEALER, publisher.addresses["ingest"]), stream.uid, segment)

    def subscriber(
        self, publisher: Process, stream: Stream, segment: str = "0", *, receive_buffer: int = -1
    ) -> RawSubscriber:
        """`receive_buffer`: of its events, see `line`."""
        requests = self.line(zmq.DEALER, publisher.addresses["requests"])
        events = self.line(zmq.SUB, publisher.addresses["events"], 1, receive_buffer)
        return RawSubscriber(requests, events, stream.uid, segment)

    def close(self) -> None:
        for line in self._lines:
            line.close()
        self.context.term()


@dataclass
class Shared:
    """One publisher process of many segments, of which each test takes one for itself."""

    stream: Stream
    publisher: Process
    _segments: Iterator[int] = field(default_factory=itertools.count)

    def segment(self) -> str:
        return str(next(self._segments))


Declare = Callable[..., Stream]


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("publisher")


@pytest.fixture(scope="session")
def catalog(logs: Path) -> Iterator[str]:
    process = Process.start(logs / "catalog.log", *COUNTING, "serve", "--port", "0", "--data", str(logs / "data"))
    yield process.ready
    process.stop()


@pytest.fixture(scope="session")
def declare(catalog: str, logs: Path) -> Declare:
    numbers = itertools.count()

    def declared(**spec: Any) -> Stream:
        return declare_at(catalog, logs, f"s{next(numbers)}", **spec)

    return declared


def declare_at(catalog: str, logs: Path, name: str, **spec: Any) -> Stream:
    document = {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": name, "namespace": "test"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}, **spec},
    }
    status, body = fetch(f"{catalog}/v1/streams/test/{name}", "PUT", document)
    assert status in (200, 201), body
    return Stream(catalog, f"test/{name}", json.loads(body)["uid"], logs)


@pytest.fixture(scope="session")
def at_catalog(logs: Path) -> Callable[..., Stream]:
    """Declares a stream at a given catalog."""
    return lambda catalog, name, **spec: declare_at(catalog, logs, name, **spec)


@pytest.fixture
def start(declare: Declare) -> Iterator[Callable[..., tuple[Stream, Process]]]:
    """Declares a stream and starts a publisher of all its segments, for one test."""
    started: list[Process] = []

    def start(options: dict[str, Any] | None = None, **spec: Any) -> tuple[Stream, Process]:
        stream = declare(**spec)
        segments = ",".join(map(str, range(spec.get("segments", 1))))
        started.append(stream.start(segments, **(options or {})))
        return stream, started[-1]

    yield start
    for process in started:
        process.stop()


@pytest.fixture(scope="session")
def shared_publisher(declare: Declare) -> Iterator[Shared]:
    stream = declare(segments=SHARED_SEGMENTS, push={"bufferBytes": "64Mi", "heartbeat": "200ms"})
    process = stream.start(",".join(map(str, range(SHARED_SEGMENTS))))
    yield Shared(stream, process)
    process.stop()


@pytest.fixture
def shared(shared_publisher: Shared) -> Shared:
    assert shared_publisher.publisher.popen.poll() is None, "an earlier test ended the shared publisher"
    return shared_publisher


@pytest.fixture
def wires() -> Iterator[Wires]:
    made = Wires()
    yield made
    made.close()


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return until


@pytest.fixture(scope="session")
def process() -> type[Process]:
    return Process


@pytest.fixture(scope="session")
def publisher_command() -> str:
    return str(BIN / "epochal-publisher")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here: only root may")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)

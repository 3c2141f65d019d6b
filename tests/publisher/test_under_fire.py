"""The HTTP sides of both services under attack: bounded in memory and time, and of no consequence to honest requests.

Here for both, as what guards them is one and the same; the catalog's own tests have the cases of a single connection.
"""

import resource
import select
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.patience import PATIENCE

DEADLINE = 2.0
MIB = 2**20
HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Half: "
POST = b"POST /v1/publishers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(params=["catalog", "publisher"])
def served(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, process: Any
) -> Iterator[Any]:
    """A process of either service, with short deadlines."""
    for name in ("CATALOG", "PUBLISHER"):
        for what in ("HEADER", "BODY", "WRITE"):
            monkeypatch.setenv(f"EPOCHAL_{name}_{what}_TIMEOUT", str(DEADLINE))
    if request.param == "publisher":
        yield request.getfixturevalue("start")()[1]
        return
    command = ("epochal-catalog", "serve", "--port", "0", "--data", str(tmp_path / "data"))
    started = process.start(tmp_path / "log", *command)
    started.ready = f"http={started.ready}"
    yield started
    started.stop()
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(served: Any, sent: bytes = b"") -> socket.socket:
    parts = urlsplit(served.addresses["http"])
    connection = socket.create_connection((parts.hostname, parts.port), PATIENCE)
    if sent:
        connection.sendall(sent)
    return connection


def answer(connection: socket.socket) -> bytes:
    """All that comes until the end of the connection."""
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionError:
        pass
    return found


def until_closed(connections: list[socket.socket]) -> None:
    """Until the other side has closed every one of them."""
    poller, left = select.poll(), {connection.fileno(): connection for connection in connections}
    for number in left:
        poller.register(number, select.POLLIN | select.POLLHUP)
    deadline = time.monotonic() + DEADLINE + PATIENCE
    while left:
        assert time.monotonic() < deadline, f"{len(left)} connections were not closed"
        for number, _ in poller.poll(int(PATIENCE * 1000)):
            try:
                ended = not left[number].recv(65536)
            except ConnectionError:
                ended = True
            if ended:
                poller.unregister(number)
                left.pop(number).close()


class Honest(threading.Thread):
    """Asks for health all the time; `slowest` is the longest that it took, in seconds."""

    def __init__(self, served: Any) -> None:
        super().__init__()
        self.served, self.count, self.slowest = served, 0, 0.0
        self.refused: list[bytes] = []
        """Every answer but 200, as it came."""
        self.over, self.some = threading.Event(), threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            began = time.monotonic()
            with connect(
                self.served, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            ) as connection:
                found = answer(connection)
            if not found.startswith(b"HTTP/1.1 200"):
                self.refused.append(found)
            self.count += 1
            if self.count > 5:
                self.some.set()
            self.slowest = max(self.slowest, time.monotonic() - began)


@contextmanager
def honest(served: Any) -> Iterator[Honest]:
    """Honest requests meanwhile, all of which must be answered."""
    asking = Honest(served)
    asking.start()
    try:
        yield asking
        asking.some.wait(PATIENCE)
    finally:
        asking.over.set()
        asking.join()
    assert asking.some.is_set()
    assert not asking.refused
    assert asking.slowest < PATIENCE / 2


def peak(served: Any) -> int:
    """The most memory that the process ever had, in bytes."""
    status = Path(f"/proc/{served.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.clock
@pytest.mark.long
@pytest.mark.usefixtures("many_files")
def test_1000_half_open_and_500_silent_connections_are_closed_in_time(served: Any, wait_until: Any) -> None:
    fds, after = served.fds(), []
    with honest(served) as asking:
        for _ in range(3):  # a heap keeps what it took once; it must not take more
            until_closed([connect(served, HALF) for _ in range(1000)] + [connect(served) for _ in range(500)])
            wait_until(lambda: served.fds() <= fds + 5)
            after.append(served.rss())
    print(f"{asking.count} honest requests, the slowest {asking.slowest:.2f} s; MiB after: {[n / MIB for n in after]}")
    assert after[-1] <= after[0] + 4 * MIB


@pytest.mark.long
@pytest.mark.parametrize(
    ("begin", "ends"), [(HALF, b""), (POST + b"Content-Length: 100000\r\n\r\n", b" 408 ")], ids=["head", "body"]
)
def test_who_sends_byte_by_byte_is_not_waited_for(served: Any, begin: bytes, ends: bytes) -> None:
    with ExitStack() as stack, honest(served):
        slow = [stack.enter_context(connect(served, begin)) for _ in range(50)]
        over = threading.Event()

        def drip() -> None:
            while not over.wait(0.1):
                for connection in slow:
                    try:
                        connection.send(b"x")
                    except OSError:
                        continue

        dripping = threading.Thread(target=drip)
        dripping.start()
        answers = [answer(connection)[:20] for connection in slow]
        over.set()
        dripping.join()
        assert all(ends in found for found in answers)


def bomb(size: int, kind: str) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if kind == "gzip" else 15)
    zeros = bytes(MIB)
    return b"".join(packer.compress(zeros) for _ in range(size // MIB)) + packer.flush()


@pytest.mark.clock
@pytest.mark.long
@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_200_mib_packed_into_200_kib_are_refused_without_being_unpacked(served: Any, kind: str) -> None:
    packed = bomb(200 * MIB, kind)
    head = POST + b"Connection: close\r\nContent-Encoding: " + kind.encode()
    head += b"\r\nContent-Length: %d\r\n\r\n" % len(packed)
    before = peak(served)
    with honest(served), ExitStack() as stack:
        held = [stack.enter_context(connect(served, head + packed)) for _ in range(10)]
        assert {answer(connection)[9:12] for connection in held} == {b"415"}
    print(f"{(peak(served) - before) / MIB:.1f} MiB for ten bombs of {len(packed)} bytes")
    assert peak(served) - before < 16 * MIB


@pytest.mark.clock
@pytest.mark.long
@pytest.mark.parametrize("length", [b"Content-Length: 2097152\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_2_mib_are_refused_before_they_are_read(served: Any, length: bytes) -> None:
    def answered(_: int) -> bytes:
        with connect(served, POST + length) as connection:
            try:
                for _ in range(32):
                    connection.sendall(b"10000\r\n" * (b"chunked" in length) + b" " * 65536)
                    connection.sendall(b"\r\n" * (b"chunked" in length))
            except ConnectionError:
                pass  # it has been answered and closed already
            return answer(connection)[9:12]

    before = peak(served)
    with honest(served), ThreadPoolExecutor(10) as several:
        assert set(several.map(answered, range(20))) <= {b"413", b""}
    print(f"{(peak(served) - before) / MIB:.1f} MiB for ten at a time")
    assert peak(served) - before < 16 * MIB, "of 20 MiB at a time"


@pytest.mark.parametrize(
    "head",
    [b"X: " + b"x" * 9000, b"\r\n".join(b"X-%d: x" % at for at in range(200))],
    ids=["a header of 9000 bytes", "200 headers"],
)
def test_a_head_beyond_the_limits_is_refused(shared: Any, head: bytes) -> None:
    with connect(shared.publisher, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n") as connection:
        assert answer(connection)[9:12] in (b"400", b"431")
    assert shared.publisher.get("/healthz")[0] == 200

"""Clients of a relay's HTTP that ask for too much, read nothing or write nonsense, while another one reads epochs."""

import json
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

import pytest
from tests.patience import PATIENCE
from tests.publisher.conftest import Process, RawWriter, Wires, until

MIB = 2**20
HOSTILE, HONEST = "127.0.0.1", "127.0.0.2"
STREAM = b"Accept: text/event-stream"
FILTERS, FILTERS_OF_ADDRESS = 8, 4
HONEST_FILTERS = 2
"""Of the honest client in all of these tests."""
READERS, READERS_OF_ADDRESS = 12, 6
RING = MIB


class Served:
    """A relay of a stream, and the stream's only writer."""

    def __init__(self, relay: Process, writer: RawWriter) -> None:
        self.relay = relay
        self._writer = writer
        self._time = 0

    def publish(self, size: int = 1) -> int:
        """A complete epoch with one record of so many bytes; returns its time."""
        self._writer.acked(self._time, json.dumps(["x" * size]).encode())
        self._time += 1
        self._writer.advance(self._time)
        return self._time - 1

    def measured(self, what: str) -> float:
        """A number of the relay's HTTP side."""
        return self.relay.metric(f"http_{what}", service="relay")

    def connect(self, address: str = HOSTILE, receives: int = 0) -> socket.socket:
        """A connection from an address of this machine; `receives`: bytes that the kernel keeps for it."""
        host, _, port = self.relay.addresses["http"].removeprefix("http://").rpartition(":")
        line = socket.socket()
        line.settimeout(PATIENCE)
        if receives:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        line.bind((address, 0))
        line.connect((host, int(port)))
        return line

    @contextmanager
    def following(self, query: str = "", address: str = HOSTILE) -> Iterator[BinaryIO]:
        """Server-sent events, from the first one on."""
        with self.connect(address) as line, line.makefile("rb") as events:
            line.sendall(get(query, STREAM))
            status, problem = head(events)
            assert status == 200, problem
            yield events

    def ask(self, sent: bytes, address: str = HOSTILE) -> tuple[int, dict[str, Any]]:
        """One request: the status, and the problem if there is one."""
        with self.connect(address) as line, line.makefile("rb") as answer:
            line.sendall(sent)
            return head(answer)


def get(query: str = "", *headers: bytes) -> bytes:
    lines = [b"GET /v1/epochs?" + query.encode() + b" HTTP/1.1", b"Host: localhost", b"Connection: close", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def head(answer: BinaryIO) -> tuple[int, dict[str, Any]]:
    """The status of an answer, and its body if that is a problem."""
    status = int(answer.readline().split()[1])
    fields = b"".join(iter(answer.readline, b"\r\n"))
    return status, json.loads(answer.read()) if b"problem+json" in fields else {}


def epoch(events: BinaryIO) -> int:
    """Reads up to the next epoch; its time."""
    for line in events:
        if line == b"event: epoch\n":
            found = re.search(rb'"time":(\d+)', events.readline())
            assert found is not None
            return int(found[1])
    raise AssertionError("the answer ended before an epoch")


@pytest.fixture(scope="module")
def running(declare: Any) -> Iterator[Served]:
    """One relay for all of these tests; afterwards nobody is left at it, and it has logged no error."""
    stream = declare(payload={"encoding": "json"})
    publisher, wires = stream.start(), Wires()
    relay = stream.relay(
        max_feeds=FILTERS, max_feeds_per_address=FILTERS_OF_ADDRESS, max_readers=READERS,
        max_readers_per_address=READERS_OF_ADDRESS, ring_bytes=RING, write_timeout=3, frontier_interval=0.05,
    )  # fmt: skip
    try:
        writer = wires.writer(publisher, stream)
        writer.open()
        served = Served(relay, writer)
        yield served
        until(lambda: not served.measured("readers") and not served.measured("catch_ups"))
        log = relay.log.read_text()
        assert "Traceback" not in log, log
        assert "ERROR" not in log, log
    finally:
        wires.close()
        relay.stop()
        publisher.stop()


@pytest.fixture
def served(running: Served) -> Served:
    assert running.relay.popen.poll() is None, "an earlier test ended the relay"
    until(lambda: not running.measured("readers"))
    return running


@pytest.mark.rule("S24")
def test_a_flood_of_filters_from_one_address_leaves_the_others_their_share(served: Served) -> None:
    with ExitStack() as stack:
        for number in range(FILTERS_OF_ADDRESS):
            stack.enter_context(served.following(f"reject=held{number}"))
        for number in range(50):
            status, problem = served.ask(get(f"reject=more{number}", STREAM))
            assert (status, problem["code"], problem["retryable"]) == (429, "too_many_filters", True)
            assert "EPOCHAL_RELAY_MAX_FEEDS_PER_ADDRESS" in problem["detail"]
        honest = stack.enter_context(served.following("reject=honest", HONEST))
        time = served.publish()
        assert epoch(honest) == time
        assert served.measured("feeds") <= FILTERS_OF_ADDRESS + HONEST_FILTERS
    for number in range(50):
        assert served.ask(get(f"reject=later{number}"))[0] == 200
        assert served.measured("feeds") <= FILTERS_OF_ADDRESS + HONEST_FILTERS, "those that nobody reads count as well"


NEVER_READ = [("now", STREAM), ("start", STREAM), ("start", b"Accept: */*")]


def never_read(served: Served, since: str, form: bytes) -> int:
    """Publish past readers that never read, and see that an honest one gets all. Returns by how much the relay grew."""
    size, count = 300_000, 40
    for _ in range(2 * count):
        served.publish(size)  # history: 24 MB
    with ExitStack() as stack:
        honest = stack.enter_context(served.following(address=HONEST))
        time = served.publish(size)
        while epoch(honest) < time:  # its filter was read before, and may not have handed out all by now
            pass
        before = served.relay.rss()
        lines = [stack.enter_context(served.connect(receives=4096)) for _ in range(READERS_OF_ADDRESS)]
        for line in lines:
            line.sendall(get(f"since={since}&wait=20", form))
        for line in lines:
            assert line.recv(1) == b"H", "it is being answered, and reads no more"
        for _ in range(count):
            time = served.publish(size)
            assert epoch(honest) == time
            assert served.measured("ring_size_bytes") <= RING + size
        grown = served.relay.rss() - before
        until(lambda: served.measured("readers") == 1)
    return int(grown)


@pytest.mark.rule("E18", "S24")
@pytest.mark.parametrize(("since", "form"), NEVER_READ)
def test_readers_that_never_read_hold_up_no_one_and_are_cut(served: Served, since: str, form: bytes) -> None:
    never_read(served, since, form)


@pytest.mark.clock
@pytest.mark.rule("S24")
@pytest.mark.parametrize(("since", "form"), NEVER_READ)
def test_readers_that_never_read_cost_bounded_memory(served: Served, since: str, form: bytes) -> None:
    grown = never_read(served, since, form)
    print(f"{READERS_OF_ADDRESS} readers that do not read, {since}, {form.decode()}: {grown / MIB:.1f} MiB more")
    assert grown < 96 * MIB, "with all of the history for each it would be 150 and more"


SINCE = [
    "yesterday", "", "-1", "1.0", "time:", "time:-1", "time:[1,2]", "time:1e400", "time:" + "9" * 5000,
    "time:" + "[" * 2000, "time:NaN", "%00", "%FF%FE", "start%00", "{", "%7B%7D", '{"cursor":5}',
    '{"cursor":' + "9" * 5000 + "}", '{"cursor":5,"stream":"s","positions":{"0":[1e400,0]}}', '{"a":' * 500,
]  # fmt: skip
WRONG = [
    *((f"since={since}", b"", 422, "since") for since in SINCE),
    ("since=start&since=now", b"", 422, "since"),
    ("since=" + "x" * 7000, b"", 413, "since"),
    *((f"wait={wait}", b"", 422, "wait") for wait in ("", "-1", "-0", "nan", "inf", "1e400", "9" * 390, "1_0", "%FF")),
    ("wait=0&wait=1", b"", 422, "wait"),
    *((f"{name}=" + "x" * 1025, b"", 422, name) for name in ("topic", "reject")),
    *((f"{name}=" + "%FF" * 1025, b"", 422, name) for name in ("topic", "reject")),
    *((f"{name}=" + f"&{name}=".join("x" * 1000 + str(n) for n in range(5)), b"", 413, name)
      for name in ("topic", "reject")),
    ("limit=1", b"", 422, "limit"),
    ("%00=1", b"", 422, "\x00"),
    *(("", b"Last-Event-ID: " + last, 422, "Last-Event-ID")
      for last in (b"yesterday", b"-1", b"\xff\xfe", b"{", b'{"cursor":5}', b"time:1e400", b"time:" + b"9" * 5000,
                   b"now\r\nLast-Event-ID: start", b"[" * 2000)),
    ("", b"Last-Event-ID: " + b"x" * 7000, 413, "Last-Event-ID"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "header", "status", "field"), WRONG)
def test_what_is_wrong_with_a_request_is_named(
    served: Served, query: str, header: bytes, status: int, field: str
) -> None:
    for form in (b"Accept: */*", STREAM):
        found, problem = served.ask(get(query, form, *filter(None, [header])))
        assert (found, [each["path"] for each in problem.get("problems", ())]) == (status, [field])
        assert len(json.dumps(problem)) < 2000, "what was sent does not come back whole"


def test_as_many_prefixes_as_fit_into_a_request_are_a_filter(served: Served) -> None:
    query = "&".join(f"topic={number:x}" for number in range(256, 256 + 800))
    status, problem = served.ask(get(query))
    assert status == 200, problem


def test_connections_that_are_cut_in_the_middle_free_their_places(served: Served) -> None:
    for number in range(3):
        with ExitStack() as stack:
            lines = [stack.enter_context(served.connect()) for _ in range(READERS_OF_ADDRESS)]
            for line in lines:
                line.sendall(get("since=start" if number else "", STREAM))
            for line in lines:
                assert line.recv(1) == b"H"
            for line in lines:  # reset, with whatever is on its way
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        served.publish(100_000)
        until(lambda: not served.measured("readers") and not served.measured("catch_ups"))
        assert served.ask(get())[0] == 200

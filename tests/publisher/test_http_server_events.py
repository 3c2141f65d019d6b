"""Server-sent events: the same events as they come, resumed by Last-Event-ID, at the pace at which they are read."""

import base64
import itertools
import json
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.client.encoding.encodings import encoder
from epochal.protocol import messages as m

TEXT = "text/event-stream"


@dataclass
class Told:
    """One event as a browser gets it."""

    kind: str
    id: str
    data: dict[str, Any]


@dataclass
class Follow:
    """A connection that follows a segment; iterating it gives events."""

    publisher: Any
    query: str = ""
    last: str = ""
    segment: str = "0"
    comments: int = 0
    _answer: Any = field(default=None)

    def __enter__(self) -> "Follow":
        url = f"{self.publisher.addresses['http']}/v1/segments/{self.segment}/events?{self.query}"
        headers = {"Accept": TEXT} | ({"Last-Event-ID": self.last} if self.last else {})
        self._answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()

    @property
    def status(self) -> int:
        return int(self._answer.status)

    def __iter__(self) -> Iterator[Told]:
        fields: dict[str, str] = {}
        for raw in self._answer:
            line = raw.decode().rstrip("\n")
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                yield Told(fields["event"], fields.get("id", ""), json.loads(fields["data"]))
                fields = {}

    def take(self, count: int) -> list[Told]:
        return list(itertools.islice(self, count))


def payload(text: bytes) -> bytes:
    return encoder("bytes")([text])


@pytest.mark.rule("Q3", "Q5")
def test_history_then_what_comes_then_the_end(start: Any, wires: Any) -> None:
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(0, payload(b"a"), payload(b"b"))
    with Follow(publisher) as follow:
        opening, a, b = follow.take(3)
        assert (opening.kind, opening.id, opening.data["lower"]) == ("opening", "1.-1", [0])
        assert [(told.kind, told.id, told.data["records"]) for told in (a, b)] == [
            ("data", "1.0", ["YQ=="]), ("data", "1.1", ["Yg=="]),
        ]  # fmt: skip
        writer.advance(1)
        (moved,) = follow.take(1)
        assert (moved.kind, moved.data["changes"]) == ("frontier", [[0, -1], [1, 1]])
        writer.leave(m.Leaving.FINISH)
        rest = list(follow)
        assert [told.kind for told in rest] == ["frontier", "complete"], "and the answer ends"
    with Follow(publisher, last=b.id) as follow:
        assert [(told.kind, told.id) for told in follow] == [
            ("opening", b.id), ("frontier", "1.2"), ("frontier", "1.3"), ("complete", "1.3"),
        ]  # fmt: skip
    with Follow(publisher, last="1.3") as follow:
        assert follow.status == 204, "a browser does not come back"


@pytest.mark.rule("Q5")
def test_readers_that_come_and_go_while_events_are_made_see_each_once_in_order(shared: Any, wires: Any) -> None:
    publisher, segment = shared.publisher, shared.segment()
    writer = wires.writer(publisher, shared.stream, segment)
    writer.open()
    total = 3000

    def write() -> None:
        for number in range(total):
            writer.append(0, payload(b"%d" % number))

    writing = threading.Thread(target=write)
    writing.start()
    found: list[tuple[str, Any]] = []
    last = "1.-1"
    for turn in itertools.count(1):
        with Follow(publisher, last=last, segment=segment) as follow:
            opening, *told = follow.take(min(1 + turn * 37, 1 + total - len(found)))
            assert opening.id == last
            found += [(event.id, event.data["records"]) for event in told]
            last = found[-1][0]
        if len(found) == total:
            break
    writing.join(PATIENCE)
    assert found == [(f"1.{n}", [base64.b64encode(b"%d" % n).decode()]) for n in range(total)]


def test_a_sign_of_life_when_nothing_happens(start: Any, wires: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_PUBLISHER_SSE_HEARTBEAT", "0.2")
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()
    with Follow(publisher, query="since=now") as follow:
        follow.take(1)
        while not follow.comments:
            follow._answer.readline()
            follow.comments += follow._answer.peek(1)[:1] == b":"
        writer.acked(0, payload(b"a"))
        assert follow.take(1)[0].id == "1.0"


def test_a_stop_ends_the_answer_in_order(start: Any, wires: Any, wait_until: Any) -> None:
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()
    with Follow(publisher) as follow:
        follow.take(1)
        publisher.signal(signal.SIGTERM)
        assert all(told.kind in ("frontier", "aborted") for told in follow), "it ends, and not in the middle"
    assert publisher.ended() == 0


@pytest.mark.rule("Q5", "Q7")
def test_a_reader_that_does_not_read_is_cut_holds_up_no_one_and_goes_on_where_it_was(
    start: Any, wires: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHAL_PUBLISHER_WRITE_TIMEOUT", "1")
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()
    host, port = publisher.addresses["http"].removeprefix("http://").split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        slow.sendall(f"GET /v1/segments/0/events HTTP/1.1\r\nHost: localhost\r\nAccept: {TEXT}\r\n\r\n".encode())
        wait_until(lambda: publisher.metric("http_readers") == 1)
        for _ in range(40):
            writer.acked(0, *[payload(bytes(10_000))] * 20)
        wait_until(lambda: "epochal_http_refused_total{" in publisher.get("/metrics")[1])
        assert 'reason="write_timeout"' in publisher.get("/metrics")[1]
        wait_until(lambda: publisher.metric("http_readers") == 0)
        slow.settimeout(PATIENCE)
        got = slow.recv(65536).decode()
    last = [line.removeprefix("id: ") for line in got.splitlines() if line.startswith("id: ")][-1]
    with Follow(publisher, last=last) as follow:
        _, *told = follow.take(1 + 799 - int(last.split(".")[1]))
    assert [event.data["position"][1] for event in told] == list(range(int(last.split(".")[1]) + 1, 800))


@pytest.mark.rule("Q2")
def test_retention_that_overtakes_a_reader_is_reported(start: Any, wires: Any, wait_until: Any) -> None:
    stream, publisher = start(history={"retention": {"bytes": "1Mi"}})
    writer = wires.writer(publisher, stream)
    writer.open()
    host, port = publisher.addresses["http"].removeprefix("http://").split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(PATIENCE)
        slow.connect((host, int(port)))
        slow.sendall(f"GET /v1/segments/0/events HTTP/1.1\r\nHost: localhost\r\nAccept: {TEXT}\r\n\r\n".encode())
        wait_until(lambda: publisher.metric("http_readers") == 1)
        for at in range(25):
            writer.acked(at, *[payload(bytes(20_000))] * 20)
            writer.advance(at + 1)
        got = b""
        while b"event: refused\n" not in got or not got.endswith(b"\r\n0\r\n\r\n"):
            got += slow.recv(2**20)
    (data,) = [line for line in got.decode().split("event: refused\n")[1].splitlines() if line.startswith("data: ")]
    problem = json.loads(data.removeprefix("data: "))
    assert (problem["code"], problem["status"]) == ("history_truncated", 410)
    incarnation, first = problem["first_available"]
    with pytest.raises(urllib.error.HTTPError) as refused, Follow(publisher, last="1.2"):
        pass
    with refused.value as answer:
        assert (answer.code, json.loads(answer.read())["code"]) == (410, "history_truncated")
    with Follow(publisher, query="since=start") as follow:
        assert tuple(follow.take(1)[0].data["position"]) >= (incarnation, first)

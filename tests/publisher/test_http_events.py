"""Events over HTTP: what a question answers, how it waits, and what it may cost."""

import base64
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from tests.patience import PATIENCE

from epochal.client.encoding.encodings import encoder
from epochal.protocol import messages as m
from epochal_publisher.http.event_encoding import MOST_DECODED

STORED: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}


def get(publisher: Any, query: str = "", accept: str = "*/*", segment: str = "0", **headers: str) -> tuple[int, Any]:
    """(status, body) of a question for events."""
    status, _, body = ask(publisher, query, accept, segment, **headers)
    return status, body


def ask(publisher: Any, query: str, accept: str, segment: str, **headers: str) -> tuple[int, Any, bytes]:
    url = f"{publisher.addresses['http']}/v1/segments/{segment}/events{'?' if query else ''}{query}"
    request = urllib.request.Request(url, headers={"Accept": accept, **headers})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def lines(publisher: Any, query: str = "", segment: str = "0") -> list[dict[str, Any]]:
    """The answer as JSON lines, the opening first."""
    status, body = get(publisher, query, segment=segment)
    assert status == 200, body
    return [json.loads(line) for line in body.splitlines()]


def seqs(events: list[dict[str, Any]]) -> list[int]:
    return [event["position"][1] for event in events]


def all_seqs(publisher: Any, query: str = "limit=10000") -> list[int]:
    """Every event from the start, page by page."""
    found: list[int] = []
    since = "start"
    while True:
        opening, *events = lines(publisher, f"since={since}&{query}")
        if not events:
            return found
        assert not found or opening["position"][1] == found[-1]
        found += seqs(events)
        since = "{}.{}".format(*events[-1]["position"])


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Settings of the publishers that are started from now on."""

    def configure(**settings: object) -> None:
        for name, value in settings.items():
            monkeypatch.setenv(f"EPOCHAL_PUBLISHER_{name.upper()}", str(value))

    return configure


@pytest.mark.rule("E11")
def test_what_was_lost_with_a_memory_is_in_the_opening_of_the_next_publisher(
    start: Any, wires: Any, wait_until: Any
) -> None:
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(3, b"x")
    publisher.stop()
    again = stream.start()
    try:
        opening, *events = lines(again)
        assert (opening["lower"], opening["below"], events) == ([0], [3], [])
        wait_until(lambda: stream.segment()["below"] == [3])
    finally:
        again.stop()


@pytest.mark.rule("Q1", "Q3")
def test_the_events_strictly_after_a_position_in_order(start: Any, wires: Any) -> None:
    _, publisher = stream = start(payload={"encoding": "json"})
    writer = wires.writer(publisher, stream[0])
    writer.open()
    writer.acked(0, b'[{"a": 1}]', b'["b", null]')
    writer.advance(1)
    opening, *events = lines(publisher)
    assert opening == {
        "kind": "opening", "position": [1, -1], "lower": [0], "active": [], "aborted": [], "below": [],
        "incarnation": 1,
    }  # fmt: skip
    assert events == [
        {"position": [1, 0], "kind": "data", "time": 0, "topic": "", "records": [{"a": 1}]},
        {"position": [1, 1], "kind": "data", "time": 0, "topic": "", "records": ["b", None]},
        {"position": [1, 2], "kind": "frontier", "changes": [[0, -1], [1, 1]]},
    ]
    opening, *events = lines(publisher, "since=1.0")
    assert (opening["position"], opening["active"], seqs(events)) == ([1, 0], [0], [1, 2])
    assert seqs(lines(publisher, "since=1&limit=1")[1:]) == [2]
    (opening,) = lines(publisher, "since=1.2")
    assert (opening["position"], opening["lower"]) == ([1, 2], [1])
    (opening,) = lines(publisher, "since=now")
    assert opening["position"] == [1, 2]
    assert seqs(lines(publisher, "since=-1")[1:]) == [0, 1, 2]
    assert seqs(lines(publisher, "since=start&limit=2")[1:]) == [0, 1]


LARGE = b"[" + b"[]," * (MOST_DECODED // 3) + b"0]"
ARROW = encoder("arrow")([pa.record_batch({"n": [1, 2]})])


@pytest.mark.parametrize(
    ("encoding", "payload", "told"),
    [
        ("json", b'[1, "\xc3\xa9"]', {"records": [1, "é"]}),
        ("json", b"no json", {"encoding": "base64", "count": 1, "payload": base64.b64encode(b"no json").decode()}),
        ("msgpack", msgpack.packb([{"a": [1]}, 2.5]), {"records": [{"a": [1]}, 2.5]}),
        (
            "msgpack",
            b"\x91\xc4\x01\x00",  # byte strings are no JSON
            {"encoding": "base64", "count": 1, "payload": "kcQBAA=="},
        ),
        pytest.param(
            "json", LARGE, {"encoding": "base64", "count": 1, "payload": base64.b64encode(LARGE).decode()}, id="large"
        ),
        ("bytes", msgpack.packb([b"\xff", b""]), {"encoding": "base64", "records": ["/w==", ""]}),
        ("arrow", ARROW, {"encoding": "base64", "count": 1, "payload": base64.b64encode(ARROW).decode()}),
    ],
)
def test_records_as_json_where_they_are_and_as_base64_where_not(start, wires, encoding, payload, told) -> None:
    spec: dict[str, Any] = {"encoding": encoding}
    stream, publisher = start(payload=spec)
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(0, payload)
    (_, event) = lines(publisher)
    assert event == {"position": [1, 0], "kind": "data", "time": 0, "topic": "", **told}
    status, body = get(publisher, accept="application/msgpack")
    assert status == 200, body
    _, packed = _unpacked(body)
    assert (packed["payload"], packed["count"], packed["topic"]) == (payload, 1, b"")
    assert packed["position"] == [1, 0]


def _unpacked(body: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(body)
    return list(unpacker)


@pytest.mark.rule("Q3", "Q7")
def test_a_long_poll_answers_when_something_comes_and_empty_only_after_its_time(shared: Any, wires: Any) -> None:
    publisher, segment = shared.publisher, shared.segment()
    writer = wires.writer(publisher, shared.stream, segment)
    writer.open()
    began = time.monotonic()
    (opening,) = lines(publisher, "since=now&wait=1", segment)
    assert time.monotonic() - began >= 1
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.extend(lines(publisher, "since=now&wait=60", segment)))
    asking.start()
    while publisher.metric("http_readers") < 1:
        time.sleep(0.01)
    writer.acked(0, msgpack.packb([b"x"]))
    asking.join(PATIENCE)
    assert found[0]["position"] == opening["position"]
    assert found[1]["records"] == [base64.b64encode(b"x").decode()]


@pytest.mark.rule("Q2")
def test_what_is_gone_is_said_to_be_gone_and_where_to_go_on(start: Any, wires: Any) -> None:
    stream, publisher = start(history={"retention": {"bytes": "64Ki"}})
    writer = wires.writer(publisher, stream)
    writer.open()
    for at in range(20):
        writer.acked(at, *[bytes(1000)] * 9)
        writer.advance(at + 1)
    status, headers, body = ask(publisher, "since=1.3", "*/*", "0")
    problem = json.loads(body)
    assert (status, problem["code"]) == (410, "history_truncated")
    assert headers["Content-Type"] == "application/problem+json; charset=utf-8"
    incarnation, first = problem["first_available"]
    assert 3 < first < 200
    assert problem["frontier"] == [(first + 1) // 10]
    opening, *events = lines(publisher, f"since={incarnation}.{first}")
    assert seqs(events) == list(range(first + 1, 200))
    assert opening["lower"] == problem["frontier"], "the state where the events start"
    opening, *again = lines(publisher, "since=start")
    assert (opening["position"], again) == ([incarnation, first], events)
    assert get(publisher, "since=0.5")[0] == 410, "of an incarnation that nobody knows of"


@pytest.mark.rule("E13", "Q2")
def test_where_only_moves_of_the_frontier_are_gone_the_answer_goes_on_with_the_state(
    start: Any, wires: Any, wait_until: Any
) -> None:
    stream, publisher = start(history={"retention": {"mode": "none"}})
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(0, bytes(10))
    for held in (1, 2, 9):
        writer.advance(held)
    wait_until(lambda: lines(publisher, "since=now")[0]["lower"] == [9])
    (opening,) = lines(publisher, "since=1.1")
    last = opening["position"][1]
    assert (opening["lower"], opening["active"], opening["aborted"]) == ([9], [], [])
    assert lines(publisher, "since=1.0") == lines(publisher, "since=start") == lines(publisher, f"since=1.{last}")
    status, body = get(publisher, "since=1.-1")
    assert (status, json.loads(body)["code"]) == (410, "history_truncated"), "the batch is gone"


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("since=yesterday", "since"), ("since=9.0", "since"), ("since=1.99", "since"), ("wait=-1", "wait"),
        ("wait=1e9", "wait"), ("wait=nan", "wait"), ("limit=0", "limit"), ("limit=1.5", "limit"), ("limit=x", "limit"),
        ("from=3", "from"), ("since=1." + "9" * 40, "since"),
    ],
)  # fmt: skip
def test_a_question_that_cannot_be_read_is_refused_by_name(shared: Any, query: str, path: str) -> None:
    status, body = get(shared.publisher, query)
    problem = json.loads(body)
    assert (status, problem["code"], [item["path"] for item in problem["problems"]]) == (422, "invalid_request", [path])


def test_other_refusals(shared: Any) -> None:
    status, body = get(shared.publisher, segment="none")
    assert (status, json.loads(body)["code"]) == (404, "segment_not_found")
    status, body = get(shared.publisher, accept="image/png")
    assert (status, json.loads(body)["code"]) == (406, "not_acceptable")


@pytest.mark.rule("Q3")
def test_answers_are_bounded_and_pages_join_without_gap_or_duplicate(start: Any, wires: Any, configure: Any) -> None:
    configure(answer_bytes=8192)
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(0, *[bytes(1000)] * 50, bytes(20_000))
    writer.advance(1)
    assert 1 <= len(lines(publisher)) <= 9
    assert all_seqs(publisher) == list(range(52))


def test_no_more_than_so_many_answers_at_once(start: Any, wait_until: Any, configure: Any) -> None:
    configure(max_readers=1)
    _, publisher = start()
    waiting = threading.Thread(target=lambda: get(publisher, "since=now&wait=5"))
    waiting.start()
    wait_until(lambda: publisher.metric("http_readers") == 1)
    status, headers, body = ask(publisher, "", "*/*", "0")
    assert (status, headers["Retry-After"], json.loads(body)["code"]) == (503, "1", "overloaded")
    waiting.join(PATIENCE)
    assert get(publisher)[0] == 200, "and the place is free again"


EVENTS = "GET /v1/segments/0/events{query} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"


def line_from(publisher: Any, source: str, query: str = "", accept: str = "*/*") -> socket.socket:
    """A connection from an address of this machine, on which one question was sent."""
    host, port = publisher.addresses["http"].removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)), PATIENCE, (source, 0))
    line.sendall(EVENTS.format(query=query, accept=accept).encode())
    return line


def rest(line: socket.socket) -> bytes:
    return b"".join(iter(lambda: line.recv(65536), b""))


@pytest.mark.parametrize("last", ["text/event-stream", "*/*"])
def test_one_address_does_not_keep_all_places_from_another(
    start: Any, wait_until: Any, configure: Any, last: str
) -> None:
    configure(max_readers=2, sse_heartbeat=300)
    _, publisher = start()
    with line_from(publisher, "127.0.0.2", accept="text/event-stream") as first:
        wait_until(lambda: publisher.metric("http_readers") == 1)
        with line_from(publisher, "127.0.0.2", "?since=now&wait=60", last) as second:
            wait_until(lambda: publisher.metric("http_readers") == 2)
            assert get(publisher)[0] == 200, "an address that has no place gets one"
            ended = rest(second)
            if last == "*/*":
                assert b" 503 " in ended.split(b"\r\n")[0]
                assert json.loads(ended.partition(b"\r\n\r\n")[2])["code"] == "overloaded"
            else:
                assert ended.endswith(b"\r\n0\r\n\r\n"), "a whole answer, so that the browser connects again"
        with line_from(publisher, "127.0.0.3", "?since=now&wait=60") as other:
            wait_until(lambda: publisher.metric("http_readers") == 2)
            assert get(publisher)[0] == 503, "each of the others has its share"
            other.close()
        wait_until(lambda: publisher.metric("http_readers") == 1)
        first.settimeout(0)
        assert b"event: opening" in first.recv(65536)
        with pytest.raises(BlockingIOError):
            first.recv(65536)  # it goes on


def test_half_a_body_is_not_ended_as_if_it_were_whole(start: Any, wires: Any, wait_until: Any, configure: Any) -> None:
    configure(max_readers=2, answer_bytes=2**24)
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(0, *[bytes(600_000)] * 20)
    with (
        line_from(publisher, "127.0.0.2", "?since=start") as first,
        line_from(publisher, "127.0.0.2", "?since=start") as second,
    ):
        begun = [(line, line.recv(1000).partition(b"\r\n\r\n")) for line in (first, second)]
        assert get(publisher, "since=now")[0] == 200, "an address that has no place gets one"
        received = []
        for line, (head, _, body) in begun:
            (length,) = (int(field.split(b":")[1]) for field in head.split(b"\r\n") if b"Content-Length" in field)
            received.append((len(body + rest(line)), length))
        (whole,) = [size for size, length in received if size == length]
        (half,) = [size for size, length in received if size < length]
        assert 0 < half < whole


def test_who_leaves_makes_room(start: Any, wait_until: Any, configure: Any) -> None:
    configure(max_readers=1)
    _, publisher = start()
    host, port = publisher.addresses["http"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(b"GET /v1/segments/0/events?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: publisher.metric("http_readers") == 1)
    wait_until(lambda: publisher.metric("http_readers") == 0)


def test_a_stop_sends_who_waits_home(start: Any, wait_until: Any) -> None:
    _, publisher = start()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(get(publisher, "since=now&wait=60")))
    waiting.start()
    wait_until(lambda: publisher.metric("http_readers") == 1)
    publisher.signal(signal.SIGTERM)
    waiting.join(PATIENCE)
    assert publisher.ended() == 0
    status, body = found[0]
    assert (status, json.loads(body)["code"]) == (503, "shutting_down")


def test_the_end_of_a_stream_is_not_waited_for(start: Any, wires: Any, wait_until: Any) -> None:
    stream, publisher = start()
    writer = wires.writer(publisher, stream)
    writer.open()
    writer.acked(0, msgpack.packb([b"x"]))
    writer.leave(m.Leaving.FINISH)
    wait_until(lambda: lines(publisher, "since=now")[0]["lower"] == [])
    (opening,) = lines(publisher, "since=now&wait=60")
    assert opening["lower"] == [], "nothing can come"


# ---- with a log on disk ----


@pytest.mark.rule("E13", "Q3")
def test_events_that_are_only_on_disk_join_those_in_memory(
    start: Any, wires: Any, tmp_path: Path, configure: Any
) -> None:
    configure(log_memory=2**20)
    stream, publisher = start({"data": tmp_path}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    for at in range(4):
        writer.acked(at, *[bytes(1000)] * 1000)
        writer.advance(at + 1)
    assert publisher.metric("history_events") < 2000, "the rest is on disk alone"
    assert all_seqs(publisher) == list(range(4004))
    opening, event = lines(publisher, "since=1.1000&limit=1")
    assert (opening["lower"], opening["active"], event["position"]) == ([1], [], [1, 1001])


@pytest.mark.rule("E13", "Q2")
def test_files_that_retention_removed_are_said_to_be_gone(start: Any, wires: Any, tmp_path: Path) -> None:
    kept = {"retention": {"bytes": "512Ki"}, **STORED["history"]}
    stream, publisher = start({"data": tmp_path}, history=kept)
    writer = wires.writer(publisher, stream)
    writer.open()
    for at in range(200):
        writer.acked(at, *[bytes(1000)] * 9)
        writer.advance(at + 1)
    status, body = get(publisher, "since=1.3")
    problem = json.loads(body)
    assert (status, problem["code"]) == (410, "history_truncated")
    incarnation, first = problem["first_available"]
    assert 3 < first < 1999
    assert problem["frontier"] == [(first + 1) // 10]
    opening = lines(publisher, "since=start&limit=1")[0]
    assert opening["position"] >= [incarnation, first]
    found = all_seqs(publisher)
    assert found == list(range(found[0], 2000))


@pytest.mark.rule("E10", "Q7")
def test_a_position_from_before_a_crash_continues_after_it(start: Any, wires: Any, tmp_path: Path) -> None:
    stream, first = start({"data": tmp_path}, **STORED)
    writer = wires.writer(first, stream)
    writer.open()
    writer.acked(0, b"\x91\xc4\x01a", b"\x91\xc4\x01b")
    first.signal(signal.SIGKILL)
    second = stream.start("0", data=tmp_path)
    try:
        writer = wires.writer(second, stream)
        writer.open(resume=m.Resume(1, (0,), (0,)))
        writer.acked(0, b"\x91\xc4\x01c")
        events = lines(second, "since=1.0")[1:]
        assert [event["position"] for event in events] == [[1, 1], [2, 2]]
        assert [event["records"] for event in events] == [["Yg=="], ["Yw=="]]
        (opening, *_) = lines(second, "since=1.77")
        assert opening["position"] == [1, 1], "what came behind did not survive: back to there"
    finally:
        second.stop()


@pytest.mark.rule("E11", "Q2")
def test_without_storage_a_position_of_before_a_crash_is_said_to_be_gone(start: Any, wires: Any) -> None:
    stream, first = start()
    writer = wires.writer(first, stream)
    writer.open()
    writer.acked(0, b"a", b"b")
    first.signal(signal.SIGKILL)
    second = stream.start("0")
    try:
        status, body = get(second, "since=1.0")
        problem = json.loads(body)
        assert (status, problem["code"], problem["first_available"]) == (410, "history_truncated", [2, -1])
    finally:
        second.stop()


@pytest.mark.rule("E9")
def test_what_the_disk_does_not_have_is_not_published(
    start: Any, wires: Any, wait_until: Any, small_disk: Path
) -> None:
    stream, publisher = start({"data": small_disk, "log_retry": 0.1}, **STORED)
    writer = wires.writer(publisher, stream)
    writer.open()
    assert writer.acked(0, bytes(1000)).seq == 0
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(small_disk_room(small_disk) - 8192))
    writer.append(0, *[bytes(1000)] * 100)
    wait_until(lambda: publisher.metric("log_full", "0") == 1)
    wait_until(lambda: publisher.metric("history_events", "0") == 101)
    before = all_seqs(publisher)
    assert before == list(range(len(before)))
    assert len(before) < 101, "they are there, and not on disk"
    (opening,) = lines(publisher, "since=now")
    assert opening["position"] == [1, before[-1]]
    ballast.unlink()
    wait_until(lambda: all_seqs(publisher) == list(range(101)))


def small_disk_room(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize

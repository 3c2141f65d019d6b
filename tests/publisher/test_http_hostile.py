"""Clients that mean ill, or are broken, over HTTP: they are refused by name or cut, and cost others nothing."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.patience import PATIENCE

SEGMENT = "/v1/segments/0"
QUICK = {
    "HEADER_TIMEOUT": "3",
    "BODY_TIMEOUT": "2",
    "IDLE_TIMEOUT": "0.5",
    "MAX_READERS": "4",
    "WRITE_TIMEOUT": "1",
}


@pytest.fixture(scope="module")
def running(declare: Any) -> Iterator[Any]:
    """A publisher for all of these tests; afterwards nobody is left at it, and its log has no traceback."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**QUICK, "WEBHOOK_TARGETS": "hooks.example.org"}.items():
            patch.setenv(f"EPOCHAL_PUBLISHER_{name}", value)
        process = declare().start()
    yield process
    deadline = time.monotonic() + PATIENCE
    while process.metric("http_readers"):
        assert time.monotonic() < deadline, "readers that have gone are still counted"
        time.sleep(0.05)
    log = process.log.read_text()
    process.stop()
    assert "Traceback" not in log, log


@pytest.fixture
def publisher(running: Any) -> Any:
    assert running.popen.poll() is None, "an earlier test ended the publisher"
    return running


def connect(publisher: Any) -> socket.socket:
    host, _, port = publisher.addresses["http"].removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def exchange(publisher: Any, sent: bytes) -> tuple[int, dict[str, Any]]:
    """One request to the end of its connection: the status, and the problem if there is one."""
    with connect(publisher) as line:
        with suppress(OSError):  # it may be refused before all of it is sent
            line.sendall(sent)
        answer = b""
        with suppress(ConnectionError):
            while part := line.recv(65536):
                answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body) if b"problem+json" in head else {}


def get(path: str, *headers: bytes) -> bytes:
    lines = [f"GET {path} HTTP/1.1".encode(), b"Host: localhost", b"Connection: close", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def post(body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = [f"POST {SEGMENT}/webhooks HTTP/1.1".encode(), b"Host: localhost", b"Connection: close", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % size, b"", body])


JSON = b"Content-Type: application/json"
STREAM = b"Accept: text/event-stream"


@pytest.mark.parametrize(
    "sent",
    [
        b"NOT HTTP AT ALL\r\n\r\n",
        get(f"{SEGMENT}/events", b"X: " + b"x" * 9000),
        get(f"{SEGMENT}/events?since=" + "x" * 9000),
        get(f"{SEGMENT}/events", *[b"X%d: y" % number for number in range(200)]),
        get(f"{SEGMENT}/events", b"A: b\r\n c: d"),
        get(f"{SEGMENT}/events", b"Content-Length: 1", b"Transfer-Encoding: chunked"),
    ],
)  # fmt: skip
def test_a_head_that_is_none_or_too_large_is_refused(publisher: Any, sent: bytes) -> None:
    status, problem = exchange(publisher, sent)
    assert (status, problem["code"]) == (400, "malformed_http")


@pytest.mark.parametrize(
    "last",
    [
        b"yesterday", b"1.-2", b"9.0", b"1.99", b"1." + b"9" * 400, "\u0661.\u0660".encode(), b"1.0\tx",
        b"0x1.0", b"1.0, 1.0", b"\xff\xfe", b"1e3",
    ],
)  # fmt: skip
def test_a_last_event_id_that_no_publisher_gave_is_refused_by_name(publisher: Any, last: bytes) -> None:
    status, problem = exchange(publisher, get(f"{SEGMENT}/events", STREAM, b"Last-Event-ID: " + last))
    assert (status, problem["code"]) == (422, "invalid_request")
    assert problem["problems"][0]["path"] in ("Last-Event-ID", "since")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("since=start&since=now", "since"), ("wait=0&wait=60", "wait"), ("limit=1&limit=9", "limit"), ("wait=", "wait"),
        ("wait=inf", "wait"), ("wait=1e400", "wait"), ("limit=1e3000", "limit"), ("limit=-0", "limit"),
        ("since=%00", "since"), ("since=%FF", "since"), ("since=1%2E0%0A", "since"), ("%00=1", "\x00"),
        ("since=", "since"),
        ("limit=" + "9" * 5000, "limit"), ("limit=1_0", "limit"), ("wait=%C2%A01", "wait"),
    ],
)  # fmt: skip
def test_a_query_that_says_two_things_or_none_is_refused_by_name(publisher: Any, query: str, name: str) -> None:
    status, problem = exchange(publisher, get(f"{SEGMENT}/events?{query}"))
    assert (status, problem["code"]) == (422, "invalid_request")
    assert [item["path"] for item in problem["problems"]] == [name]
    assert len(json.dumps(problem)) < 2000, "what was sent does not come back whole"


def test_bodies_are_bounded_and_never_unpacked(publisher: Any) -> None:
    assert exchange(publisher, post(b" " * 70_000, JSON))[0] == 413
    status, problem = exchange(publisher, post(gzip.compress(b"{}"), JSON, b"Content-Encoding: gzip"))
    assert (status, problem["code"]) == (415, "packed_body")
    assert exchange(publisher, post(b"{}", JSON, b"Content-Encoding: identity"))[0] == 422
    assert exchange(publisher, post(b"{}", JSON, length=10**12))[0] in (400, 408, 413)
    chunks = b"%x\r\n" % 70_000 + b" " * 70_000 + b"\r\n0\r\n\r\n"
    head = post(b"", JSON).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    assert exchange(publisher, head + chunks)[0] == 413


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[", b'"x"', b"[" * 30_000, b'{"a":' * 10_000, b"\xff\xfe", b"1" * 60_000, b"NaN",
        b'{"callback": "\\ud800", "subscription": "a"}', b'{"callback": 1, "subscription": "a"}',
        b'{"callback": "http://hooks.example.org/", "subscription": "a", "since": 1e400}',
        b'{"callback": "http://hooks.example.org/", "subscription": "a", "since": [1, 2, 3]}',
        b'{"callback": "http://hooks.example.org/", "subscription": "a", "since": [-1, 0]}',
        b'{"callback": "http://hooks.example.org/", "subscription": "a", "since": ' + b"9" * 5000 + b"}",
        b'{"callback": "http://hooks.example.org/", "subscription": "' + b"a" * 129 + b'"}',
        b'{"callback": "http://hooks.example.org/", "subscription": "a\\n"}',
    ],
)  # fmt: skip
def test_a_registration_that_is_none_is_refused(publisher: Any, body: bytes) -> None:
    status, problem = exchange(publisher, post(body, JSON))
    assert (status, problem["code"]) == (422, "invalid_request")
    assert len(json.dumps(problem)) < 4000
    assert json.loads(publisher.get(f"{SEGMENT}/webhooks")[1]) == {"items": []}


@pytest.mark.parametrize(
    "kind",
    [
        b"",
        b"Content-Type: text/plain",
        b"Content-Type: application/x-www-form-urlencoded",
        b"Content-Type: " + b"a" * 8000,
    ],
)
def test_a_page_of_another_site_cannot_register_for_its_visitor(publisher: Any, kind: bytes) -> None:
    """What a browser sends without asking first is never JSON."""
    body = b'{"callback": "http://hooks.example.org/", "subscription": "a"}'
    status, problem = exchange(publisher, post(body, *filter(None, [kind])))
    assert (status, problem["problems"][0]["path"]) == (422, "Content-Type")


class Reached(BaseHTTPRequestHandler):
    """Notes that somebody came."""

    def do_POST(self) -> None:
        self.server.came.set()  # type: ignore[attr-defined]  # the event that the test hung there
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as the base calls it
        """Nothing."""


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]",
        "hooks.example.org@127.0.0.1", "127.0.0.1#hooks.example.org", "127.0.0.1\\@hooks.example.org",
        "hooks.example.org%00.127.0.0.1", "hooks.example.org\r\nHost: x", "\u2460\u2461\u2466.0.0.1", "", " 127.0.0.1",
    ],
)  # fmt: skip
def test_no_callback_leads_to_where_it_may_not(publisher: Any, host: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Reached)
    came = server.came = threading.Event()  # type: ignore[attr-defined]  # for its handler
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        callback = f"http://{host}:{server.server_port}/"
        body = {"callback": callback, "subscription": "a", "since": "start"}
        status, problem = exchange(publisher, post(json.dumps(body).encode(), JSON))
        assert (status, problem["code"]) == (403, "webhook_target")
        assert not came.wait(0.1)
    finally:
        server.shutdown()
        server.server_close()


def test_who_sends_slowly_is_cut(publisher: Any) -> None:
    with connect(publisher) as half, connect(publisher) as silent:
        half.sendall(b"GET / HTTP/1.1\r\nHost:")
        for line in (half, silent):
            line.settimeout(PATIENCE)
            with suppress(ConnectionError):
                line.recv(65536)
    assert exchange(publisher, post(b'{"callback"', JSON, length=200))[0] == 408


def test_readers_that_never_read_fill_their_places_and_no_others(publisher: Any) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(connect(publisher)) for _ in range(40)]
        for line in lines:
            line.sendall(get(f"{SEGMENT}/events?since=start", STREAM))
        deadline = time.monotonic() + PATIENCE
        while publisher.metric("http_readers") < 4:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        status, problem = exchange(publisher, get(f"{SEGMENT}/events"))
        assert (status, problem["code"], problem["retryable"]) == (503, "overloaded", True)
        assert publisher.get("/healthz")[0] == 200
        assert publisher.metric("http_readers") == 4


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "CONNECT"])
def test_methods_that_there_are_not_are_refused(publisher: Any, method: str) -> None:
    status, problem = exchange(publisher, get(f"{SEGMENT}/events").replace(b"GET", method.encode(), 1))
    assert (status, problem["code"]) in ((405, "method_not_allowed"), (404, "no_such_route"))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/segments/..%2f..%2fetc/events", "/v1/segments/%00/events", "/v1/segments/" + "9" * 4000 + "/events",
        "/v1/segments/0%0d%0aX:y/events", "/v1/segments//events", "//", "/v1/segments/0/webhooks/%F0%9F/",
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_is_not_found(publisher: Any, path: str) -> None:
    status, problem = exchange(publisher, get(path))
    assert (status, problem.get("code")) in (
        (404, "segment_not_found"),
        (404, "no_such_route"),
        (405, "method_not_allowed"),
    )
    assert len(json.dumps(problem)) < 1000

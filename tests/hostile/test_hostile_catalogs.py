"""What the client makes of a catalog that lies, babbles or bursts: a typed error, in bounded time and memory."""

import asyncio
import gzip
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE

from epochal.catalog_api.answers import (
    CatalogEvent,
    PublisherInfo,
    Registration,
    RelayInfo,
    StreamInfo,
    SubscriptionInfo,
)
from epochal.client.catalog.answers import address, get, read
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.watch import Parser
from epochal.errors import (
    CatalogUnavailable,
    EpochalError,
    HistoryTruncated,
    LimitExceeded,
    RemoteProtocolError,
    StreamNotFound,
)

PUBLISHER = {
    "id": "p", "token": 1, "verified": True, "since": "now", "stream": "demo/x", "segments": {"0": 1},
    "instance": "i", "uid": "u", "live": True, "superseded": False,
    "addresses": {"events": "tcp://127.0.0.1:1", "requests": "tcp://127.0.0.1:2", "ingest": "tcp://127.0.0.1:3"},
}  # fmt: skip
SEGMENT = {
    "id": "0", "lo": "0", "hi": str(2**64), "state": "open", "incarnation": 1, "lower": [0], "finishing": False,
    "publisher": PUBLISHER, "counters": {"events": 1},
    "holders": [{"time": 0, "kind": "writer", "writer": "w", "seconds": 1.0, "silent": 0.5}],
}  # fmt: skip
STREAM = {
    "namespace": "demo", "name": "x", "uid": "u", "generation": 1, "phase": "ready", "writers": ["w"], "created": "now",
    "segments": [SEGMENT], "not_in_effect": [], "held_back": [], "subscriptions": 0, "relays": 0,
    "manifest": {
        "apiVersion": "epochal.dev/v1alpha1", "kind": "Stream", "metadata": {"name": "x", "namespace": "demo"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}},
    },
}  # fmt: skip
GRANT = {"id": "0", "incarnation": 1, "lo": "0", "hi": "9", "lower": None, "writers": ["w"], "complete": False}
SUBSCRIPTION = {
    "id": "s", "stream": "demo/x", "uid": "u", "subscriber": "me", "since": "now", "verified": True, "lower": [0],
    "counters": {"gaps": 0},
}  # fmt: skip
RELAY = {
    "id": "r", "name": "eu", "stream": "demo/x", "uid": "u", "addresses": {"events": "tcp://127.0.0.1:1"},
    "segments": {"0": {"events": "tcp://127.0.0.1:2"}}, "upstream": "direct", "capacity": 10, "state": "ready",
    "path": ["hub"], "load": 1, "lag": 0.5, "filter": "", "since": "now", "verified": True,
}  # fmt: skip
EVENT = {"revision": 1, "kind": "stream", "op": "put", "name": "demo/x", "object": {}}
READ: dict[str, tuple[Any, dict[str, Any]]] = {
    "stream": (StreamInfo.from_json, STREAM),
    "publisher": (PublisherInfo.from_json, PUBLISHER),
    "registration": (Registration.from_json, {"token": 1, "ttl": 10.0, "segments": [GRANT]}),
    "subscription": (SubscriptionInfo.from_json, SUBSCRIPTION),
    "relay": (RelayInfo.from_json, RELAY),
    "event": (CatalogEvent.from_json, EVENT),
}


@asynccontextmanager
async def speaking(*answers: bytes, hold: bool = False) -> AsyncIterator[str]:
    """A server that answers each connection's requests with these bytes in turn; `hold` keeps it open afterwards."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answers[min(count, len(answers) - 1)])
                count += 1
                await writer.drain()
                if not hold:
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def http(status: int, body: bytes, kind: str = "application/json", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


async def error_of(answer: bytes, call: Callable[[CatalogClient], Any] | None = None) -> EpochalError:
    async with speaking(answer) as url, CatalogClient(url, patience=0.0, timeout=PATIENCE) as catalog:
        with pytest.raises(EpochalError) as caught:
            await (call or (lambda client: client.get("demo", "x")))(catalog)
    return caught.value


ANSWERS = {
    "no HTTP": b"\xff\x00\x00 what is this\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "an endless header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "ten thousand headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    "a body that is cut": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
    "a broken chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a redirect": http(302, b"", "text/plain", "Location: http://127.0.0.1:1/elsewhere"),
    "an unknown charset": http(200, b'{"a": 1}', "application/json; charset=klingon"),
    "no UTF-8": http(200, b'{"uid": "\xff\xfe"}'),
    "nesting": http(200, b"[" * 100_000),
    "NaN": http(200, json.dumps(STREAM).replace('"generation": 1', '"generation": NaN').encode()),
    "a number of 10,000 digits": http(200, b'{"generation": ' + b"9" * 10_000 + b"}"),
    "half a surrogate pair": http(200, json.dumps({**STREAM, "uid": "\ud800"}).encode()),
    "compressed though not asked for": http(200, gzip.compress(b"[]"), "application/json", "Content-Encoding: gzip"),
    "null": http(200, b"null"),
    "a list": http(200, b"[]"),
    "nothing": http(200, b""),
    "problems that are a number": http(422, b'{"code": "invalid_manifest", "problems": 5}', "application/problem+json"),
    "an error within an error": http(404, b'{"code": "stream_not_found", "detail": {"a": []}}'),
    "a code that is none": http(404, b'{"code": ["x"]}'),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_whatever_is_answered_is_a_typed_error(answer):
    await error_of(ANSWERS[answer])


async def test_an_endless_answer_is_cut_and_not_kept():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    flood = head + (b"100000\r\n" + b" " * 2**20 + b"\r\n") * 64
    tracemalloc.start()
    try:
        error = await error_of(flood)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(error, LimitExceeded)
    # load: one thread, and the interpreter itself counts
    assert peak < len(flood) * 2.2  # the server's own answer is nearly all of it


async def test_a_refusal_of_32_mib_makes_no_message_of_32_mib():
    body = json.dumps({"code": "stream_not_found", "detail": "x" * (30 * 2**20)}).encode()
    error = await error_of(http(404, body))
    assert isinstance(error, StreamNotFound)
    assert len(str(error)) < 100_000


async def test_a_list_that_never_ends_ends(monkeypatch):
    monkeypatch.setattr("epochal.client.catalog.catalog.MAX_PAGES", 20)
    page = http(200, b'{"items": [], "next": "more", "revision": 1}')
    async with speaking(page, hold=True) as url, CatalogClient(url, patience=0.0) as catalog:
        with pytest.raises(LimitExceeded, match="pages"):
            await catalog.list()


@pytest.mark.parametrize(
    "line", [b"data: {\n\n", b"data: 5\n\n", b'data: {"revision": "x"}\n\n', b"data: x\n" * 3 + b"\n"]
)
async def test_a_watch_that_babbles_is_a_typed_error(line):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    async with speaking(head + line) as url, CatalogClient(url, patience=0.0) as catalog:
        with pytest.raises(RemoteProtocolError):
            await anext(aiter(catalog.watch()))


async def test_an_event_of_a_watch_that_never_ends_is_cut(monkeypatch):
    monkeypatch.setattr("epochal.client.catalog.watch.MAX_LINE", 10_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    for babble in (b"data: x\n" * 20_000, b"data: " + b"x" * 20_000):
        async with speaking(head + babble, hold=True) as url, CatalogClient(url, patience=0.0) as catalog:
            with pytest.raises(RemoteProtocolError, match="longer"):
                await anext(aiter(catalog.watch()))


WATCH = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


async def test_an_id_that_fits_no_header_is_not_sent_back():
    """It ended the watch with an error that no caller expects, when it came back to where it was."""
    event = json.dumps(EVENT).encode()
    first = WATCH + b"\r\nid: 5\ndata: " + event + b"\n\nid: 6\rX-Evil: 1\ndata: " + event + b"\n\n"
    gone = http(410, b'{"code": "history_truncated", "detail": "too old"}', "application/problem+json")
    async with speaking(first, gone) as url, CatalogClient(url, patience=PATIENCE) as catalog:
        changes = aiter(catalog.watch())
        await anext(changes)
        await anext(changes)
        with pytest.raises(HistoryTruncated):
            await anext(changes)


async def test_a_watch_that_ends_at_once_is_asked_for_less_and_less_often():
    """It was asked for ten times a second, for ever."""
    asked: list[float] = []
    slow = asyncio.Event()

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.append(time.monotonic())
        writer.write(WATCH + b"\r\n")
        writer.close()
        await writer.wait_closed()
        if len(asked) == 5:
            slow.set()

    server = await asyncio.start_server(end, "127.0.0.1", 0)
    async with server, asyncio.timeout(PATIENCE):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with CatalogClient(url, patience=PATIENCE) as catalog:
            watching = asyncio.ensure_future(anext(aiter(catalog.watch())))
            await slow.wait()
            watching.cancel()
            await asyncio.wait([watching])
    assert asked[-1] - asked[0] > (0.1 + 0.2 + 0.4 + 0.8) / 2 - 0.05, "each pause is at least half as long as it may be"


async def test_a_watch_that_is_compressed_is_not_unpacked():
    """A megabyte of it could be a gigabyte of comments."""
    bomb = gzip.compress(b": \n" * 20_000_000)
    answer = WATCH + b"Content-Encoding: gzip\r\n\r\n" + bomb
    async with speaking(answer) as url, CatalogClient(url, patience=0.0) as catalog:
        tracemalloc.start()
        try:
            with pytest.raises(EpochalError):
                await anext(aiter(catalog.watch()))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 8 * 2**20  # load: one thread, and the interpreter itself counts


@pytest.mark.clock
def test_a_line_that_drips_is_not_copied_with_every_byte():
    parser, started = Parser(), time.process_time()
    for _ in range(200_000):
        assert list(parser.feed(b"x")) == []
    assert time.process_time() - started < 5.0  # copied with every byte, 20 GB would be moved
    assert list(parser.feed(b"\ndata: {}\n\n")) == [("message", "{}")]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_one_is_led_to_another_host(status):
    """Also not by a watch: whoever may answer for the catalog must not choose whom this host talks to."""
    asked = asyncio.Event()

    async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for target in (f"http://127.0.0.1:{port}/", "file:///etc/passwd", f"//127.0.0.1:{port}"):
            answer = http(status, b"", "text/plain", f"Location: {target}", "Retry-After: 999999999")
            assert isinstance(await error_of(answer), RemoteProtocolError)
            watched = await error_of(answer, lambda catalog: anext(aiter(catalog.watch())))
            assert isinstance(watched, RemoteProtocolError)
    assert not asked.is_set()


@pytest.mark.parametrize("status", [429, 503])
async def test_no_client_waits_as_long_as_an_answer_says(status):
    body = json.dumps({"code": "overloaded", "detail": "later"}).encode()
    answer = http(status, body, "application/problem+json", "Retry-After: 999999999")
    async with speaking(answer) as url, CatalogClient(url, patience=0.2) as catalog:  # load: it is to end
        async with asyncio.timeout(PATIENCE):
            for call in (catalog.get("demo", "x"), anext(aiter(catalog.watch()))):
                with pytest.raises(CatalogUnavailable):
                    await call


@pytest.mark.parametrize(
    "drop", [b" ", b"HTTP/1.1 100 Continue\r\n\r\n", b"X: y\r\n"], ids=["body", "continues", "headers"]
)
async def test_an_answer_that_drips_for_ever_is_given_up(drop):
    """Every byte is progress, and none is an answer: the whole try has one time-out."""
    start = {
        b" ": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
        b"X: y\r\n": b"HTTP/1.1 200 OK\r\n",
    }.get(drop, b"")

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(start)
            while not writer.is_closing():
                writer.write(drop)
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        over.set()

    over = asyncio.Event()
    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server, asyncio.timeout(PATIENCE):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with CatalogClient(url, patience=0.0, timeout=0.5) as catalog:  # load: it is to end
            with pytest.raises(CatalogUnavailable):
                await catalog.get("demo", "x")
        await over.wait()


# ---- each field ----


@pytest.mark.parametrize("kind", READ)
def test_a_sound_answer_is_read(kind):
    read(*READ[kind])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) within a JSON value."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        found.append((value, key))
        found += places(part)
    return found


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.just("\udfff"),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.just([[[[[[[[[[[[0]]]]]]]]]]]]), st.just("x" * 2_000_000),
)  # fmt: skip


@given(st.sampled_from(sorted(READ)), st.integers(0, 10_000), st.one_of(st.just("remove"), ODD), st.data())
def test_a_changed_field_is_a_protocol_error_or_of_its_declared_type(kind, place, odd, data):
    reader, sound = READ[kind]
    changed = json.loads(json.dumps(sound))
    where = places(changed)
    container, key = where[place % len(where)]
    if isinstance(odd, str) and odd == "remove":
        del container[key]
    else:
        container[key] = odd
    try:
        value = read(reader, changed)
    except RemoteProtocolError:
        return
    if isinstance(value, StreamInfo):
        value.uid.encode()
        assert type(value.generation) is int
        for segment in value.segments:
            for socket in ("events", "requests", "ingest"):
                if segment.publisher is not None:
                    with suppress(RemoteProtocolError):
                        assert address(segment.publisher.addresses, socket).startswith("tcp://")


@pytest.mark.parametrize("value", [{}, [], None, 5, {"ttl": True}, {"ttl": "1"}, {"ttl": float("inf")}, {"ttl": None}])
def test_a_value_that_is_missing_or_of_another_type_is_a_protocol_error(value):
    with pytest.raises(RemoteProtocolError):
        get(value, "ttl", float)


@pytest.mark.parametrize(
    "wrong",
    [
        "", "ipc:///tmp/x", "inproc://x", "udp://127.0.0.1:1", "tcp://127.0.0.1", "tcp://127.0.0.1:x", "tcp://*:1",
        "tcp://127.0.0.1:1;10.0.0.1:1", "tcp://eth0;127.0.0.1:1", "tcp:// :1", "TCP://x:1", "tcp://x:1\n",
    ],
)  # fmt: skip
def test_only_tcp_addresses_are_connected_to(wrong):
    with pytest.raises(RemoteProtocolError, match=r"tcp://HOST:PORT"):
        address({"events": wrong}, "events")
    for right in ("tcp://127.0.0.1:1", "tcp://[::1]:8701", "tcp://a-b.c_d.example:65535"):
        assert address({"events": right}, "events") == right

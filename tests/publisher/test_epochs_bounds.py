"""What readers of whole epochs may cost, which pages may read, and what the relay says of its HTTP side."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import aiohttp
import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR
from tests.patience import PATIENCE
from tests.publisher.relaying import Relaying, relaying
from tests.publisher.test_epochs_http import KEYS, TWO, publish, whole
from tests.publisher.test_epochs_server_events import cursor_of, of_kind, until

from epochal.errors import NoPublisher, TimedOut, Unavailable
from epochal.resources.cluster.relay import OF_READER
from epochal.service.errors import Overloaded, ShuttingDown
from epochal.service.origins import ForeignOrigin, UnknownHost
from epochal_publisher.relay.epochs import openapi
from epochal_publisher.relay.epochs.errors import STATUS
from epochal_publisher.relay.epochs.settings import RelayHttpSettings

DOCS = Path(__file__).parents[2] / "docs"


async def refused(relay: Relaying, query: Any = (), **headers: str) -> tuple[int, str, str | None]:
    """Status, code and Retry-After of a question."""
    async with relay.web.get(f"{relay.url}/v1/epochs", params=query, headers=headers) as answer:
        return answer.status, json.loads(await answer.text())["code"], answer.headers.get("Retry-After")


async def test_one_address_has_only_so_many_places(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream, max_readers_per_address=2) as relay, AsyncExitStack() as stack:
        for _ in range(2):
            await of_kind(await stack.enter_async_context(relay.events()), "frontier")
        assert await refused(relay) == (429, "too_many_readers", "1")
        async with relay.web.get(relay.url + "/readyz") as answer:
            assert answer.status == 200


async def test_all_places_are_so_many(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream, max_readers=1) as relay, relay.events() as events:
        await of_kind(events, "frontier")
        assert await refused(relay) == (503, "overloaded", "1")


async def test_only_so_many_filters_are_followed_and_one_without_readers_makes_room(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream, max_feeds=2) as relay:
        await relay.lines(topic="unread")
        async with relay.events(topic="a") as a, relay.events(topic="b") as b:
            await of_kind(a, "frontier")
            await of_kind(b, "frontier")
            assert await refused(relay, {"topic": "c"}) == (503, "overloaded", "1")
            assert len(await relay.lines(topic="a")) == 1
        assert len(relay.readers.feeds) == 2


@asynccontextmanager
async def at(address: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A client at another address of this machine."""
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    async with aiohttp.ClientSession(connector=connector) as web:
        yield web


@pytest.mark.rule("S24")
async def test_one_address_reads_only_so_many_filters_and_others_have_the_rest(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream, max_feeds=3, max_feeds_per_address=2) as relay, at("127.0.0.2") as web:
        other = replace(relay, web=web)
        async with relay.events(topic="a") as a, relay.events(topic="b") as b, relay.events(topic="b") as again:
            for events in (a, b, again):
                await of_kind(events, "frontier")
            assert await refused(relay, {"topic": "c"}) == (429, "too_many_filters", "1")
            _, problem = await relay.ask({"topic": "c"})
            assert "(EPOCHAL_RELAY_MAX_FEEDS_PER_ADDRESS)" in problem["detail"]
            assert len(relay.opened) == 2, "nothing was begun for what was refused"
            async with other.events(topic="c") as c, other.events(topic="a") as shared:
                await of_kind(c, "frontier")
                await of_kind(shared, "frontier")
                assert await refused(relay, {"topic": "c"}) == (429, "too_many_filters", "1"), "one that others read"
                assert await refused(other, {"topic": "b"}) == (429, "too_many_filters", "1")
                assert len(await relay.lines(topic="b")) == 1, "one that it reads already"


@pytest.mark.rule("S24")
async def test_of_its_filters_without_readers_an_address_loses_the_oldest_and_others_lose_none(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream, max_feeds=4, max_feeds_per_address=2) as relay, at("127.0.0.2") as web:
        other = replace(relay, web=web)
        await other.lines(topic="theirs")
        for topic in "abcabc":
            await relay.lines(topic=topic)
        await relay.lines(topic="c")
        await relay.lines(topic="b")
        await other.lines(topic="theirs")
        assert len(relay.opened) == 7, "the last three were followed still"
        assert len(relay.readers.feeds) == 3


async def test_only_so_many_read_history_at_once(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream, max_catch_ups=1) as relay, relay.readers.catch_ups.take("127.0.0.1"):
        assert await refused(relay, {"since": "start"}) == (503, "overloaded", "1")
        assert [line["kind"] for line in await relay.lines()] == ["frontier"]


@pytest.mark.rule("S24")
async def test_all_subscriptions_together_hold_only_so_many_bytes_of_epochs(start: Any) -> None:
    """Four filters would hold 2 MB each of an epoch that is not complete; a fifth one has hardly anything of it."""
    stream, _ = start(**TWO)
    most, size, wide = 4 * 2**20, 200_000, 4
    async with (
        relaying(stream, subscription_bytes=most, max_feeds=6, max_catch_ups=2) as relay,
        relay.client.writer(stream.name) as writer,
        AsyncExitStack() as stack,
    ):
        readers = [await stack.enter_async_context(relay.events(reject=f"x{n}")) for n in range(wide)]
        small = await stack.enter_async_context(relay.events(topic="small"))
        for events in (*readers, small):
            await of_kind(events, "frontier")
        await writer.append(0, ["s"], topic=b"small")
        for n in range(10):
            await writer.append(0, ["x" * size], key=KEYS[n % 4], topic=b"large")
            assert relay.readers.feeds.memory.bytes <= most + 5 * (size + 1000)
        await writer.advance(1)
        assert whole([(await of_kind(small, "epoch")).data]) == [(0, ["s"])]
        ends = []
        for events in readers:
            got = [event.data async for event in until(events, "epoch") if event.kind in ("part", "epoch", "refused")]
            ends.append(got[-1])
            assert got[-1].get("kind") != "epoch" or len(whole(got)[0][1]) == 11
        refused = [end for end in ends if "code" in end]
        assert refused, "there was no room for all"
        for problem in refused:
            assert (problem["status"], problem["code"], problem["retryable"]) == (507, "epoch_too_large", False)
            assert "EPOCHAL_RELAY_SUBSCRIPTION_BYTES" in problem["detail"]
        assert relay.readers.feeds.memory.bytes < size


@asynccontextmanager
async def unread(relay: Relaying, form: str) -> AsyncIterator[socket.socket]:
    """A connection that asks for epochs from now on, and reads nothing."""
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(line, ("127.0.0.1", relay.http.port))
        asked = f"GET /v1/epochs?wait=30 HTTP/1.1\r\nHost: localhost\r\nAccept: {form}\r\n\r\n"
        await loop.sock_sendall(line, asked.encode())
        yield line


async def everything(line: socket.socket) -> bytes:
    """What comes until the other side ends the connection."""
    loop, got = asyncio.get_running_loop(), bytearray()
    while new := await loop.sock_recv(line, 2**16):
        got += new
    return bytes(got)


@pytest.mark.rule("S24")
@pytest.mark.parametrize("form", ["text/event-stream", "*/*"])
async def test_a_reader_that_does_not_read_is_written_some_pieces_and_gives_way_to_newer_epochs(
    start: Any, form: str
) -> None:
    """The kernel takes some megabytes of an epoch, so these are large."""
    stream, _ = start(**TWO)
    large = ["x" * 1_000_000] * 2
    async with relaying(stream, ring_bytes=8 * 2**20) as relay, relay.client.writer(stream.name) as writer:
        async with relay.events() as events, unread(relay, form) as line:
            await of_kind(events, "frontier")
            while len(relay.readers.places) < 2:  # noqa: ASYNC110  # nobody announces it
                await asyncio.sleep(0.01)
            gate = relay.http._listener._gate
            await publish(writer, 0, *large)
            await of_kind(events, "epoch")
            while not (waiting := [each for each in gate._inside if each._wire and not each.all_sent]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert [each._wire.get_write_buffer_size() <= OF_READER for each in waiting if each._wire] == [True]
            assert relay.readers.sending.bytes > 6_000_000
            await publish(writer, 1, *large)
            await of_kind(events, "epoch")
            async with asyncio.timeout(PATIENCE):
                while len(relay.readers.places) > 1:  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0.01)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
            assert not (await everything(line)).endswith(b"0\r\n\r\n"), "the end of a whole answer"
        async with relay.web.get(relay.url + "/metrics") as answer:
            assert re.search(r'^epochal_http_refused_total\{.*reason="ring_bytes".*\} 1\.0$', await answer.text(), re.M)
        assert relay.readers.sending.bytes == 0


async def test_a_filter_without_readers_is_not_followed_for_ever(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream, feed_timeout=0.05) as relay, relay.client.writer(stream.name) as writer:
        async with relay.events() as events:
            began = await of_kind(events, "frontier")
            await publish(writer, 0, "x")
            await of_kind(events, "epoch")
            assert relay.readers.feeds.rings.bytes > 0
        while len(relay.readers.feeds):  # noqa: ASYNC110  # nobody announces it
            await asyncio.sleep(0.01)
        assert relay.readers.feeds.rings.bytes == 0
        async with relay.events(last=cursor_of(began)) as events:
            assert (await of_kind(events, "epoch")).data["time"] == 0


async def test_segments_that_do_not_answer_are_not_waited_for_without_end(start: Any) -> None:
    stream, publisher = start(**TWO)
    async with relaying(stream, join_timeout=0.2) as relay:
        async with asyncio.timeout(PATIENCE):
            while (await relay.ask())[0] != 200:
                pass  # a busy machine takes longer now and then
        await asyncio.to_thread(publisher.stop)
        for query in ({"topic": "a"}, {"since": "start"}):
            assert await refused(relay, query) == (503, "timed_out", "1")
        assert len(relay.readers.catch_ups) == 0


def test_a_relay_that_is_not_ready_says_so_as_its_document_does(start: Any, wait_until: Any) -> None:
    stream, publisher = start(**TWO)
    relay = stream.relay()
    try:
        publisher.stop()
        wait_until(lambda: relay.get("/readyz")[0] == 503)
        with pytest.raises(HTTPError) as answer:
            urlopen(relay.addresses["http"] + "/readyz", timeout=PATIENCE)
        assert answer.value.read() == b"not serving: not connected, or about to stop\n"
        document = json.loads(relay.get("/v1/openapi.json")[1])
        described = document["paths"]["/readyz"]["get"]["responses"]["503"]
        assert list(described["content"]) == [answer.value.headers.get_content_type()]
        answer.value.close()
    finally:
        relay.stop()


async def test_pages_of_named_origins_may_read_and_no_other(start: Any) -> None:
    stream, _ = start(**TWO)
    page = "https://page.example"
    async with relaying(stream, cors_origins=page) as relay:
        for origin, allowed in ((page, page), ("https://other.example", None)):
            for method in ("GET", "OPTIONS"):
                headers = {"Origin": origin, "Access-Control-Request-Method": "GET"}
                async with relay.web.request(method, f"{relay.url}/v1/epochs", headers=headers) as answer:
                    assert answer.status == {"GET": 200, "OPTIONS": 204}[method]
                    assert answer.headers.get("Access-Control-Allow-Origin") == allowed
                    assert answer.headers["Vary"] == "Origin"
                    assert "Access-Control-Allow-Credentials" not in answer.headers
        async with relay.web.get(f"{relay.url}/metrics", headers={"Origin": page}) as answer:
            assert "Access-Control-Allow-Origin" not in answer.headers
        assert await refused(relay, (), Host="page.example") == (421, "unknown_host", None)
    async with (
        relaying(stream) as relay,
        relay.web.get(f"{relay.url}/v1/epochs", headers={"Origin": page}) as answer,
    ):
        assert "Access-Control-Allow-Origin" not in answer.headers


# ---- what is said about it ----


async def test_the_document_is_of_the_routes_and_answers_are_as_it_says(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        async with relay.web.get(relay.url + "/v1/openapi.json") as answer:
            document = await answer.json()
        OPENAPI_31_VALIDATOR.validate(document)
        assert set(re.findall(r"#/components/schemas/(\w+)", str(document))) <= set(document["components"]["schemas"])
        routed = {
            (route.method.lower(), route.resource.canonical)
            for route in relay.http._listener.app.router.routes()
            if route.resource is not None
        }
        assert {(method, path) for path, methods in document["paths"].items() for method in methods} == routed
        assert {status for operation in openapi.OPERATIONS for status in operation.errors} == set(STATUS.values())

        def checks(name: str, value: Any) -> None:
            schemas = document["components"]["schemas"]
            jsonschema_rs.validate({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}, value)

        await publish(writer, 0, {"n": 1}, topic=b"\xff")
        for line in await relay.lines(since="start", wait="20"):
            checks("Item", line)
        checks("Problem", (await relay.ask({"since": "x"}))[1])
        with pytest.raises(jsonschema_rs.ValidationError):
            checks("Problem", line)


async def test_every_metric_is_described(start: Any) -> None:
    stream, _ = start(**TWO)
    page = (DOCS / "operating.md").read_text(encoding="utf-8")
    async with relaying(stream) as relay, relay.web.get(relay.url + "/metrics") as answer:
        printed = set(re.findall(r"^# TYPE (epochal_relay_http_\w+) ", await answer.text(), re.MULTILINE))
    assert printed == set(re.findall(r"^\| `(epochal_relay_http_[a-z_]+)` \|", page, re.MULTILINE))


def test_every_setting_is_described_with_its_default() -> None:
    page = (DOCS / "operating.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(EPOCHAL_RELAY_[A-Z_]+)` \| (.*?) \|", page, re.MULTILINE))
    for name, setting in RelayHttpSettings.model_fields.items():
        default = setting.default
        shown = "" if default == () else f"{default:g}" if isinstance(default, float) else str(default)
        assert rows[f"EPOCHAL_RELAY_{name.upper()}"].strip() == shown, name


def test_every_kind_is_in_the_document_and_in_the_table() -> None:
    """What is sent is compared with the document wherever a test reads it, in `relaying`."""
    page = (DOCS / "http.md").read_text(encoding="utf-8").split("\n## Whole epochs\n")[1].split("\n### ")[0]
    table = re.findall(r"^\| `([a-z]+)` \| .*\|$", page.split("| `kind` |")[1].split("\n\n")[0], re.MULTILINE)
    assert sorted(openapi.SCHEMAS["Item"]["properties"]["kind"]["enum"]) == sorted(table)
    assert "refused" in table


def test_every_refusal_is_in_the_table() -> None:
    page = (DOCS / "http.md").read_text(encoding="utf-8").split("### Refusals of a relay")[1].split("\n## ")[0]
    table = {
        (int(status), code)
        for status, codes in re.findall(r"^\| (\d{3}) \| (.*?) \|", page, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", codes)
    }
    more = {(503, error.code) for error in (Overloaded, ShuttingDown, Unavailable, TimedOut, NoPublisher)}
    known = {(status, error.code) for error, status in STATUS.items()} | more
    of_all = {(404, "no_such_route"), (405, "method_not_allowed")}
    assert table == known | of_all | {(421, UnknownHost.code), (403, ForeignOrigin.code)}

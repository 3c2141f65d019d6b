"""How many connections may stand, what is answered beyond that, and how what is not HTTP is answered."""

import asyncio
import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.patience import PATIENCE

from epochal.service import connection


async def connect(client: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(client.url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def ask(client: Any, path: str, sent: bytes = b"") -> tuple[int, dict[str, Any] | None]:
    """One request over a connection of its own, to the end of the connection."""
    reader, writer = await connect(client)
    writer.write(sent or f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    try:
        head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    problem = json.loads(body) if b"application/problem+json" in head else None
    return int(head.split(b" ")[1]), problem


async def metric(client: Any, start: str, label: str = "") -> float:
    text = (await client("GET", "/metrics")).body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(start) and label in line)


async def watch(client: Any) -> asyncio.StreamWriter:
    """A connection that is not idle: it follows the catalog's changes."""
    reader, writer = await connect(client)
    writer.write(b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"snapshot"), PATIENCE)
    return writer


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
async def test_beyond_the_limit_only_health_is_answered(start: Any, limit: str) -> None:
    async with start(**{limit: 2}) as client:
        held = [await watch(client) for _ in range(2)]
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await ask(client, path))[0] == 200
        status, problem = await ask(client, "/v1/streams")
        assert problem is not None
        assert (status, problem["code"], problem["retryable"]) == (503, "too_many_connections", True)
        assert limit in problem["detail"]
        assert await metric(client, 'epochal_http_refused_total{otel_scope_name="epochal.catalog"') >= 1
        for writer in held:
            await leave(writer)
        async with asyncio.timeout(PATIENCE):
            while (await ask(client, "/v1/streams"))[0] != 200:  # until the server has seen them go
                pass


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
async def test_an_idle_connection_gives_way_to_a_new_one(start: Any, limit: str) -> None:
    """Else some that send nothing, or that keep their connections after an answer, would shut all others out."""
    async with start(**{limit: 3}, header_timeout=60) as client:
        busy = await watch(client)
        oldest, newest = [await connect(client) for _ in range(2)]
        for reader, writer in (oldest, newest):  # an answered request, after which the connection is kept
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE)
        assert (await ask(client, "/v1/streams"))[0] == 200
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(oldest[0].read(), PATIENCE) == b""
        newest[1].write(b"GET /v1/streams HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(newest[0].readline(), PATIENCE)
        for writer in (busy, oldest[1], newest[1]):
            await leave(writer)


async def test_a_new_connection_has_time_for_its_first_request(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who opens connections without end would cut those of others before their requests are read."""
    monkeypatch.setattr(connection, "GRACE", 60)
    async with start(max_connections_per_address=2, header_timeout=60) as client:
        held = [await connect(client) for _ in range(2)]
        status, problem = await ask(client, "/v1/streams")
        assert problem is not None
        assert (status, problem["code"]) == (503, "too_many_connections")
        for reader, writer in held:
            writer.write(b"GET /v1/streams HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in await asyncio.wait_for(reader.readline(), PATIENCE)
            await leave(writer)


async def test_a_silent_connection_gives_way_after_that(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "GRACE", 0.01)
    async with start(max_connections_per_address=2, header_timeout=60) as client:
        held = [await connect(client) for _ in range(2)]
        async with asyncio.timeout(PATIENCE):
            while (await ask(client, "/v1/streams"))[0] != 200:
                pass
        assert await metric(client, "epochal_http_refused_total{", 'reason="idle_connections_per_address"') >= 1
        for _, writer in held:
            await leave(writer)


async def test_health_is_answered_while_silent_connections_fill_everything(start: Any) -> None:
    async with start(max_connections=4, spare_connections=2, header_timeout=60) as client:
        held = [await connect(client) for _ in range(50)]
        assert (await ask(client, "/healthz"))[0] == 200
        assert await metric(client, "epochal_http_connections") <= 4 + 2
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize("sent", [b"NOT HTTP AT ALL\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n"])
async def test_what_is_not_http_is_a_problem(client: Any, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    status, problem = await ask(client, "", sent)
    assert problem is not None
    assert (status, problem["code"]) == (400, "malformed_http")
    assert not caplog.records  # anybody could fill the log


async def test_methods_that_http_does_not_have_share_one_metric(client: Any) -> None:
    assert (await client("PROPFIND", "/v1/streams")).status == 405
    text = (await client("GET", "/metrics")).body.decode()
    assert "PROPFIND" not in text
    assert "_OTHER" in text

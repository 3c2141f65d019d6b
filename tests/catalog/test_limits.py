"""What a hostile or broken client can send: bounded, answered, and of no consequence to others."""

import asyncio
import io
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.patience import PATIENCE


async def connect(client: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(client.url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def until_cut(reader: asyncio.StreamReader) -> None:
    """Returns when the server closes or resets the connection."""
    with suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), PATIENCE)


async def test_a_body_above_the_limit_is_refused(client: Any) -> None:
    refused = await client("POST", "/v1/publishers", data=io.BytesIO(b" " * (2**20 + 1)))
    assert (refused.status, refused.code) == (413, "body_too_large")


@pytest.mark.parametrize("kind", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP"])
async def test_a_packed_body_is_refused_and_not_unpacked(client: Any, kind: str) -> None:
    headers = {"Content-Encoding": kind}
    refused = await client("POST", "/v1/publishers", data=b"as if it were packed", headers=headers)
    assert (refused.status, refused.code) == (415, "packed_body")
    assert refused.headers["Accept-Encoding"] == "identity"
    assert (await client("GET", "/healthz")).status == 200


async def test_a_header_above_the_limit_is_refused(client: Any) -> None:
    reader, writer = await connect(client)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 9000 + b"\r\n\r\n")
    assert b" 400 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHo", b"\x00\xff" * 50])
async def test_a_connection_without_a_whole_head_is_cut(start: Any, sent: bytes) -> None:
    async with start(header_timeout=1) as client:
        reader, writer = await connect(client)
        writer.write(sent)
        await until_cut(reader)
        writer.close()
        assert (await client("GET", "/healthz")).status == 200


async def test_a_second_head_on_a_connection_has_its_deadline_too(start: Any) -> None:
    async with start(header_timeout=1) as client:
        reader, writer = await connect(client)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await reader.readline()
        writer.write(b"GET /hea")
        await until_cut(reader)
        writer.close()


async def test_a_lookup_may_wait_longer_than_a_head_may_take(start: Any) -> None:
    async with start(header_timeout=1) as client:
        assert (await client.lookup(wait="1.5")).code == "stream_not_found"


async def test_a_body_that_does_not_come_is_given_up(start: Any) -> None:
    async with start(body_timeout=0.1) as client:
        reader, writer = await connect(client)
        writer.write(b"POST /v1/publishers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        assert b" 408 " in await asyncio.wait_for(reader.readline(), PATIENCE)
        writer.close()
        await writer.wait_closed()


async def test_an_idle_connection_is_closed(start: Any) -> None:
    async with start(idle_timeout=0.1) as client:
        reader, writer = await connect(client)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.read(4), PATIENCE) + await asyncio.wait_for(
            reader.read(), PATIENCE
        )
        writer.close()
        await writer.wait_closed()

"""The proxy does to connections what it says, and heals."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.chaos.proxy import BOTH, NONE, Proxy, Trouble, Way, loopback
from tests.patience import PATIENCE

SOON = 0.2
"""Seconds in which what is not blocked has long arrived; a test waits so long for nothing to come."""


class Echo:
    """Answers every line with the same line; `lines` are those that arrived."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                self.lines.append(line)
                writer.write(line)
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, Proxy]]:
    echo = Echo()
    async with await asyncio.start_server(echo.serve, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        async with Proxy((loopback(), port), ("127.0.0.1", port)) as proxy:
            yield echo, proxy


@contextlib.asynccontextmanager
async def client(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*proxy.listen)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def says(reader: asyncio.StreamReader, expected: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        assert await reader.readline() == expected


async def is_silent(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SOON):
            await reader.read(1)


async def test_it_forwards_both_ways_and_the_end(echo) -> None:
    _, proxy = echo
    async with client(proxy) as (reader, writer):
        writer.write(b"a\n")
        await says(reader, b"a\n")
        writer.write_eof()
        await says(reader, b"")


async def test_a_half_open_connection_is_silent_and_heals_without_loss(echo) -> None:
    server, proxy = echo
    async with client(proxy) as (reader, writer), client(proxy) as (other, to_other):
        writer.write(b"a\n")
        await says(reader, b"a\n")
        to_other.write(b"o\n")
        await says(other, b"o\n")
        proxy.suffer(Trouble(blocked=BOTH), proxy.connections[:1])
        writer.write(b"b\n")
        await is_silent(reader)
        assert b"b\n" not in server.lines
        to_other.write(b"p\n")
        await says(other, b"p\n")
        await proxy.heal()
        await says(reader, b"b\n")


async def test_one_way_alone(echo) -> None:
    server, proxy = echo
    async with client(proxy) as (reader, writer):
        proxy.suffer(Trouble(blocked=frozenset({Way.DOWN})))
        writer.write(b"a\n")
        await is_silent(reader)
        assert server.lines == [b"a\n"]
        proxy.suffer(Trouble(blocked=frozenset({Way.UP})))
        await says(reader, b"a\n")
        writer.write(b"b\n")
        await is_silent(reader)
        assert server.lines == [b"a\n"]


async def test_the_end_of_a_side_does_not_pass_a_block(echo) -> None:
    _, proxy = echo
    async with client(proxy) as (reader, writer):
        writer.write(b"a\n")
        await says(reader, b"a\n")
        proxy.suffer(Trouble(blocked=BOTH))
        writer.write_eof()
        await is_silent(reader)
        proxy.suffer(NONE)
        await says(reader, b"")


async def test_a_cut_is_a_reset(echo) -> None:
    _, proxy = echo
    async with client(proxy) as (reader, writer):
        writer.write(b"a\n")
        await says(reader, b"a\n")
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            await says(reader, b"never")
    async with asyncio.timeout(PATIENCE):
        while proxy.connections:  # noqa: ASYNC110 - the proxy tells nobody
            await asyncio.sleep(0.01)


async def test_refusing_and_admitting_again(echo) -> None:
    _, proxy = echo
    async with client(proxy) as (reader, writer):
        writer.write(b"a\n")
        await says(reader, b"a\n")
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*proxy.listen)
        writer.write(b"b\n")
        await says(reader, b"b\n")
    await proxy.heal()
    async with client(proxy) as (reader, writer):
        writer.write(b"c\n")
        await says(reader, b"c\n")


async def test_delay_and_rate(echo) -> None:
    _, proxy = echo
    loop = asyncio.get_running_loop()
    for trouble in (Trouble(delay=0.3), Trouble(rate=10)):
        proxy.suffer(trouble)
        async with client(proxy) as (reader, writer):
            begun = loop.time()
            writer.write(b"abc\n")
            await says(reader, b"abc\n")
            assert loop.time() - begun > 0.5


async def test_a_server_that_is_away_is_a_reset(echo) -> None:
    async with Proxy((loopback(), 0), ("127.0.0.1", 9)) as proxy:
        assert proxy._server is not None
        reader, writer = await asyncio.open_connection(*proxy._server.sockets[0].getsockname())
        with pytest.raises(ConnectionResetError):
            await says(reader, b"never")
        writer.close()

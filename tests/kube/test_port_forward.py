"""Ports that lead to pods, over real sockets: what is carried, and what becomes of a connection that fails."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.kube.kubelet import PROTOCOL, Kubelet
from tests.patience import PATIENCE

from epochal.errors import ClusterUnavailable
from epochal.kube.cluster import PodPort, ServicePort, in_cluster, local_form
from epochal.kube.port_forward import Forwarder

POD = PodPort("demo", "flights-0", 8701)


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """A server that gives back what it is sent, and ends when it is told so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
            if data.endswith(b"end"):
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


class Told:
    """What a forwarder was heard to say."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.said = asyncio.Event()

    def __call__(self, target: PodPort, reason: str) -> None:
        self.lines.append(f"{target}: {reason}")
        self.said.set()


@contextlib.asynccontextmanager
async def forwarding(kubelet: Kubelet) -> AsyncIterator[tuple[Forwarder[PodPort], Told]]:
    async with aiohttp.ClientSession() as session:

        async def connect(target: PodPort) -> aiohttp.ClientWebSocketResponse:
            url = f"http://127.0.0.1:{kubelet.port}/portForward/{target.namespace}/{target.pod}?port={target.port}"
            return await session.ws_connect(url, protocols=(PROTOCOL,), max_msg_size=0)

        forwarder = Forwarder(connect, told := Told())
        try:
            yield forwarder, told
        finally:
            await forwarder.close()


@contextlib.asynccontextmanager
async def pod() -> AsyncIterator[tuple[Kubelet, Forwarder[PodPort], Told]]:
    """A pod that echoes, and the way to it."""
    async with echo() as there, Kubelet(lambda *_: there).running() as kubelet, forwarding(kubelet) as (way, told):
        yield kubelet, way, told


@contextlib.asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def test_bytes_go_both_ways_whole_and_in_order() -> None:
    data = os.urandom(20 * 2**20)

    async def round_trip(port: int) -> str:
        async with connection(port) as (reader, writer):
            sending = asyncio.create_task(_send(writer, data))
            back = await reader.readexactly(len(data))
            await sending
        return hashlib.sha256(back).hexdigest()

    async with pod() as (kubelet, way, told), asyncio.timeout(PATIENCE * 2):
        port = await way.port(POD)
        assert await way.port(POD) == port != await way.port(PodPort("demo", "flights-1", 8701))
        found = await asyncio.gather(*(round_trip(port) for _ in range(3)))
    assert found == [hashlib.sha256(data).hexdigest()] * 3
    assert kubelet.connections == [("demo", "flights-0", 8701)] * 3
    assert told.lines == []


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    for at in range(0, len(data), 300_001):
        writer.write(data[at : at + 300_001])
        await writer.drain()


async def test_either_side_that_ends_a_connection_ends_it_for_both() -> None:
    async with pod() as (kubelet, way, _), asyncio.timeout(PATIENCE):
        async with connection(await way.port(POD)) as (reader, writer):
            writer.write(b"the end")
            assert await reader.read() == b"the end"  # the pod ended it
        async with connection(await way.port(POD)) as (reader, writer):
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        await kubelet.idle.wait()  # and now this side did


async def test_a_pod_that_comes_back_is_reached_by_the_next_connection() -> None:
    async with pod() as (kubelet, way, told), asyncio.timeout(PATIENCE):
        there = kubelet.find
        async with connection(await way.port(POD)) as (reader, writer):
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            await kubelet.cut()
            assert await reader.read() == b""
        kubelet.find = lambda *_: None  # it is away
        for _ in range(2):
            async with connection(await way.port(POD)) as (reader, writer):
                assert await reader.read() == b""
        await told.said.wait()
        kubelet.find = there
        async with connection(await way.port(POD)) as (reader, writer):
            writer.write(b"again")
            assert await reader.readexactly(5) == b"again"
    assert told.lines == [
        "pod demo/flights-0 port 8701: error forwarding port 8701 to pod flights-0: connection refused"
    ]  # once, though it was tried twice


async def test_what_cannot_be_connected_to_is_closed_and_reported() -> None:
    async def connect(_: PodPort) -> aiohttp.ClientWebSocketResponse:
        raise ClusterUnavailable("it is not there")

    forwarder = Forwarder(connect, told := Told())
    async with asyncio.timeout(PATIENCE):
        async with connection(await forwarder.port(POD)) as (reader, _):
            assert await reader.read() == b""
        await told.said.wait()
        await forwarder.close()
    assert told.lines == ["pod demo/flights-0 port 8701: it is not there"]


async def test_closing_ends_what_is_open_and_listens_no_longer() -> None:
    async with pod() as (_, way, _), asyncio.timeout(PATIENCE):
        port = await way.port(POD)
        async with connection(port) as (reader, writer):
            writer.write(b"x")
            await reader.readexactly(1)
            await way.close()
            assert not way._carrying
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("tcp://flights-0.flights.demo.svc:8701", PodPort("demo", "flights-0", 8701)),
        ("tcp://flights-0.flights.demo.svc.cluster.local:8701", PodPort("demo", "flights-0", 8701)),
        ("tcp://flights-0.flights.demo.svc.cluster.local.:8701", PodPort("demo", "flights-0", 8701)),
        ("http://epochal-catalog.epochal.svc:8700", ServicePort("epochal", "epochal-catalog", 8700)),
        ("http://catalog.svc.svc", ServicePort("svc", "catalog", 80)),
        ("tcp://flights-0.svc.svc.svc:1", PodPort("svc", "flights-0", 1)),
        ("tcp://127.0.0.1:8701", None),
        ("tcp://[::1]:8701", None),
        ("tcp://flights.example.com:8701", None),
        ("tcp://a.b.svc.example.com:8701", None),
        ("tcp://a.b.c.d.svc:8701", None),
        ("tcp://demo.svc:8701", None),
        ("tcp://a..b.svc:8701", None),
        ("tcp://flights-0.flights.demo.svc", None),
        ("tcp://flights-0.flights.demo.svc:99999", None),
        ("nonsense", None),
    ],
)
def test_which_addresses_are_the_clusters_own(address: str, target: object) -> None:
    assert in_cluster(address) == target


def test_the_local_form_keeps_scheme_and_path() -> None:
    assert local_form("http://a.b.svc:8704/healthz?x=1", 4711) == "http://127.0.0.1:4711/healthz?x=1"

"""P7: how many lookups a catalog answers from memory, beside the same bytes out of etcd's HTTP gateway."""

import base64
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import aiohttp
from harness.bench import Bench
from harness.processes import free_port, program, role, server
from harness.rounds import Ratio, middle
from harness.tables import Table

CONNECTIONS = 16
MILLISECONDS = 2_000
TARGET = 1.0
_HEADINGS = ["catalog, lookups/s", "etcd range, reads/s", "over etcd", "target"]


async def measure(bench: Bench) -> list[Table]:
    """The lookup of one stream with its publisher, and an etcd range read whose value is that very document."""
    bench.tell("P7")
    etcd = program("etcd")
    title = f"P7: reads a second over {CONNECTIONS} kept connections"
    if etcd is None:
        return [Table("P7", title, _HEADINGS, [], reason="etcd is not on PATH (Debian: etcd-server)")]
    async with bench.stream("p7") as stream:
        path = f"/v1/streams/{stream.name}/segments"
        async with aiohttp.ClientSession() as session, session.get(f"{bench.catalog}{path}") as answer:
            document = await answer.read()
        async with _etcd(etcd, stream.name.encode(), document) as (url, body):
            figures = await bench.in_turn(
                {
                    "catalog": partial(_rate, bench.catalog, _request("GET", path)),
                    "etcd": partial(_rate, url, _request("POST", "/v3/kv/range", body)),
                }
            )
    cells = [f"{middle(taken):,.0f}" for taken in figures.values()]
    row = [*cells, str(Ratio.of(figures["catalog"], figures["etcd"])), f">= {TARGET:g}"]
    return [Table("P7", title, _HEADINGS, [row])]


async def _rate(url: str, request: bytes) -> float:
    return float((await asked(url, request))["rate"])


async def asked(url: str, request: bytes) -> Mapping[str, float]:
    """What the server at `url` answered: `rate` a second, and `answers` in all."""
    parts = urlsplit(url)
    to = {"host": parts.hostname, "port": parts.port, "request": request.hex()}
    with role("http_load.ask", **to, connections=CONNECTIONS, milliseconds=MILLISECONDS) as asking:
        return await asking.line()


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def _etcd(binary: str, key: bytes, value: bytes) -> AsyncIterator[tuple[str, bytes]]:
    """An etcd that holds `value`; yields its URL and the body of the range request that reads it."""
    client, peer = free_port(), free_port()
    url = f"http://127.0.0.1:{client}"
    with tempfile.TemporaryDirectory() as data:
        command = [binary, "--data-dir", data, "--log-level", "error"]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        peers = f"http://127.0.0.1:{peer}"
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", f"default={peers}"]
        async with server(command, client):
            encoded = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
            async with aiohttp.ClientSession() as session, session.post(f"{url}/v3/kv/put", json=encoded) as answer:
                answer.raise_for_status()
            yield url, json.dumps({"key": encoded["key"]}).encode()

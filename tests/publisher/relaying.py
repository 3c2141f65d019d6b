"""A relay's HTTP side in the process of a test, on subscriptions to real publishers, and clients that read from it."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import jsonschema_rs

import epochal
from epochal.protocol.times import TimeShape
from epochal.service.telemetry import ServiceTelemetry
from epochal_publisher.relay.epochs import openapi
from epochal_publisher.relay.epochs.answers import EpochReaders, StreamFacts
from epochal_publisher.relay.epochs.settings import RelayHttpSettings
from epochal_publisher.relay.http import RelayHttp

_ITEM = jsonschema_rs.validator_for({"$ref": "#/components/schemas/Item", "components": {"schemas": openapi.SCHEMAS}})


@dataclass
class Event:
    """A server-sent event as a browser gets it; a comment has the kind ""."""

    kind: str
    id: str | None
    data: dict[str, Any]


@dataclass
class Relaying:
    """What a test needs of it. `opened`: where each subscription began."""

    client: epochal.Client
    http: RelayHttp
    readers: EpochReaders
    web: aiohttp.ClientSession
    opened: list[Any] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    async def ask(self, query: Sequence[tuple[str, str]] | dict[str, str] = (), **headers: str) -> tuple[int, Any]:
        """(status, body) of a question: the lines, or the problem."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.web.get(f"{self.url}/v1/epochs", params=query, headers=named) as answer:
            text = await answer.text()
            if answer.status == 200:
                return 200, [checked(json.loads(line)) for line in text.splitlines()]
            return answer.status, json.loads(text) if text else None

    async def lines(self, **query: str) -> list[dict[str, Any]]:
        status, found = await self.ask(query)
        assert status == 200, found
        lines: list[dict[str, Any]] = found
        return lines

    @asynccontextmanager
    async def events(self, last: str = "", **query: str) -> AsyncIterator[AsyncIterator[Event]]:
        """Server-sent events, comments among them."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        async with self.web.get(f"{self.url}/v1/epochs", params=query, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            yield read_events(answer.content)


async def read_events(content: aiohttp.StreamReader) -> AsyncIterator[Event]:
    async for block in blocks(content):
        fields = dict(line.split(": ", 1) for line in block.decode().splitlines())
        if "retry" in fields:
            continue
        event = Event(fields.get("event", ""), fields.get("id"), json.loads(fields.get("data", "{}")))
        if event.kind:
            assert checked(event.data)["kind"] == event.kind
        yield event


def checked(item: dict[str, Any]) -> dict[str, Any]:
    """`item`, which is as the OpenAPI document says: so every kind that a test is sent is there."""
    _ITEM.validate(item)
    return item


async def blocks(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """What is between empty lines."""
    got = b""
    async for chunk in content.iter_any():
        got += chunk
        *whole, got = got.split(b"\n\n")
        for block in whole:
            yield block


@asynccontextmanager
async def relaying(
    stream: Any, encoding: str = "json", shape: str = "int", port: int = 0, **settings: Any
) -> AsyncIterator[Relaying]:
    """A relay's HTTP side for a stream."""
    read = RelayHttpSettings.read(**{"frontier_interval": 0.05, "sse_heartbeat": 300, **settings})
    async with epochal.connect(stream.catalog) as client, aiohttp.ClientSession() as web:
        opened: list[Any] = []

        def open_subscription(topics: Any, reject: Any, since: Any) -> epochal.Subscription:
            opened.append(since)
            return client.subscribe(stream.name, topics=topics, reject=reject, since=since)

        readers = EpochReaders(read, StreamFacts(encoding, TimeShape.parse(shape)), open_subscription)
        async with RelayHttp(read, ServiceTelemetry("relay"), lambda: True, port) as http:
            http.readers = readers
            yield Relaying(client, http, readers, web, opened)

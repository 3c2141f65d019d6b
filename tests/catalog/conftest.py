"""A real catalog on a free port, a client that checks every answer against the served schemas, and a clock to turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema_rs
import pytest
from aiohttp import ClientSession
from tests.patience import PATIENCE

from epochal.service.openapi import schema_name
from epochal_catalog.api import openapi
from epochal_catalog.runtime.settings import CatalogSettings
from epochal_catalog.server import Server

ADDRESSES = {"events": "tcp://h:1", "requests": "tcp://h:2", "ingest": "tcp://h:3", "http": "http://h:4"}


class Clock:
    """Monotonic seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wall:
    """Seconds since 1970 that only a test moves; at 0 numbers are counted from 1."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Answer:
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def code(self) -> str:
        return str(self.body["code"])


class Client:
    """Speaks to a catalog, and holds every JSON answer against what the OpenAPI document promises for its route."""

    def __init__(self, session: ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def __call__(self, method: str, path: str, json: Any = None, **options: Any) -> Answer:
        async with self.session.request(method, self.url + path, json=json, **options) as response:
            is_json = response.content_type.endswith("json")
            body = await response.json(content_type=None) if is_json else await response.read()
            check_answer(method, path, response.status, response.content_type, body)
            return Answer(response.status, body, dict(response.headers))

    async def apply(self, name: str = "demo/flights", **spec: Any) -> Answer:
        return await self("PUT", f"/v1/streams/{name}", manifest(name, **spec))

    async def lookup(self, name: str = "demo/flights", **query: str) -> Answer:
        return await self("GET", f"/v1/streams/{name}/segments", params=query)

    async def register(
        self, publisher: str, uid: str, *segments: str, name: str = "demo/flights", instance: str = ""
    ) -> Answer:
        body = {
            "publisher": publisher,
            "instance": instance or uuid4().hex,
            "stream": name,
            "uid": uid,
            "segments": segments or ("0",),
            "addresses": ADDRESSES,
        }
        return await self("POST", "/v1/publishers", body)

    async def renew(self, publisher: str, token: int, **segments: Any) -> Answer:
        body = {"token": token, "segments": {key.lstrip("s"): report for key, report in segments.items()}}
        return await self("PUT", f"/v1/publishers/{publisher}", body)

    async def session_of(self, writer: str, name: str = "demo/flights") -> Answer:
        return await self("POST", f"/v1/streams/{name}/writers/{writer}/sessions")

    async def finish(self, publisher: str, granted: Any, segment: str, number: int, finishing: bool = True) -> Answer:
        incarnation = next(item["incarnation"] for item in granted["segments"] if item["id"] == segment)
        body = {"publisher": publisher, "token": granted["token"], "incarnation": incarnation}
        body |= {"number": number, "finishing": finishing}
        return await self("PUT", f"/v1/streams/demo/flights/segments/{segment}/finishing", body)


def manifest(name: str = "demo/flights", **spec: Any) -> dict[str, Any]:
    namespace, name = name.split("/")
    return {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, **spec},
    }


def check_answer(method: str, path: str, status: int, content_type: str, body: Any) -> None:
    """The answer is of the model that the document names for this status; every error is a problem document."""
    if status >= 400 and content_type == "application/problem+json":
        schema("ProblemDocument").validate(body)
        assert body["status"] == status
        return
    operation = next((item for item in openapi.OPERATIONS if item.method == method and _fits(item.path, path)), None)
    if operation is None or status >= 400:
        return
    if status == 304 and operation.tagged:
        return
    assert status in operation.answers, f"{method} {path} answered {status}, which the document does not promise"
    model = operation.answers[status]
    if isinstance(model, type):
        schema(schema_name(model)).validate(body)


@cache
def schema(name: str) -> jsonschema_rs.Validator:
    """What the OpenAPI document says of a model."""
    components = openapi.document(300.0)["components"]
    return jsonschema_rs.validator_for({**components["schemas"][name], "components": components})


def _fits(pattern: str, path: str) -> bool:
    ours, theirs = pattern.split("/"), path.split("?")[0].split("/")
    return len(ours) == len(theirs) and all(a.startswith("{") or a == b for a, b in zip(ours, theirs, strict=True))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def document() -> Callable[..., dict[str, Any]]:
    """Makes a Stream manifest."""
    return manifest


Start = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def start(tmp_path: Path, clock: Clock, wall: Wall) -> Start:
    """Starts a catalog on the test's data directory; starting again is a restart."""

    @asynccontextmanager
    async def started(**given: Any) -> AsyncIterator[Client]:
        settings = CatalogSettings.read(**{"port": 0, "data": tmp_path, "lease_ttl": 1.0, **given})
        async with Server(settings, clock, wall) as server, ClientSession() as session:
            client = Client(session, server.url)
            client.server = server  # type: ignore[attr-defined]  # for tests that look inside
            yield client

    return started


@pytest.fixture
async def client(start: Start) -> AsyncIterator[Client]:
    async with start() as client:
        yield client


@pytest.fixture
def waiters() -> Callable[[Client, int], Any]:
    """Waits until that many lookups wait in the catalog."""

    async def until(client: Client, count: int) -> None:
        room = client.server.catalog.room  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE):
            while len(room) != count:  # noqa: ASYNC110  # the room tells nobody that somebody came in
                await asyncio.sleep(0)

    return until

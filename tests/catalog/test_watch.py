"""Watching: every change once and in order, over cuts and restarts, and never at the cost of others."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp.test_utils import make_mocked_request
from tests.patience import PATIENCE

from epochal.client.catalog.watch import Parser
from epochal_catalog.api import routes


@asynccontextmanager
async def watching(client: Any, since: int | None = None, **headers: str) -> AsyncIterator[AsyncIterator[Any]]:
    """The events of one connection, as (event, data)."""
    path = "/v1/watch" if since is None else f"/v1/watch?since={since}"
    async with client.session.get(client.url + path, headers=headers) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")

        async def events() -> AsyncIterator[Any]:
            parser = Parser()
            async for chunk in response.content.iter_any():
                for event, data in parser.feed(chunk):
                    value = json.loads(data)
                    assert parser.last_id is not None
                    yield event, value

        yield events()


async def take(events: AsyncIterator[Any], count: int) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        return [await anext(events) for _ in range(count)]


def seen(events: list[Any]) -> list[tuple[str, str, str]]:
    return [(value["kind"], value["op"], value["name"]) for _, value in events]


@pytest.mark.rule("S26", "S32")
async def test_a_watcher_sees_every_change_in_order(client: Any) -> None:
    async with watching(client) as events:
        [(event, snapshot)] = await take(events, 1)
        assert (event, snapshot) == ("snapshot", {"revision": 0})
        uid = (await client.apply(segments=2)).body["uid"]
        granted = (await client.register("p", uid, "0", "1")).body
        await client.renew("p", granted["token"], s0={"incarnation": 1, "lower": [4]})
        await client.session_of("w")
        path = "/v1/streams/demo/flights/subscriptions"
        made = (await client("POST", path, {"subscriber": "r", "uid": uid})).body
        await client("DELETE", f"/v1/subscriptions/{made['id']}?token={made['token']}")
        await client("DELETE", f"/v1/publishers/p?token={granted['token']}")
        await client("DELETE", "/v1/streams/demo/flights")
        found = await take(events, 12)
    assert seen(found) == [
        ("stream", "put", "demo/flights"),
        ("segment", "put", "demo/flights/0"),
        ("segment", "put", "demo/flights/1"),
        ("segment", "put", "demo/flights/0"),
        ("segment", "put", "demo/flights/1"),
        ("publisher", "put", "p"),
        ("segment", "put", "demo/flights/0"),
        ("session", "put", "demo/flights/w"),
        ("subscription", "put", made["id"]),
        ("subscription", "delete", made["id"]),
        ("publisher", "delete", "p"),
        ("stream", "delete", "demo/flights"),
    ]
    assert [value["revision"] for _, value in found] == list(range(1, 13))
    assert [event for event, _ in found] == [value["kind"] for _, value in found]
    objects = [value["object"] for _, value in found]
    assert objects[6]["lower"] == [4]
    assert objects[-1] is None
    assert str(made["token"]) not in str(objects)  # it is its owner's alone
    assert (await client("GET", "/v1/streams")).body["revision"] == 12


@pytest.mark.rule("S26")
async def test_a_watcher_resumes_after_any_revision_also_when_the_catalog_restarted(start: Any) -> None:
    async with start() as client:
        for name in "abc":
            await client.apply(f"demo/{name}")
        await client("DELETE", "/v1/streams/demo/b")
    async with start() as client:
        await client.apply("demo/d")
        async with watching(client, since=0) as events:
            everything = await take(events, 9)
        for at, (_, value) in enumerate(everything[:-1]):
            async with watching(client, since=value["revision"]) as events:
                assert await take(events, len(everything) - at - 1) == everything[at + 1 :]
        last = {"Last-Event-ID": str(everything[-2][1]["revision"])}
        async with watching(client, since=0, **last) as events:  # what the client came to see is newer than the URL
            assert await take(events, 1) == everything[-1:]
    assert seen(everything)[6] == ("stream", "delete", "demo/b")


@pytest.mark.rule("S26")
async def test_what_is_no_longer_kept_is_refused_and_reported(start: Any) -> None:
    async with start(watch_events=10) as client:
        for index in range(12):
            await client.apply(f"demo/s{index}")
        floor = (await client("GET", "/v1/streams/$catalog")).body["first_revision"]
        refused = await client("GET", f"/v1/watch?since={floor - 1}")
        assert (refused.status, refused.code) == (410, "history_truncated")
        assert f"resumed from is {floor}" in refused.body["detail"]
        ahead = await client("GET", "/v1/watch?since=999")
        assert (ahead.status, ahead.code) == (409, "revision_ahead")
        assert (await client("GET", "/v1/watch?since=x")).code == "invalid_request"
    async with start(watch_events=10) as client:  # the disk holds the same window
        assert (await client("GET", "/v1/streams/$catalog")).body["first_revision"] == floor
        async with watching(client, since=floor) as events:
            assert seen(await take(events, 24 - floor))[-1] == ("segment", "put", "demo/s11/0")


@pytest.mark.rule("S24", "S26")
async def test_a_watcher_that_does_not_read_is_cut_and_others_are_not(start: Any) -> None:
    async with start(watch_queue=5) as client:
        await client.apply()
        parts = urlsplit(client.url)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((parts.hostname, parts.port))
        slow.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
        catalog = client.server.catalog
        async with watching(client) as events:
            await take(events, 1)
            async with asyncio.timeout(PATIENCE):
                while len(catalog.watchers) != 2:  # noqa: ASYNC110  # the slow one tells nobody that it is in
                    await asyncio.sleep(0.01)
            fields = [{"name": f"field{index}" * 24, "type": "int64"} for index in range(230)]
            payload = {"encoding": "msgpack", "schema": {"fields": fields}}
            revision = 2
            for index in range(400):  # some 60 KiB each: more than sockets hold
                await client.apply(f"demo/s{index}", payload=payload)
                revision += 2
                assert (await take(events, 2))[-1][1]["revision"] == revision  # who reads misses nothing
                if len(catalog.watchers) == 1:
                    break
            assert len(catalog.watchers) == 1
            await client.apply("demo/last")
            assert seen(await take(events, 1)) == [("stream", "put", "demo/last")]
        slow.close()
        text = (await client("GET", "/metrics")).body.decode()
        assert "epochal_catalog_watchers_cut_total" in text


async def test_the_number_of_watchers_is_bounded(start: Any) -> None:
    async with start(max_watchers=1) as client, watching(client) as events:
        await take(events, 1)
        refused = await client("GET", "/v1/watch")
        assert (refused.status, refused.code) == (503, "overloaded")


async def test_a_quiet_watch_has_a_heartbeat(start: Any) -> None:
    async with start(watch_heartbeat=0.05) as client, client.session.get(client.url + "/v1/watch") as response:
        async with asyncio.timeout(PATIENCE):
            while not (await response.content.readline()).startswith(b": still here"):
                pass


async def test_a_watcher_that_leaves_is_forgotten(client: Any) -> None:
    async with watching(client) as events:
        await take(events, 1)
        assert len(client.server.catalog.watchers) == 1
    async with asyncio.timeout(PATIENCE):
        while len(client.server.catalog.watchers):  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.rule("S30")
async def test_a_watcher_sees_that_a_publisher_lapsed_and_came_back(client: Any, clock: Any) -> None:
    uid = (await client.apply()).body["uid"]
    token = (await client.register("p", uid)).body["token"]
    since = (await client("GET", "/v1/streams")).body["revision"]
    leases = client.server.catalog.state.leases
    for _ in range(3):
        clock.now += 0.5
        async with asyncio.timeout(PATIENCE):
            while leases._last_sweep != clock.now:  # noqa: ASYNC110  # no event tells of a sweep
                await asyncio.sleep(0.01)
    async with watching(client, since=since) as events:
        [(_, lapsed)] = await take(events, 1)
        await client.renew("p", token)
        [(_, back)] = await take(events, 1)
    assert [(value["kind"], value["name"], value["object"]["live"]) for value in (lapsed, back)] == [
        ("publisher", "p", False),
        ("publisher", "p", True),
    ]


@pytest.mark.rule("S26", "S30")
async def test_a_watcher_sees_that_a_restart_brought_a_lapsed_publisher_back(start: Any, clock: Any) -> None:
    async with start() as client:
        await client.register("p", (await client.apply()).body["uid"])
        clock.now += 2.0
        client.server.catalog.state.sweep(clock.now, 1e9)
        async with watching(client, since=0) as events:
            while (change := (await take(events, 1))[0][1])["object"].get("live") is not False:
                pass
    async with start() as client, watching(client, since=change["revision"]) as events:
        [(_, back)] = await take(events, 1)
        assert (back["kind"], back["name"], back["object"]["live"]) == ("publisher", "p", True)


async def test_only_programs_of_its_machine_learn_the_directory_of_local_mode(start: Any) -> None:
    async with start() as client:
        assert "data" not in (await client("GET", "/v1/streams/$catalog")).body
    async with start(local_data="/somewhere") as client:
        assert (await client("GET", "/v1/streams/$catalog")).body["data"] == "/somewhere"
        assert "data" not in (await client("GET", "/v1/streams")).body["reserved"][0]
        asked = make_mocked_request("GET", "/v1/streams/$catalog", app=client.server.http.app)
        for remote, told in (("10.0.0.1", False), (None, False), ("127.0.0.1", True), ("::1", True)):
            answer: Any = await routes.get_reserved(asked.clone(remote=remote) if remote else asked)
            assert ("data" in json.loads(answer.text)) is told, remote


@pytest.mark.rule("S26")
async def test_the_catalogs_own_stream_is_listed_and_cannot_be_touched(client: Any, document: Any) -> None:
    own = (await client("GET", "/v1/streams/$catalog")).body
    assert (own["name"], own["watch"]) == ("$catalog", "/v1/watch")
    assert (await client("GET", "/v1/streams")).body["reserved"] == [own]
    uid = (await client.apply()).body["uid"]
    register = {"publisher": "p", "instance": "i", "stream": "$catalog", "uid": uid, "segments": ["0"]}
    addresses = {"events": "tcp://h:1", "requests": "tcp://h:2", "ingest": "tcp://h:3"}
    refused = [
        await client("PUT", "/v1/streams/$catalog", document()),
        await client("DELETE", "/v1/streams/$catalog"),
        await client("PUT", "/v1/streams/demo/$catalog", document()),
        await client("DELETE", "/v1/streams/demo/$catalog"),
        await client("POST", "/v1/streams/demo/$catalog/writers/w/sessions"),
        await client("POST", "/v1/streams/demo/$catalog/subscriptions", {"subscriber": "r", "uid": uid}),
        await client("POST", "/v1/publishers", {**register, "addresses": addresses}),
        await client("GET", "/v1/streams/demo/$catalog/segments?wait=60"),
    ]
    assert [(answer.status, answer.code) for answer in refused] == [(409, "reserved_name")] * len(refused)

"""Relays: listed while they renew, by stream, with what they report; they own nothing."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.catalog_api.answers import RelayInfo
from epochal_catalog.domain.kinds.relays import RELAYS

STREAM = "/v1/streams/demo/flights"
ADDRESSES = {"events": "tcp://r:1", "requests": "tcp://r:2", "http": "http://r:4"}


async def register(client: Any, uid: str, key: str = "r1", *, stream: str = "demo/flights", **more: Any) -> Any:
    body = {"stream": stream, "uid": uid, "name": "eu", "id": key, "addresses": ADDRESSES, "capacity": 100}
    return await client("POST", "/v1/relays", {**body, **more})


async def renew(client: Any, key: str = "r1", **report: Any) -> Any:
    return await client("PUT", f"/v1/relays/{key}", {"state": "ready", **report})


async def listed(client: Any, path: str = "/v1/relays") -> list[Any]:
    found: list[Any] = (await client("GET", path)).body["items"]
    return found


async def turn(client: Any, clock: Any, seconds: float) -> None:
    """Turn the clock in steps that are no stall, with a sweep after each."""
    leases = client.server.catalog.state[RELAYS].leases
    for _ in range(round(seconds / 0.5)):
        clock.now += 0.5
        async with asyncio.timeout(PATIENCE):
            while leases._last_sweep != clock.now:  # noqa: ASYNC110  # no event tells of a sweep
                await asyncio.sleep(0.01)


async def until_counted(client: Any, wanted: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(client.server.catalog.state[RELAYS]) != wanted:  # noqa: ASYNC110  # a sweep tells nobody
            await asyncio.sleep(0.01)


async def test_a_relay_is_listed_with_what_it_reports_and_taken_off_when_it_leaves(client: Any) -> None:
    uid = (await client.apply()).body["uid"]
    own = {"1": {"events": "tcp://r:5", "requests": "tcp://r:6"}}
    made = await register(client, uid, segments=own, upstream="hub", report={"path": ["hub-0"]})
    assert (made.status, made.body) == (201, {"ttl": 10.0})
    [shown] = await listed(client)
    assert shown.pop("since").endswith("Z")
    assert shown == {
        "id": "r1", "name": "eu", "stream": "demo/flights", "uid": uid, "addresses": ADDRESSES, "segments": own,
        "upstream": "hub", "capacity": 100, "state": "waiting", "path": ["hub-0"], "load": 0, "lag": None, "filter": "",
        "verified": True,
    }  # fmt: skip
    report: dict[str, Any] = {"load": 7, "lag": 0.5, "path": [], "filter": "delay/"}
    assert (await renew(client, **report)).body == {"ttl": 10.0}
    [shown] = await listed(client, f"{STREAM}/relays")
    assert {name: shown[name] for name in (*report, "state")} == {**report, "state": "ready"}
    assert json.dumps(RelayInfo.from_json(shown).to_json()) == json.dumps(shown)
    assert (await client("DELETE", "/v1/relays/r1")).status == 204
    assert await listed(client) == []
    gone = [await renew(client), await client("DELETE", "/v1/relays/r1")]
    assert [(answer.status, answer.code) for answer in gone] == [(404, "unknown_relay")] * 2


async def test_a_stream_says_how_many_relays_it_has(client: Any) -> None:
    uid = (await client.apply()).body["uid"]
    await client.register("p", uid)
    for key in ("r1", "r2"):
        before = (await client.lookup()).body["stream"]["relays"]
        await register(client, uid, key)
        assert (await client.lookup()).body["stream"]["relays"] == before + 1
    assert (await client("GET", STREAM)).body["relays"] == 2
    assert (await client("GET", "/v1/streams/$catalog")).body["relays"] == 2
    await client("DELETE", "/v1/relays/r1")
    assert (await client.lookup()).body["stream"]["relays"] == 1


async def test_lists_are_of_all_of_a_namespace_or_of_a_stream_in_pages_and_not_sent_twice(client: Any) -> None:
    uids = {name: (await client.apply(name)).body["uid"] for name in ("demo/a", "demo/b", "x/a")}
    for key, name in (("r3", "demo/a"), ("r1", "demo/b"), ("r/2", "x/a")):
        assert (await register(client, uids[name], key, stream=name)).status == 201
    page = (await client("GET", "/v1/relays?limit=2")).body
    rest = (await client("GET", f"/v1/relays?limit=2&after={page['next']}")).body
    assert [item["id"] for item in page["items"] + rest["items"]] == ["r/2", "r1", "r3"]
    assert rest["next"] is None
    assert [item["id"] for item in await listed(client, "/v1/relays?namespace=demo")] == ["r1", "r3"]
    assert [item["id"] for item in await listed(client, "/v1/streams/x/a/relays")] == ["r/2"]
    tag = {"If-None-Match": (await client("GET", "/v1/relays")).headers["Etag"]}
    assert (await client("GET", "/v1/relays", headers=tag)).status == 304
    assert (await client("PUT", "/v1/relays/r%2F2", {"load": 3})).status == 200
    assert (await client("GET", "/v1/relays", headers=tag)).status == 200


async def test_the_same_id_again_replaces_the_entry(client: Any) -> None:
    uids = [(await client.apply(name)).body["uid"] for name in ("demo/flights", "demo/trains")]
    await register(client, uids[0])
    await renew(client, load=5)
    await register(client, uids[1], stream="demo/trains", capacity=9)
    [shown] = await listed(client)
    assert (shown["stream"], shown["capacity"], shown["load"]) == ("demo/trains", 9, 0)
    assert await listed(client, f"{STREAM}/relays") == []


@pytest.mark.rule("S26")
async def test_a_relay_of_an_older_stream_is_refused_and_a_deleted_stream_takes_its_relays_along(start: Any) -> None:
    async with start() as client:
        uid = (await client.apply()).body["uid"]
        await register(client, uid)
        await client("DELETE", STREAM)
        assert (await renew(client)).code == "unknown_relay"
        assert (await register(client, uid)).code == "stream_not_found"
        await client.apply()
        anew = await register(client, uid)
        assert (anew.status, anew.code) == (410, "stream_gone")
        assert (await register(client, uid, stream="$catalog")).code == "reserved_name"
    async with start() as client:
        assert await listed(client) == []


async def test_a_relay_that_does_not_renew_is_no_longer_listed(start: Any, clock: Any) -> None:
    async with start(relay_ttl=2.0, lease_ttl=100.0) as client:
        uid = (await client.apply()).body["uid"]
        await register(client, uid, "gone")
        await register(client, uid, "stays")
        await turn(client, clock, 1.5)
        await renew(client, "stays")
        await turn(client, clock, 1)
        await until_counted(client, 1)
        assert [item["id"] for item in await listed(client)] == ["stays"]
        assert (await client("GET", STREAM)).body["relays"] == 1
        assert (await renew(client, "gone")).code == "unknown_relay"


async def test_a_restart_keeps_relays_with_their_state_and_gives_each_one_more_ttl(start: Any, clock: Any) -> None:
    async with start(relay_ttl=2.0) as client:
        uid = (await client.apply()).body["uid"]
        for key in ("alive", "dead"):
            await register(client, uid, key)
            await renew(client, key, load=3, path=["hub-0"])
    clock.now += 3600
    async with start(relay_ttl=2.0) as client:
        shown = {item["id"]: (item["verified"], item["state"], item["path"]) for item in await listed(client)}
        assert shown == dict.fromkeys(("alive", "dead"), (False, "ready", ["hub-0"]))
        await turn(client, clock, 1.5)
        assert (await renew(client, "alive", load=4)).status == 200
        await turn(client, clock, 1)
        await until_counted(client, 1)
        [shown] = await listed(client)
        assert (shown["id"], shown["verified"], shown["load"]) == ("alive", True, 4)
    async with start(relay_ttl=2.0) as client:
        assert [item["id"] for item in await listed(client)] == ["alive"]


async def test_watchers_see_relays_come_change_their_state_and_go(client: Any) -> None:
    uid = (await client.apply()).body["uid"]
    since = (await client("GET", "/v1/streams/$catalog")).body["revision"]
    await register(client, uid)
    await renew(client, load=1)
    await renew(client, load=2, lag=0.1)  # no change that is shown to them
    await client("DELETE", "/v1/relays/r1")
    found: list[Any] = []
    async with client.session.get(f"{client.url}/v1/watch", params={"since": since}) as response:
        while len(found) < 3:
            line = (await response.content.readline()).decode()
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
    assert [(item["kind"], item["op"], item["name"]) for item in found] == [
        ("relay", "put", "r1"),
        ("relay", "put", "r1"),
        ("relay", "delete", "r1"),
    ]
    assert [item["object"]["state"] for item in found[:2]] == ["waiting", "ready"]
    assert found[0]["object"]["stream"] == "demo/flights"


async def test_the_number_of_relays_is_bounded(start: Any) -> None:
    async with start(max_relays=1) as client:
        uid = (await client.apply()).body["uid"]
        await register(client, uid)
        refused = await register(client, uid, "r2")
        assert (refused.status, refused.code) == (503, "overloaded")
        assert (await register(client, uid)).status == 201


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("report.state", {"report": {"state": "asleep"}}),
        ("report.path", {"report": {"path": [f"r{index}" for index in range(9)]}}),
        ("report.filter", {"report": {"filter": "x" * 257}}),
        ("report.lag", {"report": {"lag": -1}}),
        ("capacity", {"capacity": -1}),
        ("addresses.requests", {"addresses": {"events": "tcp://r:1"}}),
        ("name", {"name": "clear\x1b[2J"}),
    ],
)
async def test_a_registration_that_cannot_be_is_refused_by_its_field(client: Any, path: str, wrong: Any) -> None:
    uid = (await client.apply()).body["uid"]
    refused = await register(client, uid, **wrong)
    assert (refused.status, refused.code) == (422, "invalid_request")
    assert [problem["path"] for problem in refused.body["problems"]] == [path]


async def test_renewals_go_on_while_the_database_is_locked(start: Any, tmp_path: Path) -> None:
    async with start(busy_timeout=0.05) as client:
        await register(client, (await client.apply()).body["uid"], report={"state": "ready"})
        stray = sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)
        stray.execute("BEGIN IMMEDIATE").close()
        assert (await renew(client, load=2)).status == 200
        assert (await renew(client, load=3, path=["hub-0"])).code == "store_unavailable"
        [shown] = await listed(client)
        assert (shown["load"], shown["path"]) == (3, [])
        stray.execute("ROLLBACK").close()
        stray.close()

"""Subscriptions: counted one by one, owned by who made them, withdrawn when nobody renews them."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal_catalog.domain.kinds.subscriptions import SUBSCRIPTIONS

STREAM = "/v1/streams/demo/flights"


async def subscribe(client: Any, uid: str, subscriber: str = "reader") -> Any:
    made = await client("POST", f"{STREAM}/subscriptions", {"subscriber": subscriber, "uid": uid})
    assert made.status == 201, made.body
    return made.body


async def renew(client: Any, made: Any, **report: Any) -> Any:
    return await client("PUT", f"/v1/subscriptions/{made['id']}", {"token": made["token"], **report})


async def count(client: Any) -> int:
    return int((await client("GET", STREAM)).body["subscriptions"])


async def turn(client: Any, clock: Any, seconds: float) -> None:
    """Turn the clock in steps that are no stall, with a sweep after each."""
    leases = client.server.catalog.state[SUBSCRIPTIONS].leases
    for _ in range(round(seconds / 0.5)):
        clock.now += 0.5
        async with asyncio.timeout(PATIENCE):
            while leases._last_sweep != clock.now:  # noqa: ASYNC110  # no event tells of a sweep
                await asyncio.sleep(0.01)


async def until_counted(client: Any, wanted: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(client.server.catalog.state[SUBSCRIPTIONS]) != wanted:  # noqa: ASYNC110  # a sweep tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.rule("S31")
async def test_two_subscriptions_of_one_reader_are_two(client: Any) -> None:
    uid = (await client.apply()).body["uid"]
    first, second = [await subscribe(client, uid, "same") for _ in range(2)]
    assert first["id"] != second["id"]
    assert await count(client) == 2
    assert (await client("DELETE", f"/v1/subscriptions/{first['id']}?token={first['token']}")).status == 204
    assert await count(client) == 1
    listed = (await client("GET", f"{STREAM}/subscriptions")).body["items"]
    assert [(item["id"], item["subscriber"]) for item in listed] == [(second["id"], "same")]


@pytest.mark.rule("S29")
async def test_only_who_made_a_subscription_can_renew_or_withdraw_it(client: Any) -> None:
    uid = (await client.apply()).body["uid"]
    mine, other = await subscribe(client, uid), await subscribe(client, uid)
    path = f"/v1/subscriptions/{mine['id']}"
    refused = [
        await client("PUT", path, {"token": other["token"]}),
        await client("DELETE", f"{path}?token={other['token']}"),
        await client("DELETE", f"{path}?token={mine['token'] + 1}"),
    ]
    assert [(answer.status, answer.code) for answer in refused] == [(409, "not_owner")] * 3
    unknown = await client("DELETE", f"/v1/subscriptions/nobody?token={mine['token']}")
    assert (unknown.status, unknown.code) == (404, "unknown_subscription")
    assert await count(client) == 2
    everything = [(await client("GET", path)).body for path in ("/v1/subscriptions", "/v1/streams", "/v1/publishers")]
    assert str(mine["token"]) not in str(everything)  # else anybody could


@pytest.mark.rule("S30")
async def test_a_subscription_that_is_not_renewed_is_withdrawn(start: Any, clock: Any) -> None:
    async with start(subscription_ttl=2.0, lease_ttl=100.0) as client:
        uid = (await client.apply()).body["uid"]
        gone, stays = await subscribe(client, uid), await subscribe(client, uid)
        await turn(client, clock, 1.5)
        report = {"lower": [7], "counters": {"gaps": 1}}
        assert (await renew(client, stays, **report)).body == {"ttl": 2.0}
        await turn(client, clock, 1)
        await until_counted(client, 1)
        assert await count(client) == 1
        lapsed = await renew(client, gone)
        assert (lapsed.status, lapsed.code) == (404, "unknown_subscription")
        [shown] = (await client("GET", "/v1/subscriptions")).body["items"]
        assert (shown["id"], shown["lower"], shown["counters"]) == (stays["id"], [7], {"gaps": 1})


@pytest.mark.rule("S30")
async def test_a_restart_keeps_subscriptions_and_gives_each_one_more_ttl(start: Any, clock: Any) -> None:
    async with start(subscription_ttl=2.0) as client:
        uid = (await client.apply()).body["uid"]
        alive, dead = await subscribe(client, uid), await subscribe(client, uid)
    clock.now += 3600
    async with start(subscription_ttl=2.0) as client:
        listed = (await client("GET", "/v1/subscriptions")).body["items"]
        assert {item["id"]: item["verified"] for item in listed} == {alive["id"]: False, dead["id"]: False}
        await turn(client, clock, 1.5)
        assert (await renew(client, alive)).status == 200
        await turn(client, clock, 1)
        await until_counted(client, 1)
        [shown] = (await client("GET", "/v1/subscriptions")).body["items"]
        assert (shown["id"], shown["verified"]) == (alive["id"], True)
    async with start(subscription_ttl=2.0) as client:
        assert await count(client) == 1  # the dead one is gone from the disk too


@pytest.mark.rule("S26", "S30")
async def test_a_deleted_stream_takes_its_subscriptions_along(start: Any) -> None:
    async with start() as client:
        uid = (await client.apply()).body["uid"]
        made = await subscribe(client, uid)
        await client("DELETE", STREAM)
        assert (await renew(client, made)).code == "unknown_subscription"
        assert (await client("POST", f"{STREAM}/subscriptions", {"subscriber": "r", "uid": uid})).status == 404
        await client.apply()
        anew = await client("POST", f"{STREAM}/subscriptions", {"subscriber": "r", "uid": uid})
        assert (anew.status, anew.code) == (410, "stream_gone")
    async with start() as client:
        assert (await client("GET", "/v1/subscriptions")).body["items"] == []


async def test_the_number_of_subscriptions_is_bounded(start: Any) -> None:
    async with start(max_subscriptions=1) as client:
        uid = (await client.apply()).body["uid"]
        await subscribe(client, uid)
        refused = await client("POST", f"{STREAM}/subscriptions", {"subscriber": "r", "uid": uid})
        assert (refused.status, refused.code) == (503, "overloaded")


async def test_a_frontier_of_another_shape_is_refused(client: Any) -> None:
    made = await subscribe(client, (await client.apply()).body["uid"])
    refused = await renew(client, made, lower=[[1, 2]])
    assert (refused.code, refused.body["problems"][0]["path"]) == ("invalid_request", "lower")


@pytest.mark.rule("S30")
async def test_renewals_go_on_while_the_database_is_locked(start: Any, tmp_path: Path) -> None:
    async with start(busy_timeout=0.05) as client:
        uid = (await client.apply()).body["uid"]
        made = await subscribe(client, uid)
        stray = sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)
        stray.execute("BEGIN IMMEDIATE").close()
        assert (await client.session_of("w")).code == "store_unavailable"
        assert (await renew(client, made)).status == 200
        stray.execute("ROLLBACK").close()
        stray.close()

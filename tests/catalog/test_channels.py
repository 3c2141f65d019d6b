"""The channels of a segment, as its publisher reports them and as the catalog shows them."""

from typing import Any

import pytest

CHANNEL = {"filter": "delay/ -delay/EWR", "subscribers": 3, "share": 0.25, "coarse": 1}
EVERYTHING = {"filter": "everything", "subscribers": 1, "share": 1.0, "coarse": 0}


@pytest.fixture
async def token(client: Any) -> int:
    uid = (await client.apply()).body["uid"]
    return int((await client.register("p", uid, "0")).body["token"])


async def shown(client: Any) -> Any:
    return (await client("GET", "/v1/streams/demo/flights")).body["segments"][0]["channels"]


async def test_channels_are_shown_as_they_were_reported_last(client: Any, token: int) -> None:
    assert await shown(client) == []
    await client.renew("p", token, s0={"incarnation": 1, "channels": [EVERYTHING, CHANNEL]})
    assert await shown(client) == [EVERYTHING, CHANNEL]
    await client.renew("p", token, s0={"incarnation": 1, "channels": [{**CHANNEL, "coarse": 0, "of a later": "x"}]})
    assert await shown(client) == [{**CHANNEL, "coarse": 0}]
    await client.renew("p", token, s0={"incarnation": 1, "counters": {"events": 1}})  # nobody subscribes any more
    assert await shown(client) == []


async def test_channels_go_with_their_publisher(client: Any, token: int) -> None:
    await client.renew("p", token, s0={"incarnation": 1, "channels": [CHANNEL]})
    await client("DELETE", "/v1/publishers/p", params={"token": str(token)})
    assert await shown(client) == []


@pytest.mark.parametrize(
    "channels",
    [[CHANNEL] * 65, [{**CHANNEL, "filter": "x" * 61}], [{**CHANNEL, "share": 1.5}], [{**CHANNEL, "subscribers": -1}]],
    ids=["too many", "a filter that is too long", "more than all", "fewer than none"],
)
async def test_what_a_publisher_says_of_channels_is_bounded(client: Any, token: int, channels: Any) -> None:
    answer = await client.renew("p", token, s0={"incarnation": 1, "channels": channels})
    assert answer.status == 422
    assert answer.body["problems"][0]["path"].startswith("segments.0.channels")


async def test_other_shares_are_a_change_for_those_who_watch(client: Any, token: int) -> None:
    report = {"incarnation": 1, "channels": [CHANNEL]}
    await client.renew("p", token, s0=report)
    revision = (await client("GET", "/v1/streams/demo/flights")).headers["Etag"]
    await client.renew("p", token, s0=report)
    assert (await client("GET", "/v1/streams/demo/flights")).headers["Etag"] == revision
    await client.renew("p", token, s0={**report, "channels": [{**CHANNEL, "share": 0.5}]})
    assert (await client("GET", "/v1/streams/demo/flights")).headers["Etag"] != revision

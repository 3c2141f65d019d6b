"""What holds time back: merged over segments, growing older, named in words and as a metric."""

from typing import Any

import pytest

from epochal.catalog_api.answers import Held
from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.requests import ReportedHolder, SegmentReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import EpochalError
from epochal.protocol.blockers import Holder, HolderKind


def holder(time: Any, writer: str | None, seconds: float, kind: str = "writer") -> dict[str, Any]:
    return {"time": time, "kind": kind, "writer": writer, "seconds": seconds, "silent": 0.5 if writer else None}


async def shown(client: Any) -> Any:
    return (await client("GET", "/v1/streams/demo/flights")).body


def brief(held: list[Any]) -> list[tuple[Any, ...]]:
    return [(item["segment"], item["time"], item["kind"], item["writer"], item["seconds"]) for item in held]


async def test_who_holds_the_least_time_of_all_segments_is_named_the_longest_first(client: Any, clock: Any) -> None:
    uid = (await client.apply(segments=2)).body["uid"]
    assert brief((await shown(client))["held_back"]) == [
        ("0", None, "no_publisher", None, None),
        ("1", None, "no_publisher", None, None),
    ]
    granted = (await client.register("p", uid, "0", "1")).body
    await client.renew(
        "p",
        granted["token"],
        s0={"incarnation": 1, "lower": [4], "holders": [holder(4, "w1", 10.0), holder(4, None, 20.0, "opening")]},
        s1={"incarnation": 1, "lower": [7], "holders": [holder(7, "w2", 99.0)]},
    )
    assert [segment["reported"] for segment in (await shown(client))["segments"]] == [0.0, 0.0]
    clock.now += 0.25
    stream = await shown(client)
    assert [segment["reported"] for segment in stream["segments"]] == [0.25, 0.25]
    assert brief(stream["held_back"]) == [
        ("0", 4, "opening", None, 20.25),
        ("0", 4, "writer", "w1", 10.25),
    ]
    assert stream["held_back"][1]["silent"] == 0.75
    assert stream["held_back"][1]["words"] == "segment 0 is at 4: writer w1 has held it for 10 s (last heard 0.8 s ago)"
    assert [item["writer"] for item in stream["segments"][1]["holders"]] == ["w2"]
    text = (await client("GET", "/metrics")).body.decode()
    line = next(line for line in text.splitlines() if line.startswith("epochal_stream_held_seconds{"))
    assert line.endswith(" 20.25")
    for label in ('namespace="demo"', 'name="flights"', 'segment="0"', 'writer=""'):
        assert label in line


async def test_in_a_partial_order_only_minimal_times_hold_back(client: Any) -> None:
    uid = (await client.apply(segments=2, time={"shape": "(int, int)"})).body["uid"]
    granted = (await client.register("p", uid, "0", "1")).body
    await client.renew(
        "p",
        granted["token"],
        s0={
            "incarnation": 1,
            "lower": [[0, 3], [2, 0]],
            "holders": [holder([0, 3], "a", 1.0), holder([2, 0], "b", 2.0)],
        },
        s1={
            "incarnation": 1,
            "lower": [[1, 1], [2, 0]],
            "holders": [holder([1, 1], "c", 3.0), holder([2, 0], "d", 4.0)],
        },
    )
    assert [item["writer"] for item in (await shown(client))["held_back"]] == ["d", "c", "b", "a"]
    await client.renew(
        "p", granted["token"], s1={"incarnation": 1, "lower": [[0, 0]], "holders": [holder([0, 0], "e", 1.0)]}
    )
    assert [item["writer"] for item in (await shown(client))["held_back"]] == ["e"]
    wrong = await client.renew("p", granted["token"], s0={"incarnation": 1, "holders": [holder(3, "a", 1.0)]})
    assert (wrong.code, wrong.body["problems"][0]["path"]) == ("invalid_request", "segments.0.holders")


@pytest.mark.rule("S30")
async def test_a_segment_that_lost_its_publisher_is_named_with_its_last_time(client: Any, clock: Any) -> None:
    uid = (await client.apply()).body["uid"]
    granted = (await client.register("p", uid)).body
    await client.renew("p", granted["token"], s0={"incarnation": 1, "lower": [4], "holders": [holder(4, "w", 1.0)]})
    leases = client.server.catalog.state.leases
    for _ in range(4):
        clock.now += 0.5
        leases.sweep(clock.now, stall=1.0)
    assert brief((await shown(client))["held_back"]) == [("0", 4, "no_publisher", None, 1.0)]
    [segment] = (await shown(client))["segments"]
    assert (segment["publisher"], segment["holders"], segment["reported"]) == (None, [], 2.0)
    await client.register("p", uid)
    [segment] = (await shown(client))["segments"]
    assert segment["reported"] is None


@pytest.mark.rule("E7")
async def test_nothing_holds_back_a_complete_stream(client: Any) -> None:
    uid = (await client.apply()).body["uid"]
    granted = (await client.register("p", uid)).body
    assert (await client.finish("p", granted, "0", 1)).body == {"complete": True}
    assert (await shown(client))["held_back"] == []


async def test_the_clients_reports_arrive_as_they_were_made(client: Any) -> None:
    uid = (await client.apply(time={"shape": "(int, int)"})).body["uid"]
    async with CatalogClient(client.url) as catalog:
        addresses = {"events": "tcp://h:1", "requests": "tcp://h:2", "ingest": "tcp://h:3"}
        asked: dict[str, Any] = {"instance": "i", "stream": "demo/flights", "uid": uid, "segments": ["0"]}
        granted = await catalog.register("p", **asked, addresses=addresses)
        assert await catalog.register("p", **asked, addresses=addresses) == granted  # the answer was lost
        assert (await catalog.register("p", **{**asked, "instance": "j"}, addresses=addresses)).token > granted.token
        held = [ReportedHolder.of(Holder((1, 2), HolderKind.RETURNING, "w", 5.0, 3.0))]
        newest = (await catalog.register("p", **{**asked, "instance": "k"}, addresses=addresses)).token
        await catalog.renew(
            "p", newest, {"0": SegmentReport(3, [(1, 2)], ["w"], counters={"appends": 1}, holders=held)}
        )
        stream = await catalog.get("demo", "flights")
        assert stream.held_back == (HeldBack("0", (1, 2), "returning", "w", 5.0, 3.0),)
        assert stream.segments[0].holders == (Held((1, 2), "returning", "w", 5.0, 3.0),)
        lease = await catalog.subscribed("demo", "flights", "me", uid)
        assert (await catalog.get("demo", "flights")).subscriptions == 1
        assert await catalog.renew_subscription(lease.id, lease.token, [(1, 0)], {"gaps": 2}) == lease.ttl
        [shown] = await catalog.subscriptions()
        assert (shown.subscriber, shown.lower, shown.counters) == ("me", ((1, 0),), {"gaps": 2})
        with pytest.raises(EpochalError) as refused:
            await catalog.unsubscribe(lease.id, lease.token + 1)
        assert refused.value.code == "not_owner"
        await catalog.unsubscribe(lease.id, lease.token)
        with pytest.raises(EpochalError) as refused:
            await catalog.renew_subscription(lease.id, lease.token)
        assert refused.value.code == "unknown_subscription"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("writer", "writer w has held it for 12 s (last heard 0.4 s ago)"),
        ("opening", "it has waited for 12 s until progress.minWriters writers have opened"),
        ("returning", "it has waited for 12 s for writer w to come back to the restarted publisher"),
        (
            "lost",
            "it has waited for 12 s for lost writer w (progress.whenLost: hold); start w again, or let it go with"
            " `epochal release`",
        ),
        ("parked", "it has had no writer for 12 s; the next that opens goes on from here"),
        ("finishing", "its writers have finished; it has waited for 12 s for the other segments to finish"),
        ("no_publisher", "it has had no publisher for 12 s"),
        ("unheard_of", "unheard_of for 12 s"),
    ],
)
def test_every_kind_has_its_words(kind: str, words: str) -> None:
    assert HeldBack("1", (3, 4), kind, "w", 12.0, 0.4).words == f"segment 1 is at (3, 4): {words}"

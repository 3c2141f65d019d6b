"""Lost writers that a stream waits for: who is named, and how one is let go (E46)."""

from typing import Any

import pytest

from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import EpochalError, StreamNotFound


class Held:
    """A stream of two segments with `whenLost: hold`, whose publisher reports whom it waits for."""

    def __init__(self, client: Any, uid: str, granted: Any) -> None:
        self.client, self.uid, self.granted = client, uid, granted

    @classmethod
    async def start(cls, client: Any) -> "Held":
        uid = (await client.apply(segments=2, progress={"whenLost": "hold"})).body["uid"]
        return cls(client, uid, (await client.register("p", uid, "0", "1")).body)

    async def report(self, *writers: str, **lost: str) -> Any:
        """A renewal in which each segment has these writers, and waits for the one named for it, or for none."""
        reports = {}
        for segment in self.granted["segments"]:
            key = f"s{segment['id']}"
            writer = lost.get(key)
            holder = {"time": 5, "kind": "lost", "writer": writer, "seconds": 3.0, "silent": 33.0}
            holders = [holder] if writer else []
            reports[key] = {"incarnation": segment["incarnation"], "lower": [5], "holders": holders}
            reports[key]["writers"] = writers
            reports[key]["counters"] = {"events": 1}
        return (await self.client.renew("p", self.granted["token"], **reports)).body

    async def release(self, writer: str, name: str = "flights") -> Any:
        return await self.client("POST", f"/v1/streams/demo/{name}/writers/{writer}/release")


@pytest.fixture
async def held(client: Any) -> Held:
    return await Held.start(client)


@pytest.mark.rule("E46")
async def test_the_release_of_a_writer_is_sent_to_every_publisher_of_the_stream_until_it_is_back(held: Held) -> None:
    session = (await held.client.session_of("w%2F1")).body["session"]
    assert (await held.report(s1="w/1"))["released"] == {}
    first = await held.release("w%2F1")
    assert (first.status, first.body) == (200, {"writer": "w/1", "session": session})
    assert (await held.report(s1="w/1"))["released"] == {"w/1": session}
    for _ in range(2):  # the first answer may be lost; nobody holds the least time for it
        assert (await held.report("v", "w/1"))["released"] == {"w/1": session}
    nothing = (await held.client.renew("p", held.granted["token"])).body
    assert nothing["released"] == {"w/1": session}, "by what the segments reported last"
    assert (await held.report("v"))["released"] == {}, "it has let go"
    assert (await held.report("v", "w/1"))["released"] == {"w/1": session}, "as an incarnation that waits for it again"
    revision = (await held.client("GET", "/v1/streams")).body["revision"]
    assert (await held.release("w%2F1")).body == first.body, "also when nothing waits for it any more"
    assert (await held.client("GET", "/v1/streams")).body["revision"] == revision
    await held.client.session_of("w%2F1")
    assert (await held.report("w/1"))["released"] == {}
    assert (await held.release("w%2F1")).code == "writer_not_lost"


@pytest.mark.rule("E46")
async def test_a_release_is_on_disk(start: Any) -> None:
    async with start() as client:
        held = await Held.start(client)
        session = (await client.session_of("w")).body["session"]
        await held.report(s0="w")
        assert (await held.release("w")).status == 200
    async with start() as client:
        held.client = client
        assert (await held.report("w"))["released"] == {"w": session}
        assert (await held.release("w")).body == {"writer": "w", "session": session}
        newer = (await client.session_of("w")).body
        assert (newer["session"] > session, newer["first"]) == (True, False)
    async with start() as client:
        held.client = client
        assert (await held.report("w"))["released"] == {}


@pytest.mark.rule("E46")
async def test_only_a_writer_that_is_waited_for_as_lost_is_released(held: Held, clock: Any) -> None:
    unknown = await held.release("w")
    assert (unknown.status, unknown.code) == (404, "writer_not_found")
    missing = await held.release("w", "nothing")
    assert (missing.status, missing.code) == (404, "stream_not_found")
    await held.client.session_of("w")
    await held.client.session_of("v")
    before = await held.release("w")  # nothing was reported yet
    assert (before.status, before.code, before.body["retryable"]) == (409, "writer_not_lost", False)
    assert "a publisher reports within a second" in before.body["detail"]
    await held.report(s0="v")
    other = await held.release("w")
    assert other.code == "writer_not_lost"
    assert "segment 0 waits for v" in other.body["detail"]
    clock.now += 0.5
    await held.client.session_of("v")  # it is back; its publisher has not reported that yet
    assert (await held.release("v")).code == "writer_not_lost"
    clock.now += 0.5
    await held.report(s0="v")  # and was lost again
    assert (await held.release("v")).status == 200


@pytest.mark.rule("E46")
async def test_a_stream_that_lets_lost_writers_go_by_itself_says_so(client: Any) -> None:
    await client.apply()
    await client.session_of("w")
    refused = await client("POST", "/v1/streams/demo/flights/writers/w/release")
    assert refused.code == "writer_not_lost"
    assert "none ever does with progress.whenLost: release" in refused.body["detail"]


@pytest.mark.rule("E46")
async def test_a_stream_that_is_created_again_knows_of_no_release(held: Held) -> None:
    await held.client.session_of("w")
    await held.report(s0="w")
    await held.release("w")
    await held.client("DELETE", "/v1/streams/demo/flights")
    anew = await Held.start(held.client)
    assert (await anew.report("w"))["released"] == {}
    assert (await anew.release("w")).code == "writer_not_found"


@pytest.mark.rule("E46")
async def test_a_writer_that_was_released_and_forgotten_is_not_released_when_it_comes_again(held: Held) -> None:
    session = (await held.client.session_of("w")).body["session"]
    await held.report(s0="w")
    assert (await held.release("w")).status == 200
    path = "/v1/streams/demo/flights/writers/w"
    assert (await held.client("DELETE", path, params={"session": str(session)})).status == 204
    assert (await held.report(s0="w"))["released"] == {}


@pytest.mark.rule("E46")
async def test_every_lost_writer_is_named_also_beyond_the_least_times_and_counted(held: Held) -> None:
    incarnations = {segment["id"]: segment["incarnation"] for segment in held.granted["segments"]}
    holders = [
        {"time": 4, "kind": "writer", "writer": "w", "seconds": 1.0, "silent": 0.0},
        {"time": 9, "kind": "lost", "writer": "gone", "seconds": 60.0, "silent": 90.0},
    ]
    await held.client.renew(
        "p", held.granted["token"], s0={"incarnation": incarnations["0"], "lower": [4], "holders": holders},
        s1={"incarnation": incarnations["1"], "lower": [4], "holders": []},
    )  # fmt: skip
    async with CatalogClient(held.client.url) as catalog:
        stream = await catalog.get("demo", "flights")
    assert [(item.kind, item.writer) for item in stream.held_back] == [("lost", "gone"), ("writer", "w")]
    assert stream.held_back[0].words.startswith("segment 0 is at 9: it has waited for 1m00s for lost w")
    text = (await held.client("GET", "/metrics")).body.decode()
    [line] = [line for line in text.splitlines() if line.startswith("epochal_stream_writers_lost{")]
    assert line.endswith(" 1.0")
    await held.report()
    text = (await held.client("GET", "/metrics")).body.decode()
    [line] = [line for line in text.splitlines() if line.startswith("epochal_stream_writers_lost{")]
    assert line.endswith(" 0.0")


@pytest.mark.rule("E46")
async def test_the_client_releases_and_reads_what_is_released(held: Held) -> None:
    async with CatalogClient(held.client.url) as catalog:
        session = await catalog.session("demo", "flights", "jobs/q 1")
        with pytest.raises(EpochalError) as refused:
            await catalog.release("demo", "flights", "jobs/q 1")
        assert refused.value.code == "writer_not_lost"
        await held.report(s0="jobs/q 1")
        assert await catalog.release("demo", "flights", "jobs/q 1") == session.number
        await held.report("jobs/q 1")
        assert (await catalog.renew("p", held.granted["token"], {})).released == {"jobs/q 1": session.number}
        with pytest.raises(StreamNotFound):
            await catalog.release("demo", "nothing", "w")

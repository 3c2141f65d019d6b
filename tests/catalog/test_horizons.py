"""The record of a segment: its frontier and horizon, stored together and in order, for the next incarnation."""

from typing import Any

import pytest

from epochal.catalog_api.requests import SegmentReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import EpochalError
from epochal_catalog.domain.kind import Renewed
from epochal_catalog.domain.stream_entries import STREAMS, HorizonRecorded, SegmentRecord

ADDRESSES = {"events": "tcp://h:1", "requests": "tcp://h:2", "ingest": "tcp://h:3"}


class Publisher:
    """Registers for segment 0, and reports records of it."""

    def __init__(self, client: Any, granted: Any) -> None:
        self.client, self.granted = client, granted
        self.segment = granted["segments"][0]

    @classmethod
    async def start(cls, client: Any, uid: str, name: str = "p") -> "Publisher":
        return cls(client, (await client.register(name, uid)).body)

    async def report(self, **report: Any) -> Any:
        return await self.client.renew(
            "p", self.granted["token"], s0={"incarnation": self.segment["incarnation"], **report}
        )

    async def kept(self) -> tuple[Any, Any]:
        """The frontier and the horizon that a next incarnation is given; this one is superseded."""
        self.granted = (await self.client.register("p", (await shown(self.client))["uid"])).body
        self.segment = self.granted["segments"][0]
        return self.segment["lower"], self.segment["horizon"]


async def shown(client: Any) -> Any:
    return (await client("GET", "/v1/streams/demo/flights")).body


async def publisher(client: Any, shape: str = "int") -> Publisher:
    return await Publisher.start(client, (await client.apply(time={"shape": shape})).body["uid"])


@pytest.mark.rule("E11")
async def test_a_record_is_stored_whole_and_handed_to_the_next_incarnation(start: Any) -> None:
    async with start() as client:
        one = await publisher(client, "(int, int)")
        assert (one.segment["lower"], one.segment["horizon"], one.segment["marks"]) == (None, None, [])
        answer = await one.report(
            number=0, lower=[[0, 0]], writers=["w"], horizon=[[3, 0], [1, 0], [0, 5], [3, 0]], marks=["opened:w"]
        )
        assert answer.body["recorded"] == {"0": 0}
        kept = client.server.catalog.state[STREAMS].stream("demo", "flights").segments["0"]
        assert kept.horizon == [[3, 0], [0, 5]]  # the maximal ones say it all
    async with start() as client:
        again = Publisher(client, one.granted)
        assert (await again.report(number=0, lower=[[9, 9]], horizon=[])).body["recorded"] == {"0": 0}
        kept = client.server.catalog.state[STREAMS].stream("demo", "flights").segments["0"]
        assert (kept.writers, kept.marks) == (("w",), ("opened:w",)), "late, and nothing of it counts"
        moved = await again.report(
            number=1, lower=[[0, 0]], horizon=[[4, 0], [0, 5]], marks=["finished", "opened:w", "of a later version"]
        )
        assert moved.body["recorded"] == {"0": 1}
    async with start() as client:
        again = Publisher(client, one.granted)
        assert (await again.report(number=1, lower=[[9, 9]], horizon=[])).body["recorded"] == {"0": 1}
        assert await again.kept() == ([[0, 0]], [[4, 0], [0, 5]])  # also the one in which only the horizon moved
        assert again.segment["writers"] == ["w"]
        assert again.segment["marks"] == ["finished", "opened:w", "of a later version"]


@pytest.mark.rule("E11")
async def test_a_record_that_was_overtaken_changes_nothing_but_the_rest_of_the_renewal_counts(client: Any) -> None:
    one = await publisher(client)
    assert (await one.report(number=7, lower=[4], writers=["w"], horizon=[6])).body["recorded"] == {"0": 7}
    holder = {"time": 4, "kind": "writer", "writer": "w", "seconds": 1.0, "silent": 0.0}
    for number in (7, 6, 0):
        late = await one.report(
            number=number, lower=[1], writers=[], horizon=[2], counters={"events": number}, holders=[holder]
        )
        assert (late.status, late.body["recorded"]) == (200, {"0": 7})
        [segment] = (await shown(client))["segments"]
        assert (segment["lower"], segment["counters"]) == ([4], {"events": number})
        assert [item["writer"] for item in segment["holders"]] == ["w"]
    assert await one.kept() == ([4], [6])
    assert (await one.report(number=0, lower=[4], horizon=[6])).body["recorded"] == {"0": 0}  # counts anew


@pytest.mark.rule("E11")
async def test_a_horizon_only_grows_but_for_what_the_frontier_has_passed(client: Any) -> None:
    one = await publisher(client, "(int, int)")
    await one.report(number=0, lower=[[0, 0]], horizon=[[3, 0], [0, 5]])
    shrunk = await one.report(number=1, lower=[[0, 0]], horizon=[[3, 2]])
    assert (shrunk.status, shrunk.code, shrunk.body["problems"][0]["path"]) == (
        422,
        "invalid_request",
        "segments.0.horizon",
    )
    assert "[0, 5]" in shrunk.body["problems"][0]["reason"]
    assert (await one.report(number=1, horizon=[[3, 2]])).status == 422  # by the frontier that is stored
    assert (await one.report(number=1, lower=[[1, 0]], horizon=[[3, 2]])).status == 200  # (0, 5) is passed
    assert (await one.report(number=2, lower=[[1, 0]], horizon=[])).status == 422
    assert (await one.report(number=2, lower=[[1, 0]], horizon=[[2, 2]], final=True)).status == 200
    assert (await one.report(number=3, lower=[], horizon=[])).status == 200
    assert await one.kept() == ([], [])


@pytest.mark.rule("E11")
@pytest.mark.parametrize(
    ("report", "path"),
    [
        ({"number": 1, "lower": [3]}, "segments.0.horizon"),
        ({"number": 0, "lower": [3]}, "segments.0.horizon"),  # late, and wrong all the same
        ({"number": 1, "lower": [3], "horizon": None}, "segments.0.horizon"),
        ({"number": 1, "lower": [3], "horizon": [[1, 2]]}, "segments.0.horizon"),
        ({"number": 1, "lower": [[3]], "horizon": [4]}, "segments.0.lower"),
        ({"number": 1, "lower": [3], "horizon": list(range(1025))}, "segments.0.horizon"),
        ({"number": -1, "lower": [3], "horizon": [4]}, "segments.0.number"),
    ],
)
async def test_a_record_that_is_none_is_refused_by_name_and_changes_nothing(
    client: Any, report: dict[str, Any], path: str
) -> None:
    one = await publisher(client)
    await one.report(number=0, lower=[2], writers=["w"], horizon=[4])
    refused = await one.report(**report)
    assert (refused.status, refused.code) == (422, "invalid_request")
    assert [item["path"] for item in refused.body["problems"]] == [path]
    assert await one.kept() == ([2], [4])


@pytest.mark.rule("E11", "E12")
async def test_a_superseded_publisher_writes_no_horizon(client: Any) -> None:
    one = await publisher(client)
    await one.report(number=0, lower=[2], horizon=[4])
    new = Publisher(client, (await client.register("q", (await shown(client))["uid"])).body)
    refused = await one.report(number=1, lower=[3], horizon=[9])
    assert (refused.status, refused.code) == (409, "superseded")
    assert (new.segment["lower"], new.segment["horizon"]) == ([2], [4])
    assert await new.kept() == ([2], [4])


@pytest.mark.rule("E11")
async def test_a_report_of_the_old_form_makes_the_horizon_unknown(client: Any) -> None:
    one = await publisher(client)
    await one.report(number=0, lower=[2], horizon=[4])
    assert (await one.report()).body["recorded"] == {"0": 0}  # says nothing, and takes nothing back
    assert await one.kept() == ([2], [4])
    await one.report(lower=[3], writers=["w"])
    assert await one.kept() == ([3], None)
    assert (await one.report(number=0, lower=[3], horizon=[])).status == 200  # unknown holds nothing down
    assert await one.kept() == ([3], [])


@pytest.mark.rule("E11")
async def test_a_stream_that_is_created_again_begins_without_a_horizon(client: Any) -> None:
    one = await publisher(client)
    await one.report(number=0, lower=[2], horizon=[4])
    await client("DELETE", "/v1/streams/demo/flights")
    assert (await one.report(number=1, lower=[2], horizon=[5])).code == "stream_gone"
    two = await publisher(client)
    assert (two.segment["lower"], two.segment["horizon"]) == (None, None)


@pytest.mark.rule("E11")
async def test_a_horizon_by_itself_is_on_disk_and_shown_to_no_one(client: Any) -> None:
    one = await publisher(client)
    await one.report(number=0, lower=[2], horizon=[4])
    listed = await client("GET", "/v1/streams")
    written: list[Any] = []
    write = client.server.catalog._store.write

    async def seen(changes: Any) -> None:
        written.extend(changes)
        await write(changes)

    client.server.catalog._store.write = seen
    assert (await one.report(number=1, lower=[2], horizon=[9])).body["recorded"] == {"0": 1}
    assert [type(change) for change in written if not isinstance(change, Renewed)] == [HorizonRecorded]
    again = await client("GET", "/v1/streams", headers={"If-None-Match": listed.headers["Etag"]})
    assert again.status == 304
    assert (await client("GET", "/v1/streams")).body["revision"] == listed.body["revision"]
    assert (await one.report(number=2, lower=[2], horizon=[9], marks=["enough"])).body["recorded"] == {"0": 2}
    assert [type(change) for change in written if not isinstance(change, Renewed)] == [HorizonRecorded] * 2
    await one.report(number=3, lower=[3], horizon=[9], marks=["enough"])
    assert [type(change) for change in written if isinstance(change, SegmentRecord)] == [SegmentRecord]
    changed = await client("GET", "/v1/streams", headers={"If-None-Match": listed.headers["Etag"]})
    assert (changed.status, changed.body["revision"]) == (200, listed.body["revision"] + 1)
    assert await one.kept() == ([3], [9])


@pytest.mark.rule("E6", "E11")
async def test_a_registration_returns_the_newest_session_of_each_writer_that_came_back(client: Any) -> None:
    uid = (await client.apply()).body["uid"]
    sessions = {writer: (await client.session_of(writer)).body["session"] for writer in ("once", "twice", "twice")}
    granted = (await client.register("p", uid)).body
    assert granted["sessions"] == {"twice": sessions["twice"]}


@pytest.mark.rule("E11")
async def test_the_client_reports_records_and_reads_what_is_kept(client: Any) -> None:
    uid = (await client.apply(time={"shape": "(int, int)"})).body["uid"]
    async with CatalogClient(client.url) as catalog:
        asked: dict[str, Any] = {"stream": "demo/flights", "uid": uid, "segments": ["0"], "addresses": ADDRESSES}
        granted = await catalog.register("p", instance="i", **asked)
        assert (granted.sessions, granted.segments[0].horizon) == ({}, None)
        incarnation = granted.segments[0].incarnation
        report = SegmentReport(incarnation, [(0, 0)], ["w"], number=3, horizon=[(1, 2), (2, 0)])
        assert (await catalog.renew("p", granted.token, {"0": report})).recorded == {"0": 3}
        shrunk = SegmentReport(incarnation, [(0, 0)], ["w"], number=4, horizon=[(1, 2)])
        with pytest.raises(EpochalError) as refused:
            await catalog.renew("p", granted.token, {"0": shrunk})
        assert refused.value.code == "invalid_request"
        last = SegmentReport(incarnation, [(0, 0)], ["w"], number=4, horizon=[(1, 2)], final=True)
        assert (await catalog.renew("p", granted.token, {"0": last})).recorded == {"0": 4}
        assert (await catalog.register("p", instance="j", **asked)).segments[0].horizon == ((1, 2),)

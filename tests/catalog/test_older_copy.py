"""An older copy of the database, put back as docs/catalog.md says: no number is given out a second time."""

import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from epochal.client.catalog.catalog import CatalogClient
from epochal_catalog.domain.kinds.sessions import open_session
from epochal_catalog.domain.noun import Call

OPEN: Call[None] = Call(None, {"namespace": "demo", "name": "flights", "writer": "w"}, {}, "now", "", 0)
"""A writer asks for a session."""


class Numbers:
    """Everything that a catalog gives a number to, done once; what it gave."""

    def __init__(self) -> None:
        self.given: dict[str, list[int]] = {"token": [], "incarnation": [], "session": [], "revision": []}

    async def give(self, client: Any) -> None:
        uid = (await client.apply()).body["uid"]
        granted = (await client.register("p", uid)).body
        self.given["token"].append(granted["token"])
        self.given["incarnation"].append(granted["segments"][0]["incarnation"])
        self.given["session"].append((await client.session_of("w")).body["session"])
        self.given["revision"].append((await client("GET", "/v1/streams/$catalog")).body["revision"])


def copy(source: Path, target: Path) -> None:
    """What `sqlite3 SOURCE ".backup TARGET"` does."""
    target.unlink(missing_ok=True)
    with sqlite3.connect(source) as here, sqlite3.connect(target) as there:
        here.backup(there)
    here.close()
    there.close()


def put_back(data: Path, saved: Path) -> None:
    for name in ("catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"):
        (data / name).unlink(missing_ok=True)
    saved.rename(data / "catalog.sqlite")


@pytest.mark.rule("E12")
async def test_an_older_copy_gives_no_number_out_twice(start: Any, tmp_path: Path, wall: Any) -> None:
    data, saved, numbers = tmp_path / "data", tmp_path / "copy.sqlite", Numbers()
    data.mkdir()
    wall.now = 1.8e9
    async with start(data=data) as client:
        await numbers.give(client)
        copy(data / "catalog.sqlite", saved)
        wall.now += 1
        await numbers.give(client)
        await numbers.give(client)
    wall.now += 1
    put_back(data, saved)
    async with start(data=data) as client:
        await numbers.give(client)
    for kind, given in numbers.given.items():
        assert given == sorted(set(given)), f"{kind}: {given}"
        assert given[-1] < 2**53, "as every JSON reader knows it"


@pytest.mark.rule("E11", "E12")
async def test_publishers_that_outlive_a_copy_renew_or_are_to_register_again_and_none_is_superseded(
    start: Any, tmp_path: Path, wall: Any
) -> None:
    """A superseded one leaves a mark and never starts again: only who lost its segments may be told so."""
    data, saved = tmp_path / "data", tmp_path / "copy.sqlite"
    data.mkdir()
    wall.now = 1.8e9
    async with start(data=data) as client:
        uid = (await client.apply(segments=3)).body["uid"]
        stays, again = [(await client.register(name, uid, key)).body for name, key in (("stays", "0"), ("again", "1"))]
        copy(data / "catalog.sqlite", saved)
        wall.now += 1
        again, late = [(await client.register(name, uid, key)).body for name, key in (("again", "1"), ("late", "2"))]
    wall.now += 1
    put_back(data, saved)

    def report(granted: Any) -> Any:
        [segment] = granted["segments"]
        return {f"s{segment['id']}": {"incarnation": segment["incarnation"], "number": 0, "lower": [3], "horizon": [4]}}

    async with start(data=data) as client:
        for name, granted in (("again", again), ("late", late)):
            refused = await client.renew(name, granted["token"], **report(granted))
            assert (refused.status, refused.code) == (404, "unknown_publisher")
            left = await client("DELETE", f"/v1/publishers/{name}?token={granted['token']}")
            assert left.code == "unknown_publisher"
        assert "older copy; register again" in (await client.renew("again", again["token"])).body["detail"]
        assert (await client.renew("stays", stays["token"], **report(stays))).body["recorded"] == {"0": 0}
        new = (await client.register("again", uid, "1")).body
        assert new["token"] > again["token"]
        assert new["segments"][0]["incarnation"] > again["segments"][0]["incarnation"]
        assert (await client.renew("again", again["token"])).code == "superseded"


@pytest.mark.rule("S26", "E12")
async def test_a_watcher_of_the_lost_past_is_refused_and_not_led_on_over_the_hole(
    start: Any, tmp_path: Path, wall: Any
) -> None:
    data, saved, numbers = tmp_path / "data", tmp_path / "copy.sqlite", Numbers()
    data.mkdir()
    wall.now = 1.8e9
    async with start(data=data) as client:
        await numbers.give(client)
        copy(data / "catalog.sqlite", saved)
        await numbers.give(client)
    put_back(data, saved)
    wall.now += 60
    async with start(data=data) as client:
        await numbers.give(client)
        before, lost, now = numbers.given["revision"]
        assert before < lost < now
        for path in (f"/v1/streams/$catalog?since={lost}", f"/v1/watch?since={lost}"):
            refused = await client("GET", path)
            assert (refused.status, refused.code) == (409, "revision_ahead")
        assert (await client("GET", f"/v1/streams/$catalog?since={before}")).status == 200
        async with CatalogClient(client.url) as catalog:
            assert [(await catalog.listing(known)).follows for known in (before, lost, now)] == [True, False, True]


@pytest.mark.rule("E12")
async def test_a_clock_that_is_set_back_by_a_day_turns_no_number_back(start: Any, wall: Any) -> None:
    numbers = Numbers()
    wall.now = 1.8e9
    async with start() as client:
        await numbers.give(client)
        wall.now -= 86_400
        await numbers.give(client)
    async with start() as client:
        await numbers.give(client)
        wall.now += 2 * 86_400
        await numbers.give(client)
    for kind, given in numbers.given.items():
        assert given == sorted(set(given)), kind
        steps = [later - earlier for earlier, later in pairwise(given)]
        assert max(steps[:2]) < 10, "it goes on from the last"
        assert steps[2] > 80_000_000 << 10, "until the clock has come past it"


@pytest.mark.rule("E12")
async def test_a_volume_that_is_ahead_of_the_clock_is_gone_on_from(client: Any, wall: Any) -> None:
    wall.now = 1.8e9
    ahead = 1_900_000_000_000 << 10
    body = {
        "publisher": "p",
        "instance": "i",
        "stream": "demo/flights",
        "segments": ["0"],
        "incarnations": {"0": ahead},
    }
    body |= {"uid": (await client.apply()).body["uid"], "addresses": {"events": "t", "requests": "t", "ingest": "t"}}
    granted = (await client("POST", "/v1/publishers", body)).body
    assert granted["segments"][0]["incarnation"] == ahead + 1


async def test_more_numbers_than_a_millisecond_has_room_for_run_ahead_of_the_clock(client: Any, wall: Any) -> None:
    await client.apply()
    wall.now = 1.8e9
    catalog = client.server.catalog

    def opening(at: int) -> Any:
        return catalog.submit(lambda rules: open_session(rules, OPEN))

    numbers = [(await opening(at)).number for at in range(1100)]
    assert numbers == list(range(1_800_000_000_000 << 10, (1_800_000_000_000 << 10) + 1100))


@pytest.mark.rule("E6")
async def test_which_session_is_a_writers_first_is_said_and_not_read_off_its_number(start: Any, wall: Any) -> None:
    wall.now = 1.8e9
    async with start() as client:
        uid = (await client.apply()).body["uid"]
        assert [(await client.session_of("w")).body["first"] for _ in range(2)] == [True, False]
        assert (await client.session_of("v")).body["first"]
    async with start() as client:
        newest = (await client.session_of("w")).body
        assert not newest["first"]
        assert (await client.register("p", uid)).body["sessions"] == {"w": newest["session"]}

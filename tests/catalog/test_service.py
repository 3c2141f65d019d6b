"""Leases and restarts of a whole catalog, under a clock that the test turns."""

import asyncio
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.catalog_api.requests import SegmentReport
from epochal_catalog.domain.kinds.publishers import Renewing, UnknownPublisher
from epochal_catalog.domain.kinds.sessions import open_session
from epochal_catalog.domain.noun import Call
from epochal_catalog.domain.stream_entries import SegmentRecord

OPEN: Call[None] = Call(None, {"namespace": "demo", "name": "flights", "writer": "w"}, {}, "now", "", 0)
"""A writer asks for a session."""


async def publisher_of(client: Any) -> Any:
    return (await client("GET", "/v1/streams/demo/flights")).body["segments"][0]["publisher"]


async def turn(client: Any, clock: Any, seconds: float) -> None:
    """Turn the clock in steps that are no stall, with a sweep after each."""
    leases = client.server.catalog.state.leases
    for _ in range(round(seconds / 0.5)):
        clock.now += 0.5
        async with asyncio.timeout(PATIENCE):
            while leases._last_sweep != clock.now:  # noqa: ASYNC110  # no event tells of a sweep
                await asyncio.sleep(0.01)


@pytest.mark.rule("E12", "S30")
async def test_a_lapsed_lease_withdraws_the_address_and_a_renewal_brings_it_back(client: Any, clock: Any) -> None:
    uid = (await client.apply()).body["uid"]
    token = (await client.register("p", uid)).body["token"]
    waiting = asyncio.create_task(client.lookup())
    assert (await waiting).status == 200
    await turn(client, clock, 1.5)
    assert await publisher_of(client) is None
    assert (await client.lookup()).code == "no_publisher"
    waiting = asyncio.create_task(client.lookup(wait="60"))
    assert (await client.renew("p", token)).status == 200
    assert (await asyncio.wait_for(waiting, PATIENCE)).body["segments"][0]["publisher"]["token"] == token


@pytest.mark.rule("E6", "E7", "E11")
async def test_a_restart_grants_every_lease_one_more_ttl(start: Any, clock: Any) -> None:
    async with start() as client:
        uid = (await client.apply()).body["uid"]
        granted = (await client.register("p", uid)).body
        await client.session_of("w")
        await client.renew("p", granted["token"], s0={"incarnation": 1, "lower": [4], "writers": ["w"]})
        assert (await client.finish("p", granted, "0", 1)).body == {"complete": True}
    clock.now += 3600
    async with start() as client:
        shown = await publisher_of(client)
        assert (shown["token"], shown["verified"]) == (granted["token"], False)
        found = (await client.lookup()).body
        assert (found["stream"]["phase"], found["segments"][0]["lower"]) == ("Complete", [4])
        assert (await client.session_of("w")).code == "stream_complete"
        await turn(client, clock, 1.5)
        assert await publisher_of(client) is None
        assert (await client.renew("p", granted["token"])).body["complete"]
        assert (await publisher_of(client))["verified"]


async def test_a_superseded_registration_is_forgotten_after_a_while(start: Any, clock: Any) -> None:
    async with start(forget_after=1.0) as client:
        uid = (await client.apply()).body["uid"]
        old = (await client.register("old", uid)).body["token"]
        await client.register("new", uid)
        assert (await client.renew("old", old)).code == "superseded"
        await turn(client, clock, 2.5)
        await client("GET", "/readyz")
        async with asyncio.timeout(PATIENCE):
            while len((await client("GET", "/v1/publishers")).body["items"]) != 1:
                pass
        assert (await client.renew("old", old)).code == "unknown_publisher"


@pytest.mark.rule("E12")
async def test_a_lapsed_publisher_that_was_not_superseded_is_never_forgotten(start: Any, clock: Any) -> None:
    async with start(forget_after=0.0) as client:
        uid = (await client.apply()).body["uid"]
        token = (await client.register("p", uid)).body["token"]
        await turn(client, clock, 3)
        assert (await client.renew("p", token)).status == 200


async def test_a_write_goes_on_when_its_client_goes_away(client: Any) -> None:
    catalog = client.server.catalog
    await client.apply()
    write = catalog.submit(lambda rules: open_session(rules, OPEN))
    task = asyncio.create_task(write)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await client.session_of("w")).body["session"] == 2


async def test_memory_that_cannot_follow_the_disk_stops_the_catalog(client: Any, monkeypatch: Any) -> None:
    catalog = client.server.catalog
    await client.apply()
    monkeypatch.setattr(catalog.state, "commit", lambda *_: 1 / 0)
    assert (await client.session_of("w")).status == 500
    assert catalog.broken.is_set()
    assert (await client.session_of("w")).code == "shutting_down"
    assert (await client("GET", "/readyz")).status == 503


@pytest.mark.rule("E11", "E12")
async def test_renewals_that_wait_together_share_a_transaction_and_nothing_else(client: Any) -> None:
    catalog = client.server.catalog
    uid = (await client.apply(segments=20)).body["uid"]
    tokens = [(await client.register(f"p{at}", uid, str(at))).body["token"] for at in range(20)]
    written: list[int] = []
    write = catalog._store.write

    async def counted(changes: Any) -> None:
        written.append(sum(isinstance(change, SegmentRecord) for change in changes))
        await write(changes)

    catalog._store.write = counted

    def renewing(at: int, lower: int, token: int) -> Any:
        return catalog.renew(Renewing(f"p{at}", token, {str(at): SegmentReport(1, [lower])}))

    first = [renewing(at, at, tokens[at] + 1000 * (at == 7)) for at in range(20)]
    again = [renewing(at, 100, tokens[at]) for at in range(3)]
    answers = await asyncio.gather(*first, *again, client.session_of("w"), return_exceptions=True)
    assert [at for at, answer in enumerate(answers) if isinstance(answer, Exception)] == [7]
    assert isinstance(answers[7], UnknownPublisher)
    assert (written[:2], sum(written)) == ([19, 3], 22)
    shown = (await client("GET", "/v1/streams/demo/flights")).body["segments"]
    assert [segment["lower"] for segment in shown[:9]] == [
        [100], [100], [100], [3], [4], [5], [6], None, [8]
    ]  # fmt: skip
    watched, _ = catalog.state.history.read(0, 1 << 20)
    revisions = [int(line.split()[1]) for line in watched.decode().splitlines() if line.startswith("id:")]
    assert revisions == sorted(set(revisions))


@pytest.mark.rule("E11")
async def test_a_report_is_shown_while_the_disk_stands_still_and_the_record_with_it_waits(client: Any) -> None:
    catalog = client.server.catalog
    token = (await client.register("p", (await client.apply()).body["uid"])).body["token"]
    asked, goes_on = asyncio.Event(), asyncio.Event()
    write = catalog._store.write

    async def held(changes: Any) -> None:
        asked.set()
        await goes_on.wait()
        await write(changes)

    async def shown() -> Any:
        [segment] = (await client("GET", "/v1/streams/demo/flights")).body["segments"]
        return segment["lower"], segment["counters"]

    def renewing(events: int) -> Any:
        return catalog.renew(Renewing("p", token, {"0": SegmentReport(1, [7], counters={"events": events})}))

    catalog._store.write = held
    first = asyncio.create_task(renewing(3))
    await asyncio.wait_for(asked.wait(), PATIENCE)
    try:
        assert await shown() == (None, {"events": 3})
        second = asyncio.create_task(renewing(4))
        await asyncio.sleep(0)  # it runs until it waits
        assert await shown() == (None, {"events": 4})
        assert (first.done(), second.done()) == (False, False)
    finally:
        goes_on.set()
    await asyncio.wait_for(asyncio.gather(first, second), PATIENCE)
    assert await shown() == ([7], {"events": 4})

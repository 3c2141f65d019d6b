"""What a decision read, and that it is made again when that has changed while it waited for its turn.

The order of all steps is fixed: a write decides before its first pause, and the disk goes on when the test says so.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.catalog_api.publishers import Completion
from epochal.catalog_api.requests import (
    Addresses,
    Finishing,
    Register,
    RenewSubscription,
    ReportedHolder,
    SegmentReport,
    Subscribe,
)
from epochal.catalog_api.subscriptions import SubscriptionRenewed
from epochal.resources.manifest import StreamManifest
from epochal.service.errors import Overloaded
from epochal_catalog.domain.decisions import Decision, Rules
from epochal_catalog.domain.kinds import KINDS, publishers, sessions, streams, subscriptions
from epochal_catalog.domain.kinds.publishers import Renewing
from epochal_catalog.domain.kinds.sessions import WriterNotLost
from epochal_catalog.domain.noun import Call
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS
from epochal_catalog.runtime.settings import CatalogSettings

WRITER: Call[None] = Call(None, {"namespace": "demo", "name": "flights", "writer": "w"}, {}, "now", "", 0)
"""A request about the writer w of demo/flights."""


class Counted:
    """A rule, with how often it has decided."""

    def __init__(self, rule: Callable[[Rules], Decision[Any]]) -> None:
        self.rule = rule
        self.times = 0

    def __call__(self, rules: Rules) -> Decision[Any]:
        self.times += 1
        return self.rule(rules)


@asynccontextmanager
async def disk_stands_still(catalog: Any) -> AsyncIterator[None]:
    """Until the end of this block the first write does not come back from the disk, and all others wait for it."""
    asked, goes_on = asyncio.Event(), asyncio.Event()
    write = catalog._store.write

    async def held(changes: Any) -> None:
        asked.set()
        await goes_on.wait()
        await write(changes)

    catalog._store.write = held
    try:
        first = await begun(catalog.submit(lambda rules: streams.apply(rules, manifest("demo/first"), "first", "now")))
        await asyncio.wait_for(asked.wait(), PATIENCE)
        yield
    finally:
        goes_on.set()
        catalog._store.write = write
    await asyncio.wait_for(first, PATIENCE)


async def begun(write: Awaitable[Any]) -> "asyncio.Task[Any]":
    """The write, once it is decided and waits."""

    async def run() -> Any:
        return await write

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    return task


def manifest(qualified: str) -> StreamManifest:
    namespace, _, name = qualified.partition("/")
    return StreamManifest.from_document(
        {
            "apiVersion": "epochal.dev/v1alpha1",
            "kind": "Stream",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}},
        }
    )


@pytest.mark.rule("E6")
async def test_two_sessions_that_were_decided_on_the_same_state_get_two_numbers(client: Any) -> None:
    catalog = client.server.catalog
    await client.apply()
    rules = [Counted(lambda rules: sessions.open_session(rules, WRITER)) for _ in range(2)]
    answers = await asyncio.gather(*map(catalog.submit, rules))
    assert answers[0].number < answers[1].number
    assert [(answer.first, answer.before) for answer in answers] == [(True, None), (False, answers[0].number)]
    assert [rule.times for rule in rules] == [1, 2]


@pytest.mark.rule("E12")
async def test_two_registrations_that_were_decided_on_the_same_state_get_two_tokens(client: Any) -> None:
    uid = (await client.apply(segments=2)).body["uid"]
    nowhere = Addresses("", "", "")
    asked = [Register(f"p{at}", "i", "demo/flights", uid, [at], nowhere) for at in "01"]
    calls = [Call(each, {}, {}, "now", "", 0) for each in asked]
    rules = [Counted(partial(publishers.register, call=call)) for call in calls]
    granted = await asyncio.gather(*map(client.server.catalog.submit, rules))
    assert granted[0].token < granted[1].token
    assert [rule.times for rule in rules] == [1, 2]


@pytest.mark.rule("E7")
async def test_two_last_segments_that_finish_at_once_complete_the_stream(client: Any) -> None:
    uid = (await client.apply(segments=2)).body["uid"]
    rules = []
    for key in "01":
        granted = (await client.register(f"p{key}", uid, key)).body
        mark = Finishing(f"p{key}", granted["token"], granted["segments"][0]["incarnation"], 1, True)
        call = Call(mark, {"namespace": "demo", "name": "flights", "segment": key}, {}, "now", "", 0)
        rules.append(Counted(partial(publishers.finish, call=call)))
    answers = await asyncio.gather(*map(client.server.catalog.submit, rules))
    assert answers == [Completion(False), Completion(True)]
    assert [rule.times for rule in rules] == [1, 2]


async def test_a_stream_that_was_absent_when_it_was_declared_twice_is_declared_once(client: Any) -> None:
    catalog = client.server.catalog
    rules = [Counted(partial(streams.apply, manifest=manifest("demo/s"), uid=uid, at="now")) for uid in "uv"]
    answers = await asyncio.gather(*map(catalog.submit, rules))
    assert [(entry.record.uid, created) for entry, created in answers] == [("u", True), ("u", False)]
    assert [rule.times for rule in rules] == [1, 2]


@pytest.mark.rule("S31")
async def test_a_limit_that_had_room_for_one_is_not_exceeded_by_two(start: Any) -> None:
    async with start(max_subscriptions=1) as client:
        uid = (await client.apply()).body["uid"]
        stream = {"namespace": "demo", "name": "flights"}
        calls = [Call(Subscribe("r", uid), stream, {}, "now", key, 1) for key in "ab"]
        rules = [Counted(partial(subscriptions.subscribe, call=call)) for call in calls]
        _, refused = await asyncio.gather(*map(client.server.catalog.submit, rules), return_exceptions=True)
        assert isinstance(refused, Overloaded)
        [shown] = (await client("GET", "/v1/subscriptions")).body["items"]
        assert shown["id"] == "a"


@pytest.mark.rule("E46")
async def test_a_writer_that_came_back_while_its_release_waited_for_the_disk_is_not_released(client: Any) -> None:
    catalog = client.server.catalog
    token = (await client.register("p", (await client.apply()).body["uid"])).body["token"]
    await client.session_of("w")
    lost = SegmentReport(1, counters={"events": 1}, holders=[ReportedHolder(3, "lost", "w", 1.0, 2.0)])
    back = SegmentReport(1, counters={"events": 2})
    await catalog.renew(Renewing("p", token, {"0": lost}))
    rule = Counted(lambda rules: sessions.release(rules, WRITER))
    async with disk_stands_still(catalog):
        release = await begun(catalog.submit(rule))
        assert (rule.times, release.done()) == (1, False)
        renewal = await begun(catalog.renew(Renewing("p", token, {"0": back})))
    with pytest.raises(WriterNotLost):
        await asyncio.wait_for(release, PATIENCE)
    await asyncio.wait_for(renewal, PATIENCE)
    assert rule.times == 2
    assert (await client.renew("p", token)).body["released"] == {}


async def test_what_is_not_stored_waits_for_no_disk(client: Any) -> None:
    catalog = client.server.catalog
    uid = (await client.apply()).body["uid"]
    asked = Call(Subscribe("r", uid), {"namespace": "demo", "name": "flights"}, {}, "now", "a", 1)
    await catalog.submit(lambda rules: subscriptions.subscribe(rules, asked))
    renewal = Call(RenewSubscription(1, [4]), {"subscription": "a"}, {}, "now", "", 0)
    async with disk_stands_still(catalog):
        renewing = catalog.submit(lambda rules: subscriptions.renew(rules, renewal))
        assert await asyncio.wait_for(renewing, PATIENCE) == SubscriptionRenewed(30.0)
        [shown] = (await client("GET", "/v1/subscriptions")).body["items"]
        assert shown["lower"] == [4]


@pytest.mark.rule("E11")
async def test_renewals_of_other_publishers_do_not_make_a_renewal_decide_again(client: Any) -> None:
    catalog = client.server.catalog
    uid = (await client.apply(segments=3)).body["uid"]
    tokens = [(await client.register(f"p{at}", uid, str(at))).body["token"] for at in range(3)]

    def renewing(at: int, lower: int) -> Renewing:
        return Renewing(f"p{at}", tokens[at], {str(at): SegmentReport(1, [lower], counters={"events": lower})})

    rule = Counted(lambda rules: publishers.renew(rules, renewing(0, 5)))
    async with disk_stands_still(catalog):
        others = [await begun(catalog.renew(renewing(at, 7))) for at in (1, 2)]
        own = await begun(catalog.submit(rule))
    await asyncio.wait_for(asyncio.gather(*others, own), PATIENCE)
    assert rule.times == 1
    shown = (await client("GET", "/v1/streams/demo/flights")).body["segments"]
    assert [segment["lower"] for segment in shown] == [[5], [7], [7]]


def test_a_decision_names_what_it_read_and_what_it_did_not_find() -> None:
    state = CatalogState(KINDS, CatalogSettings())
    decision = Rules(state).decide(lambda rules: streams.apply(rules, manifest("demo/a"), "u", "now"))
    assert decision.reads == {("stream", "name", "demo/a"): None}
    assert state.holds(decision.reads)
    state.commit(decision.changes, 0.0)
    assert not state.holds(decision.reads)
    record = state[STREAMS].stream("demo", "a").record
    opened = Call(None, {"namespace": "demo", "name": "a", "writer": "w"}, {}, "now", "", 0)
    session = Rules(state).decide(lambda rules: sessions.open_session(rules, opened))
    assert session.reads == {("stream", "name", "demo/a"): record, ("session",): 0}
    assert state.reading.during(len, "") == (0, set()), "reads are noted only while a rule decides"

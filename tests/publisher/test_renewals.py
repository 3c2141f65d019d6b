"""Renewals of one process: one request, in which each lease is judged by itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.patience import PATIENCE

from epochal.catalog_api.answers import Renewal
from epochal.catalog_api.requests import MOST_TOGETHER, SegmentReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import CatalogUnavailable, StreamGone, Superseded
from epochal_publisher.segments.renewals import MOST_AT_ONCE, SharedRenewals

RENEWED = {"ttl": 10.0, "complete": False, "recorded": {}, "released": {}}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def problem(status: int, code: str) -> dict[str, Any]:
    return {
        "type": f"urn:epochal:problem:{code}", "title": code, "status": status, "detail": f"it is {code}",
        "code": code, "retryable": False,
    }  # fmt: skip


class Catalog:
    """Answers renewals as a test says, and notes each request: whose leases, and how many bytes."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.sizes: list[int] = []
        self.refuses: str | None = None
        self.of: dict[str, tuple[int, str]] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked: asyncio.Queue[Sequence[str]] = asyncio.Queue()

    async def together(self, request: web.Request) -> web.Response:
        if self.refuses is not None:
            return web.json_response(problem(422, self.refuses), status=422)
        body = await request.read()
        self.sizes.append(len(body))
        names = [lease["publisher"] for lease in json.loads(body)["leases"]]
        await self._note(names)
        wrong = {name: problem(*self.of[name]) for name in names if name in self.of}
        items = [{"renewed": None if name in wrong else RENEWED, "problem": wrong.get(name)} for name in names]
        return web.json_response({"items": items})

    async def alone(self, request: web.Request) -> web.Response:
        name = request.match_info["publisher"]
        await self._note([name])
        if name in self.of:
            return web.json_response(problem(*self.of[name]), status=self.of[name][0])
        return web.json_response(RENEWED)

    async def _note(self, names: Sequence[str]) -> None:
        self.requests.append(sorted(names))
        self.asked.put_nowait(names)
        await self.may_answer.wait()


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


@asynccontextmanager
async def serving(catalog: Catalog) -> AsyncIterator[SharedRenewals]:
    app = web.Application(client_max_size=2**20)
    app.router.add_put("/v1/publishers", catalog.together)
    app.router.add_put("/v1/publishers/{publisher}", catalog.alone)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with CatalogClient(url, patience=0.0, timeout=PATIENCE) as client, asyncio.timeout(PATIENCE):
            renewals = SharedRenewals(client)
            yield renewals
            await renewals.close()
    finally:
        await runner.cleanup()


def ask(renewals: SharedRenewals, *publishers: str, urgent: bool = False, **report: Any) -> list[asyncio.Task[Renewal]]:
    reports = {"0": SegmentReport(1, **report)}
    return [asyncio.ensure_future(renewals.renew(each, 7, reports, urgent=urgent)) for each in publishers]


NAMES = [f"p{number:03}" for number in range(100)]


async def test_all_leases_of_a_process_are_one_request(catalog: Catalog) -> None:
    async with serving(catalog) as renewals:
        answers = await asyncio.gather(*ask(renewals, *NAMES))
    assert catalog.requests == [NAMES]
    assert {answer.ttl for answer in answers} == {10.0}


@pytest.mark.rule("E12")
async def test_a_lease_that_is_lost_is_lost_alone(catalog: Catalog) -> None:
    catalog.of = {"p003": (409, "superseded"), "p050": (410, "stream_gone"), "p099": (503, "overloaded")}
    async with serving(catalog) as renewals:
        answers = await asyncio.gather(*ask(renewals, *NAMES), return_exceptions=True)
    errors = {at: type(each) for at, each in enumerate(answers) if not isinstance(each, Renewal)}
    assert errors == {3: Superseded, 50: StreamGone, 99: CatalogUnavailable}
    assert catalog.requests == [NAMES]


async def test_where_all_are_refused_together_each_is_judged_by_itself(catalog: Catalog) -> None:
    catalog.refuses, catalog.of = "invalid_request", {"p001": (422, "invalid_request")}
    async with serving(catalog) as renewals:
        answers = await asyncio.gather(*ask(renewals, *NAMES[:3]), return_exceptions=True)
    assert [getattr(each, "code", "renewed") for each in answers] == ["renewed", "invalid_request", "renewed"]


async def test_while_requests_are_under_way_others_gather_and_none_overtakes_its_own(catalog: Catalog) -> None:
    catalog.may_answer.clear()
    async with serving(catalog) as renewals:
        asked = list[asyncio.Task[Renewal]]()
        for name in ("a", "b"):
            asked += ask(renewals, name, urgent=True)
            await catalog.asked.get()
        assert len(catalog.requests) == MOST_AT_ONCE
        asked += ask(renewals, "c", "d", "a", urgent=True)
        await asyncio.sleep(0.05)
        assert len(catalog.requests) == MOST_AT_ONCE
        catalog.may_answer.set()
        await asyncio.gather(*asked)
        assert catalog.requests[:2] == [["a"], ["b"]]
        assert sorted(name for names in catalog.requests[2:] for name in names) == ["a", "c", "d"]


async def test_of_one_lease_there_is_one_request_at_a_time_in_order(catalog: Catalog) -> None:
    catalog.may_answer.clear()
    async with serving(catalog) as renewals:
        first = ask(renewals, "a", urgent=True)
        await catalog.asked.get()
        second = ask(renewals, "a", urgent=True)
        await asyncio.sleep(0.05)
        assert catalog.requests == [["a"]], "the reports of a lease come to the catalog as they were made"
        catalog.may_answer.set()
        await asyncio.gather(*first, *second)
        assert catalog.requests == [["a"], ["a"]]


async def test_what_its_stream_no_longer_waits_for_is_not_sent(catalog: Catalog) -> None:
    catalog.may_answer.clear()
    async with serving(catalog) as renewals:
        asked = ask(renewals, "a", urgent=True)
        await catalog.asked.get()
        (stopped,) = ask(renewals, "a", urgent=True)
        await asyncio.sleep(0.05)
        stopped.cancel()
        catalog.may_answer.set()
        await asyncio.gather(*asked)
        await asyncio.gather(*ask(renewals, "b", urgent=True))
        assert catalog.requests == [["a"], ["b"]]


async def test_a_request_is_never_larger_than_a_catalog_takes(catalog: Catalog) -> None:
    writers = [f"writer-{number:04}" for number in range(1000)]
    async with serving(catalog) as renewals:
        await asyncio.gather(*ask(renewals, *NAMES, writers=writers, lower=[1]))
        assert max(catalog.sizes) < 2**20
        catalog.requests, many = [], [f"q{number}" for number in range(3 * MOST_TOGETHER)]
        await asyncio.gather(*ask(renewals, *many))
    assert [len(names) for names in catalog.requests] == [MOST_TOGETHER] * 3


async def test_a_catalog_that_is_away_is_away_for_all() -> None:
    async with CatalogClient("http://127.0.0.1:9", patience=0.0) as client:
        renewals = SharedRenewals(client)
        answers = await asyncio.gather(*ask(renewals, "a", "b"), return_exceptions=True)
    assert [type(each) for each in answers] == [CatalogUnavailable] * 2
    assert answers[0] is not answers[1]


def test_all_leases_are_due_at_the_same_beats() -> None:
    assert {SharedRenewals.next_beat(100.0 + at / 10, 1.0) for at in range(10)} == {101.0}
    assert SharedRenewals.next_beat(101.0, 1.0) == 102.0

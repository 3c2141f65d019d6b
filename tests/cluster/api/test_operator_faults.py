"""Watches that lie, an API server in trouble, and two operators at once (faults 34 to 40 and 44)."""

import asyncio
import itertools
import json
import time
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from tests.cluster.api.api_proxy import api_proxy
from tests.cluster.api.sandbox import Catalog, Operator, Sandbox, eventually, scrape

STORAGE: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}
LEASE_LOST, WATCH_ENDED = 3, 4


async def test_events_that_are_lost_are_made_good_by_lists(sandbox: Sandbox) -> None:
    async with api_proxy(sandbox.api) as proxy:
        proxy.keep_event = lambda event: event["type"] == "BOOKMARK"
        operator = sandbox.operator(url=proxy.url, resync=1)
        await operator.start()
        await sandbox.declare()
        await sandbox.is_ready()
        pod = (await sandbox.children())["Pod", "flights-1"]
        await sandbox.lose(pod)
        await sandbox.is_made_anew(pod)
        await sandbox.is_ready()
        await sandbox.delete()
        await sandbox.is_gone()
        assert await operator.counted("epochal_operator_watch_missed_total") > 0


async def test_a_watch_that_died_silently_is_opened_again(sandbox: Sandbox) -> None:
    async with api_proxy(sandbox.api) as proxy:
        operator = sandbox.operator(url=proxy.url, resync=3600, watch_silence=2, catalog_interval=3600)
        await operator.start()
        await sandbox.declare()
        await sandbox.is_ready()
        proxy.kill_watches()
        opened, told = len(proxy.watches), await operator.counted("epochal_operator_watch_events_total", '"Pod"')
        pod = (await sandbox.children())["Pod", "flights-1"]
        await sandbox.lose(pod)
        await sandbox.is_made_anew(pod)
        await sandbox.is_ready()
        assert any("/pods" in path for path in proxy.watches[opened:])
        assert await operator.counted("epochal_operator_watch_events_total", '"Pod"') > told


async def test_watches_that_ask_for_too_old_a_version_begin_again_and_nothing_is_written(sandbox: Sandbox) -> None:
    async with api_proxy(sandbox.api) as proxy:
        operator = sandbox.operator(url=proxy.url, resync=3600, catalog_interval=3600)
        await operator.start()
        await sandbox.declare(**STORAGE)
        await sandbox.is_ready()
        watched, written = len(proxy.watches), len(proxy.writes)
        await proxy.expire_watches()

        async def look() -> bool:
            return {path.rpartition("/")[2] for path in proxy.watches[watched:]} >= {"streams", "pods", "services"}

        await eventually(look)
        await sandbox.change(progress={"minWriters": 2})
        await sandbox.is_ready()
        names = [name for name, _, state in sandbox.node.diary if state == "new"]
        assert sorted(names) == ["flights-0", "flights-0", "flights-1", "flights-1"], (
            "once at first, once by the change"
        )
        unchanged = ("serviceaccounts", "services", "persistentvolumeclaims", "poddisruptionbudgets", "networkpolicies")
        assert not [write for write in proxy.writes[written:] if any(f"/{kind}" in write for kind in unchanged)]


async def test_events_that_come_again_and_late_change_nothing(sandbox: Sandbox) -> None:
    async with api_proxy(sandbox.api) as proxy:
        seen: list[dict[str, Any]] = []

        def keep(event: dict[str, Any]) -> bool:
            seen.append(event)
            if event["type"] == "DELETED" and event["object"]["kind"] == "Pod":
                event["type"] = "MODIFIED"
            return True

        proxy.keep_event = keep
        await sandbox.operator(url=proxy.url, resync=1).start()
        await sandbox.declare()
        await sandbox.is_ready()
        for _ in range(3):
            pod = (await sandbox.children())["Pod", "flights-0"]
            await sandbox.lose(pod)
            await sandbox.is_made_anew(pod)
        await sandbox.is_ready()
        assert seen


async def test_an_old_list_deletes_nothing_newer_and_forgets_no_stream(sandbox: Sandbox) -> None:
    """An operator that is shown the past: a stream of a name that has another by now, and its old pods."""
    async with api_proxy(sandbox.api) as proxy:
        past: dict[str, bytes] = {}
        stale = False

        async def before(request: web.Request, body: bytes) -> web.Response | None:
            if request.method != "GET" or "limit=" not in request.query_string or "watch" in request.query_string:
                return None
            if stale and request.path in past:
                return web.Response(body=past[request.path], content_type="application/json")
            return None

        proxy.before = before
        operator = sandbox.operator(url=proxy.url)
        await operator.start()
        await sandbox.declare()
        await sandbox.is_ready()
        await operator.stop()
        for path in ("/apis/epochal.dev/v1alpha1/namespaces/{}/streams", "/api/v1/namespaces/{}/pods"):
            path = path.format(sandbox.namespace)
            past[path] = (await scrape(f"{proxy.url}{path}?limit=500")).encode()
        await operator.start()
        await sandbox.delete()
        await sandbox.is_gone()
        await sandbox.declare()
        new = await sandbox.is_ready()
        await operator.kill()
        before_all = {place: item["metadata"]["uid"] for place, item in (await sandbox.children()).items()}
        stale = True
        proxy.keep_event = lambda event: False
        await operator.start()
        await operator.has_looked(4)
        assert {place: item["metadata"]["uid"] for place, item in (await sandbox.children()).items()} == before_all
        assert await sandbox.at_the_catalog() == new["status"]["catalogUid"]
        stale = False
        await sandbox.is_ready()


async def test_an_api_server_that_wants_rest_gets_it(sandbox: Sandbox) -> None:
    async with api_proxy(sandbox.api) as proxy:
        trouble, retry_after = True, itertools.cycle(({"Retry-After": "2"}, {}))

        async def before(request: web.Request, body: bytes) -> web.Response | None:
            if "/leases" in request.path or not trouble:
                return None
            status = {"kind": "Status", "status": "Failure", "code": 429, "message": "later", "details": {}}
            return web.Response(
                status=429, headers=next(retry_after), body=json.dumps(status).encode(), content_type="application/json"
            )

        operator = sandbox.operator(url=proxy.url, resync=1)
        await operator.start()
        await sandbox.declare("first", 1)
        await sandbox.is_ready("first")

        async def refused() -> float:
            return await operator.counted("epochal_operator_kubernetes_requests_total", '"429"')

        async def reach(count: float) -> None:
            async def look() -> bool:
                return await refused() >= count

            await eventually(look)

        proxy.before = before
        await sandbox.declare("second", 1)
        await reach(2)  # those that were under way when it began are refused as well
        first, began = await refused(), time.monotonic()
        await reach(first + 3)
        assert await refused() - first <= 1 + time.monotonic() - began, "at most one request a second"
        trouble = False
        await sandbox.is_ready("second")


@pytest.mark.parametrize(
    ("status", "which"), [(503, "lists and watches"), (403, "lists and watches"), (503, "watches")]
)
async def test_a_kind_that_cannot_be_watched_for_a_while_is_watched_again(
    sandbox: Sandbox, status: int, which: str
) -> None:
    async with api_proxy(sandbox.api) as proxy:
        refused: list[str] = []
        trouble = False

        async def before(request: web.Request, body: bytes) -> web.Response | None:
            watches = "watch=true" in request.query_string
            one = request.method == "GET" and request.path.endswith("/pods")
            if not trouble or not one or not (watches or which != "watches"):
                return None
            refused.append("watch" if watches else "list")
            answer = {"kind": "Status", "status": "Failure", "code": status, "message": "pods are not to be had"}
            return web.json_response(answer, status=status)

        proxy.before = before
        operator = sandbox.operator(url=proxy.url, resync=1)
        await operator.start()
        await sandbox.declare()
        await sandbox.is_ready()
        process, trouble = operator.process, True
        await proxy.expire_watches()

        async def told() -> bool:
            return f"pods cannot be watched: {status} " in operator.log.read_text()

        await eventually(told)
        await sandbox.declare("meanwhile", 1)  # which the lists tell

        async def has_pod() -> bool:
            return ("Pod", "meanwhile-0") in await sandbox.children("meanwhile")

        await eventually(has_pod)
        rounds = len(refused)

        async def again() -> bool:
            return len(refused) >= rounds + 4

        await eventually(again)
        trouble, watched = False, len(proxy.watches)

        async def watched_again() -> bool:
            return any(path.endswith("/pods") for path in proxy.watches[watched:])

        await eventually(watched_again)
        await sandbox.change(progress={"minWriters": 2})
        await sandbox.is_ready()
        await sandbox.is_ready("meanwhile")
        assert operator.process == process
        assert operator.log.read_text().count("pods cannot be watched") == 1, "each reason is logged once"


async def test_an_operator_whose_watches_end_ends_too_and_goes_on_when_it_is_started_again(sandbox: Sandbox) -> None:
    async with api_proxy(sandbox.api) as proxy:
        trouble = False

        async def before(request: web.Request, body: bytes) -> web.Response | None:
            if not trouble or "watch=true" not in request.query_string or not request.path.endswith("/pods"):
                return None
            return web.json_response({"kind": "Status", "status": "Failure", "code": 404}, status=404)

        proxy.before = before
        sandbox.expected_errors.append("stopping: pods cannot be watched: 404")
        operator = sandbox.operator(url=proxy.url, resync=3600)
        await operator.start()
        await sandbox.declare()
        await sandbox.is_ready()
        trouble = True
        await proxy.expire_watches()
        assert await operator.ended() == WATCH_ENDED
        assert "stopping: pods cannot be watched: 404 " in operator.log.read_text()
        await sandbox.declare("meanwhile", 1)
        trouble = False
        await operator.start()
        await sandbox.is_ready("meanwhile")
        await sandbox.is_ready()


async def test_a_create_that_was_done_although_its_answer_was_lost(sandbox: Sandbox) -> None:
    async with api_proxy(sandbox.api) as proxy:
        lost: list[str] = []

        async def after(request: web.Request, body: bytes) -> None:
            if request.method in ("POST", "PATCH") and "/leases" not in request.path and "/status" not in request.path:
                place = f"{request.path}{json.loads(body)['metadata'].get('name', '')}"
                if place not in lost:
                    lost.append(place)
                    assert request.transport is not None
                    request.transport.abort()

        proxy.after = after
        await sandbox.operator(url=proxy.url).start()
        await sandbox.declare(**STORAGE)
        await sandbox.is_ready()
        assert len(lost) >= 9
        names = [(name, uid) for name, uid, state in sandbox.node.diary if state == "new"]
        assert len(names) == 2, "no pod was made twice"


async def test_of_two_operators_one_acts_and_the_other_takes_over(sandbox: Sandbox) -> None:
    first, second = sandbox.operator(lease_duration=6), sandbox.operator(lease_duration=6)
    await first.start()
    await second.start(wait=False)
    await sandbox.declare()
    await sandbox.is_ready()

    async def stands_by() -> bool:
        return "another operator acts; waiting" in second.log.read_text()

    await eventually(stands_by)
    assert "this operator acts" not in second.log.read_text()
    await first.kill()
    await sandbox.declare("later", 1)
    await sandbox.is_ready("later")
    assert "this operator acts: operator-1" in second.log.read_text()


async def test_two_operators_that_know_nothing_of_each_other_do_no_harm(sandbox: Sandbox) -> None:
    """Both hold the same lease, as they believe: versions and uids in every write keep them from undoing each other."""
    async with api_proxy(sandbox.api) as proxy:
        lease: dict[str, Any] = {}

        async def before(request: web.Request, body: bytes) -> web.Response | None:
            if "/leases" not in request.path:
                return None
            if request.method != "GET":
                lease.update(json.loads(body))
            missing = {"kind": "Status", "code": 404, "details": {"name": "epochal-operator"}}
            return web.json_response(lease or missing, status=200 if lease else 404)

        proxy.before = before
        operators = [sandbox.operator(), sandbox.operator(url=proxy.url)]
        declare = partial(sandbox.declare, segments=4, **STORAGE)
        change = partial(sandbox.change, progress={"minWriters": 2})
        await declare()  # both begin with a list of it
        await asyncio.gather(*(operator.start() for operator in operators))

        async def both_watch() -> bool:
            return all(
                [await operator.counted("epochal_operator_watch_events_total", '"Stream"') for operator in operators]
            )

        await eventually(both_watch)  # one that begins later could find all done by the other
        await sandbox.is_ready()
        for act, has_effect in (
            (change, sandbox.is_ready),
            (sandbox.delete, sandbox.is_gone),
            (declare, sandbox.is_ready),
            (change, sandbox.is_ready),
            (sandbox.delete, sandbox.is_gone),
        ):
            looks = [await operator.looks() for operator in operators]
            await act()
            await has_effect()
            for operator, before_it in zip(operators, looks, strict=True):
                await operator.has_looked(1, since=before_it)
        living: dict[str, str] = {}
        for name, uid, state in sandbox.node.diary:
            if state == "gone":
                living.pop(name, None)
            else:
                assert living.setdefault(name, uid) == uid


async def writes(operator: Operator) -> float:
    name = "epochal_operator_kubernetes_requests_total"
    return sum([await operator.counted(name, f'"{method}"') for method in ("POST", "PATCH", "PUT", "DELETE")])


async def test_a_stream_of_another_operator_is_left_alone_until_it_is_released(sandbox: Sandbox) -> None:
    """As two releases in one cluster are: each with a lease and a catalog of its own."""
    other = Catalog(sandbox.directory, "other")
    await other.start()
    try:
        first = sandbox.operator(lease_name="first")
        await first.start()
        await sandbox.declare("gone")
        await sandbox.is_ready("gone")
        await sandbox.declare()
        ready = await sandbox.is_ready()
        second = sandbox.operator(lease_name="second", catalog=other.url, resync=0.5)
        await second.start()

        async def left_alone() -> bool:
            return await second.counted("epochal_operator_streams_foreign") == 2

        await eventually(left_alone)
        pods = {name: item for (kind, name), item in (await sandbox.children()).items() if kind == "Pod"}
        lost = pods["flights-1"]["metadata"]["uid"]
        await sandbox.api.delete(pods["flights-1"], {"uid": lost})

        async def replaced() -> bool:
            found = (await sandbox.children()).get(("Pod", "flights-1"))
            return found is not None and found["metadata"]["uid"] != lost

        await eventually(replaced)
        again = await sandbox.is_ready()
        assert again["status"]["catalogUid"] == ready["status"]["catalogUid"]
        names = [name for name, _, state in sandbox.node.diary if state == "new" and name.startswith("flights")]
        assert sorted(names) == ["flights-0", "flights-1", "flights-1"], "made twice is only what was deleted"
        await sandbox.delete("gone")
        await sandbox.is_gone("gone")
        whose = f"{sandbox.namespace}/first"
        assert second.log.read_text().count(f"flights is left alone: the operator {whose} looks after it") == 1
        await first.stop()
        claimed = (await sandbox.stream() or {})["metadata"]["annotations"]["epochal.dev/operator"]
        assert (claimed, await writes(second)) == (whose, 0)
        release = sandbox.program("epochal_operator", "release", "--settle", "1", "--operator", whose)
        assert "released 1 streams" in await release

        async def taken_over() -> bool:
            stream = await sandbox.stream()
            assert stream is not None
            return stream.get("status", {}).get("catalogUid") != ready["status"]["catalogUid"]

        await eventually(taken_over)
        await sandbox.is_ready()
        assert await second.counted("epochal_operator_streams_foreign") == 0
        assert await sandbox.at_the_catalog() == ready["status"]["catalogUid"], "the first one's catalog keeps it"
    finally:
        await other.stop()


@pytest.mark.parametrize("how", ["taken", "unreachable"])
async def test_an_operator_that_loses_its_lease_ends(sandbox: Sandbox, how: str) -> None:
    async with api_proxy(sandbox.api) as proxy:
        away = False
        sandbox.expected_errors.append("stopping: the lease")

        async def before(request: web.Request, body: bytes) -> web.Response | None:
            return web.Response(status=503) if away and "/leases" in request.path else None

        proxy.before = before
        operator = sandbox.operator(url=proxy.url)
        await operator.start()
        if how == "taken":
            lease = await sandbox.api.get("Lease", sandbox.namespace, "epochal-operator")
            assert lease is not None
            spec = {**lease["spec"], "holderIdentity": "another", "leaseTransitions": 7}
            await take(sandbox, spec)
        else:
            away = True
        assert await operator.ended() == LEASE_LOST
        assert "stopping: the lease" in operator.log.read_text()


async def take(sandbox: Sandbox, spec: dict[str, Any]) -> None:
    async def look() -> bool:
        lease = await sandbox.api.get("Lease", sandbox.namespace, "epochal-operator")
        assert lease is not None
        try:
            await sandbox.api.replace({**lease, "spec": {**lease["spec"], **spec}})
        except Exception:
            return False
        return True

    await eventually(look)

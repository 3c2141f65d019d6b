"""The operator is killed between any two writes, and the next one ends where an undisturbed one would (fault 33)."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from tests.cluster.api.api_proxy import ApiProxy, api_proxy
from tests.cluster.api.sandbox import Process, Sandbox, eventually
from tests.patience import PATIENCE

from epochal.kube.api import ApiError

STORAGE: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}
QUICK = {"resync": 1, "lease_duration": 120}
"""An operator that is started again has the name of the one that was killed, and waits for no lease; and one whose API
server has no processor for some seconds does not end, for which these tests would wait in vain."""
MOST = 40
"""More writes than one story has; the last one that did not kill ends it."""
MOST_STEPS = 30
"""For ten kills."""


async def shape(sandbox: Sandbox, name: str) -> dict[Any, Any]:
    """What there is of a stream, without what differs from one to the next."""
    uid = str(await sandbox.at_the_catalog(name))

    def bare(value: Any) -> Any:
        counted = {"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "lastTransitionTime"}
        counted |= {"epochal.dev/catalog-uid", "epochal.dev/template-hash"}
        if isinstance(value, dict):
            return {key: bare(inner) for key, inner in value.items() if key not in counted}
        if isinstance(value, list):
            return [bare(item) for item in value]
        return value.replace(name, "NAME").replace(uid, "UID") if isinstance(value, str) else value

    return {
        "stream": bare(await sandbox.stream(name)),
        **{
            f"{kind} {child.replace(name, 'NAME')}": [bare(item["metadata"]), bare(item.get("spec"))]
            for (kind, child), item in (await sandbox.children(name)).items()
        },
    }


class Killer:
    """Kills the operator at a write about one stream: before it reaches the API server, or before it is answered."""

    def __init__(self, proxy: ApiProxy, *, answered: bool) -> None:
        self._proxy, self._answered = proxy, answered
        self.count = 0
        self.killed = asyncio.Event()
        self._at, self._about = 0, ""
        self._operator: Process | None = None
        proxy.before, proxy.after = self._before, self._after

    def aim(self, operator: Process, about: str, at: int) -> None:
        """Kill this operator at write number `at` about the stream `about`; at none for 0."""
        self._operator, self._about, self._at, self.count = operator, about, at, 0
        if at:
            self.killed.clear()

    def has_killed(self, operator: Process) -> bool:
        """Whether this operator was killed since it was last aimed at."""
        return self._operator is operator and self.killed.is_set()

    def _is_about(self, request: web.Request, body: bytes) -> bool:
        write = request.method != "GET" and "/leases" not in request.path
        return bool(write and self._about and (self._about in request.path or self._about.encode() in body))

    async def _before(self, request: web.Request, body: bytes) -> web.Response | None:
        if self._is_about(request, body):
            self.count += 1
            if self.count == self._at and not self._answered:
                await self._kill()
                return web.Response(status=500)
        return None

    async def _after(self, request: web.Request, body: bytes) -> None:
        if self._is_about(request, body) and self.count == self._at and self._answered:
            await self._kill()

    async def _kill(self) -> None:
        assert self._operator is not None
        assert self._operator.child is not None
        self._operator.child.kill()
        self.killed.set()


async def until(killer: Killer, settled: Callable[[], Awaitable[Any]]) -> bool:
    """Wait for the kill, or for the end of a story that has no such write any more; returns whether it was killed."""
    killing, settling = asyncio.create_task(killer.killed.wait()), asyncio.ensure_future(settled())
    await asyncio.wait((killing, settling), return_when=asyncio.FIRST_COMPLETED)
    for task in (killing, settling):
        task.cancel()
    await asyncio.gather(killing, settling, return_exceptions=True)
    return killer.killed.is_set()


@pytest.mark.parametrize("answered", [False, True], ids=["before the write", "before its answer"])
async def test_killed_at_every_write_while_a_stream_is_made_and_taken_back(sandbox: Sandbox, answered: bool) -> None:
    async with api_proxy(sandbox.api) as proxy:
        killer = Killer(proxy, answered=answered)
        operator = sandbox.operator(url=proxy.url, **QUICK)
        await operator.start()
        await sandbox.declare("calm", **STORAGE)
        await sandbox.is_ready("calm")
        calm = await shape(sandbox, "calm")
        made = taken = 0
        for at in range(1, MOST):
            name = f"made{at}x"
            killer.aim(operator, name, at)
            await sandbox.declare(name, **STORAGE)
            if not await until(killer, lambda name=name: sandbox.is_ready(name)):  # type: ignore[misc]
                break
            made += 1
            await operator.ended()
            await operator.start()
            await sandbox.is_ready(name)
            assert await shape(sandbox, name) == calm
        assert made >= 10, proxy.writes  # its claim, eight objects, its status
        for at in range(1, MOST):
            name = f"made{at}x"
            killer.aim(operator, name, at)
            await sandbox.delete(name)
            if not await until(killer, lambda name=name: sandbox.is_gone(name)):  # type: ignore[misc]
                break
            taken += 1
            await operator.ended()
            await operator.start()
            await sandbox.is_gone(name)
            assert await sandbox.at_the_catalog(name) is None
        assert taken >= 1
    assert_one_pod_a_segment(sandbox)


@pytest.mark.parametrize("seed", range(5))
async def test_killed_at_some_writes_while_a_stream_changes(sandbox: Sandbox, seed: int) -> None:
    """A seeded sample of fifty kills, ten a seed, somewhere in rolls, repairs, deletions and streams made anew."""
    draw = random.Random(seed)
    async with api_proxy(sandbox.api) as proxy:
        killer = Killer(proxy, answered=bool(seed % 2))
        operator = sandbox.operator(url=proxy.url, **QUICK)
        await operator.start()
        await sandbox.declare(segments=2, **STORAGE)
        await sandbox.is_ready()
        killed = 0
        for step in range(MOST_STEPS):
            if killed == 10:
                break
            killer.aim(operator, "flights", draw.randint(1, 8))
            await draw.choice([_roll, _lose, _edit, _recreate])(sandbox, step)
            await until(killer, sandbox.is_ready)  # which it may have been still, before the operator has looked
            killer.aim(operator, "", 0)
            if killer.has_killed(operator):
                killed += 1
                await operator.ended()
                await operator.start()
            await sandbox.is_ready()
            assert await sandbox.at_the_catalog() is not None
        assert killed == 10, "in most steps: some have fewer writes than were drawn"
    assert_one_pod_a_segment(sandbox)


async def _roll(sandbox: Sandbox, step: int) -> None:
    await sandbox.change(progress={"minWriters": step + 2})


async def _lose(sandbox: Sandbox, step: int) -> None:
    for (kind, _), item in (await sandbox.children()).items():
        if kind in ("Service", "PodDisruptionBudget") or (kind == "Pod" and step % 2):
            await sandbox.lose(item)


async def _edit(sandbox: Sandbox, step: int) -> None:
    children = await sandbox.children()
    edits: dict[tuple[str, str], Any] = {
        ("NetworkPolicy", "flights-publisher"): {"ingress": [{}]},
        ("Service", "flights"): {"selector": {"epochal.dev/stream": f"other-{step}"}},
    }
    for place, spec in edits.items():
        if place in children:  # and not just being made again, after the step before
            try:
                await sandbox.api.merge(children[place], {"spec": spec})
            except ApiError as error:
                if error.status not in (404, 409):
                    raise


async def _recreate(sandbox: Sandbox, step: int) -> None:
    old = await sandbox.stream()
    await sandbox.delete()

    async def look() -> bool:
        found = await sandbox.stream()
        return found is None or old is None or found["metadata"]["uid"] != old["metadata"]["uid"]

    # the operator may be dead by now: then it is taken back by hand, as an administrator would
    try:
        await eventually(look, PATIENCE)
    except AssertionError:
        found = await sandbox.stream()
        if found is not None:
            await sandbox.api.merge(found, {"metadata": {"finalizers": []}})
    await sandbox.declare(segments=2, **STORAGE)


def assert_one_pod_a_segment(sandbox: Sandbox) -> None:
    """Of each name there was one pod at a time, by the diary of the node."""
    living: dict[str, str] = {}
    for name, uid, state in sandbox.node.diary:
        if state == "gone":
            assert living.pop(name, uid) == uid
        else:
            assert living.setdefault(name, uid) == uid, (name, state)

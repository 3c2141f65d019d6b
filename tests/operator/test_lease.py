"""The lease: one holder, judged by one's own clock (fault 44)."""

import asyncio
import copy
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.kube.api import ApiError, ResourceKind
from epochal.resources.cluster.stream import FINALIZER, OPERATOR
from epochal_operator import lease
from epochal_operator.api import ThrottledApi
from epochal_operator.lease import Leadership, LeaseLost
from epochal_operator.ownership import release_all
from epochal_operator.settings import OperatorSettings


class Store(ThrottledApi):
    """One lease, with versions as an API server has them."""

    def __init__(self) -> None:
        super().__init__()
        self.lease: dict[str, Any] | None = None
        self.last = 0
        self.away = False

    def _check(self) -> None:
        if self.away:
            raise ApiError(0, "no answer")

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self._check()
        return copy.deepcopy(self.lease)

    async def create(self, item: dict[str, Any]) -> dict[str, Any]:
        self._check()
        if self.lease is not None:
            raise ApiError(409, "there is one")
        return self._put(item)

    async def replace(self, item: dict[str, Any]) -> dict[str, Any]:
        self._check()
        assert self.lease is not None
        if item["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "it has changed")
        return self._put(item)

    def _put(self, item: dict[str, Any]) -> dict[str, Any]:
        self.last += 1
        self.lease = copy.deepcopy(item)
        self.lease["metadata"]["resourceVersion"] = str(self.last)
        return self.lease


def leadership(store: Store, identity: str, duration: float = 1.0) -> Leadership:
    settings = OperatorSettings(
        catalog="http://c:1", image="i", identity=identity, lease_duration=duration, lease_namespace="n"
    )
    return Leadership(settings, store)


async def acquired(one: Leadership) -> None:
    async with asyncio.timeout(PATIENCE):
        await one.acquire()


async def test_the_first_has_it_and_the_second_waits_until_it_lapses() -> None:
    store = Store()
    first, second = leadership(store, "first"), leadership(store, "second")
    await acquired(first)
    first.check()
    assert not await second._try()
    with pytest.raises(LeaseLost):
        second.check()
    await acquired(second)
    assert not first.held, "it stopped acting before the second began"
    assert store.lease is not None
    assert (store.lease["spec"]["holderIdentity"], store.lease["spec"]["leaseTransitions"]) == ("second", 1)


async def test_one_that_is_renewed_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now, pauses = Store(), 0.0, 0
    monkeypatch.setattr(lease, "monotonic", lambda: now)
    first, second = leadership(store, "first"), leadership(store, "second")
    await acquired(first)

    async def sleep(seconds: float) -> None:
        """Time passes, and before the first renews it, the second tries; it ends after many times."""
        nonlocal now, pauses
        now, pauses = now + seconds, pauses + 1
        assert not await second._try()
        if pauses == 50:
            raise EOFError

    monkeypatch.setattr("asyncio.sleep", sleep)
    with pytest.raises(EOFError):
        await first.keep()
    assert now > 2.5
    assert first.held


async def test_one_that_is_released_is_taken_at_once() -> None:
    store = Store()
    first, second = leadership(store, "first", 300), leadership(store, "second", 300)
    await acquired(first)
    await first.release()
    assert not first.held
    assert await second._try()


async def test_a_holder_that_cannot_renew_it_stops() -> None:
    store = Store()
    first = leadership(store, "first")
    await acquired(first)
    store.away = True
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(PATIENCE):
            await first.keep()


async def test_of_two_that_ask_together_one_has_it() -> None:
    store = Store()
    both = [leadership(store, name) for name in ("first", "second")]
    outcomes = await asyncio.gather(*(one._try() for one in both))
    assert sum(one.held for one in both) == 1
    assert sorted(outcomes) == [False, True]


async def test_one_that_finds_another_in_its_place_stops_at_that_look(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    first = leadership(store, "first")
    await acquired(first)
    assert store.lease is not None
    store.lease["spec"]["holderIdentity"] = "second"
    looks = 0

    async def get(*place: str) -> dict[str, Any] | None:
        nonlocal looks
        looks += 1
        return copy.deepcopy(store.lease)

    monkeypatch.setattr(store, "get", get)
    with pytest.raises(LeaseLost):
        await first.keep()
    assert looks == 1


async def test_its_time_counts_from_before_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others count from when it was written, which may be long before the answer comes."""
    now = 1000.0
    monkeypatch.setattr("epochal_operator.lease.monotonic", lambda: now)
    store = Store()
    first = leadership(store, "first", 15.0)
    create = store.create

    async def slowly(item: dict[str, Any]) -> dict[str, Any]:
        nonlocal now
        now += 11.0
        return await create(item)

    monkeypatch.setattr(store, "create", slowly)
    assert await first._try()
    assert not first.held


async def test_what_is_released_is_what_this_operator_or_none_in_particular_has_claimed() -> None:
    def stream(name: str, operator: str | None, *finalizers: str) -> dict[str, Any]:
        annotations = {} if operator is None else {OPERATOR: operator}
        metadata = {"namespace": "n", "name": name, "finalizers": list(finalizers), "annotations": annotations}
        return {"kind": "Stream", "metadata": metadata}

    class Streams(ThrottledApi):
        def __init__(self) -> None:
            super().__init__()
            self.all = [
                stream("ours", "a", FINALIZER, "another.example/finalizer"),
                stream("without a name", None, FINALIZER),
                stream("of another", "b", FINALIZER),
                stream("free", None),
            ]

        async def list(
            self, kind: ResourceKind, namespace: str = "", selector: str = "", fields: str = ""
        ) -> tuple[list[dict[str, Any]], str]:
            return self.all, ""

        async def merge(self, item: dict[str, Any], change: dict[str, Any], *, part: str = "") -> dict[str, Any]:
            item["metadata"]["finalizers"] = change["metadata"]["finalizers"]
            return item

    api = Streams()
    assert await release_all(api, "a", (), 0.0) == 2
    assert [each["metadata"]["finalizers"] for each in api.all] == [["another.example/finalizer"], [], [FINALIZER], []]

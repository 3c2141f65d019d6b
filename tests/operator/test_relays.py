"""Looks at relays, against objects in memory: with and without their stream, and as their subscribers come and go."""

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from tests.operator.test_reconciler import STREAM
from tests.resources.pretended import Pretended, _merge
from tests.resources.test_relay import document

from epochal.kube.api import ApiError
from epochal.resources.cluster.stream import FINALIZER, OPERATOR
from epochal_operator import relays
from epochal_operator.actions import Actions, OutOfDate
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache, RelayPlace
from epochal_operator.ownership import Claims
from epochal_operator.relays import RelayReconciler
from epochal_operator.reporter import Reporter
from epochal_operator.settings import OperatorSettings

Object = dict[str, Any]
SETTINGS = OperatorSettings(catalog="http://c:1", image="publisher", relay_scale_down=300.0, frontier_interval=0.0)
PLACE = RelayPlace("demo", "near")
SCALED: Object = {"autoscaling": {"min": 1, "max": 4, "subscribersPerReplica": 100}}


class Held:
    """An API server in memory, as far as relays need one."""

    def __init__(self) -> None:
        self.there = Pretended()
        self.refuses: tuple[str, str] | None = None

    async def get(self, kind: str, _namespace: str, name: str) -> Object | None:
        return copy.deepcopy(self.there.items.get((kind, name)))

    async def create(self, item: Object) -> Object:
        return {**item, "metadata": {**item["metadata"], "uid": "e", "resourceVersion": self.there.number()}}

    async def apply(self, item: Object, *, uid: str | None = None) -> Object:
        place = item["kind"], item["metadata"]["name"]
        if self.refuses is not None and place == self.refuses:
            raise ApiError(403, "exceeded quota")
        if place not in self.there.items:
            assert uid is None
            made = self.there.put(item)
            made["metadata"]["generation"] = 1
            return copy.deepcopy(made)
        live = self.there.items[place]
        assert uid in (None, live["metadata"]["uid"])
        before = copy.deepcopy(live.get("spec"))
        _merge(live, {name: value for name, value in item.items() if name != "status"})
        return self.changed(live, before)

    async def merge(self, item: Object, change: Object, *, part: str = "") -> Object:
        live = self.there.items[item["kind"], item["metadata"]["name"]]
        if live["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            raise ApiError(409, "changed")
        before = copy.deepcopy(live.get("spec"))
        _merge(live, change)
        return self.changed(live, before)

    async def delete(self, item: Object, _preconditions: Mapping[str, str] | None = None) -> None:
        del self.there.items[item["kind"], item["metadata"]["name"]]

    def changed(self, live: Object, before: Any) -> Object:
        live["metadata"]["generation"] = live["metadata"].get("generation", 1) + (live.get("spec") != before)
        live["metadata"]["resourceVersion"] = self.there.number()
        return copy.deepcopy(live)


class World:
    """A Relay, what looks at it, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
        self.now, self.held, self.cache = 0.0, Held(), Cache()
        monkeypatch.setattr(relays, "monotonic", lambda: self.now)
        api = cast(ThrottledApi, self.held)
        reporter, claims = Reporter(api, self.cache, 0.0), Claims(SETTINGS.operator, self.cache)
        self.looks = RelayReconciler(SETTINGS, self.cache, reporter, claims, Actions(api, self.cache, reporter))
        self.put({**document("near", **spec), "status": {}})

    def put(self, item: Object) -> None:
        made = copy.deepcopy(item)
        made["metadata"] |= {"uid": made["metadata"].get("uid", "r1"), "generation": 1, "resourceVersion": "1"}
        self.held.there.items[made["kind"], made["metadata"]["name"]] = made
        self.held.there.last += 1
        self.cache.put(copy.deepcopy(made))

    def take(self, kind: str, name: str) -> None:
        self.cache.drop(self.held.there.items.pop((kind, name)))

    def subscribers(self, count: int) -> None:
        self.looks.loads = {("demo", "flights", "near"): count, ("demo", "flights", "far"): 999}

    async def look(self, after: float = 0.0) -> None:
        """Until nothing changes any more; the deployment does at once what it is to do."""
        self.now += after
        for _ in range(2):
            await self.looks.reconcile(PLACE)
            if (deployment := self.held.there.items.get(("Deployment", "near-relay"))) is not None:
                count = deployment["spec"]["replicas"]
                deployment["status"] = {
                    "observedGeneration": deployment["metadata"]["generation"],
                    "replicas": count,
                    "readyReplicas": count,
                }
                deployment["metadata"]["resourceVersion"] = self.held.there.number()
                self.cache.put(copy.deepcopy(deployment))
        await self.looks.reconcile(PLACE)

    @property
    def status(self) -> Object:
        return dict(self.held.there.items["Relay", "near"]["status"])

    @property
    def told(self) -> dict[str, tuple[str, str]]:
        return {item["type"]: (item["status"], item["reason"]) for item in self.status["conditions"]}

    @property
    def replicas(self) -> int | None:
        found = self.held.there.items.get(("Deployment", "near-relay"))
        return None if found is None else found["spec"]["replicas"]


def stream(operator: str = SETTINGS.operator) -> Object:
    metadata = {**STREAM["metadata"], "annotations": {OPERATOR: operator} if operator else {}}
    if not operator:
        metadata["finalizers"] = []
    return {**STREAM, "metadata": metadata}


async def test_it_is_made_served_and_then_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, replicas=2)
    world.put(stream())
    world.subscribers(17)
    await world.look()
    assert world.told == {"Ready": ("True", "Serving"), "Degraded": ("False", "AsExpected")}
    assert {name: world.status[name] for name in ("replicas", "readyReplicas", "subscribers")} == {
        "replicas": 2,
        "readyReplicas": 2,
        "subscribers": 17,
    }
    before = copy.deepcopy(world.held.there.items)
    await world.look()
    for place, item in world.held.there.items.items():
        if place[0] != "Deployment":  # which a node has changed
            assert item == before[place]


async def test_without_its_stream_it_waits_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    await world.look()
    assert world.told == {"Ready": ("False", "NoStream"), "Degraded": ("True", "NoStream")}
    assert "there is no Stream flights in namespace demo" in world.status["conditions"][0]["message"]
    assert world.replicas is None
    world.put(stream())
    await world.look()
    assert world.told["Ready"] == ("True", "Serving")
    world.take("Stream", "flights")
    await world.look()
    assert set(world.held.there.items) == {("Relay", "near")}
    assert world.told["Ready"] == ("False", "NoStream")


async def test_a_stream_that_only_the_cache_has_lost_ends_no_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.put(stream())
    await world.look()
    world.cache.drop(stream() | {"metadata": world.held.there.items["Stream", "flights"]["metadata"]})
    with pytest.raises(OutOfDate, match="is there"):
        await world.looks.reconcile(PLACE)
    assert world.replicas == 1
    await world.look()
    assert world.told["Ready"] == ("True", "Serving")


async def test_the_relays_of_another_operators_stream_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.put(stream("other/operator"))
    await world.look()
    assert set(world.held.there.items) == {("Relay", "near"), ("Stream", "flights")}
    assert world.status == {}
    unclaimed = World(monkeypatch)
    unclaimed.put(stream(""))
    assert FINALIZER not in unclaimed.held.there.items["Stream", "flights"]["metadata"]["finalizers"]
    await unclaimed.look()
    assert unclaimed.told["Ready"] == ("False", "StreamNotReady")
    assert unclaimed.replicas is None


async def test_relays_follow_their_subscribers_up_at_once_and_down_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, **SCALED)
    world.put(stream())
    await world.look()
    assert world.replicas == 1, "nothing is known of subscribers yet"
    world.subscribers(301)
    await world.look(after=1)
    assert world.replicas == 4
    world.subscribers(100)
    await world.look(after=200)
    world.subscribers(201)
    await world.look(after=99)
    assert world.replicas == 4, "all four were needed less than five minutes ago"
    world.subscribers(100)
    await world.look(after=2)
    assert world.replicas == 3, "three were needed meanwhile"
    await world.look(after=297)
    assert world.replicas == 3
    for _ in range(3):
        await world.look(after=2)
    assert world.replicas == 1
    assert world.status["subscribers"] == 100


async def test_while_one_ends_no_other_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, **SCALED)
    world.put(stream())
    world.subscribers(400)
    await world.look()
    world.subscribers(0)
    await world.looks.reconcile(PLACE)
    world.now += 301
    await world.looks.reconcile(PLACE)
    await world.looks.reconcile(PLACE)
    assert world.replicas == 3


async def test_while_the_catalog_is_away_there_are_as_many_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, **SCALED)
    world.put(stream())
    world.subscribers(350)
    await world.look()
    restarted = RelayReconciler(SETTINGS, world.cache, world.looks.reporter, world.looks.claims, world.looks.actions)
    world.looks = restarted
    await world.look(after=1000)
    assert world.replicas == 4
    world.subscribers(0)
    await world.look(after=1)
    assert world.replicas == 4, "what was needed before it began is not known"


async def test_what_others_have_made_is_said_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.put(stream())
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "near-relay", "namespace": "demo", "uid": "t"},
        "spec": {"replicas": 7},
    }
    world.put(theirs)
    await world.look()
    assert world.told == {"Ready": ("False", "NameConflict"), "Degraded": ("True", "NameConflict")}
    assert world.held.there.items["Deployment", "near-relay"]["spec"] == {"replicas": 7}
    assert world.status["replicas"] == 0, "those are not its own"


async def test_a_refusal_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.put(stream())
    world.held.refuses = ("Deployment", "near-relay")
    await world.look()
    assert world.told == {"Ready": ("False", "RelaysNotReady"), "Degraded": ("True", "Refused")}


async def test_one_that_goes_is_left_to_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.put(stream())
    await world.look()
    relay = world.held.there.items["Relay", "near"]
    relay["metadata"] |= {"deletionTimestamp": datetime.now(UTC).isoformat(), "resourceVersion": "999"}
    world.cache.put(copy.deepcopy(relay))
    before = copy.deepcopy(world.held.there.items)
    assert await world.looks.reconcile(PLACE) is None
    assert world.held.there.items == before

"""Looks at relays, against objects in memory: with and without their stream, and as their subscribers come and go."""

import asyncio
import copy
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from tests.operator.test_reconciler import ROLLOUT, STREAM
from tests.patience import PATIENCE
from tests.resources.pretended import Pretended, _merge
from tests.resources.test_relay import document

from epochal.kube.api import ApiError
from epochal.resources.cluster.stream import FINALIZER, OPERATOR
from epochal.transport.shutdown import ended
from epochal_operator import relays
from epochal_operator.actions import Actions, OutOfDate
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache, RelayPlace
from epochal_operator.catalog_sync import CatalogSync, DeclaredStream
from epochal_operator.controller import Controller
from epochal_operator.ownership import Claims
from epochal_operator.reconciler import Reconciler
from epochal_operator.relays import RelayReconciler
from epochal_operator.reporter import Reporter
from epochal_operator.settings import OperatorSettings
from epochal_operator.telemetry import OperatorTelemetry

Object = dict[str, Any]
SETTINGS = OperatorSettings(catalog="http://c:1", image="publisher", relay_scale_down=300.0, frontier_interval=0.0)
PLACE = RelayPlace("demo", "near")
SCALED: Object = {"autoscaling": {"min": 1, "max": 4, "subscribersPerReplica": 100}}


class Held:
    """An API server in memory, as far as relays need one."""

    def __init__(self) -> None:
        self.there = Pretended()
        self.refuses: tuple[str, str] | None = None
        self.lists = 0
        self.applied: list[tuple[str, str]] = []
        self.admitted: Callable[[Object], Object] = lambda item: item
        """What is kept of an object that is applied."""

    async def get(self, kind: str, _namespace: str, name: str) -> Object | None:
        return copy.deepcopy(self.there.items.get((kind, name)))

    async def list(self, kind: Any, _namespace: str, selector: str = "") -> tuple[list[Object], str]:
        assert selector == "app.kubernetes.io/name=epochal-relay,epochal.dev/relay=near"
        self.lists += 1
        found = [item for (of, _), item in self.there.items.items() if of == kind.kind]
        return copy.deepcopy(found), self.there.number()

    async def create(self, item: Object) -> Object:
        return {**item, "metadata": {**item["metadata"], "uid": "e", "resourceVersion": self.there.number()}}

    async def apply(self, item: Object, *, uid: str | None = None) -> Object:
        item, place = self.admitted(copy.deepcopy(item)), (item["kind"], item["metadata"]["name"])
        self.applied.append(place)
        if self.refuses is not None and place == self.refuses:
            raise ApiError(403, "exceeded quota")
        if place not in self.there.items:
            assert uid is None
            made = self.there.put(item)
            made["metadata"]["generation"] = 1
            return copy.deepcopy(made)
        live = self.there.items[place]
        assert uid in (None, live["metadata"]["uid"])
        before = copy.deepcopy(live)
        _merge(live, {name: value for name, value in item.items() if name != "status"})
        return self.changed(live, before)

    async def merge(self, item: Object, change: Object, *, part: str = "") -> Object:
        live = self.there.items[item["kind"], item["metadata"]["name"]]
        if live["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            raise ApiError(409, "changed")
        before = copy.deepcopy(live)
        _merge(live, change)
        return self.changed(live, before)

    async def delete(self, item: Object, _preconditions: Mapping[str, str] | None = None) -> None:
        del self.there.items[item["kind"], item["metadata"]["name"]]

    def changed(self, live: Object, before: Object) -> Object:
        """What changes nothing leaves the version as it was."""
        if live != before:
            differs = live.get("spec") != before.get("spec")
            live["metadata"]["generation"] = live["metadata"].get("generation", 1) + differs
            live["metadata"]["resourceVersion"] = self.there.number()
        return copy.deepcopy(live)


class World:
    """A Relay, what looks at it, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held: Held | None = None, **spec: Any) -> None:
        self.now, self.held, self.cache = 0.0, held or Held(), Cache()
        self.count: int | None = None
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

    def subscribers(self, count: int | None) -> None:
        """So many are listed from now on, at each look; None: the catalog is away."""
        self.count = count
        self.listed()

    def listed(self) -> None:
        known = {("demo", "flights", "near"): self.count, ("demo", "flights", "far"): 999}
        self.looks.listed(known if self.count is not None else None)

    async def lasts(self, count: int) -> None:
        """So many are listed for as long as it takes until relays begin for them."""
        self.subscribers(count)
        for _ in range(2):
            await self.look(after=15)

    async def next_list(self, after: float = 15.0) -> None:
        """The catalog is asked again, and the relay looked at once."""
        self.now += after
        self.listed()
        await self.looks.reconcile(PLACE)

    async def look(self, after: float = 0.0) -> None:
        """Until nothing changes any more; the deployment does at once what it is to do."""
        self.now += after
        self.listed()
        for _ in range(2):
            await self.looks.reconcile(PLACE)
            self.deployed()
        await self.looks.reconcile(PLACE)

    def deployed(self, **status: int) -> None:
        """The deployment's status is of what it should be now; by default all relays are there and ready."""
        if (deployment := self.held.there.items.get(("Deployment", "near-relay"))) is not None:
            count = deployment["spec"]["replicas"]
            self.change(
                deployment,
                status={
                    "observedGeneration": deployment["metadata"]["generation"],
                    "replicas": count,
                    "readyReplicas": count,
                    **status,
                },
            )

    def change(self, live: Object, **change: Object) -> None:
        """Somebody else changes an object, and the watch reports it."""
        live |= change
        live["metadata"]["resourceVersion"] = self.held.there.number()
        self.cache.put(copy.deepcopy(live))

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


CANONICAL = {"1000m": "1", "0.5": "500m", "1024Mi": "1Gi", "1.5Gi": "1536Mi", "2000000000": "2G"}
"""What Kubernetes writes for these amounts (`kubectl set resources --local -o yaml`)."""


def as_kubernetes_writes_it(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: {resource: CANONICAL.get(amount, amount) for resource, amount in each.items()}
            if name in ("requests", "limits")
            else as_kubernetes_writes_it(each)
            for name, each in value.items()
        }
    return [as_kubernetes_writes_it(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "resources",
    [
        {"requests": {"cpu": "100m", "memory": "256Mi"}},  # as Kubernetes writes it
        {"requests": {"cpu": "1000m"}},
        {"requests": {"cpu": "0.5"}},
        {"limits": {"memory": "1024Mi"}},
        {"limits": {"memory": "1.5Gi"}},
        {"limits": {"memory": 2000000000}},
    ],
)
async def test_amounts_that_kubernetes_writes_in_another_way_are_as_declared(
    monkeypatch: pytest.MonkeyPatch, resources: Object
) -> None:
    world = World(monkeypatch, resources=resources)
    world.held.admitted = as_kubernetes_writes_it
    world.put(stream())
    await world.look()
    world.held.applied.clear()
    assert [await world.looks.reconcile(PLACE) for _ in range(3)] == [None] * 3
    assert world.held.applied == []


async def test_what_a_webhook_changes_back_is_no_reason_to_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def mirrored(item: Object) -> Object:
        if item["kind"] == "Deployment":
            for each in item["spec"]["template"]["spec"]["containers"]:
                each["image"] = f"mirror.example/{each['image']}"
        return item

    world = World(monkeypatch)
    world.held.admitted = mirrored
    world.put(stream())
    await world.look()
    world.held.applied.clear()
    assert [await world.looks.reconcile(PLACE) for _ in range(3)] == [None] * 3
    assert world.held.applied == [("Deployment", "near-relay")] * 3, "once at each look, in case it changes it no more"


async def test_what_the_pods_may_not_do_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/operator.md: an edited object is changed back; also by `kubectl patch --type=json` with remove."""
    world = World(monkeypatch)
    world.put(stream())
    await world.look()
    live = world.held.there.items["Deployment", "near-relay"]
    changed = copy.deepcopy(live["spec"])
    pod = changed["template"]["spec"]
    del pod["automountServiceAccountToken"]
    del pod["containers"][0]["securityContext"]["allowPrivilegeEscalation"]
    world.change(live, spec=changed)
    await world.look()
    pod = world.held.there.items["Deployment", "near-relay"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is False


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


class Catalog:
    """It takes every stream."""

    async def declare(self, *_: Any) -> DeclaredStream:
        return DeclaredStream("u", ("0",), "[0]")


class Claiming(Held):
    """A stream is claimed only after a relay of it was looked at; notes when there is a Deployment."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.deployed = asyncio.Event(), asyncio.Event()

    async def merge(self, item: Object, change: Object, *, part: str = "") -> Object:
        if "StreamNotReady" in str(change):
            self.waits.set()
        elif item["kind"] == "Stream":
            await self.waits.wait()
        return await super().merge(item, change, part=part)

    async def apply(self, item: Object, *, uid: str | None = None) -> Object:
        if item["kind"] == "Deployment":
            self.deployed.set()
        return await super().apply(item, uid=uid)


async def test_a_relay_that_was_applied_first_starts_when_its_stream_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Claiming()
    world = World(monkeypatch, held)
    api, looks = cast(ThrottledApi, held), world.looks
    streams = Reconciler(
        *(SETTINGS, api, world.cache, cast(CatalogSync, Catalog()), looks.reporter, looks.claims, looks.actions),
        rollout=ROLLOUT,
    )
    acting = Controller(SETTINGS, api, streams, looks, OperatorTelemetry())
    acting.listed.set()
    world.put(stream(""))
    for place in (PLACE, ("demo", "flights")):
        acting.queue.add(place)
    working = [asyncio.create_task(acting.work()) for _ in range(2)]
    try:
        async with asyncio.timeout(PATIENCE):
            await held.deployed.wait()
    finally:
        await ended(working)
    assert looks.claims.is_claimed(world.cache.streams["demo", "flights"])


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


async def test_relays_follow_their_subscribers_up_soon_and_down_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, **SCALED)
    world.put(stream())
    await world.look()
    assert world.replicas == 1, "nothing is known of subscribers yet"
    world.subscribers(301)
    await world.look(after=1)
    assert world.replicas == 1, "that may be those of a relay that was killed, listed twice"
    await world.look(after=15)
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


async def test_a_relay_that_was_killed_is_not_replaced_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its subscribers are listed with it, for as long as it is, and with those that they have gone to."""
    world = World(monkeypatch, **SCALED)
    world.put(stream())
    await world.lasts(150)
    assert world.replicas == 2
    world.subscribers(225)
    await world.look(after=15)
    await world.look()  # something else makes it look, before the catalog is asked again
    world.subscribers(150)
    for _ in range(2):
        await world.look(after=15)
        assert world.replicas == 2


async def test_while_one_ends_no_other_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, **SCALED)
    world.put(stream())
    await world.lasts(400)
    assert world.replicas == 4
    world.subscribers(0)
    for pause in (0, 200, 101):
        await world.next_list(after=pause)
    await world.looks.reconcile(PLACE)
    assert world.replicas == 3
    for _ in range(3):
        world.deployed(terminatingReplicas=1)
        await world.next_list()
    assert world.replicas == 3, "its pod is counted apart while it ends, from Kubernetes 1.35 on"


async def test_one_list_of_the_catalog_ends_one_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Kubernetes does not report the pods that end, before 1.35."""
    world = World(monkeypatch, **SCALED)
    world.put(stream())
    await world.lasts(400)
    assert world.replicas == 4
    world.subscribers(0)
    await world.looks.reconcile(PLACE)
    await world.next_list(after=299)
    seen = []
    for _ in range(2):
        world.now += 15
        world.listed()
        for _ in range(3):
            await world.looks.reconcile(PLACE)
            world.deployed()
        seen.append(world.replicas)
    assert seen == [3, 2]


@pytest.mark.parametrize("room", [{"replicas": 4, "readyReplicas": 2}, {"replicas": 2, "readyReplicas": 2}])
async def test_relays_that_find_no_node_or_no_quota_keep_none_from_ending(
    monkeypatch: pytest.MonkeyPatch, room: dict[str, int]
) -> None:
    world = World(monkeypatch, **SCALED)
    world.put(stream())
    await world.lasts(400)
    assert world.replicas == 4
    world.deployed(**room)
    world.subscribers(0)
    for _ in range(30):
        await world.next_list()
        world.deployed(**{name: min(count, world.replicas or 0) for name, count in room.items()})
    assert world.replicas == 1


async def test_what_crashed_is_named_and_pods_are_read_only_while_a_relay_does_not_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, replicas=2)
    world.put(stream())
    await world.look()
    read = world.held.lists
    await world.look(after=100)
    assert (world.told["Ready"], world.held.lists) == (("True", "Serving"), read)
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    container = {"name": "relay", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": killed}
    crashed = {"metadata": {"name": "near-relay-x"}, "kind": "Pod", "status": {"containerStatuses": [container]}}
    world.held.there.items["Pod", "near-relay-x"] = crashed
    world.deployed(readyReplicas=1)
    await world.looks.reconcile(PLACE)
    assert world.told == {"Ready": ("False", "RelaysNotReady"), "Degraded": ("True", "RelayFailing")}
    messages = [item["message"] for item in world.status["conditions"]]
    assert messages == [
        "1 of 2 relays serve subscribers; near-relay-x (relay ended with OOMKilled, exit code 137)",
        "near-relay-x (CrashLoopBackOff: relay ended with OOMKilled, exit code 137)",
    ]
    del world.held.there.items["Pod", "near-relay-x"]
    await world.look()
    assert world.told == {"Ready": ("True", "Serving"), "Degraded": ("False", "AsExpected")}


async def test_while_the_catalog_is_away_there_are_as_many_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, **SCALED)
    world.put(stream())
    await world.lasts(350)
    world.subscribers(None)
    restarted = RelayReconciler(SETTINGS, world.cache, world.looks.reporter, world.looks.claims, world.looks.actions)
    world.looks = restarted
    await world.look(after=1000)
    assert world.replicas == 4
    world.subscribers(0)
    await world.look(after=1)
    assert world.replicas == 4, "what was needed before it began is not known"


@pytest.mark.parametrize("looks", [18, 24])
async def test_the_first_lists_of_a_catalog_that_was_away_end_no_relay(
    monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Relays could not renew their leases there, and register again within seconds."""
    world = World(monkeypatch, **SCALED)
    world.put(stream())
    await world.lasts(350)
    assert world.replicas == 4
    world.subscribers(None)
    for _ in range(looks):
        await world.look(after=15)
    world.subscribers(0)
    for _ in range(3):
        await world.look(after=15)
    assert world.replicas == 4, "that fewer are enough has been seen for 45 s"
    world.subscribers(350)
    for _ in range(30):
        await world.look(after=15)
    assert world.replicas == 4


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

"""Each thing that is done is one line of the log and one event; what changes nothing is none."""

import copy
import logging
from typing import Any, cast

import pytest
from tests.operator.test_relays import Held
from tests.resources.test_cluster_children import SETTINGS, stream

from epochal.resources.cluster import children_of, plan_cluster
from epochal.resources.cluster.planner import ClusterPlan
from epochal.resources.cluster.stream import key
from epochal_operator.actions import Actions
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache
from epochal_operator.reporter import Reporter

Object = dict[str, Any]
OF: Object = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": "flights", "namespace": "demo", "uid": "object-1"},
}
WHAT = stream(1, relays=2)
WANTED = children_of(WHAT, SETTINGS)


class World(Held):
    """An API server in memory, what is known of it, and the events that were posted."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.cache = Cache()
        api = cast(ThrottledApi, self)
        self.actions = Actions(api, self.cache, Reporter(api, self.cache, 0.0))

    async def create(self, item: Object) -> Object:
        if item["kind"] != "Event":
            return copy.deepcopy(self.there.put(item))
        assert item["involvedObject"]["name"] == "flights"
        self.events.append(f"{item['reason']} {item['message']}")
        return item

    async def reconcile(self) -> None:
        for item in self.there.items.values():
            self.cache.put(copy.deepcopy(item))

        async def check() -> None:
            pass

        await self.actions.carry_out(OF, self.plan, check)

    def plan(self) -> ClusterPlan:
        return plan_cluster(WHAT, WANTED, self.cache.children("demo", "flights", frozenset(map(key, WANTED))))

    def edit(self, kind: str, name: str, by: str, **spec: Any) -> None:
        live = self.there.items[kind, name]
        live["spec"] |= spec
        fields: Object = {"f:spec": {f"f:{field}": {} for field in spec}}
        live["metadata"]["managedFields"] = [{"manager": by, "time": "12:00", "fieldsV1": fields}]
        live["metadata"]["resourceVersion"] = self.there.number()


async def test_what_is_made_put_back_and_replaced_is_one_line_and_one_event_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    caplog.set_level(logging.INFO, "epochal.operator")
    world = World()
    await world.reconcile()
    made = [f"Created {' '.join(key(item))}: there was none" for item in WANTED]
    assert world.events == made
    assert lines() == [f"demo/flights: {line}" for line in made]
    world.events.clear()
    await world.reconcile()
    assert (world.events, lines()) == ([], [])
    world.edit("Service", "flights", "kubectl-edit", selector={"app": "other"})
    world.edit("Relay", "flights", "kubectl", replicas=7)
    await world.reconcile()
    assert sorted(world.events) == [
        "PutBack Relay flights: spec.replicas, which was changed by kubectl at 12:00",
        "PutBack Service flights: spec.selector, which was changed by kubectl-edit at 12:00",
    ]
    assert sorted(lines()) == [f"demo/flights: {event}" for event in sorted(world.events)]
    world.events.clear()
    world.there.fail(world.there.items["Pod", "flights-0"])
    await world.reconcile()
    await world.reconcile()
    assert world.events == ["Deleted Pod flights-0: it has ended", "Created Pod flights-0: there was none"]
    assert lines() == [f"demo/flights: {event}" for event in world.events]

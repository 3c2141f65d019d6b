"""A pretended cluster: it holds objects, does what a plan says, and lets pods come and go as a node would.

Apart from the tests of the planner because several want it. What the real API server does is tried in tests/cluster.
"""

import copy
from collections.abc import Sequence
from typing import Any

from epochal.resources.cluster import Apply, ClusterAction, ClusterPlan, ClusterStream, Create, Delete, plan_cluster
from epochal.resources.cluster.planner import segments_of
from epochal.resources.cluster.pod_state import has_ended, is_ready
from epochal.resources.cluster.stream import is_terminating, key

Object = dict[str, Any]


class Pretended:
    """The objects of one namespace."""

    def __init__(self) -> None:
        self.items: dict[tuple[str, str], Object] = {}
        self.last = 0

    def number(self) -> str:
        self.last += 1
        return str(self.last)

    def put(self, item: Object) -> Object:
        """Make an object, as an API server would: with a uid, a version and, for a pod, a phase."""
        made = copy.deepcopy(item)
        made["metadata"] |= {"uid": f"uid-{self.number()}", "resourceVersion": self.number()}
        if made["kind"] == "Pod":
            made["status"] = {"phase": "Pending"}
            held = [pod for pod in self.pods() if set(segments_of(pod)) & set(segments_of(made))]
            assert not held, "two pods have one segment"
        assert key(made) not in self.items, "the name is taken"
        self.items[key(made)] = made
        return made

    def carry_out(self, action: ClusterAction) -> None:
        match action:
            case Create(item):
                if item["kind"] == "Pod":
                    for volume in item["spec"]["volumes"][1:]:
                        claim = volume["persistentVolumeClaim"]["claimName"]
                        assert ("PersistentVolumeClaim", claim) in self.items, "a pod without its volume"
                self.put(item)
            case Apply(item, uid):
                live = self.items[key(item)]
                assert live["metadata"]["uid"] == uid
                _merge(live, item)
                live["metadata"]["resourceVersion"] = self.number()
            case Delete(item, _):
                live = self.items[key(item)]
                assert live["metadata"]["uid"] == item["metadata"]["uid"]
                if item["kind"] == "Pod" and not has_ended(live):
                    live["metadata"]["deletionTimestamp"] = "now"
                    live["metadata"]["resourceVersion"] = self.number()
                else:
                    del self.items[key(item)]

    def plan(self, stream: ClusterStream, wanted: Sequence[Object], **more: Any) -> ClusterPlan:
        return plan_cluster(stream, wanted, copy.deepcopy(list(self.items.values())), **more)

    def reconcile(self, stream: ClusterStream, wanted: Sequence[Object], **more: Any) -> ClusterPlan:
        plan = self.plan(stream, wanted, **more)
        for action in plan.actions:
            self.carry_out(action)
        return plan

    def settle(self, stream: ClusterStream, wanted: Sequence[Object], rounds: int = 60) -> int:
        """Reconcile and let the node work until nothing is to be done; returns after how many rounds."""
        for number in range(rounds):
            plan = self.reconcile(stream, wanted)
            if not plan.actions and all(map(is_ready, self.pods())):
                return number
            self.gone()
            for pod in self.pods():
                self.ready(pod)
        raise AssertionError(f"nothing settles: {plan}")

    # ---- what a node, a user or an accident does ----

    def pods(self) -> list[Object]:
        return [item for item in self.items.values() if item["kind"] == "Pod"]

    def ready(self, pod: Object, *, is_so: bool = True) -> None:
        if not is_terminating(pod) and not has_ended(pod):
            condition = {"type": "Ready", "status": "True" if is_so else "False"}
            pod["status"] = {"phase": "Running", "conditions": [condition]}
            pod["metadata"]["resourceVersion"] = self.number()

    def fail(self, pod: Object) -> None:
        if not is_terminating(pod):
            pod["status"] = {"phase": "Failed"}
            pod["metadata"]["resourceVersion"] = self.number()

    def gone(self) -> None:
        """Let everything that is on its way out be gone."""
        self.items = {place: item for place, item in self.items.items() if not is_terminating(item)}


def _merge(live: Object, item: Object) -> None:
    """As server-side apply does; selectors are one value to it."""
    for name, value in item.items():
        if isinstance(value, dict) and isinstance(live.get(name), dict) and name not in ("selector", "podSelector"):
            _merge(live[name], value)
        else:
            live[name] = copy.deepcopy(value)

"""A new image for twenty streams: one stream first, then a few at a time, none while one is stuck; and back."""

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.resources.pretended import Pretended
from tests.resources.test_cluster_children import SETTINGS, STORAGE, stream
from tests.resources.test_cluster_planner import NEWER

from epochal.resources.cluster import ClusterPlan, ClusterSettings, ClusterStream, Seen, children_of, status_of
from epochal.resources.cluster.children import release_of
from epochal.resources.cluster.planner import Delete, plan_cluster, release_of_pod, running_pods
from epochal.resources.cluster.rollout import Name, Rollout
from epochal.resources.cluster.status import news

Object = dict[str, Any]
BAD = ClusterSettings(image="registry.example/bad:1", catalog="http://catalog:8700")
START = datetime(2026, 11, 1, 12, tzinfo=UTC)
PATIENCE_OF_PODS = 300.0  # load: a setting of the operator, and time is a number here


class Clusters:
    """Streams of one operator, each in a namespace of its own, under a virtual clock."""

    def __init__(self, count: int, seed: int = 0, segments: int = 2, **spec: Any) -> None:
        self.now, self.random = START, random.Random(seed)
        self.whats: dict[Name, ClusterStream] = {
            (f"n{at:02}", "flights"): stream(segments, **spec) for at in range(count)
        }
        self.there = {name: Pretended() for name in self.whats}
        self.settings = SETTINGS
        for name, what in self.whats.items():
            self.there[name].settle(what, children_of(what, SETTINGS))
        self.lost: Counter[Name] = Counter()
        """Pods that served, and were deleted."""
        self.under_way: list[int] = []
        """Streams with pods that are not ready, each time one was looked at."""
        self.plans: dict[Name, ClusterPlan] = {}
        self.begin(SETTINGS)

    def begin(self, settings: ClusterSettings) -> None:
        """An operator with these settings takes over; it remembers nothing."""
        self.settings = settings
        self.rollout = Rollout(release_of(settings), 3, PATIENCE_OF_PODS)

    def standing(self) -> dict[Name, Sequence[Object]]:
        return {
            name: running_pods("flights", self.whats[name].object_uid, cluster.items.values())
            for name, cluster in self.there.items()
        }

    def look(self, name: Name, *, may_roll: bool = True) -> ClusterPlan:
        what, cluster = self.whats[name], self.there[name]
        wanted, observed = children_of(what, self.settings), list(cluster.items.values())

        def draft(upgrade: bool) -> ClusterPlan:
            return plan_cluster(what, wanted, observed, may_roll=may_roll, may_upgrade=upgrade)

        plan = self.rollout.plan(name, draft, self.standing, self.now)
        for action in plan.actions:
            if isinstance(action, Delete) and action.item["kind"] == "Pod" and self._is_ready(action.item):
                self.lost[name] += 1
            cluster.carry_out(action)
        self.rollout.look(name, plan, may_roll=may_roll)
        self.plans[name] = plan
        self.under_way.append(len(self.unready()))
        return plan

    def _is_ready(self, pod: Object) -> bool:
        return any(item["status"] == "True" for item in pod.get("status", {}).get("conditions", ()))

    def unready(self) -> set[Name]:
        return {
            name
            for name, cluster in self.there.items()
            if len(cluster.pods()) < len(self.whats[name].segments) or not all(map(self._is_ready, cluster.pods()))
        }

    def node(self, seconds: float = 5.0) -> None:
        """Pods go and come; those with the bad image never become ready."""
        self.now += timedelta(seconds=seconds)
        for cluster in self.there.values():
            cluster.gone()
            for pod in cluster.pods():
                pod["metadata"].setdefault("creationTimestamp", self.now.isoformat())
                bad = pod["spec"]["containers"][0]["image"] == BAD.image
                cluster.ready(pod, is_so=not bad)
                if bad:
                    waits = {"reason": "ImagePullBackOff", "message": "no such image"}
                    pod["status"]["containerStatuses"] = [{"name": "publisher", "state": {"waiting": waits}}]

    def round(self) -> None:
        names = list(self.whats)
        self.random.shuffle(names)
        for name in names:
            self.look(name)
        self.node()

    def conditions(self, name: Name) -> dict[str, Object]:
        seen = Seen("flights", 1, self.now, self.plans[name], self.whats[name].segments, "u", patience=PATIENCE_OF_PODS)
        return {item["type"]: item for item in status_of({}, seen)["conditions"]}

    def releases(self) -> Counter[str]:
        return Counter(release_of_pod(pod) for pods in self.standing().values() for pod in pods)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spec", [{}, STORAGE])
def test_a_wrong_image_costs_one_pod_of_one_stream(seed: int, spec: Object) -> None:
    world = Clusters(20, seed, **spec)
    world.begin(BAD)
    for _ in range(12):
        world.round()
    assert sum(world.lost.values()) == 1
    [stuck] = world.lost
    assert world.conditions(stuck)["Progressing"]["reason"] == "RolloutStuck"
    for name in world.whats.keys() - {stuck}:
        told = world.conditions(name)
        assert (told["Progressing"]["status"], told["Progressing"]["reason"]) == ("False", "RolloutStopped")
        assert f"{stuck[0]}/flights-0 (ImagePullBackOff: no such image)" in told["Progressing"]["message"]
        assert told["Ready"]["reason"] == "Serving"
        assert told["Degraded"]["reason"] == "AsExpected"


@pytest.mark.parametrize("seed", range(5))
def test_one_stream_first_then_a_few_at_a_time_until_all_are_new(seed: int) -> None:
    world = Clusters(12, seed)
    world.begin(NEWER)
    first = True
    for _ in range(200):
        world.round()
        if world.releases()[release_of(NEWER)] == 24:
            break
        done = [name for name, pods in world.standing().items() if {*map(release_of_pod, pods)} == {release_of(NEWER)}]
        if first and not set(done) - world.unready():
            assert max(world.under_way) <= 1
        else:
            first = False
    assert world.releases() == {release_of(NEWER): 24}
    assert max(world.under_way) == 3, "a few at a time, once it has served one stream"
    assert all(count == 2 for count in world.lost.values())


@pytest.mark.parametrize("seed", range(5))
def test_going_back_heals_what_is_stuck_at_once_and_touches_nothing_else(seed: int) -> None:
    world = Clusters(20, seed)
    world.begin(BAD)
    for _ in range(6):
        world.round()
    world.begin(SETTINGS)
    for _ in range(3):
        world.round()
    assert world.releases() == {release_of(SETTINGS): 40}
    assert not world.unready()
    assert sum(world.lost.values()) == 1
    world.round()
    assert {told["Progressing"]["reason"] for told in map(world.conditions, world.whats)} == {"Complete"}


def test_an_operator_that_begins_again_in_between_goes_on_with_the_stream_that_had_begun() -> None:
    world = Clusters(5)
    world.begin(NEWER)
    names = list(world.whats)
    world.look(names[3])
    world.node()
    world.look(names[3])
    world.node()
    world.begin(NEWER)
    for name in names:
        held = world.look(name).held
        assert (held is None) == (name == names[3])
        assert held is None or held.by == ("n03/flights",)
    assert world.conditions(names[0])["Progressing"]["reason"] == "RolloutWaiting"
    assert not [each for each in news({"conditions": []}, {"conditions": [world.conditions(names[0])["Progressing"]]})
                if each.is_warning]  # fmt: skip


def test_a_few_at_a_time_all_stop_when_one_of_them_is_stuck() -> None:
    world = Clusters(8)
    world.begin(NEWER)
    while not world.releases()[release_of(NEWER)]:
        world.round()
    for _ in range(4):
        world.round()
    stuck = next(name for name, pods in world.standing().items() if len({*map(release_of_pod, pods)}) == 2)
    pod = next(pod for pod in world.there[stuck].pods() if release_of_pod(pod) == release_of(NEWER))
    ended = {"reason": "OOMKilled", "exitCode": 137}
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    before = sum(world.lost.values())
    for _ in range(5):
        for name in world.whats:
            world.there[stuck].ready(pod, is_so=False)
            pod["status"]["containerStatuses"] = [
                {"name": "publisher", "state": state, "lastState": {"terminated": ended}}
            ]
            world.look(name)
        world.node()
    assert sum(world.lost.values()) == before
    held = [plan.held for plan in world.plans.values() if plan.held]
    assert held
    assert all(each.is_stopped and "OOMKilled, exit code 137" in each.by[0] for each in held)
    for _ in range(60):
        world.round()
    assert world.releases() == {release_of(NEWER): 16}, "it goes on by itself when the pod is ready"


def test_a_change_of_one_stream_does_not_wait_for_others() -> None:
    world = Clusters(4)
    world.begin(BAD)
    for _ in range(3):
        world.round()
    changed = stream(2, publishers={"nodeSelector": {"disk": "ssd"}})
    [stuck] = world.lost
    world.whats[stuck] = changed
    lost = [action.item["metadata"]["name"] for action in world.look(stuck).actions if isinstance(action, Delete)]
    assert lost == ["flights-0"], "what is stuck may be healed by a change of its own manifest"
    other = next(name for name in world.whats if name != stuck)
    world.whats[other] = changed
    assert world.look(other).held is not None, "its pods would get the image that is stuck elsewhere"
    world.begin(SETTINGS)
    for _ in range(9):
        world.round()
    assert not world.unready()
    world.whats[other] = stream(2, publishers={"nodeSelector": {"disk": "hdd"}})
    assert world.look(other).upgrades == ()


def test_a_stream_that_cannot_go_on_keeps_no_other_waiting() -> None:
    world = Clusters(3)
    world.begin(NEWER)
    first, second, _ = world.whats
    world.look(first)
    world.node()
    assert world.look(second).held is not None
    world.look(first, may_roll=False)
    assert world.rollout.due() == [second]
    assert world.look(second).held is None


def test_who_waited_is_looked_at_when_others_are_done() -> None:
    world = Clusters(6, segments=1)
    world.begin(NEWER)
    for name in world.whats:
        world.look(name)
    assert world.rollout.due() == []
    first = next(iter(world.lost))
    for _ in range(2):
        world.node()
        world.look(first)
    assert len(world.rollout.due()) == 3
    world.there.pop(first)
    world.rollout.done(first)
    assert world.rollout.due() == []

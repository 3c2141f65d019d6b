"""The planner of a cluster: it leads to what is declared from anywhere; never have two pods one segment (I7)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.resources.pretended import Pretended
from tests.resources.test_cluster_children import SETTINGS, STORAGE, stream

from epochal.resources.cluster import (
    Apply,
    ClusterPlan,
    ClusterSettings,
    ClusterStream,
    Create,
    Delete,
    Whose,
    children_of,
    plan_cluster,
    whose,
)
from epochal.resources.cluster.planner import segments_of
from epochal.resources.cluster.pod_state import is_ready
from epochal.resources.cluster.repacking import PodSlot, Repacking
from epochal.resources.cluster.stream import is_terminating, key
from epochal.resources.plan import DesiredStream, publishers_of

NEWER = ClusterSettings(image="registry.example/epochal-publisher:2", catalog="http://catalog:8700")


def running(what: ClusterStream, settings: ClusterSettings = SETTINGS) -> Pretended:
    cluster = Pretended()
    cluster.settle(what, children_of(what, settings))
    return cluster


def told(plan: ClusterPlan) -> list[str]:
    words = {Create: "create", Apply: "apply", Delete: "delete"}
    return [f"{words[type(action)]} {' '.join(key(action.item))}" for action in plan.actions]


def pod(cluster: Pretended, index: int) -> dict[str, Any]:
    return cluster.items["Pod", f"flights-{index}"]


def test_everything_is_made_at_once_and_then_nothing() -> None:
    what = stream(2, **STORAGE)
    cluster, wanted = Pretended(), children_of(what, SETTINGS)
    assert told(cluster.reconcile(what, wanted)) == [f"create {' '.join(key(item))}" for item in wanted]
    assert cluster.plan(what, wanted).actions == ()


@pytest.mark.parametrize("kind", ["ServiceAccount", "Service", "PodDisruptionBudget", "NetworkPolicy", "Pod"])
def test_what_is_deleted_is_made_again(kind: str) -> None:
    what = stream(1)
    cluster, wanted = running(what), children_of(what, SETTINGS)
    [gone] = [place for place in cluster.items if place[0] == kind]
    del cluster.items[gone]
    assert told(cluster.reconcile(what, wanted)) == [f"create {' '.join(gone)}"]


def test_what_is_edited_is_repaired_and_what_is_added_stays() -> None:
    what = stream(1)
    cluster, wanted = running(what), children_of(what, SETTINGS)
    service = cluster.items["Service", "flights"]
    service["metadata"]["labels"]["team"] = "x"
    service["spec"]["ports"].append({"name": "mine", "port": 1})
    service["spec"]["clusterIPs"] = ["None"]
    assert cluster.plan(what, wanted).actions == ()
    for wrong in ({"app": "other"}, {**service["spec"]["selector"], "app": "other"}):
        service["spec"]["selector"] = wrong
        assert told(cluster.reconcile(what, wanted)) == ["apply Service flights"]
    policy = cluster.items["NetworkPolicy", "flights-publisher"]
    policy["spec"]["ingress"] = [*policy["spec"]["ingress"], {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]
    assert told(cluster.reconcile(what, wanted)) == ["apply NetworkPolicy flights-publisher"]
    pod(cluster, 0)["metadata"]["labels"]["epochal.dev/publisher-index"] = "7"
    assert told(cluster.reconcile(what, wanted)) == ["apply Pod flights-0"]


def test_labels_that_pods_did_not_have_are_given_to_them_while_they_run() -> None:
    what = stream(1)
    cluster, wanted = running(what), children_of(what, SETTINGS)
    del pod(cluster, 0)["metadata"]["labels"]["app.kubernetes.io/part-of"]
    assert told(cluster.reconcile(what, wanted)) == ["apply Pod flights-0"]
    assert cluster.plan(what, wanted).actions == ()


def test_a_pod_that_has_ended_is_replaced() -> None:
    what = stream(2)
    cluster, wanted = running(what), children_of(what, SETTINGS)
    cluster.fail(pod(cluster, 1))
    assert told(cluster.reconcile(what, wanted)) == ["delete Pod flights-1"]
    assert told(cluster.reconcile(what, wanted)) == ["create Pod flights-1"]


def test_a_pod_on_its_way_out_keeps_its_name() -> None:
    what = stream(1)
    cluster, wanted = running(what), children_of(what, SETTINGS)
    pod(cluster, 0)["metadata"]["deletionTimestamp"] = "now"
    plan = cluster.plan(what, wanted)
    assert (plan.actions, plan.waiting) == ((), ("Pod flights-0",))
    cluster.gone()
    assert told(cluster.plan(what, wanted)) == ["create Pod flights-0"]


# ---- rolling -------------------------------------------------------------------------------------------------------


def test_one_pod_after_the_other_is_replaced() -> None:
    what = stream(3, **STORAGE)
    cluster, wanted = running(what), children_of(what, NEWER)
    for index in range(3):
        assert told(cluster.reconcile(what, wanted)) == [f"delete Pod flights-{index}"]
        assert cluster.reconcile(what, wanted).actions == (), "it is not gone yet"
        cluster.gone()
        assert told(cluster.reconcile(what, wanted)) == [f"create Pod flights-{index}"]
        assert cluster.reconcile(what, wanted).actions == (), "the new one is not ready"
        cluster.ready(pod(cluster, index))
    assert cluster.plan(what, wanted).actions == ()


def test_what_a_webhook_puts_into_pods_replaces_none() -> None:
    what = stream(2)
    cluster, wanted = running(what), children_of(what, SETTINGS)
    for each in cluster.pods():
        [publisher] = each["spec"]["containers"]
        publisher["image"] = f"mirror.example/{publisher['image']}"
        each["spec"]["containers"].insert(0, {"name": "istio-proxy", "image": "istio/proxyv2:1"})
        each["spec"]["volumes"].append({"name": "istio", "emptyDir": {}})
    plan = cluster.plan(what, wanted)
    assert (plan.actions, plan.outdated) == ((), ())
    cluster.settle(what, children_of(what, NEWER))
    assert all(each["spec"]["containers"][0]["image"] == NEWER.image for each in cluster.pods()), "a new image rolls"


def test_a_new_pod_that_is_never_ready_stops_it_and_going_back_heals() -> None:
    what = stream(3)
    cluster, wanted = running(what), children_of(what, NEWER)
    cluster.reconcile(what, wanted)
    cluster.gone()
    cluster.reconcile(what, wanted)
    stuck = cluster.plan(what, wanted)
    assert (stuck.actions, [item["metadata"]["name"] for item in stuck.outdated]) == ((), ["flights-1", "flights-2"])
    assert told(cluster.reconcile(what, children_of(what, SETTINGS))) == ["delete Pod flights-0"]
    cluster.settle(what, children_of(what, SETTINGS))


def test_pods_that_were_never_ready_do_not_stop_each_other() -> None:
    what = stream(3)
    cluster, wanted = running(what), children_of(what, SETTINGS)
    for each in cluster.pods():
        cluster.ready(each, is_so=False)
    cluster.settle(what, children_of(what, NEWER))
    assert wanted


def test_nothing_is_rolled_while_the_catalog_is_away() -> None:
    what = stream(2)
    cluster = running(what)
    plan = cluster.plan(what, children_of(what, NEWER), may_roll=False)
    assert (plan.actions, len(plan.outdated)) == ((), 2)


def repacked(cluster: Pretended, what: ClusterStream, wanted: list[dict[str, Any]]) -> list[list[str]]:
    """The groups of pods that end together, until all is as wanted; pods come and go in between."""
    groups: list[list[str]] = []
    for _ in range(40):
        plan = cluster.reconcile(what, wanted)
        if gone := [action.item["metadata"]["name"] for action in plan.actions if isinstance(action, Delete)]:
            groups.append(sorted(gone))
        cluster.gone()
        for each in cluster.pods():
            cluster.ready(each)
    return groups


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        (1, 2, [["0", "1"], ["2", "3"], ["4", "5"]]),
        (2, 1, [["2"], ["1"], ["0"]]),
        (1, 6, [["0", "1", "2", "3", "4", "5"]]),
        (6, 1, [["0"]]),
        (2, 3, [["0", "1", "2"]]),
    ],
)
def test_other_groups_of_segments_are_made_one_after_the_other(before: int, after: int, groups: Any) -> None:
    cluster = running(stream(6, publishers={"segmentsPerPod": before}))
    packed = stream(6, publishers={"segmentsPerPod": after})
    wanted = children_of(packed, SETTINGS)
    assert repacked(cluster, packed, wanted) == [[f"flights-{index}" for index in group] for group in groups]
    assert cluster.plan(packed, wanted).actions == ()


@pytest.mark.parametrize("before", [{"segmentsPerPod": 1}, {}])
def test_one_segment_a_pod_and_not_given_are_the_same(before: Any) -> None:
    cluster = running(stream(3, **STORAGE, publishers=before))
    for after in ({}, {"segmentsPerPod": 1}):
        what = stream(3, **STORAGE, publishers=after)
        plan = cluster.plan(what, children_of(what, SETTINGS))
        assert (plan.actions, plan.outdated, plan.waiting_for_restart) == ((), (), ())


def test_the_next_group_waits_until_the_one_before_serves() -> None:
    cluster = running(stream(4))
    packed = stream(4, publishers={"segmentsPerPod": 2})
    wanted = children_of(packed, SETTINGS)
    away = cluster.reconcile(packed, wanted, may_roll=False)
    assert told(away) == ["apply PodDisruptionBudget flights-publisher"]
    assert (len(away.outdated), len(away.pods)) == (4, 4)
    assert told(cluster.reconcile(packed, wanted)) == ["delete Pod flights-0", "delete Pod flights-1"]
    assert told(cluster.reconcile(packed, wanted)) == [], "they are not gone yet"
    del cluster.items["Pod", "flights-0"]
    assert told(cluster.reconcile(packed, wanted)) == [], "who has segment 1 is not gone"
    del cluster.items["Pod", "flights-1"]
    assert told(cluster.reconcile(packed, wanted)) == ["create Pod flights-0"]
    stuck = cluster.reconcile(packed, wanted)
    assert (stuck.actions, len(stuck.outdated), len(stuck.pods)) == ((), 2, 3)
    apart = children_of(stream(4), SETTINGS)
    assert told(cluster.reconcile(stream(4), apart))[-1:] == ["delete Pod flights-0"], "going back heals"
    cluster.settle(stream(4), apart)
    cluster.settle(packed, wanted)
    assert [segments_of(each) for each in cluster.pods()] == [("0", "1"), ("2", "3")]


def test_groups_that_were_never_ready_do_not_stop_each_other() -> None:
    cluster = running(stream(4))
    for each in cluster.pods():
        cluster.ready(each, is_so=False)
    packed = stream(4, publishers={"segmentsPerPod": 2})
    wanted = children_of(packed, SETTINGS)
    for _ in range(20):
        cluster.reconcile(packed, wanted)
        cluster.gone()
    assert [segments_of(each) for each in cluster.pods()] == [("0", "1"), ("2", "3")]


# ---- volumes -------------------------------------------------------------------------------------------------------


def test_a_lost_volume_is_reported_and_not_made_again_while_its_pod_runs() -> None:
    what = stream(2, **STORAGE)
    cluster, wanted = running(what), children_of(what, SETTINGS)
    del cluster.items["PersistentVolumeClaim", "flights-1"]
    plan = cluster.plan(what, wanted)
    assert (plan.actions, plan.lost_volumes) == ((), ("flights-1",))
    cluster.items.pop(("Pod", "flights-1"))
    again = cluster.plan(what, wanted)
    assert told(again) == ["create PersistentVolumeClaim flights-1", "create Pod flights-1"]
    assert again.lost_volumes == ()


def test_a_volume_on_its_way_out_is_waited_for() -> None:
    what = stream(1, **STORAGE)
    cluster, wanted = running(what), children_of(what, SETTINGS)
    cluster.items["PersistentVolumeClaim", "flights-0"]["metadata"]["deletionTimestamp"] = "now"
    assert cluster.plan(what, wanted).lost_volumes == ("flights-0",)
    cluster.items.pop(("Pod", "flights-0"))
    plan = cluster.plan(what, wanted)
    assert (plan.actions, plan.waiting) == ((), ("PersistentVolumeClaim flights-0",))


def test_a_volume_grows_and_never_shrinks_nor_goes() -> None:
    what = stream(1, **STORAGE)
    cluster = running(what)
    larger = stream(1, history={"storage": {"size": "4Gi"}})
    [action] = cluster.plan(larger, children_of(larger, SETTINGS)).actions
    assert isinstance(action, Apply)
    assert action.item["spec"] == {"resources": {"requests": {"storage": "4Gi"}}}
    smaller = stream(1, history={"storage": {"size": "1Gi"}})
    assert cluster.plan(smaller, children_of(smaller, SETTINGS)).actions == ()
    memory = stream(1)
    cluster.settle(memory, children_of(memory, SETTINGS))
    assert ("PersistentVolumeClaim", "flights-0") in cluster.items


# ---- what is not ours ----------------------------------------------------------------------------------------------


def test_what_another_owner_made_is_reported_and_not_touched() -> None:
    what = stream(1)
    cluster, wanted = Pretended(), children_of(what, SETTINGS)
    mine = cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "flights", "namespace": "demo"}})
    plan = cluster.reconcile(what, wanted)
    assert plan.conflicts == ("Service flights",)
    assert cluster.items["Service", "flights"] == mine
    assert cluster.reconcile(what, wanted).actions == ()


def test_what_is_left_of_an_older_stream_is_seen_off_before_its_name_is_used() -> None:
    old = stream(1, **STORAGE)
    cluster = running(old)
    new = ClusterStream(old.manifest, "newer", "newer-at-the-catalog", ("0",))
    wanted = children_of(new, SETTINGS)
    first = told(cluster.reconcile(new, wanted))
    assert all(word.startswith("delete") for word in first)
    assert len(first) == len(wanted)
    assert not any(word.startswith("delete") for word in told(cluster.reconcile(new, wanted))), "it is on its way out"
    cluster.settle(new, wanted)
    assert all(whose(item, "flights", "newer") is Whose.OURS for item in cluster.items.values())


def test_a_stream_that_the_catalog_has_with_a_new_uid_gets_new_pods() -> None:
    what = stream(2)
    cluster = running(what)
    anew = ClusterStream(what.manifest, what.object_uid, "another", what.segments)
    assert told(cluster.reconcile(anew, children_of(anew, SETTINGS)))[:2] == [
        "delete Pod flights-0",
        "delete Pod flights-1",
    ]
    cluster.settle(anew, children_of(anew, SETTINGS))


def test_a_deletion_names_what_was_seen() -> None:
    what = stream(1)
    cluster = running(what)
    [action] = cluster.plan(what, children_of(what, NEWER)).actions
    assert isinstance(action, Delete)
    metadata = pod(cluster, 0)["metadata"]
    assert action.preconditions == {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}


# ---- from anywhere -------------------------------------------------------------------------------------------------

layouts = st.builds(
    lambda segments, packed, storage, heartbeat: stream(
        segments,
        publishers={"segmentsPerPod": packed},
        push={"heartbeat": heartbeat},
        **(STORAGE if storage else {}),
    ),
    st.just(4),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["1s", "2s"]),
)
images = st.sampled_from([SETTINGS, NEWER])
accidents = st.lists(
    st.tuples(
        st.sampled_from(["declare", "ready", "unready", "fail", "gone", "delete", "edit", "reconcile", "away"]),
        st.integers(0, 20),
    ),
    max_size=25,
)


def happens(cluster: Pretended, what: str, number: int) -> None:
    pods, items = cluster.pods(), sorted(cluster.items)
    if pods and what in ("ready", "unready"):
        cluster.ready(pods[number % len(pods)], is_so=what == "ready")
    elif pods and what == "fail":
        cluster.fail(pods[number % len(pods)])
    elif what == "gone" and number % 2:
        cluster.gone()
    elif what == "gone":
        leaving = [key(each) for each in pods if is_terminating(each)]
        for place in leaving[number % (len(leaving) or 1) :][:1]:
            del cluster.items[place]
    elif items and what == "delete":
        item = cluster.items[items[number % len(items)]]
        if item["kind"] == "Pod":
            item["metadata"]["deletionTimestamp"] = "now"
        elif item["kind"] != "PersistentVolumeClaim":
            del cluster.items[key(item)]
    elif items and what == "edit":
        cluster.items[items[number % len(items)]]["metadata"]["annotations"].clear()


@settings(max_examples=200)
@given(st.lists(st.tuples(layouts, images), min_size=1, max_size=4), accidents)
def test_from_anywhere_it_leads_to_what_is_declared(declared: Any, story: Any) -> None:
    cluster, turn = Pretended(), 0
    for what, number in story:
        turn += what == "declare"
        current, image = declared[turn % len(declared)]
        if what in ("reconcile", "away"):
            cluster.reconcile(current, children_of(current, image), may_roll=what == "reconcile")
        else:
            happens(cluster, what, number)
    current, image = declared[turn % len(declared)]
    wanted = children_of(current, image)
    cluster.settle(current, wanted)
    volumes = {place for place in cluster.items if place[0] == "PersistentVolumeClaim"}
    assert cluster.items.keys() - volumes == {key(item) for item in wanted} - volumes
    assert volumes >= {key(item) for item in wanted if item["kind"] == "PersistentVolumeClaim"}
    assert cluster.plan(current, wanted).actions == ()


@settings(max_examples=200)
@given(layouts, st.lists(st.tuples(st.sampled_from(["ready", "gone", "reconcile"]), st.integers(0, 20)), max_size=40))
def test_rolling_costs_at_most_one_pod_at_a_time(what: ClusterStream, story: Any) -> None:
    cluster, wanted = running(what), children_of(what, NEWER)
    count = len(cluster.pods())
    for happening, number in story:
        if happening == "reconcile":
            plan = cluster.reconcile(what, wanted)
            assert sum(isinstance(action, Delete) for action in plan.actions) <= 1
        else:
            happens(cluster, happening, number)
        assert sum(map(is_ready, cluster.pods())) >= count - 1


@settings(max_examples=200)
@given(layouts, layouts, st.lists(st.tuples(st.sampled_from(["ready", "gone", "reconcile"]), st.integers(0, 20))))
def test_segments_change_hands_only_while_all_others_are_served(
    before: ClusterStream, after: ClusterStream, story: Any
) -> None:
    cluster, wanted = running(before), children_of(after, SETTINGS)
    for happening, number in story:
        if happening != "reconcile":
            happens(cluster, happening, number)
            continue
        served = {segment for each in cluster.pods() if is_ready(each) for segment in segments_of(each)}
        plan = cluster.reconcile(after, wanted)
        ended = [action.item for action in plan.actions if isinstance(action, Delete)]
        if any(map(is_ready, ended)):
            assert served == set(after.segments)
    cluster.settle(after, wanted)


@settings(max_examples=100)
@given(layouts)
def test_an_old_look_deletes_nothing_newer(what: ClusterStream) -> None:
    """Whatever an old look would delete is gone by then, or another object: the preconditions refuse it (fault 34)."""
    cluster, wanted = running(what), children_of(what, NEWER)
    old = [dict(item) for item in cluster.items.values()]
    plan = plan_cluster(what, wanted, old)
    cluster.settle(what, wanted)
    assert plan.actions
    for action in plan.actions:
        if isinstance(action, Delete):
            live = cluster.items.get(key(action.item))
            assert live is None or live["metadata"]["uid"] != action.preconditions["uid"] or is_terminating(live)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (1, 512), (1, 1024), (1024, 1), (7, 11)])
def test_a_next_group_is_found_in_the_largest_stream_too(before: int, after: int) -> None:
    """Where looking at every group to its end would take minutes."""

    def slots(size: int) -> list[PodSlot]:
        made = publishers_of(DesiredStream("demo", "flights", "u", tuple(map(str, range(1024))), size))
        return [PodSlot(publisher.id, publisher.segments) for publisher in made]

    leaving, starts = slots(before), slots(after)
    group = Repacking.of(leaving, starts).next_group()
    given_up = {segment for slot in leaving if slot.name in group for segment in slot.segments}
    left = Repacking.of([slot for slot in leaving if slot.name not in group], starts)
    takers = [start for start in starts if given_up.intersection(start.segments)]
    assert takers
    assert not any(map(left.is_blocked, takers)), "all that the group served is served again"

"""What is said of an object that is written again: which fields, and who changed them."""

import doctest
from typing import Any

import pytest
from tests.resources.test_cluster_children import SETTINGS, stream
from tests.resources.test_cluster_planner import NEWER, pod, running

from epochal.resources.cluster import Apply, children_of, plan_cluster
from epochal.resources.cluster import changes as module
from epochal.resources.cluster.stream import MANAGER

Object = dict[str, Any]
OURS: Object = {"manager": MANAGER, "operation": "Apply", "time": "2026-11-01T11:00:00Z", "fieldsV1": {"f:spec": {}}}


def managed(by: str, time: str, *path: str, **more: Any) -> Object:
    fields: Object = {}
    for name in reversed(path):
        fields = {f"f:{name}": fields}
    return {"manager": by, "operation": "Update", "time": time, "fieldsV1": fields, **more}


def applied(kind: str, change: Any, *entries: Object, **spec: Any) -> Apply:
    """What is done about an object of this kind that was changed so."""
    what = stream(1, **spec)
    cluster = running(what)
    [item] = [item for place, item in cluster.items.items() if place[0] == kind]
    item["metadata"]["managedFields"] = [OURS, *entries]
    change(item)
    [action] = cluster.plan(what, children_of(what, SETTINGS)).actions
    assert isinstance(action, Apply)
    return action


def test_who_changed_a_field_is_named_with_the_field() -> None:
    def change(service: Object) -> None:
        service["spec"]["selector"] = {"app": "other"}

    action = applied(
        "Service",
        change,
        managed("kubectl-label", "2026-11-01T12:30:00Z", "metadata", "labels", "team"),
        managed("kubectl-edit", "2026-11-01T12:00:00Z", "spec", "selector"),
    )
    assert action.reason == "PutBack"
    assert action.why == "spec.selector, which was changed by kubectl-edit at 2026-11-01T12:00:00Z"


def test_a_label_that_someone_removed_names_who_wrote_last() -> None:
    def change(budget: Object) -> None:
        del budget["metadata"]["labels"]["epochal.dev/stream"]

    action = applied(
        "PodDisruptionBudget",
        change,
        managed("kubectl-label", "2026-11-01T12:00:00Z", "metadata", "labels", "team"),
        managed("kube-controller-manager", "2026-11-01T12:30:00Z", "status", subresource="status"),
    )
    assert action.reason == "PutBack"
    assert action.why == (
        "metadata.labels.epochal.dev/stream, and the object was last written by kubectl-label at 2026-11-01T12:00:00Z"
    )


def test_a_relay_that_someone_scaled_is_named_with_the_sub_resource() -> None:
    def change(relay: Object) -> None:
        relay["spec"]["replicas"] = 5

    scaled = managed("kubectl", "2026-11-01T12:00:00Z", "spec", "replicas", subresource="scale")
    action = applied("Relay", change, scaled, relays=2)
    assert (action.reason, action.why) == (
        "PutBack",
        "spec.replicas, which was changed by kubectl (scale) at 2026-11-01T12:00:00Z",
    )


def test_what_is_declared_otherwise_is_no_fault_of_others() -> None:
    before, after = stream(1), stream(1, access={"publish": [{"serviceAccount": "*", "namespace": "jobs"}]})
    cluster = running(before)
    [action] = cluster.plan(after, children_of(after, SETTINGS)).actions
    assert isinstance(action, Apply)
    assert action.reason == "Changed"
    assert action.why.startswith("it is declared otherwise now: ")
    assert "spec.ingress" in action.why


def test_what_differs_and_was_written_by_no_other_is_said_without_a_name() -> None:
    what = stream(1)
    cluster = running(what)
    del pod(cluster, 0)["metadata"]["labels"]["app.kubernetes.io/part-of"]
    [action] = cluster.plan(what, children_of(what, SETTINGS)).actions
    assert isinstance(action, Apply)
    assert (action.reason, action.why) == (
        "Changed",
        "it is not as declared: metadata.labels.app.kubernetes.io/part-of",
    )


def test_every_action_says_why() -> None:
    what = stream(2, history={"storage": {"size": "1Gi"}})
    first = plan_cluster(what, children_of(what, SETTINGS), ())
    assert {(action.reason, action.why) for action in first.actions} == {("Created", "there was none")}
    grown = stream(2, history={"storage": {"size": "2Gi"}})
    found = running(what).plan(grown, children_of(grown, SETTINGS)).actions
    assert ("Changed", "history.storage.size has grown") in {(action.reason, action.why) for action in found}
    rolled = running(what).plan(what, children_of(what, NEWER)).actions
    assert [action.reason for action in rolled] == ["Deleted"]
    assert all(action.why for action in (*found, *rolled))


@pytest.mark.parametrize("count", [5, 7])
def test_many_fields_are_counted(count: int) -> None:
    drawn = {"metadata": {"labels": {f"l{at}": "x" for at in range(count)}}}
    why = module.repair(drawn, {"metadata": {"labels": {}}}).why
    assert why.endswith("metadata.labels.l4" if count == 5 else "metadata.labels.l4 and 2 more")


def test_the_examples_in_the_documentation_of_the_code() -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed

"""Changes of a Stream and their way back, after Acto: the end is as the beginning, and wrong ones change nothing.

Sources: faults 49 and 50.
"""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from tests.cluster.harness.kubernetes import KubectlError, eventually
from tests.cluster.harness.streams import Streams, stream

BASE = stream("orders", segments=2)

VALID: dict[str, Mapping[str, Any]] = {
    "settings": {"push": {"bufferBytes": "32Mi", "heartbeat": "2s"}, "progress": {"writerTimeout": "1m"}},
    "history": {"history": {"storage": {"size": "64Mi"}, "durability": "interval", "retention": {"bytes": "16Mi"}}},
    "pods": {
        "publishers": {
            "resources": {"requests": {"cpu": "30m", "memory": "80Mi"}},
            "advertise": "{stream}-{index}.{stream}.{namespace}.svc.cluster.local",
        }
    },
    "two segments a pod": {"publishers": {"segmentsPerPod": 2, "resources": BASE["spec"]["publishers"]["resources"]}},
    "who may connect": {"access": {"subscribe": [{"serviceAccount": "*", "namespace": "elsewhere"}]}},
}
"""Fields of the spec in place of those of BASE; each is taken, and taken back."""

REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "a type": ({"segments": "many"}, "spec.segments"),
    "a negative number": ({"segments": -1}, "should be greater than or equal to 1"),
    "a huge number": ({"segments": 10**9}, "should be less than or equal to"),
    "another number of segments": ({"segments": 3}, "scaling a stream is planned"),
    "another shape": ({"time": {"shape": "(int, int)"}}, "it cannot change while the stream exists"),
    "another encoding": ({"payload": {"encoding": "msgpack"}}, "it cannot change while the stream exists"),
    "no such encoding": ({"payload": {"encoding": "xml"}}, 'Unsupported value: "xml"'),
    "a wrong size": ({"history": {"storage": {"size": "large"}}}, "spec.history.storage.size"),
    "durability without storage": ({"history": {"durability": "batch"}}, "need history.storage"),
    "an unknown field": ({"replicas": 3}, 'unknown field "spec.replicas"'),
    "one address for all": ({"publishers": {"advertise": "streams.example.org"}}, "put {index} in it"),
    "no duration": ({"progress": {"writerTimeout": "soon"}}, "spec.progress.writerTimeout"),
}
"""Fields that the API server refuses, with what it says."""

INVALID: dict[str, tuple[Mapping[str, Any], str]] = {
    "no host": ({"publishers": {"advertise": "not a host {index}"}}, "is not a host"),
}
"""Fields that only the operator finds wrong, with what the condition says."""


def changed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """BASE with these fields in its spec."""
    document = copy.deepcopy(BASE)
    document["spec"] |= fields
    return document


def end_state(streams: Streams) -> dict[str, Any]:
    """The stream and all that it has, without counters, times, uids and what Kubernetes fills in for each object."""
    found = streams.get("orders")
    state: dict[str, Any] = {"Stream orders": {"spec": found["spec"], "status": _told(found["status"])}}
    for item in streams.children("orders"):
        metadata = item["metadata"]
        state[f"{item['kind']} {metadata['name']}"] = {
            "spec": _plain(item.get("spec", {})),
            "labels": metadata["labels"],
            "annotations": {key: value for key, value in metadata["annotations"].items() if "epochal.dev" in key},
        }
    return state


def _told(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = [(item["type"], item["status"], item["reason"], item["message"]) for item in status["conditions"]]
    kept = {name: status[name] for name in ("segments", "readySegments", "selector", "catalogUid", "notInEffect")}
    return {**kept, "conditions": conditions}


def _plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in ("nodeName", "clusterIP", "clusterIPs")}


def uids(streams: Streams) -> set[str]:
    return {pod["metadata"]["uid"] for pod in streams.pods("orders").values()}


@pytest.fixture
def settled(streams: Streams) -> Streams:
    """A namespace with BASE in it, served."""
    streams.start(BASE)
    return streams


def test_valid_changes_and_their_way_back_end_where_they_began(settled, toolbox):
    name = f"{settled.namespace}/orders"
    toolbox.publish(name, 1, *range(20))
    began = end_state(settled)
    for what, fields in VALID.items():
        settled.apply(changed(fields))
        settled.settled("orders")
        assert end_state(settled) != began, what
        settled.apply(BASE)
        settled.settled("orders")
        assert end_state(settled) == began, what
    assert toolbox.epochs(name, 1) == {1: sorted(range(20), key=str)}


def test_changes_that_are_refused_change_nothing(settled):
    began, version = end_state(settled), settled.get("orders")["metadata"]["generation"]
    pods = uids(settled)
    for what, (fields, said) in REFUSED.items():
        with pytest.raises(KubectlError) as refusal:
            settled.apply(changed(fields))
        assert said in str(refusal.value), what
    assert settled.get("orders")["metadata"]["generation"] == version
    assert end_state(settled) == began
    assert uids(settled) == pods


def test_changes_that_only_the_operator_finds_wrong_leave_the_stream_running(settled, toolbox):
    name = f"{settled.namespace}/orders"
    began = end_state(settled)
    pods = uids(settled)
    for what, (fields, said) in INVALID.items():
        settled.apply(changed(fields))
        assert said in settled.told("orders", "Degraded", "Invalid")["message"], what
        assert settled.told("orders", "Ready", "Serving")["status"] == "True", what
        settled.apply(BASE)
        settled.settled("orders")
    assert end_state(settled) == began
    assert uids(settled) == pods
    toolbox.publish(name, 1, "still there")
    assert toolbox.epochs(name, 1) == {1: ["still there"]}


@pytest.mark.parametrize("name", ["Orders", "ordérs", "o" * 53, "1orders", "a.b", "orders-"])
def test_names_that_pods_could_not_have_are_refused(streams, name):
    document = stream("orders")
    document["metadata"]["name"] = name
    with pytest.raises(KubectlError, match=r"Invalid|invalid"):
        streams.apply(document)


def test_what_is_deleted_comes_back_and_what_is_edited_is_changed_back(cluster, settled):
    began = end_state(settled)
    place = ("-n", settled.namespace)
    cluster.kubectl("delete", "service/orders", "poddisruptionbudget/orders-publisher", *place)
    cluster.kubectl("delete", "networkpolicy/orders-publisher", *place)
    eventually(lambda: end_state(settled) == began)
    wrong = '{"spec": {"selector": {"app": "somebody"}}}'
    cluster.kubectl("patch", "service", "orders", *place, "--type=merge", "-p", wrong)
    cluster.kubectl("delete", "pod", "orders-0", *place)
    settled.settled("orders")
    eventually(lambda: end_state(settled) == began)


def test_a_lost_volume_is_told_and_made_anew_once_its_pod_goes(cluster, settled):
    place = ("-n", settled.namespace)
    cluster.kubectl("delete", "pvc", "orders-0", *place, "--wait=false")
    lost = settled.told("orders", "Degraded", "VolumeLost")
    assert "orders-0" in lost["message"]
    cluster.kubectl("delete", "pod", "orders-0", *place)
    settled.told("orders", "Degraded", "AsExpected")
    settled.settled("orders")

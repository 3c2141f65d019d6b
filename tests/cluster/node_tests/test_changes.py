"""Changes of a Stream and their way back, after Acto: the end is as the beginning.

Source: fault 50. Wrong ones, and what is deleted or edited, are shown on an API server alone (`tests/cluster/api`).
"""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
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


def test_a_lost_volume_is_reported_and_made_again_once_its_pod_goes(cluster, settled):
    place = ("-n", settled.namespace)
    cluster.kubectl("delete", "pvc", "orders-0", *place, "--wait=false")
    lost = settled.told("orders", "Degraded", "VolumeLost")
    assert "orders-0" in lost["message"]
    cluster.kubectl("delete", "pod", "orders-0", *place)
    settled.told("orders", "Degraded", "VolumeReplaced")
    settled.settled("orders")

"""The status of a Relay: what people and `kubectl wait` read of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from epochal.resources.cluster.planner import ClusterPlan
from epochal.resources.cluster.relay_status import RelaySeen, is_short, relay_status_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEPLOYMENT: dict[str, Any] = {"status": {"replicas": 3, "readyReplicas": 2}}


def told(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}


def test_numbers_are_those_of_the_deployment_and_of_the_catalog() -> None:
    status = relay_status_of({}, RelaySeen("near", 4, NOW, deployment=DEPLOYMENT, wanted=3, subscribers=17))
    assert {name: status[name] for name in ("observedGeneration", "replicas", "readyReplicas", "subscribers")} == {
        "observedGeneration": 4,
        "replicas": 3,
        "readyReplicas": 2,
        "subscribers": 17,
    }
    assert status["selector"] == "app.kubernetes.io/name=epochal-relay,epochal.dev/relay=near"
    assert told(status) == {"Ready": ("False", "RelaysNotReady"), "Degraded": ("False", "AsExpected")}
    later = relay_status_of(status, RelaySeen("near", 4, NOW + timedelta(1), deployment=DEPLOYMENT, wanted=3))
    assert later["subscribers"] == 17, "while the catalog is away"
    assert later == status, "a condition's time moves with its status only"


def test_it_is_ready_once_there_are_as_many_as_there_should_be() -> None:
    seen = RelaySeen("near", 1, NOW, deployment=DEPLOYMENT, wanted=2)
    assert told(relay_status_of({}, seen))["Ready"] == ("True", "Serving")
    assert told(relay_status_of({}, RelaySeen("near", 1, NOW, wanted=0)))["Ready"] == ("False", "ScaledToZero")


def test_what_is_wrong_is_said() -> None:
    wrong = RelaySeen("near", 1, NOW, wrong=("NoStream", "there is no Stream flights"))
    assert told(relay_status_of({}, wrong)) == {"Ready": ("False", "NoStream"), "Degraded": ("True", "NoStream")}
    goes_on = RelaySeen(
        "near", 1, NOW, deployment={**DEPLOYMENT, "spec": {"replicas": 2}}, wrong=("Invalid", "unknown field")
    )
    assert told(relay_status_of({}, goes_on)) == {"Ready": ("True", "Serving"), "Degraded": ("True", "Invalid")}
    taken = RelaySeen("near", 1, NOW, ClusterPlan(conflicts=("Service near-relay",)), wanted=1)
    status = relay_status_of({}, taken)
    assert told(status)["Degraded"] == ("True", "NameConflict")
    assert "Service near-relay" in status["conditions"][0]["message"]


@pytest.mark.parametrize("reason", ["NoStream", "StreamNotReady", "Invalid", "StreamInvalid", "Refused"])
def test_the_page_has_every_reason_for_which_there_are_no_relays(reason: str) -> None:
    seen = RelaySeen("near", 1, NOW, wanted=0 if reason == "Refused" else None, wrong=(reason, "why"))
    assert told(relay_status_of({}, seen))["Ready"] == ("False", reason)
    page = (Path(__file__).parents[2] / "docs/relays.md").read_text(encoding="utf-8")
    rows = page.partition("| `Ready` | True |")[2].partition("| `Degraded` | False |")[0]
    assert f"`{reason}`" in rows


def test_a_new_pod_that_cannot_start_is_named_beside_relays_that_serve() -> None:
    waiting = {"name": "relay", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}
    pods: list[dict[str, Any]] = [
        {"metadata": {"name": "near-relay-b"}, "status": {"containerStatuses": [waiting]}},
        {"metadata": {"name": "near-relay-a"}, "status": {"phase": "Failed", "reason": "Evicted"}},
    ]
    deployment = {"status": {"replicas": 3, "readyReplicas": 2, "unavailableReplicas": 1}}
    seen = RelaySeen("near", 1, NOW, deployment=deployment, wanted=2, pods=pods)
    assert is_short(seen)
    status = relay_status_of({}, seen)
    assert told(status) == {"Ready": ("True", "Serving"), "Degraded": ("True", "RelayFailing")}
    assert status["conditions"][1]["message"] == "near-relay-b (ImagePullBackOff: no such tag)"
    served = {"status": {"replicas": 2, "readyReplicas": 2}}
    assert not is_short(RelaySeen("near", 1, NOW, deployment=served, wanted=2))


def test_what_the_deployment_says_is_passed_on() -> None:
    for kind, holds, reason in (("ReplicaFailure", "True", "PodsRefused"), ("Progressing", "False", "RolloutStuck")):
        conditions = [{"type": kind, "status": holds, "message": "quota"}]
        deployment = {"status": {**DEPLOYMENT["status"], "conditions": conditions}}
        status = relay_status_of({}, RelaySeen("near", 1, NOW, deployment=deployment, wanted=3))
        assert told(status)["Degraded"] == ("True", reason)
        assert "quota" in status["conditions"][1]["message"]

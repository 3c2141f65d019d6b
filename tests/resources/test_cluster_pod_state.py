"""Why a pod does not serve: the reason and exit code of what crashed, what the registry and the scheduler say."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from epochal.resources.cluster.pod_state import trouble, waits_for, why_ended

Object = dict[str, Any]
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


def pod(container: Object | None = None, *, ready: bool = False, made: float = -10, **status: Any) -> Object:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}, *status.pop("conditions", ())]
    statuses = [] if container is None else [{"name": "publisher", "ready": ready, **container}]
    return {
        "metadata": {"name": "flights-0", "creationTimestamp": at(made)},
        "status": {"conditions": conditions, "containerStatuses": statuses, **status},
    }


KILLED: Object = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": at(-5)}}
WRONG: Object = {
    "terminated": {
        "reason": "Error",
        "exitCode": 1,
        "finishedAt": at(-5),
        "message": "Traceback\n  more\nepochal-publisher: no catalog at http://c:1\n\n",
    }
}
BACK_OFF: Object = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 2m40s restarting failed container"}}


@pytest.mark.parametrize(
    ("container", "said"),
    [
        (
            {"state": BACK_OFF, "lastState": KILLED, "restartCount": 4},
            "(CrashLoopBackOff: publisher ended with OOMKilled, exit code 137)",
        ),
        (
            {"state": BACK_OFF, "lastState": WRONG, "restartCount": 1},
            "(CrashLoopBackOff: publisher ended with Error, exit code 1: epochal-publisher: no catalog at http://c:1)",
        ),
        (
            {"state": {"running": {}}, "lastState": KILLED, "restartCount": 2},
            "(CrashLoopBackOff: publisher ended with OOMKilled, exit code 137)",
        ),
        (
            {"state": {"waiting": {"reason": "ErrImagePull", "message": "not  found:\n x:1"}}},
            "(ErrImagePull: not found: x:1)",
        ),
        ({"state": {"waiting": {"reason": "CreateContainerConfigError"}}}, "(CreateContainerConfigError)"),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, ""),
        ({"state": {"running": {}}, "lastState": KILLED, "restartCount": 1}, ""),
        ({"state": {"running": {}}}, ""),
    ],
)
def test_what_a_container_ended_with_or_waits_for_is_said(container: Object, said: str) -> None:
    assert trouble(pod(container), NOW, 300) == said


def test_crashes_of_long_ago_are_no_reason() -> None:
    old = {"terminated": {**KILLED["terminated"], "finishedAt": at(-3600)}}
    crashed = {"state": {"running": {}}, "lastState": old, "restartCount": 7}
    assert trouble(pod(crashed), NOW, 300) == ""
    assert trouble(pod(crashed, made=-4000), NOW, 300) == (
        "(for more than 300 s, publisher ended with OOMKilled, exit code 137)"
    )
    assert trouble(pod(crashed, ready=True), NOW, 300) == ""


def test_the_same_trouble_is_said_in_the_same_words() -> None:
    def said(count: int, pause: str) -> str:
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": f"back-off {pause} restarting"}}
        return trouble(pod({"state": waiting, "lastState": KILLED, "restartCount": count}), NOW, 300)

    assert said(3, "40s") == said(9, "5m0s")


def test_a_pod_that_no_node_takes_says_so_at_once_and_is_stuck_after_a_while() -> None:
    message = "0/3 nodes are available: 3 Insufficient memory."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    young, old = pod(conditions=[condition]), pod(conditions=[condition], made=-400)
    assert waits_for(young) == waits_for(old) == f"no node takes it: {message}"
    assert trouble(young, NOW, 300) == ""
    assert trouble(old, NOW, 300) == f"(for more than 300 s, no node takes it: {message})"


def test_a_container_that_begins_first_is_named() -> None:
    waits = {"name": "sidecar", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    assert trouble(pod(initContainerStatuses=[waits]), NOW, 300) == "(ImagePullBackOff: no such image)"


def test_why_a_pod_ended() -> None:
    assert why_ended(pod(phase="Failed")) == ""
    assert why_ended(pod(phase="Failed", reason="Evicted", message="The node was low on\nmemory")) == (
        "Evicted: The node was low on memory"
    )
    assert why_ended(pod({"state": KILLED}, phase="Failed")) == "publisher ended with OOMKilled, exit code 137"

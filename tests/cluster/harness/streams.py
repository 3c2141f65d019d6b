"""Streams on a cluster: their manifests, and the objects that a stream has.

The operator makes these objects, however it was installed.
"""

from collections.abc import Mapping
from typing import Any

from tests.cluster.harness.kubernetes import Kubernetes, eventually
from tests.cluster.harness.release import POD_PATIENCE

KINDS = "pods,persistentvolumeclaims,services,poddisruptionbudgets,networkpolicies,serviceaccounts"
"""The kinds of a stream's objects."""
SMALL = {"requests": {"cpu": "20m", "memory": "64Mi"}}


def stream(name: str, *, storage: bool = True, **spec: Any) -> dict[str, Any]:
    """The manifest of a stream of one segment with times of shape int and JSON records; `spec` says more."""
    history = {"history": {"storage": {"size": "64Mi"}, "retention": {"bytes": "32Mi"}}} if storage else {}
    least = {"time": {"shape": "int"}, "payload": {"encoding": "json"}, "publishers": {"resources": SMALL}}
    return {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": name},
        "spec": {**least, **history, **spec},
    }


def condition(found: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """One condition of a Stream; empty if it is not there yet."""
    for item in found.get("status", {}).get("conditions", ()):
        if item["type"] == kind:
            return dict(item)
    return {}


class Streams:
    """The streams of one namespace."""

    def __init__(self, cluster: Kubernetes, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def apply(self, *documents: Mapping[str, Any]) -> None:
        """Apply manifests."""
        self.cluster.apply(*documents, namespace=self.namespace)

    def start(self, *documents: Mapping[str, Any]) -> None:
        """Apply manifests and wait until they are served."""
        self.apply(*documents)
        for document in documents:
            self.settled(document["metadata"]["name"])

    def get(self, name: str) -> dict[str, Any]:
        """The Stream object."""
        found: dict[str, Any] = self.cluster.get("stream", name, namespace=self.namespace)
        return found

    def settled(self, name: str, patience: float = POD_PATIENCE) -> dict[str, Any]:
        """The Stream once all of its newest declaration is in effect and served."""

        def look() -> dict[str, Any] | None:
            found = self.get(name)
            current = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
            ready = condition(found, "Ready").get("status") == "True"
            rests = condition(found, "Progressing").get("reason") == "Complete"
            return found if current and ready and rests else None

        return eventually(look, patience)

    def told(self, name: str, kind: str, reason: str, patience: float = POD_PATIENCE) -> dict[str, Any]:
        """Wait until a condition has this reason; returns the condition."""

        def look() -> dict[str, Any] | None:
            item = condition(self.get(name), kind)
            return item if item.get("reason") == reason else None

        return eventually(look, patience)

    def children(self, name: str) -> list[dict[str, Any]]:
        """All objects of a stream."""
        found: list[dict[str, Any]] = self.cluster.get(
            KINDS, "-l", f"epochal.dev/stream={name}", namespace=self.namespace
        )["items"]
        return found

    def pods(self, name: str) -> dict[str, dict[str, Any]]:
        """The publisher pods by name."""
        items = self.cluster.get("pods", "-l", f"epochal.dev/stream={name}", namespace=self.namespace)["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def lose(self, name: str, segment: int) -> None:
        """Delete a publisher pod by force, which waits for no process to end; returns when another one is there."""
        pod = f"{name}-{segment}"
        before = self.pods(name)[pod]["metadata"]["uid"]
        self.cluster.kubectl("delete", "pod", pod, "-n", self.namespace, "--grace-period=0", "--force", "--wait=false")
        eventually(lambda: self.pods(name).get(pod, {}).get("metadata", {}).get("uid") not in (None, before))

    def delete(self, name: str, *, wait: bool = True) -> None:
        """Delete a stream."""
        waiting = f"--timeout={POD_PATIENCE:.0f}s" if wait else "--wait=false"
        self.cluster.kubectl("delete", "stream", name, "-n", self.namespace, waiting, timeout=POD_PATIENCE + 10)

    def gone(self, name: str, patience: float = POD_PATIENCE) -> None:
        """Wait until neither the stream nor any of its objects is there."""
        eventually(lambda: self.cluster.find("stream", name, namespace=self.namespace) is None, patience)
        eventually(lambda: not self.children(name), patience)

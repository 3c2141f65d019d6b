"""Small pods of the busybox image, which keep to the restricted Pod Security standard as those of Epochal do.

The tests of the node and of its policies use them, and any test that needs a server or a client in a pod.
"""

from typing import Any

from tests.cluster.harness.busybox import BUSYBOX
from tests.cluster.harness.kubernetes import Kubernetes, eventually
from tests.patience import PATIENCE

USER = 10001
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod(name: str, script: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod that runs a shell script once; `spec` adds to its spec, and `container` to that of its container."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    container |= spec.pop("container", {})
    security = {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER, "seccompProfile": {"type": "RuntimeDefault"}}
    whole = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "enableServiceLinks": False,
        "securityContext": security,
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        **spec,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": whole,
    }


def server(name: str = "server", words: str = "good day", **spec: Any) -> dict[str, Any]:
    """A pod labelled `app: server` that serves `words` and a line feed at its port 8080."""
    script = f"echo {words} > /tmp/index.html; echo serving; exec httpd -f -p 8080 -h /tmp"
    return pod(name, script, {"app": "server"}, **spec)


def service(**spec: Any) -> dict[str, Any]:
    """A service `server` in front of such pods, at port 80."""
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": ports, **spec},
    }


def said_by(cluster: Kubernetes, namespace: str, document: dict[str, Any]) -> str:
    """Run a pod to its end and return its log."""
    name = document["metadata"]["name"]
    cluster.apply(document, namespace=namespace)
    phase = eventually(
        lambda: (
            (found := cluster.get("pod", name, namespace=namespace)["status"]["phase"]) in ("Succeeded", "Failed")
            and found
        ),
        timeout=PATIENCE,
    )
    log = cluster.kubectl("logs", "-n", namespace, name)
    assert phase == "Succeeded", log
    return log

"""What is kept of a cluster when a test fails: objects, events, logs of pods and of components.

It must never fail itself: the reader needs to see the test's own failure.
"""

import json
import re
import shutil
from pathlib import Path

from tests.cluster.harness.kubernetes import Kubernetes
from tests.cluster.harness.places import LOGS
from tests.patience import PATIENCE

_KINDS = "namespaces,nodes,persistentvolumes,persistentvolumeclaims,pods,services,endpointslices,deployments,jobs"
_KINDS += ",poddisruptionbudgets,networkpolicies,leases,customresourcedefinitions"
_TAIL = "5000"
_COMPONENT_BYTES = 1 << 20


def directory_of(test: str) -> Path:
    """Where the evidence of a test is kept; empty at the start, whatever an earlier run left."""
    directory = LOGS / re.sub(r"[^\w.-]+", "-", test.rpartition("/")[2])
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def collect(kubernetes: Kubernetes, directory: Path) -> None:
    """Write everything to files; where something cannot be read, its file holds the reason."""
    _keep(kubernetes, directory / "objects.txt", "get", _KINDS, "-A", "-o", "wide")
    _keep(kubernetes, directory / "objects.yaml", "get", _KINDS, "-A", "-o", "yaml")
    _keep(kubernetes, directory / "streams.yaml", "get", "streams.epochal.dev", "-A", "-o", "yaml")
    _keep(kubernetes, directory / "events.txt", "events", "-A")
    _keep(kubernetes, directory / "pods.txt", "describe", "pods", "-A")
    for namespace, pod in _pods(kubernetes):
        path, place = directory / "pods" / f"{namespace}.{pod}.log", ("logs", "-n", namespace, pod)
        _keep(kubernetes, path, *place, "--all-containers", "--prefix", "--timestamps", f"--tail={_TAIL}")
        earlier = path.with_suffix(".previous.log")
        _keep(kubernetes, earlier, *place, "--all-containers", "--prefix", "--previous", f"--tail={_TAIL}")
        if earlier.read_text().startswith("FAILED"):
            earlier.unlink()
    for log in sorted(kubernetes.logs.glob("*.log")) if kubernetes.logs else []:
        (directory / "components").mkdir(exist_ok=True)
        (directory / "components" / log.name).write_bytes(log.read_bytes()[-_COMPONENT_BYTES:])


def _pods(kubernetes: Kubernetes) -> list[tuple[str, str]]:
    try:
        said = kubernetes.kubectl("get", "pods", "-A", "-o", "json", timeout=PATIENCE)
    except Exception:
        return []
    return [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in json.loads(said)["items"]]


def _keep(kubernetes: Kubernetes, path: Path, *arguments: str) -> None:
    path.parent.mkdir(exist_ok=True)
    try:
        path.write_text(kubernetes.kubectl(*arguments, timeout=PATIENCE))
    except Exception as error:
        path.write_text(f"FAILED: {error}\n")

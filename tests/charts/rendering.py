"""What `helm template` makes of the chart, and how to find one's way in it.

Apart from the tests because all of them look at the same objects. It runs the real helm, from `.cache/tools`
(tools/get-kube-tools puts it there) or the PATH.
"""

import functools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "epochal"
Object = dict[str, Any]
"""One Kubernetes object."""
INJECTION = ("--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
"""What Kubernetes has from 1.36 on, and helm knows of no cluster by itself."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class HelmError(Exception):
    """helm ended with an error; the message is what it said."""


def find_helm() -> str | None:
    """The path of helm, None where there is none."""
    cached = ROOT / ".cache" / "tools" / "helm"
    return str(cached) if cached.exists() else shutil.which("helm")


def helm(*arguments: str) -> str:
    """Run helm without a cluster and return what it prints. Raises `HelmError`."""
    done = subprocess.run([find_helm() or "helm", *arguments], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise HelmError(done.stdout + done.stderr)
    return done.stdout


def render(
    values: Object | None = None,
    *,
    release: str = "epochal",
    namespace: str = "epochal",
    flags: tuple[str, ...] = INJECTION,
) -> list[Object]:
    """All objects of the chart with these values, hooks and definitions among them. Raises `HelmError`."""
    return _render(json.dumps(values or {}, sort_keys=True), release, namespace, flags)


@functools.cache  # who gets the objects leaves them as they are
def _render(values: str, release: str, namespace: str, flags: tuple[str, ...]) -> list[Object]:
    given = [f"--set-json={name}={json.dumps(value)}" for name, value in json.loads(values).items()]
    text = helm("template", release, str(CHART), "--namespace", namespace, *given, *flags)
    return [dict(each) for each in yaml.load_all(text, Loader=_LOADER) if each]


def nested(path: str, value: Any) -> Object:
    """Values with one set: `a.b` to {"a": {"b": value}}."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


def merged(*values: Object) -> Object:
    """Values with all of these; later ones win."""
    result: Object = {}
    for each in values:
        for name, value in each.items():
            before = result.get(name)
            result[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return result


def leaves(values: Object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value that is not only a group of others, with its path. What is empty, or lists resources, is one value."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value and name not in ("resources", "labels"):
            yield from leaves(value, path + ".")
        else:
            yield path, value


def defaults() -> Object:
    """values.yaml."""
    return dict(yaml.load((CHART / "values.yaml").read_text(), Loader=_LOADER))


def identity(each: Object) -> tuple[str, str, str]:
    """Kind, namespace and name: what only one object can have."""
    return each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]


def find(objects: list[Object], kind: str, ending: str) -> Object:
    """The only object of the kind whose name ends so."""
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(ending)]
    return found


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Each pod and pod template, with who makes it; metadata and spec."""
    for each in objects:
        name = "/".join(identity(each))
        if each["kind"] == "Pod":
            yield name, each
        elif "template" in each.get("spec", {}):
            yield name, each["spec"]["template"]


def containers(pod: Object) -> list[Object]:
    """All containers of a pod, init containers among them."""
    spec = pod["spec"]
    return [*spec.get("initContainers", []), *spec["containers"], *spec.get("ephemeralContainers", [])]


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector chooses what has these labels."""
    assert set(selector) <= {"matchLabels"}, "the chart uses no expressions"
    return selector.get("matchLabels", {}).items() <= labels.items()


EVERYTHING: Object = {
    "commonLabels": {"team": "data"},
    "commonAnnotations": {"example.org/note": "common"},
    "image": {"registry": "registry.example.org/epochal", "tag": "1.2.3", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "watchNamespaces": ["epochal", "demo"],
    "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"client": "yes"}}}]},
    "operator": {
        "replicas": 2,
        "image": {"digest": "sha256:" + "0" * 64},
        "serviceAccount": {"annotations": {"example.org/role": "operator"}},
        "podLabels": {"tier": "control"},
        "podAnnotations": {"example.org/pod": "operator"},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "control", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ],
        "extraEnv": [{"name": "EXTRA", "value": "1"}],
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
    },
    "catalog": {
        "persistence": {"storageClassName": "fast", "keep": True, "annotations": {"example.org/backup": "daily"}},
        "service": {"type": "NodePort", "annotations": {"example.org/dns": "catalog"}},
        "podDisruptionBudget": {"enabled": True},
        "podLabels": {"tier": "control"},
        "podAnnotations": {"example.org/pod": "catalog"},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "control", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ],
        "extraEnv": [{"name": "EPOCHAL_CATALOG_MAX_WAITERS", "value": "100"}],
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
    },
    "publishers": {"webhookTargets": ["*.hooks.svc", "10.0.0.0/8"], "corsOrigins": ["https://page.example.org"]},
    "sidecar": {"inject": True, "logLevel": "debug", "extraEnv": [{"name": "EXTRA", "value": "1"}]},
    "tracing": {"endpoint": "http://collector:4318", "env": {"OTEL_TRACES_SAMPLER": "always_on"}},
    "toolbox": {
        "enabled": True,
        "podLabels": {"tier": "tools"},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"disk": "ssd"},
        "extraEnv": [{"name": "EXTRA", "value": "1"}],
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
    },
    "metrics": {
        "serviceMonitor": {"enabled": True, "labels": {"prometheus": "main"}},
        "podMonitor": {"enabled": True, "sidecars": True, "labels": {"prometheus": "main"}},
    },
    "grafanaDashboards": {"enabled": True, "annotations": {"grafana_folder": "Epochal"}},
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-extra"}},
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-text\n",
    ],
}
"""Every option at once."""

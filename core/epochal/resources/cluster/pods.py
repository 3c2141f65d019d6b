"""The definition of a publisher's pod, and the parts that pods of relays share with it.

The publisher knows nothing of Kubernetes: all its settings are environment variables. The pod has the fewest rights
that work (Pod Security *restricted*, a read-only root, no token) and small requests, so that it fits a small cluster.
"""

import re

from epochal.errors import ManifestError, Problem
from epochal.resources.cluster.stream import (
    CATALOG_UID,
    DATA,
    INDEX_LABEL,
    PORTS,
    SEGMENTS,
    ClusterSettings,
    ClusterStream,
    common_name,
    pod_labels,
    volume_name,
)
from epochal.resources.plan import PlannedPublisher
from epochal.resources.quantities import format_bytes, parse_bytes
from epochal.resources.relay import RelaySpec
from epochal.resources.spec import MI, Object, PublishersSpec, ResourcesSpec

_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}", re.ASCII)
USER = 10001
GRACE = 30
"""Seconds: a publisher has drained within 25 seconds of SIGTERM."""
MARK = "/tmp/superseded"
"""The file by which a publisher knows, after a restart of its container, that another publisher has its segments.

It is on a volume of the pod, so that it outlives the container: that is restarted whatever its exit status.
"""
OWN_ENVIRONMENT = frozenset(
    f"EPOCHAL_PUBLISHER_{name}"
    for name in (
        *("CATALOG", "STREAM", "SEGMENTS", "PUBLISHER", "HOST", "ADVERTISE", "SUPERSEDED_MARK", "DATA"),
        *(f"{port.upper()}_PORT" for port in PORTS),
    )
)
"""Environment variables that the operator sets for publishers; a user's settings may not replace them."""
_REQUESTS = {"cpu": "50m", "memory": "128Mi"}
BASE_MEMORY = 256 * MI
"""Several times the memory that an idle publisher or relay takes."""
_LOG_MEMORY = 64 * MI
"""The part of a log on disk that a publisher also keeps in memory (`EPOCHAL_PUBLISHER_LOG_MEMORY`)."""


def pod(stream: ClusterStream, settings: ClusterSettings, index: int, publisher: PlannedPublisher) -> Object:
    """The pod of the publisher with this index."""
    name = f"{stream.name}-{index}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {INDEX_LABEL: str(index)},
            "annotations": {CATALOG_UID: stream.catalog_uid, SEGMENTS: ",".join(publisher.segments)},
        },
        "spec": {
            "hostname": name,
            "subdomain": stream.name,
            **common(settings, common_name(stream.name)),
            **scheduling(stream.manifest.spec.publishers, settings, pod_labels(stream.name)),
            "containers": [_container(stream, settings, index, publisher)],
            "volumes": _volumes(stream, publisher),
        },
    }


def common(settings: ClusterSettings, account: str) -> Object:
    """The part of the pod's spec that is the same for all pods: above all, its restrictions."""
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # else a Service named epochal-publisher-http would set the publisher's port
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": GRACE,
        "securityContext": {
            "runAsNonRoot": True,
            **({"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER} if settings.fixed_user else {}),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def scheduling(wishes: PublishersSpec | RelaySpec, settings: ClusterSettings, selected: dict[str, str]) -> Object:
    """Where pods run, and the secrets to pull their image with; `selected`: labels that all pods of a kind have."""
    found: Object = {}
    if wishes.node_selector:
        found["nodeSelector"] = dict(wishes.node_selector)
    if wishes.tolerations:
        dumped = (item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in wishes.tolerations)
        found["tolerations"] = list(dumped)
    if wishes.topology_spread:
        found["topologySpreadConstraints"] = [
            _spread(selected, over) for over in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ]
    if settings.pull_secrets:
        found["imagePullSecrets"] = [{"name": secret} for secret in settings.pull_secrets]
    return found


def advertised(stream: ClusterStream, index: int) -> str:
    """The host that clients connect to: the pod's DNS name in the cluster, or the one from `publishers.advertise`.

    Raises `ManifestError` if the result is not a valid host, or is the same for several publishers.
    """
    pattern = stream.manifest.spec.publishers.advertise or "{stream}-{index}.{stream}.{namespace}.svc"
    host = pattern
    for word, value in (("index", str(index)), ("stream", stream.name), ("namespace", stream.namespace)):
        host = host.replace(f"{{{word}}}", value)
    if not _HOST.fullmatch(host):
        reason = f"'{host[:80]}' is not a host"
        raise _wrong_advertise(reason, "a name or an address, with {index}, {stream} and {namespace} where they belong")
    if "{index}" not in pattern and len(stream.publishers()) > 1:
        raise _wrong_advertise("is the same for all publishers", "each needs an address of its own: put {index} in it")
    return host


def _wrong_advertise(reason: str, hint: str) -> ManifestError:
    problem = Problem("spec.publishers.advertise", reason, hint)
    return ManifestError("publishers cannot be reached at the address that they are to advertise", [problem])


def _container(stream: ClusterStream, settings: ClusterSettings, index: int, publisher: PlannedPublisher) -> Object:
    environment = {
        "CATALOG": settings.catalog,
        "STREAM": publisher.stream,
        "SEGMENTS": ",".join(publisher.segments),
        "PUBLISHER": publisher.id,
        "HOST": settings.listen,
        "ADVERTISE": advertised(stream, index),
        "SUPERSEDED_MARK": MARK,
        **{f"{name.upper()}_PORT": str(port) for name, port in PORTS.items()},
        **({"DATA": DATA} if stream.keeps_logs else {}),
    }
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    if stream.keeps_logs:
        mounts += [
            # Logs belong to one catalog uid. A catalog that lost its database gives the stream a new uid: that is
            # another stream, which must not continue the logs of the old one.
            {
                "name": f"log-{segment}",
                "mountPath": f"{DATA}/{stream.catalog_uid}/{segment}",
                "subPath": stream.catalog_uid,
            }
            for segment in publisher.segments
        ]
    return {
        "name": "publisher",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["epochal-publisher", "serve"],
        "env": [
            *({"name": f"EPOCHAL_PUBLISHER_{name}", "value": value} for name, value in environment.items()),
            *({"name": name, "value": value} for name, value in settings.publisher_env),
        ],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()],
        "resources": resources(stream.manifest.spec.publishers.resources, _most_memory(stream, publisher)),
        **probes_and_security(),
        "volumeMounts": mounts,
    }


def probes_and_security() -> Object:
    """The part of the container's spec that is the same for all containers."""
    return {
        "startupProbe": _probe("/healthz", period=2, failures=60),
        "livenessProbe": _probe("/healthz", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=2, failures=3),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the stream's status shows the last line of the log
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }


def _probe(path: str, *, period: int, failures: int) -> Object:
    """A probe that is patient: a busy publisher answers late, and must not be restarted for it."""
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def resources(declared: ResourcesSpec, most_memory: int) -> Object:
    """The declared resources; where nothing is declared, small requests and a memory limit."""
    requests, limits = dict(declared.requests or {}), dict(declared.limits or {})
    for name, amount in _REQUESTS.items():
        if name not in limits:  # with a limit alone, Kubernetes takes the limit as the request
            requests.setdefault(name, amount)
    if "memory" not in limits:
        limits["memory"] = format_bytes(max(most_memory, _amount(requests["memory"])))
    return {"requests": requests, "limits": limits} if requests else {"limits": limits}


def _most_memory(stream: ClusterStream, publisher: PlannedPublisher) -> int:
    """Bytes beyond which something must be wrong: twice the history in memory and twice the buffers of subscribers."""
    spec = stream.manifest.spec
    kept = _LOG_MEMORY if stream.keeps_logs else spec.history.retention.bytes
    if spec.history.retention.mode == "none":
        kept = 0
    needed = BASE_MEMORY + len(publisher.segments) * (2 * kept + 2 * spec.push.buffer_bytes)
    return -(-needed // MI) * MI


def _amount(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError:  # an amount in thousandths, as for CPU: no one requests memory like that
        return 0


def _spread(selected: dict[str, str], over: str) -> Object:
    return {
        "maxSkew": 1,
        "topologyKey": over,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selected},
    }


def _volumes(stream: ClusterStream, publisher: PlannedPublisher) -> list[Object]:
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}]
    if stream.keeps_logs:
        volumes += [
            {
                "name": f"log-{segment}",
                "persistentVolumeClaim": {"claimName": volume_name(stream.name, segment)},
            }
            for segment in publisher.segments
        ]
    return volumes

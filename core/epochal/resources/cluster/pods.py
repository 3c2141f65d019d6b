"""The pod of a publisher, and what pods of relays have in common with it.

The publisher knows nothing of Kubernetes: all its settings are in its environment. What the pod may do is the least
that works (Pod Security *restricted*, a read-only root, no token); what it requests is little, so that a small cluster
can try it.
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
"""Seconds: a publisher that gets SIGTERM has drained after 25."""
MARK = "/tmp/superseded"
"""On a volume of the pod's own: it outlives the container, which is started again whatever its exit status."""
OWN_ENVIRONMENT = frozenset(
    f"EPOCHAL_PUBLISHER_{name}"
    for name in (
        *("CATALOG", "STREAM", "SEGMENTS", "PUBLISHER", "HOST", "ADVERTISE", "SUPERSEDED_MARK", "DATA"),
        *(f"{port.upper()}_PORT" for port in PORTS),
    )
)
"""What a stream sets for its publishers, and nothing else may set."""
_REQUESTS = {"cpu": "50m", "memory": "128Mi"}
BASE_MEMORY = 256 * MI
"""What a publisher or a relay of nothing may take, several times over."""
_LOG_MEMORY = 64 * MI
"""What a publisher keeps of a log in memory as well (`EPOCHAL_PUBLISHER_LOG_MEMORY`)."""


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
    """What every pod says: that it may do little."""
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service called epochal-publisher-http would set its port
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
    """On which nodes pods run, and with which secrets their image is pulled; `selected`: the labels of all of them."""
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
    """The host for clients: the pod's name in the cluster's DNS, or what `publishers.advertise` makes of it.

    Raises `ManifestError` when that is no host, or the same one for several publishers.
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
            # Of this stream only: a catalog that lost its database gives it another uid, and makes it another stream.
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
    """What every container says."""
    return {
        "startupProbe": _probe("/healthz", period=2, failures=60),
        "livenessProbe": _probe("/healthz", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=2, failures=3),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # its last words are in the status of the stream
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }


def _probe(path: str, *, period: int, failures: int) -> Object:
    """A busy publisher answers late, and is not dead for that."""
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def resources(declared: ResourcesSpec, most_memory: int) -> Object:
    """What is declared, and small requests with a limit of memory where nothing was."""
    requests, limits = dict(declared.requests or {}), dict(declared.limits or {})
    for name, amount in _REQUESTS.items():
        if name not in limits:  # a limit alone is the request too
            requests.setdefault(name, amount)
    if "memory" not in limits:
        limits["memory"] = format_bytes(max(most_memory, _amount(requests["memory"])))
    return {"requests": requests, "limits": limits} if requests else {"limits": limits}


def _most_memory(stream: ClusterStream, publisher: PlannedPublisher) -> int:
    """Beyond which something is wrong: history in memory twice over, and what slow subscribers have not taken."""
    spec = stream.manifest.spec
    kept = _LOG_MEMORY if stream.keeps_logs else spec.history.retention.bytes
    if spec.history.retention.mode == "none":
        kept = 0
    needed = BASE_MEMORY + len(publisher.segments) * (2 * kept + 2 * spec.push.buffer_bytes)
    return -(-needed // MI) * MI


def _amount(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError:  # in thousandths, in which no one requests memory
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

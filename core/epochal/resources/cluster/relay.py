"""The definitions of a Relay's Kubernetes objects, and the actions that lead to them.

Relays keep no data, so a Kubernetes Deployment can run their pods: any pod can replace any other. The number of pods is
decided in `relay_scaling`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from epochal.resources.cluster.children import for_readers, hashed, owned, service_account
from epochal.resources.cluster.planner import ClusterPlan, plan_objects
from epochal.resources.cluster.pods import BASE_MEMORY, common, probes_and_security, resources, scheduling
from epochal.resources.cluster.stream import (
    EVENTS_PORT,
    HTTP_PORT,
    MANAGED_LABEL,
    MANAGER,
    NAME_LABEL,
    RELAY_LABEL,
    RELAY_NAME,
    REQUESTS_PORT,
    STREAM_LABEL,
    ClusterSettings,
    recommended_labels,
)
from epochal.resources.manifest import StreamManifest
from epochal.resources.relay import RelayManifest
from epochal.resources.spec import MI, Object

PORTS = {"events": EVENTS_PORT, "requests": REQUESTS_PORT, "http": HTTP_PORT}
"""The ports of a relay by name. The names are those of a publisher, so that metrics are scraped in the same way."""
_POD = "EPOCHAL_RELAY_POD"
"""The variable with the pod's name. Only other variables use it, through `$(...)`."""
_ADDRESS = "EPOCHAL_RELAY_POD_ADDRESS"
RELAY_ENVIRONMENT = frozenset(
    f"EPOCHAL_RELAY_{name}"
    for name in (
        *("POD", "POD_ADDRESS", "CATALOG", "STREAM", "NAME", "ID", "UPSTREAM", "HOST", "ADVERTISE"),
        *("CAPACITY", "BUFFER_BYTES", "CORS_ORIGINS"),
        *(f"{port.upper()}_PORT" for port in PORTS),
    )
)
"""Environment variables that the operator sets for relays; a user's settings may not replace them."""
RING = 64 * MI
"""Bytes of the newest epochs that a relay keeps for HTTP (`EPOCHAL_RELAY_RING_BYTES`); as much can be in transit."""
SUBSCRIPTIONS = 128 * MI
"""Bytes that the subscriptions of HTTP readers hold together (`EPOCHAL_RELAY_SUBSCRIPTION_BYTES`)."""
READERS, OF_READER = 1024, 192 * 1024
"""HTTP readers at the same time (`EPOCHAL_RELAY_MAX_READERS`), and the unread bytes that are kept for each."""


@dataclass(frozen=True, slots=True)
class ClusterRelay:
    """A declared Relay with its stream, and the uid that distinguishes it from earlier Relays of the same name."""

    manifest: RelayManifest
    object_uid: str
    stream: StreamManifest
    """The manifest of the stream: the relay's memory and its network policy follow from it."""
    replicas: int
    """The number of pods that the Relay should have now."""

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self.manifest.namespace

    @property
    def name(self) -> str:
        """The name within the namespace."""
        return self.manifest.name


def relay_objects_name(relay: str) -> str:
    """The name of all objects of a Relay.

    It differs from the Relay's: a Relay may have the name of its stream, and the stream's Service has that name.
    """
    return f"{relay}-relay"


def selected_labels(relay: str) -> dict[str, str]:
    """The labels that select a Relay's pods."""
    return {NAME_LABEL: RELAY_NAME, RELAY_LABEL: relay}


def relay_selector(relay: str) -> str:
    """The same selector as text, for the scale subresource.

    >>> relay_selector("near")
    'app.kubernetes.io/name=epochal-relay,epochal.dev/relay=near'
    """
    return ",".join(f"{key}={value}" for key, value in selected_labels(relay).items())


def relay_children_of(relay: ClusterRelay, settings: ClusterSettings) -> list[Object]:
    """All objects of a Relay, in the order of creation: what a pod needs comes before it."""
    name = relay_objects_name(relay.name)
    drawn = [service_account(name), _service(relay.name), _budget(relay.name)]
    if settings.network_policies:
        drawn.append(_network_policy(relay))
    drawn.append(_deployment(relay, settings))
    marks = {
        **selected_labels(relay.name),
        MANAGED_LABEL: MANAGER,
        **recommended_labels("relay", relay.name),
    }
    return [hashed(owned(relay.manifest, relay.object_uid, marks, item)) for item in drawn]


def plan_relay(
    relay: RelayManifest, object_uid: str, wanted: Sequence[Object], observed: Iterable[Object]
) -> ClusterPlan:
    """The actions that lead from `observed` to `wanted`, the objects from `relay_children_of`. Idempotent.

    `observed`: all objects in the namespace that have the Relay's label or one of the wanted names.
    """
    return plan_objects(relay.kind, relay.name, object_uid, wanted, observed)


def deployment_of(relay: str, observed: Iterable[Object]) -> Object | None:
    """The Deployment among the objects of a Relay."""
    place = "Deployment", relay_objects_name(relay)
    return next((item for item in observed if (item["kind"], item["metadata"]["name"]) == place), None)


def _service(relay: str) -> Object:
    """One address for HTTP readers. Subscribers do not use it: they connect to the relay that the catalog names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": relay_objects_name(relay)},
        "spec": {
            "selector": selected_labels(relay),
            "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _budget(relay: str) -> Object:
    """One pod may be down at a time: its subscribers need the capacity of the others."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": relay_objects_name(relay)},
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selected_labels(relay)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _network_policy(relay: ClusterRelay) -> Object:
    """Admits those who may subscribe to the stream, or everyone if an address is advertised, as at publishers."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": relay_objects_name(relay.name)},
        "spec": {
            "podSelector": {"matchLabels": selected_labels(relay.name)},
            "policyTypes": ["Ingress"],
            "ingress": list(for_readers(relay.stream, bool(relay.manifest.spec.advertise))),
        },
    }


def _deployment(relay: ClusterRelay, settings: ClusterSettings) -> Object:
    selected = selected_labels(relay.name)
    marks = {**selected, STREAM_LABEL: relay.stream.name, **recommended_labels("relay", relay.name)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": relay_objects_name(relay.name)},
        "spec": {
            "replicas": relay.replicas,
            "selector": {"matchLabels": selected},
            "revisionHistoryLimit": 1,
            # A new pod is ready before an old one ends: the subscribers of the old one look for another relay.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": marks}, "spec": _pod(relay, settings)},
        },
    }


def _pod(relay: ClusterRelay, settings: ClusterSettings) -> Object:
    name, spec = relay_objects_name(relay.name), relay.manifest.spec
    return {
        **common(settings, name),
        **scheduling(spec, settings, selected_labels(relay.name)),
        "containers": [_container(relay, settings)],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
    }


def _container(relay: ClusterRelay, settings: ClusterSettings) -> Object:
    return {
        "name": "relay",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["epochal-publisher", "relay"],
        "env": [
            {"name": _POD, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": _ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": f"EPOCHAL_RELAY_{name}", "value": value} for name, value in _environment(relay, settings)),
            *({"name": name, "value": value} for name, value in settings.publisher_env),
        ],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()],
        "resources": resources(relay.manifest.spec.resources, _most_memory(relay)),
        **probes_and_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _environment(relay: ClusterRelay, settings: ClusterSettings) -> Iterable[tuple[str, str]]:
    """The variables, as (name, value); Kubernetes replaces `$(...)`."""
    spec = relay.manifest.spec
    yield "CATALOG", settings.catalog
    yield "STREAM", relay.stream.qualified
    yield "NAME", relay.name
    yield "ID", f"{relay.namespace}.$({_POD})"
    yield "UPSTREAM", spec.upstream
    yield "HOST", settings.listen
    yield "ADVERTISE", _advertised(relay)
    yield "CAPACITY", str(spec.capacity)
    yield "BUFFER_BYTES", str(spec.buffer_bytes)
    if spec.http.cors_origins:
        yield "CORS_ORIGINS", ",".join(spec.http.cors_origins)
    for name, port in PORTS.items():
        yield f"{name.upper()}_PORT", str(port)


def _advertised(relay: ClusterRelay) -> str:
    host = relay.manifest.spec.advertise or f"$({_ADDRESS})"
    for word, value in (("pod", f"$({_POD})"), ("relay", relay.name), ("namespace", relay.namespace)):
        host = host.replace(f"{{{word}}}", value)
    return host


def _most_memory(relay: ClusterRelay) -> int:
    """Bytes beyond which something must be wrong: twice the relay's buffers, and the unread bytes of all readers."""
    kept = relay.manifest.spec.buffer_bytes + relay.stream.spec.push.buffer_bytes + RING + SUBSCRIPTIONS
    needed = BASE_MEMORY + 2 * kept + READERS * OF_READER
    return -(-needed // MI) * MI

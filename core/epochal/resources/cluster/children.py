"""The definitions of a stream's Kubernetes objects, and the comparison of an existing object with its definition.

The same manifest always gives the same definitions. The API server adds defaults and other programs add fields, so only
fields of the definition are compared. This has to be exact: a difference that is none would be written at every
reconcile, for ever. The definition of the pod is in `pods`.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from epochal.resources.cluster.pods import advertised, pod
from epochal.resources.cluster.stream import (
    CLIENT_LABEL,
    EVENTS_PORT,
    HASH,
    HTTP_PORT,
    INGEST_PORT,
    MONITORING_LABEL,
    PORTS,
    RELEASE,
    REQUESTS_PORT,
    SETTINGS,
    ClusterSettings,
    ClusterStream,
    common_name,
    labels,
    pod_labels,
    recommended_labels,
    relay_pod_labels,
    volume_name,
)
from epochal.resources.crd import GROUP, KIND, VERSION
from epochal.resources.manifest import StreamManifest
from epochal.resources.quantities import format_bytes, parse_bytes, same_amount
from epochal.resources.relay import RelayManifest
from epochal.resources.relay_crd import RELAY_KIND
from epochal.resources.spec import Account, Object


def children_of(stream: ClusterStream, settings: ClusterSettings) -> list[Object]:
    """All objects of a stream, in the order of creation: what a pod needs comes before it.

    Raises `ManifestError` for a manifest without a valid definition, as `check_drawable` does.
    """
    drawn = [service_account(common_name(stream.name)), _service(stream), _budget(stream)]
    if settings.network_policies:
        drawn.append(_network_policy(stream))
    drawn += [_volume(stream, segment) for segment in stream.segments if stream.keeps_logs]
    if stream.manifest.spec.relays:
        drawn.append(_relay(stream))
    children = [hashed(_owned(stream, item)) for item in drawn]
    pods = [_owned(stream, item) for item in _pods(stream, settings)]
    given = _settings(stream)
    # A publisher takes changed settings only when it starts. With logs on volumes a new pod loses nothing, so the
    # settings are part of the hash and a change replaces pods. Without, a new pod would lose its history: a second
    # annotation records the settings, and the status says that the change takes effect at the next start.
    if stream.keeps_logs:
        pods = [hashed(item, given) for item in pods]
    else:
        pods = [_annotated(hashed(item, None), SETTINGS, _digest(given)) for item in pods]
    children += [_annotated(item, RELEASE, release_of(settings)) for item in pods]
    return [_labelled(stream, item) for item in children]


@functools.cache
def release_of(settings: ClusterSettings) -> str:
    """The hash of all that the operator's settings contribute to every pod: of the pod of a fixed, minimal stream."""
    document = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": "a"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}},
    }
    stream = ClusterStream(StreamManifest.from_document(document), "", "", ("0",))
    return _digest(list(_pods(stream, settings)))


def check_drawable(manifest: StreamManifest) -> None:
    """Raise `ManifestError` for a valid manifest whose objects cannot be defined: a bad `publishers.advertise`."""
    segments = tuple(map(str, range(manifest.spec.segments)))
    advertised(ClusterStream(manifest, "", "", segments), 0)


def _pods(stream: ClusterStream, settings: ClusterSettings) -> Iterable[Object]:
    return (pod(stream, settings, index, each) for index, each in enumerate(stream.publishers()))


def _owned(stream: ClusterStream, item: Object) -> Object:
    return owned(stream.manifest, stream.object_uid, labels(stream.name), item)


def owned(manifest: StreamManifest | RelayManifest, uid: str, marks: Mapping[str, str], item: Object) -> Object:
    """`item` with these labels, in the namespace of its owner, and deleted with it.

    `manifest` and `uid`: of the owner. `marks`: the labels.
    """
    metadata = item["metadata"]
    owner = {
        "apiVersion": manifest.api_version,
        "kind": manifest.kind,
        "name": manifest.name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    whole = {
        **metadata,
        "namespace": manifest.namespace,
        "labels": {**marks, **metadata.get("labels", {})},
        "ownerReferences": [owner],
    }
    return {**item, "metadata": whole}


def hashed(item: Object, *more: Any) -> Object:
    """`item` with the hash of its definition, and of `more`, as an annotation.

    Without it, a field that is removed from the definition would be no difference, and stay in the object for ever.
    """
    return _annotated(item, HASH, _digest(item, *more))


def _digest(*values: Any) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _annotated(item: Object, name: str, value: str) -> Object:
    metadata = item["metadata"]
    return {**item, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), name: value}}}


def _labelled(stream: ClusterStream, item: Object) -> Object:
    """`item` with labels that are not part of the hash: a running pod gets them without being replaced."""
    metadata = item["metadata"]
    marks = recommended_labels("publisher", stream.name)
    return {**item, "metadata": {**metadata, "labels": {**metadata["labels"], **marks}}}


def _settings(stream: ClusterStream) -> Any:
    """The settings that a publisher reads only when it starts."""
    spec = stream.manifest.to_document()["spec"]
    history = {key: value for key, value in spec["history"].items() if key != "storage"}
    return [history, spec["progress"], spec["push"]]


def service_account(name: str) -> Object:
    """A service account without rights, whose token is mounted in no pod."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name},
        "automountServiceAccountToken": False,
    }


def _relay(stream: ClusterStream) -> Object:
    """The Relay object of `spec.relays`. Users may set its other fields, which are not compared and so stay."""
    return {
        "apiVersion": stream.manifest.api_version,
        "kind": RELAY_KIND,
        "metadata": {"name": stream.name},
        "spec": {"stream": stream.name, "replicas": stream.manifest.spec.relays},
    }


def _service(stream: ClusterStream) -> Object:
    """A headless service: each pod has a DNS name, also before it is ready, for clients that already wait for it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": stream.name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": pod_labels(stream.name),
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"} for name, port in PORTS.items()
            ],
        },
    }


def _budget(stream: ClusterStream) -> Object:
    """One pod may be down at a time. As a number: a percentage would count segments, and a pod may serve several."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": common_name(stream.name)},
        "spec": {
            "minAvailable": len(stream.publishers()) - 1,
            "selector": {"matchLabels": pod_labels(stream.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _network_policy(stream: ClusterStream) -> Object:
    """Which namespaces may connect: those of the access lists, or the stream's own if there are none.

    With an advertised address clients may be anywhere, and their namespace is not known: then everyone may connect.
    """
    manifest = stream.manifest
    everyone = bool(manifest.spec.publishers.advertise)
    readers, monitoring = for_readers(manifest, everyone)
    writers = _peers(manifest, manifest.spec.access.publish, everyone)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": common_name(stream.name)},
        "spec": {
            "podSelector": {"matchLabels": pod_labels(stream.name)},
            "policyTypes": ["Ingress"],
            "ingress": [readers, {"from": writers, "ports": _ports(INGEST_PORT)}, monitoring],
        },
    }


def for_readers(stream: StreamManifest, everyone: bool) -> tuple[Object, Object]:
    """Two ingress rules: for reading, from subscribers and the stream's relays; and for metrics, from monitoring."""
    readers = _peers(stream, stream.spec.access.subscribe, everyone)
    if stream.namespace not in readers[0]["namespaceSelector"]["matchExpressions"][0]["values"]:
        readers.append({"podSelector": {"matchLabels": relay_pod_labels(stream.name)}})
    return (
        {"from": readers, "ports": _ports(EVENTS_PORT, REQUESTS_PORT, HTTP_PORT)},
        {"from": [_namespaces(MONITORING_LABEL)], "ports": _ports(HTTP_PORT)},
    )


def _peers(stream: StreamManifest, accounts: Iterable[Account], everyone: bool) -> list[Object]:
    namespaces = sorted({account.namespace or stream.namespace for account in accounts} or {stream.namespace})
    named = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}
    peers: list[Object] = [
        {"namespaceSelector": {"matchExpressions": [named]}},
        _namespaces(CLIENT_LABEL),
    ]
    if everyone:
        peers += [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}}]
    return peers


def _namespaces(label: str) -> Object:
    return {"namespaceSelector": {"matchLabels": {label: "true"}}}


def _ports(*ports: int) -> list[Object]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


def _volume(stream: ClusterStream, segment: str) -> Object:
    storage = stream.manifest.spec.history.storage
    assert storage is not None, "only a stream with storage has volumes"
    chosen = {} if storage.storage_class_name is None else {"storageClassName": storage.storage_class_name}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": volume_name(stream.name, segment)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": format_bytes(storage.size)}},
            **chosen,
        },
    }


WHOLE = frozenset(("selector", "podSelector", "ingress"))
"""Fields that are compared as a whole. One more label makes a selector match fewer pods, or none; one more peer makes a
policy admit more. This works as the definitions set every part of them, and leave no default to the API server."""
_AMOUNTS = frozenset(("requests", "limits"))
"""Fields whose amounts are compared by value: the API server may write the same amount in another form."""


def covers(drawn: Any, live: Any) -> bool:
    """Whether `live` has every field of `drawn` with the same value. In a list, each drawn item must match some item.

    >>> covers({"a": [{"name": "x"}]}, {"a": [{"name": "y"}, {"name": "x", "port": 1}], "b": 2})
    True
    >>> covers({"selector": {"app": "x"}}, {"selector": {"app": "x", "more": "y"}})
    False
    >>> covers({"ingress": [{"from": [{"podSelector": {}}]}]}, {"ingress": [{"from": [{"podSelector": {}}]}, {}]})
    False
    >>> covers({"limits": {"cpu": "0.5"}}, {"limits": {"cpu": "500m", "memory": "1Gi"}})
    True
    """
    if isinstance(drawn, dict):
        return isinstance(live, dict) and all(covers_field(name, value, live) for name, value in drawn.items())
    if isinstance(drawn, list):
        return isinstance(live, list) and all(any(covers(item, other) for other in live) for item in drawn)
    return bool(drawn == live)


def covers_field(name: str, drawn: Any, live: Object) -> bool:
    """Whether `live` has the field `name` with the drawn value."""
    if name not in live:
        return _is_nothing(drawn)
    if name in WHOLE:
        return bool(drawn == live[name])
    if name in _AMOUNTS:
        there = live[name]
        return all(resource in there and same_amount(amount, there[resource]) for resource, amount in drawn.items())
    return covers(drawn, live[name])


def _is_nothing(value: Any) -> bool:
    """Whether the API server may drop a field with this value, because it is empty.

    False and zero are not empty: the API server keeps them in all fields that are drawn with them, and a field that is
    missing there has another meaning.
    """
    return value in ("", {}, [])


def grown(drawn: Object, live: Object) -> Object | None:
    """The claim with its new size, if that is larger than the present request; else None, as claims cannot shrink.

    >>> claim = lambda size: {"metadata": {"name": "a", "namespace": "b"}, "apiVersion": "v1", "kind": "X",
    ...                       "spec": {"resources": {"requests": {"storage": size}}}}
    >>> grown(claim("2Gi"), claim("1024Mi"))["spec"], grown(claim("1Gi"), claim("2Gi"))
    ({'resources': {'requests': {'storage': '2Gi'}}}, None)
    """
    sizes = [parse_bytes(item["spec"]["resources"]["requests"]["storage"]) for item in (drawn, live)]
    if sizes[0] <= sizes[1]:
        return None
    named = {name: drawn["metadata"][name] for name in ("name", "namespace")}
    spec = {"resources": {"requests": {"storage": drawn["spec"]["resources"]["requests"]["storage"]}}}
    return {"apiVersion": drawn["apiVersion"], "kind": drawn["kind"], "metadata": named, "spec": spec}


def differing(drawn: Object, live: Object) -> set[str]:
    """Manifest fields that an existing claim cannot follow: a smaller size, another storage class.

    >>> claim = lambda size, kind: {"spec": {"resources": {"requests": {"storage": size}}, "storageClassName": kind}}
    >>> sorted(differing(claim("1Gi", "fast"), claim("2Gi", "slow")))
    ['spec.history.storage.size', 'spec.history.storage.storageClassName']
    >>> differing(claim("2Gi", "fast"), claim("1Gi", "fast"))
    set()
    """
    sizes = [parse_bytes(item["spec"]["resources"]["requests"]["storage"]) for item in (drawn, live)]
    found = {"spec.history.storage.size"} if sizes[0] < sizes[1] else set()
    chosen = drawn["spec"].get("storageClassName")
    if chosen is not None and chosen != live["spec"].get("storageClassName"):
        found.add("spec.history.storage.storageClassName")
    return found

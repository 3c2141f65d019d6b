"""A stream with all that its Kubernetes objects are derived from, and the names, labels and ports of these objects."""

from dataclasses import dataclass

from epochal.resources.manifest import StreamManifest
from epochal.resources.plan import DesiredStream, PlannedPublisher, publishers_of
from epochal.resources.spec import Object

MANAGER = "epochal-operator"
"""The field manager of all objects that the operator applies."""
FINALIZER = "epochal.dev/finalizer"
OPERATOR = "epochal.dev/operator"
"""The annotation of a stream that names the operator which owns its finalizer: namespace and name of its lease."""
NAME_LABEL, NAME = "app.kubernetes.io/name", "epochal-publisher"
MANAGED_LABEL = "app.kubernetes.io/managed-by"
STREAM_LABEL = "epochal.dev/stream"
INDEX_LABEL = "epochal.dev/publisher-index"
HASH = "epochal.dev/template-hash"
"""The annotation with the hash of the definition that an object was created from."""
RELEASE = "epochal.dev/release-hash"
"""The annotation of a pod with the hash of the operator settings that every pod gets, such as the image."""
CATALOG_UID = "epochal.dev/catalog-uid"
SEGMENTS = "epochal.dev/segments"
"""Annotations of a pod: the catalog's uid of its stream, and the segments that it serves, separated by commas."""
SETTINGS = "epochal.dev/settings-hash"
"""The annotation of a pod without storage: the hash of the settings that it was created with."""
CLIENT_LABEL = "epochal.dev/client"
"""A namespace with this label, `true`, may connect to the publishers of all streams."""
MONITORING_LABEL = "epochal.dev/monitoring"
"""A namespace with this label, `true`, may connect to their HTTP port, for metrics."""

RELAY_LABEL, RELAY_NAME = "epochal.dev/relay", "epochal-relay"
"""The label with the name of an object's Relay, and the value of `NAME_LABEL` for objects of relays."""
SELECTOR = f"{NAME_LABEL} in ({NAME},{RELAY_NAME}),{MANAGED_LABEL}={MANAGER}"
"""Selects the objects of all streams and relays."""
EVENTS_PORT, REQUESTS_PORT, INGEST_PORT, HTTP_PORT = 8701, 8702, 8703, 8704
PORTS = {"events": EVENTS_PORT, "requests": REQUESTS_PORT, "ingest": INGEST_PORT, "http": HTTP_PORT}
"""The ports of a publisher by name."""
DATA = "/var/lib/epochal"
"""The directory of the logs in a pod."""


def labels(stream: str) -> dict[str, str]:
    """The labels of every object of a stream."""
    return {NAME_LABEL: NAME, MANAGED_LABEL: MANAGER, STREAM_LABEL: stream}


def recommended_labels(component: str, instance: str) -> dict[str, str]:
    """The labels that Kubernetes recommends, for people and their tools; no selector uses them."""
    prefix = "app.kubernetes.io"
    return {f"{prefix}/part-of": "epochal", f"{prefix}/component": component, f"{prefix}/instance": instance}


def relay_pod_labels(stream: str) -> dict[str, str]:
    """The labels that select the relay pods of a stream."""
    return {NAME_LABEL: RELAY_NAME, STREAM_LABEL: stream}


def pod_labels(stream: str) -> dict[str, str]:
    """The labels that select the publisher pods of a stream."""
    return {NAME_LABEL: NAME, STREAM_LABEL: stream}


def pod_selector(stream: str) -> str:
    """The same selector as text, for the scale subresource.

    >>> pod_selector("flights")
    'app.kubernetes.io/name=epochal-publisher,epochal.dev/stream=flights'
    """
    return ",".join(f"{key}={value}" for key, value in pod_labels(stream).items())


def common_name(stream: str) -> str:
    """The name of a stream's service account, disruption budget and network policy.

    It differs from the stream's: a stream may be called `default`, like the service account of every namespace.
    """
    return f"{stream}-publisher"


def volume_name(stream: str, segment: str) -> str:
    """The name of a segment's volume claim."""
    return f"{stream}-{segment}"


def key(item: Object) -> tuple[str, str]:
    """Kind and name, which identify an object within a namespace."""
    return item["kind"], item["metadata"]["name"]


def is_terminating(item: Object) -> bool:
    """Whether the object is being deleted; its name is still taken."""
    return "deletionTimestamp" in item["metadata"]


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The operator's settings for all its streams."""

    image: str
    """The image of the publisher."""
    catalog: str
    """The catalog's URL, as pods reach it."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    network_policies: bool = True
    listen: str = "0.0.0.0"
    """The address that publishers listen on."""
    fixed_user: bool = True
    """Whether pods set their user id. Some platforms assign user ids to each namespace and refuse any other."""
    publisher_env: tuple[tuple[str, str], ...] = ()
    """More environment variables for publishers and relays, as (name, value); none that the operator sets itself."""


@dataclass(frozen=True, slots=True)
class ClusterStream:
    """A declared stream, with the uids that distinguish it from earlier streams of the same name."""

    manifest: StreamManifest
    object_uid: str
    """The uid of the Kubernetes object."""
    catalog_uid: str
    """The uid of the stream at the catalog: publishers register with it, and logs belong to it."""
    segments: tuple[str, ...]
    """The open segments, in order."""

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self.manifest.namespace

    @property
    def name(self) -> str:
        """The name within the namespace."""
        return self.manifest.name

    @property
    def keeps_logs(self) -> bool:
        """Whether its history is kept on volumes."""
        return self.manifest.spec.history.policy != "memory"

    def desired(self) -> DesiredStream:
        """The input of `resources.plan`: one pod for each segment unless `publishers.segmentsPerPod` says otherwise.

        The generation is always 1: the hash in a pod's annotation shows whether it must be replaced.
        """
        per_pod = self.manifest.spec.publishers.segments_per_pod or 1
        return DesiredStream(self.namespace, self.name, self.catalog_uid, self.segments, per_pod)

    def publishers(self) -> list[PlannedPublisher]:
        """The publishers that the stream should have."""
        return publishers_of(self.desired())

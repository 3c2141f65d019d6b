"""A stream as its objects on a cluster are drawn from it, and how these objects are called and labelled."""

from dataclasses import dataclass

from epochal.resources.manifest import StreamManifest
from epochal.resources.plan import DesiredStream, PlannedPublisher, publishers_of
from epochal.resources.spec import Object

"""An object of Kubernetes, as JSON has it."""

MANAGER = "epochal-operator"
"""The field manager of all that is applied."""
FINALIZER = "epochal.dev/finalizer"
OPERATOR = "epochal.dev/operator"
"""The annotation of a stream that says whose finalizer it is: namespace and name of the operator's lease."""
NAME_LABEL, NAME = "app.kubernetes.io/name", "epochal-publisher"
MANAGED_LABEL = "app.kubernetes.io/managed-by"
STREAM_LABEL = "epochal.dev/stream"
INDEX_LABEL = "epochal.dev/publisher-index"
HASH = "epochal.dev/template-hash"
"""The annotation with the hash of what an object was drawn from."""
RELEASE = "epochal.dev/release-hash"
"""The annotation of a pod with the hash of what the operator's own settings give to every pod, such as the image."""
CATALOG_UID = "epochal.dev/catalog-uid"
SEGMENTS = "epochal.dev/segments"
"""Annotations of a pod: whose segments it serves, and which, by comma."""
SETTINGS = "epochal.dev/settings-hash"
"""The annotation of a pod without storage with the hash of the settings that it was made under."""
CLIENT_LABEL = "epochal.dev/client"
"""A namespace with this label, `true`, may connect to the publishers of all streams."""
MONITORING_LABEL = "epochal.dev/monitoring"
"""A namespace with this label, `true`, may connect to their HTTP port, for metrics."""

RELAY_LABEL, RELAY_NAME = "epochal.dev/relay", "epochal-relay"
"""The label with the name of the Relay that an object belongs to, and what such objects are."""
SELECTOR = f"{NAME_LABEL} in ({NAME},{RELAY_NAME}),{MANAGED_LABEL}={MANAGER}"
"""Everything that belongs to any stream or relay."""
EVENTS_PORT, REQUESTS_PORT, INGEST_PORT, HTTP_PORT = 8701, 8702, 8703, 8704
PORTS = {"events": EVENTS_PORT, "requests": REQUESTS_PORT, "ingest": INGEST_PORT, "http": HTTP_PORT}
"""What the ports of a publisher are called."""
DATA = "/var/lib/epochal"
"""Where the logs are in a pod."""


def labels(stream: str) -> dict[str, str]:
    """The labels of every object of a stream."""
    return {NAME_LABEL: NAME, MANAGED_LABEL: MANAGER, STREAM_LABEL: stream}


def recommended_labels(component: str, instance: str) -> dict[str, str]:
    """What Kubernetes recommends beside these, for who looks; nothing is selected by them."""
    prefix = "app.kubernetes.io"
    return {f"{prefix}/part-of": "epochal", f"{prefix}/component": component, f"{prefix}/instance": instance}


def relay_pod_labels(stream: str) -> dict[str, str]:
    """The labels by which all relays' pods of a stream are selected."""
    return {NAME_LABEL: RELAY_NAME, STREAM_LABEL: stream}


def pod_labels(stream: str) -> dict[str, str]:
    """The labels by which a stream's pods are selected."""
    return {NAME_LABEL: NAME, STREAM_LABEL: stream}


def pod_selector(stream: str) -> str:
    """The same as text, for the scale sub-resource.

    >>> pod_selector("flights")
    'app.kubernetes.io/name=epochal-publisher,epochal.dev/stream=flights'
    """
    return ",".join(f"{key}={value}" for key, value in pod_labels(stream).items())


def common_name(stream: str) -> str:
    """What the service account, the budget and the network policy of a stream are called.

    Not as the stream: one may be called `default`, as every namespace's own service account is.
    """
    return f"{stream}-publisher"


def volume_name(stream: str, segment: str) -> str:
    """The claim of a segment's volume."""
    return f"{stream}-{segment}"


def key(item: Object) -> tuple[str, str]:
    """Kind and name: by these the objects of one namespace differ."""
    return item["kind"], item["metadata"]["name"]


def is_terminating(item: Object) -> bool:
    """Whether it is on its way out; its name is still taken."""
    return "deletionTimestamp" in item["metadata"]


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What is the same for all streams of an operator."""

    image: str
    """The image of the publisher."""
    catalog: str
    """The catalog's URL, as pods reach it."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    network_policies: bool = True
    listen: str = "0.0.0.0"
    """What publishers listen on."""
    fixed_user: bool = True
    """Whether pods name their user; some platforms give each namespace users of its own, and refuse any other."""
    publisher_env: tuple[tuple[str, str], ...] = ()
    """More environment of publishers and relays, names and values; none that these set themselves."""


@dataclass(frozen=True, slots=True)
class ClusterStream:
    """A declared stream, with the uids that others of the same name do not have."""

    manifest: StreamManifest
    object_uid: str
    """Of the Kubernetes object."""
    catalog_uid: str
    """Of the stream at the catalog: what its publishers register for, and what its logs are of."""
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
        """Whether its history is on volumes."""
        return self.manifest.spec.history.policy != "memory"

    def desired(self) -> DesiredStream:
        """What the planner needs: a pod for each segment where `publishers.segmentsPerPod` is not given.

        The generation is left at 1: whether a publisher is to be started again shows the hash of its pod.
        """
        per_pod = self.manifest.spec.publishers.segments_per_pod or 1
        return DesiredStream(self.namespace, self.name, self.catalog_uid, self.segments, per_pod)

    def publishers(self) -> list[PlannedPublisher]:
        """Which publishers it should have."""
        return publishers_of(self.desired())

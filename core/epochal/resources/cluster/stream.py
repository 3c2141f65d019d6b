"""A stream as its objects on a cluster are drawn from it."""

from dataclasses import dataclass

from epochal.resources.manifest import StreamManifest
from epochal.resources.plan import DesiredStream, Publisher, publishers_of


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
    """More environment of publishers, names and values; none of `OWN_ENVIRONMENT`."""


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
        """What the planner needs.

        The generation is left at 1: whether a publisher is to be started again shows the hash of its pod.
        """
        per_pod = self.manifest.spec.publishers.segments_per_pod
        return DesiredStream(self.namespace, self.name, self.catalog_uid, self.segments, per_pod)

    def publishers(self) -> list[Publisher]:
        """Which publishers it should have."""
        return publishers_of(self.desired())

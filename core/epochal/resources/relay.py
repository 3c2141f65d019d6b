"""The Relay manifest: relays of one stream, which pass it on to many subscribers.

It exists on a cluster only, as a custom resource. The catalog does not store it; in local mode a stream's own
`spec.relays` says how many relays it has.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field

from epochal.errors import Problem
from epochal.resources.manifest import checked, field_of
from epochal.resources.spec import (
    DIRECT,
    GI,
    MI,
    Bytes,
    Fields,
    LabelValue,
    Metadata,
    Origin,
    ReferredName,
    RelayHost,
    ResourcesSpec,
    Toleration,
)


class Autoscaling(Fields):
    """How many relays there are for so many subscribers."""

    least: int = Field(default=1, alias="min", ge=1, le=1000, description="Relays at least.")
    most: int = Field(alias="max", ge=1, le=1000, description="Relays at most.")
    subscribers_per_replica: int = Field(
        default=500, ge=1, le=1_000_000, description="For so many subscribers there is one relay; at most capacity."
    )


class RelayHttpSpec(Fields):
    """HTTP at relays."""

    cors_origins: Annotated[tuple[Origin, ...], Field(strict=False)] = Field(
        default=(),
        max_length=32,
        description="The origins whose web pages may read epochs, such as https://dashboard.example.org, or *.",
    )


class RelaySpec(Fields):
    """Everything that is declared about relays; `stream` is required."""

    stream: ReferredName = Field(
        description="The name of the stream, which is in the same namespace. It cannot change."
    )
    replicas: int | None = Field(
        default=None, ge=0, le=1000, description="How many relays there are; 1 when absent, without autoscaling."
    )
    autoscaling: Autoscaling | None = Field(
        default=None, description="How many relays there are for so many subscribers; instead of replicas."
    )
    upstream: ReferredName = Field(
        default=DIRECT, description="What they follow: direct (the publishers), or the name of another Relay."
    )
    capacity: int = Field(
        default=1000, ge=1, le=1_000_000, description="Subscribers of a segment that one relay takes at most."
    )
    buffer_bytes: Bytes = Field(
        default=64 * MI,
        ge=MI,
        le=64 * GI,
        description="Events that a relay keeps in memory, for subscribers that come back or have missed some.",
    )
    http: RelayHttpSpec = Field(default_factory=RelayHttpSpec, description="HTTP at relays.")
    advertise: RelayHost = Field(
        default="",
        description="The host that clients use; {pod}, {relay} and {namespace} in it are filled in. Empty: the"
        " pod's address.",
    )
    resources: ResourcesSpec = Field(
        default_factory=ResourcesSpec, description="What a relay's pod requests and may use at most."
    )
    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=32, description="Labels of the nodes on which relays may run."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = Field(
        default=(), max_length=32, description="Taints of nodes on which relays may run nevertheless."
    )
    topology_spread: bool = Field(
        default=True, description="Whether the scheduler should spread the relays over nodes and zones."
    )

    @property
    def bounds(self) -> tuple[int, int]:
        """How many relays there are at least and at most."""
        if self.autoscaling is not None:
            return self.autoscaling.least, self.autoscaling.most
        fixed = 1 if self.replicas is None else self.replicas
        return fixed, fixed


class RelayManifest(Fields):
    """Declared relays, valid as a whole."""

    model_config = ConfigDict(title="Relay")

    api_version: Literal["epochal.dev/v1alpha1"]
    kind: Literal["Relay"]
    metadata: Metadata
    spec: RelaySpec

    @classmethod
    def from_document(cls, document: object, *, namespace: str | None = None) -> Self:
        """Check a whole document; `namespace` replaces a missing one. Raises `ManifestError` with every problem."""
        return checked(cls, document, namespace, lambda raw: list(_between_fields(raw)))

    @property
    def namespace(self) -> str:
        """The namespace, also of its stream; `default` when none was given."""
        return self.metadata.namespace

    @property
    def name(self) -> str:
        """The name within the namespace, by which subscribers ask for these relays."""
        return self.metadata.name

    @property
    def qualified(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def _between_fields(document: object) -> Iterator[Problem]:
    """Problems of two fields together. The custom resource definition has the same as CEL rules."""
    replicas, scaling = field_of(document, "spec.replicas"), field_of(document, "spec.autoscaling")
    if replicas is not None and scaling is not None:
        yield Problem("spec.autoscaling", "cannot be together with replicas", "leave one of them out")
    least, most = field_of(scaling, "min"), field_of(scaling, "max")
    if _are_numbers(least, most) and least > most:
        yield Problem("spec.autoscaling.max", "is less than min")
    each = 500 if field_of(scaling, "subscribersPerReplica") is None else field_of(scaling, "subscribersPerReplica")
    capacity = 1000 if field_of(document, "spec.capacity") is None else field_of(document, "spec.capacity")
    if scaling is not None and _are_numbers(each, capacity) and each > capacity:
        yield Problem("spec.autoscaling.subscribersPerReplica", "is more than capacity", "a relay takes no more")
    if field_of(document, "metadata.name") == DIRECT:
        yield Problem("metadata.name", "'direct' means the publishers", "choose another name")
    elif field_of(document, "spec.upstream") == field_of(document, "metadata.name") is not None:
        yield Problem("spec.upstream", "is this relay itself", "a relay follows publishers, or relays of another name")
    host = field_of(document, "spec.advertise")
    several = scaling is not None or (isinstance(replicas, int) and replicas > 1)
    if isinstance(host, str) and host and "{pod}" not in host and several:
        yield Problem(
            "spec.advertise", "is the same for all relays", "each needs an address of its own: put {pod} in it"
        )


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int) for value in values)

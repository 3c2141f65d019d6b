"""The fields of a Stream, with their types, bounds and defaults.

Field names are camelCase in documents and snake_case here; durations are seconds (float), sizes are bytes (int).
`manifest` turns a document into these models. Descriptions of fields, and the first line of a model's docstring, are
part of the custom resource definition.
"""

import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from epochal.errors import ManifestError, TimeShapeError
from epochal.protocol.times import TimeShape
from epochal.resources.names import check_name, check_namespace
from epochal.resources.quantities import format_bytes, format_duration, parse_bytes, parse_duration
from epochal.resources.schemas import Schema
from epochal.web_origin import check_origin

KI, MI, GI = 2**10, 2**20, 2**30
HOUR, DAY = 3600.0, 86400.0
AMOUNT_PATTERN = r"[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?"
"""Amounts of resources as Kubernetes writes them, in the units that people use."""
_AMOUNT = re.compile(AMOUNT_PATTERN, re.ASCII)
SUBDOMAIN_PATTERN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""Names of service accounts and storage classes (DNS-1123 subdomains)."""
ACCOUNT_PATTERN = rf"(\*|{SUBDOMAIN_PATTERN})"
_LABEL_PATTERN = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY_PATTERN = rf"({SUBDOMAIN_PATTERN}/)?{_LABEL_PATTERN}"
LABEL_VALUE_PATTERN = rf"({_LABEL_PATTERN})?"
"""Labels of nodes, and their taints."""
LEAST_MEMORY = 64 * MI
"""The memory of a publisher or relay that serves nothing yet: its code."""


def _read_bytes(value: object) -> object:
    if isinstance(value, str):
        return parse_bytes(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a number of bytes (e.g. 256Mi, 1Gi)")
    return value


def _read_duration(value: object) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    raise ValueError("must be a duration with a unit (e.g. 30s, 24h, 500ms)")


def _check_amount(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("must be an amount (e.g. 500m, 2, 1Gi)")
    if not _AMOUNT.fullmatch(str(value)):
        raise ValueError("is not an amount; write a number with a unit, e.g. 500m, 2, 1Gi")
    return str(value)


def _check_shape(value: str) -> str:
    try:
        return str(TimeShape.parse(value))
    except TimeShapeError as error:  # its message begins with the text, which the problem shows already
        raise ValueError(f"is no time shape: {str(error).partition(': ')[2]}") from None


def _check_relay_host(value: str) -> str:
    if not re.fullmatch(RELAY_HOST_PATTERN, value, re.ASCII):
        raise ValueError("is no host; {pod}, {relay} and {namespace} in it are filled in")
    return value


def _normal_schema(value: dict[str, Any]) -> dict[str, Any]:
    try:
        return Schema.parse(value).to_document()
    except ManifestError:  # `manifest` reports every wrong field of it; an error from here could name only one
        return value


class ValueFormat(StrEnum):
    """The kind of a value, which its Python type does not show: the `format` in the model's schema."""

    BYTES = "bytes"
    DURATION = "duration"
    AMOUNT = "amount"
    NAMESPACE = "namespace"
    SHAPE = "shape"
    NAME = "name"
    RELAY_HOST = "relay host"
    ORIGIN = "origin"
    SCHEMA = "schema"
    ACCOUNT = "account"
    STORAGE_CLASS = "storage class"
    LABEL_VALUE = "label value"
    TAINT_KEY = "taint key"

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add it to the schema as `format`."""
        return {**handler(schema), "format": self.value}


Bytes = Annotated[int, BeforeValidator(_read_bytes), PlainSerializer(format_bytes), ValueFormat.BYTES]
Duration = Annotated[float, BeforeValidator(_read_duration), PlainSerializer(format_duration), ValueFormat.DURATION]
Amount = Annotated[str, BeforeValidator(_check_amount), ValueFormat.AMOUNT]
LabelValue = Annotated[str, ValueFormat.LABEL_VALUE]
Name = Annotated[str, AfterValidator(check_name)]
Namespace = Annotated[str, AfterValidator(check_namespace), ValueFormat.NAMESPACE]
ShapeText = Annotated[str, AfterValidator(_check_shape), ValueFormat.SHAPE]
ReferredName = Annotated[str, AfterValidator(check_name), ValueFormat.NAME]
RELAY_HOST_PATTERN = r"(\{(pod|relay|namespace)\}|[-A-Za-z0-9.:]){0,253}"
RelayHost = Annotated[str, AfterValidator(_check_relay_host), ValueFormat.RELAY_HOST]
Origin = Annotated[str, AfterValidator(check_origin), ValueFormat.ORIGIN]
DIRECT = "direct"
"""The value of `upstream` for a relay that follows the publishers; no relay can have this name."""
Object = dict[str, Any]


class Fields(BaseModel):
    """Base of all parts of a manifest: immutable, no coercion, no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=to_camel, allow_inf_nan=False)


class TimeSpec(Fields):
    """What a time looks like."""

    shape_text: ShapeText = Field(
        alias="shape",
        description="The shape of a time: int, or a nested tuple of ints such as (int, int). It cannot change.",
    )

    @property
    def shape(self) -> TimeShape:
        """The declared shape, e.g. `int` or `(int, int)`."""
        return TimeShape.parse(self.shape_text)


class PayloadSpec(Fields):
    """What a record looks like."""

    encoding: Literal["bytes", "msgpack", "json", "arrow"] = Field(
        description="How a record is encoded: bytes, msgpack, json or arrow. It cannot change."
    )
    schema_: Annotated[Object, AfterValidator(_normal_schema), ValueFormat.SCHEMA] | None = Field(
        default=None,
        alias="schema",
        description="The fields of a record, for encodings that have fields (all but bytes). It cannot change.",
    )

    @property
    def fields(self) -> Schema | None:
        """The declared schema, where there is one."""
        return None if self.schema_ is None else Schema.parse(self.schema_)


class RetentionSpec(Fields):
    """How much history is kept: whichever bound is reached first drops the oldest events."""

    mode: Literal["keep", "none"] = Field(
        default="keep",
        description="keep: events are kept for readers that come later or missed some. none: nothing is kept, and a"
        " missed event is lost.",
    )
    time_seconds: Duration = Field(
        default=HOUR,
        alias="time",
        ge=1.0,
        le=3650 * DAY,
        description="Events older than this may be dropped, e.g. 24h.",
    )
    bytes: Bytes = Field(
        default=256 * MI,
        ge=64 * KI,
        le=2**50,
        description="Of each segment, events beyond this size may be dropped, e.g. 1Gi.",
    )


class StorageSpec(Fields):
    """The volume of a segment."""

    size: Bytes = Field(ge=MI, le=2**60, description="The size of each segment's volume, e.g. 10Gi. It can only grow.")
    storage_class_name: Annotated[str, ValueFormat.STORAGE_CLASS] | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="The storage class of the volumes; the cluster's default class when absent.",
    )


class HistorySpec(Fields):
    """The history kept for readers that come later or missed something."""

    retention: RetentionSpec = Field(default_factory=RetentionSpec, description="How much history is kept.")
    durability: Literal["auto", "batch", "interval", "memory"] = Field(
        default="auto",
        description="When an append is acknowledged. batch: once it is on disk. interval: at once, and it is on disk"
        " within a second. memory: at once, and nothing is on disk. auto: batch with storage, memory without.",
    )
    storage: StorageSpec | None = Field(
        default=None, description="A volume for each segment; without it history is kept in memory."
    )

    @property
    def policy(self) -> Literal["batch", "interval", "memory"]:
        """What is done before an append is acknowledged: the durability, with `auto` decided."""
        if self.storage is None or self.retention.mode == "none" or self.durability == "memory":
            return "memory"
        return "batch" if self.durability == "auto" else self.durability


class ProgressSpec(Fields):
    """When times may start to complete, when a silent writer counts as lost, and what follows (E46 hold)."""

    min_writers: int = Field(
        default=1, ge=1, le=10_000, description="No time completes before so many writers have opened the stream."
    )
    writer_timeout: Duration = Field(
        default=30.0, ge=0.1, le=DAY, description="A writer that is silent for this long counts as lost."
    )
    when_lost: Literal["release", "hold"] = Field(
        default="release",
        description="What becomes of a lost writer's times. release: epochs that it had appended at and not left are"
        " aborted, and later ones complete without it. hold: its times are kept for it, so nothing that it may still"
        " write at completes, until it is back or released by `epochal release`.",
    )


class WatermarkSpec(Fields):
    """How writers' marks become watermarks."""

    note_time: Literal["manual", "wallclock", "frontier"] = Field(
        default="manual",
        description="Who notes time: the program, a clock, or the writer's frontier (times of shape int).",
    )
    timeout: Duration = Field(default=30.0, ge=0.1, le=DAY, description="When a writer without marks counts as dead.")
    interval: Duration = Field(default=5.0, ge=0.1, le=HOUR, description="How often watermarks are computed.")
    max_skew: Duration = Field(
        default=300.0, ge=0.0, le=DAY, description="How far a mark may be ahead of the catalog's clock."
    )


class PushSpec(Fields):
    """Live push: memory bound for what is not yet sent, and how often an idle publisher shows that it lives."""

    buffer_bytes: Bytes = Field(
        default=64 * MI,
        ge=64 * KI,
        le=64 * GI,
        description="Memory for what slow subscribers have not taken yet; beyond it they miss events, and pull them.",
    )
    heartbeat: Duration = Field(
        default=1.0, ge=0.05, le=60.0, description="How often an idle publisher shows its subscribers that it lives."
    )
    initial_filter: Literal["firehose", "none"] = Field(
        default="firehose", description="What a new subscriber is sent before it has said what it wants."
    )


class Account(Fields):
    """A service account; `*` means every account of the namespace. Without a namespace: that of the stream."""

    service_account: Annotated[str, ValueFormat.ACCOUNT] = Field(
        min_length=1, max_length=253, description="The name of the account; * means every account of the namespace."
    )
    namespace: Namespace | None = Field(default=None, description="The account's namespace; the stream's when absent.")


class AccessSpec(Fields):
    """The accounts that may publish and subscribe."""

    publish: Annotated[tuple[Account, ...], Field(strict=False)] = Field(
        default=(), max_length=256, description="Who may publish; when empty, everyone in the stream's namespace."
    )
    subscribe: Annotated[tuple[Account, ...], Field(strict=False)] = Field(
        default=(), max_length=256, description="Who may subscribe; when empty, everyone in the stream's namespace."
    )


class ResourcesSpec(Fields):
    """What a publisher pod may use, as in any pod."""

    requests: dict[str, Amount] | None = Field(
        default=None, max_length=16, description="What a node must have free for a pod, e.g. {cpu: 500m, memory: 1Gi}."
    )
    limits: dict[str, Amount] | None = Field(
        default=None, max_length=16, description="What a pod may use at most, e.g. {memory: 2Gi}."
    )


class Toleration(Fields):
    """A taint of nodes that publisher pods tolerate, as in any pod."""

    key: Annotated[str, ValueFormat.TAINT_KEY] | None = Field(
        default=None, max_length=317, description="The taint's key; absent: every key."
    )
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None, description="Whether the taint must have the value (Equal, the default) or any (Exists)."
    )
    value: Annotated[str, ValueFormat.LABEL_VALUE] | None = Field(
        default=None, max_length=63, description="The taint's value, for the operator Equal."
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The taint's effect; absent: every effect."
    )
    toleration_seconds: int | None = Field(
        default=None, ge=0, le=2**31, description="How long a pod stays on a node with such a taint (NoExecute)."
    )


class PublishersSpec(Fields):
    """How segments are spread over publisher processes, and where those run."""

    segments_per_pod: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="How many segments one publisher serves; on Kubernetes 1 where it is not given, in local mode all"
        " segments of the stream.",
    )
    dedicated: bool = Field(
        default=False,
        description="Local mode: whether the stream has publisher processes of its own; by default streams share some."
        " On Kubernetes every publisher has a pod of its own, and this has no effect.",
    )
    http_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Local mode: the HTTP port of the stream's publisher, if one has all segments; by default a free"
        " one. On Kubernetes the ports of pods are fixed, and this has no effect.",
    )
    advertise: str = Field(
        default="",
        max_length=253,
        description="The host that clients use; {index}, {stream} and {namespace} in it are filled in. Empty: the"
        " pod's name in the cluster's DNS.",
    )
    resources: ResourcesSpec = Field(
        default_factory=ResourcesSpec, description="What a publisher pod requests and may use at most."
    )
    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=32, description="Labels of the nodes on which publishers may run."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = Field(
        default=(), max_length=32, description="Taints of nodes on which publishers may run nevertheless."
    )
    topology_spread: bool = Field(
        default=True, description="Whether the scheduler should spread the publishers over nodes and zones."
    )


class StreamSpec(Fields):
    """Everything that is declared about a stream; `time` and `payload` are required."""

    time: TimeSpec = Field(description="What a time looks like.")
    payload: PayloadSpec = Field(description="What a record looks like.")
    segments: int = Field(
        default=1, ge=1, le=1024, description="How many key ranges the stream has. It cannot change for now."
    )
    history: HistorySpec = Field(
        default_factory=HistorySpec, description="What is kept for readers that come later or missed something."
    )
    progress: ProgressSpec = Field(
        default_factory=ProgressSpec, description="When times may complete, and when a silent writer counts as lost."
    )
    watermark: WatermarkSpec = Field(
        default_factory=WatermarkSpec, description="How writers' marks become watermarks. Planned, not in effect yet."
    )
    push: PushSpec = Field(default_factory=PushSpec, description="How events are pushed to subscribers.")
    access: AccessSpec = Field(
        default_factory=AccessSpec,
        description="Who may publish and subscribe. Service accounts are not checked yet; on a cluster, network"
        " policies let in the namespaces that are named here.",
    )
    publishers: PublishersSpec = Field(
        default_factory=PublishersSpec, description="How segments are spread over publishers, and where those run."
    )
    relays: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="How many relays re-publish the stream; on Kubernetes as a Relay of its name.",
    )
    relay_http_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Local mode: the HTTP port of the stream's relay, with relays: 1; by default a free one. On"
        " Kubernetes the ports of pods are fixed, and this has no effect.",
    )


class Metadata(Fields):
    """The name of a stream, and labels and annotations as Kubernetes has them."""

    name: Name
    namespace: Namespace = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)

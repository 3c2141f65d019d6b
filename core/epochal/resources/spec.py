"""The fields of a Stream, with their types, bounds and defaults.

Apart from `manifest`, which turns a document into these and words the problems. Field names are camelCase in documents
and snake_case here; durations are seconds (float), sizes are bytes (int).
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

from epochal.errors import ManifestError, TimeShapeError
from epochal.protocol.times import TimeShape
from epochal.resources.names import check_name, check_namespace
from epochal.resources.quantities import format_bytes, format_duration, parse_bytes, parse_duration
from epochal.resources.schemas import Schema

KI, MI, GI = 2**10, 2**20, 2**30
HOUR, DAY = 3600.0, 86400.0


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


def _check_shape(value: str) -> str:
    try:
        return str(TimeShape.parse(value))
    except TimeShapeError as error:  # its message begins with the text, which the problem shows already
        raise ValueError(f"is no time shape: {str(error).partition(': ')[2]}") from None


def _normal_schema(value: dict[str, Any]) -> dict[str, Any]:
    try:
        return Schema.parse(value).to_document()
    except ManifestError:  # `manifest` tells every wrong field of it; here there would be place for one
        return value


Bytes = Annotated[int, BeforeValidator(_read_bytes), PlainSerializer(format_bytes)]
Duration = Annotated[float, BeforeValidator(_read_duration), PlainSerializer(format_duration)]
Name = Annotated[str, AfterValidator(check_name)]
Namespace = Annotated[str, AfterValidator(check_namespace)]
Shape = Annotated[str, AfterValidator(_check_shape)]
Object = dict[str, Any]


class Fields(BaseModel):
    """Base of all parts of a manifest: immutable, no coercion, no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=to_camel, allow_inf_nan=False)


class Time(Fields):
    """What a time looks like."""

    shape_text: Shape = Field(alias="shape")

    @property
    def shape(self) -> TimeShape:
        """The declared shape, e.g. `int` or `(int, int)`."""
        return TimeShape.parse(self.shape_text)


class Payload(Fields):
    """What a record looks like."""

    encoding: Literal["bytes", "msgpack", "json", "arrow"]
    schema_: Annotated[Object, AfterValidator(_normal_schema)] | None = Field(default=None, alias="schema")

    @property
    def fields(self) -> Schema | None:
        """The declared schema, where there is one."""
        return None if self.schema_ is None else Schema.parse(self.schema_)


class Retention(Fields):
    """How much history is kept: whichever bound is reached first drops the oldest events."""

    mode: Literal["keep", "none"] = "keep"
    time_seconds: Duration = Field(default=HOUR, alias="time", ge=1.0, le=3650 * DAY)
    bytes: Bytes = Field(default=256 * MI, ge=64 * KI, le=2**50)


class Storage(Fields):
    """The volume of a segment."""

    size: Bytes = Field(ge=MI, le=2**60)
    storage_class_name: str | None = Field(default=None, min_length=1, max_length=253)


class History(Fields):
    """What is kept for readers that come later or missed something."""

    retention: Retention = Field(default_factory=Retention)
    durability: Literal["auto", "batch", "interval", "memory"] = "auto"
    storage: Storage | None = None

    @property
    def policy(self) -> Literal["batch", "interval", "memory"]:
        """What is done before an append is acknowledged: the durability, with `auto` decided."""
        if self.storage is None or self.retention.mode == "none" or self.durability == "memory":
            return "memory"
        return "batch" if self.durability == "auto" else self.durability


class Progress(Fields):
    """When times may start to complete, and when a silent writer counts as lost (E3, E5)."""

    min_writers: int = Field(default=1, ge=1, le=10_000)
    writer_timeout: Duration = Field(default=30.0, ge=0.1, le=DAY)


class Watermark(Fields):
    """How writers' marks become watermarks."""

    note_time: Literal["manual", "wallclock", "frontier"] = "manual"
    timeout: Duration = Field(default=30.0, ge=0.1, le=DAY)
    interval: Duration = Field(default=5.0, ge=0.1, le=HOUR)
    max_skew: Duration = Field(default=300.0, ge=0.0, le=DAY)


class Push(Fields):
    """Live push: memory bound for what is not yet sent, and how often an idle publisher shows that it lives."""

    buffer_bytes: Bytes = Field(default=64 * MI, ge=64 * KI, le=64 * GI)
    heartbeat: Duration = Field(default=1.0, ge=0.05, le=60.0)
    initial_filter: Literal["firehose", "none"] = "firehose"


class Account(Fields):
    """A service account; `*` stands for every one of the namespace. Without a namespace: that of the stream."""

    service_account: str = Field(min_length=1, max_length=253)
    namespace: Namespace | None = None


class Access(Fields):
    """Who may publish and subscribe."""

    publish: Annotated[tuple[Account, ...], Field(strict=False)] = ()
    subscribe: Annotated[tuple[Account, ...], Field(strict=False)] = ()


class Publishers(Fields):
    """How segments are spread over publisher processes."""

    segments_per_pod: int = Field(default=1, ge=1, le=1024)
    advertise: str = Field(default="", max_length=253)
    resources: Object = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: Annotated[tuple[Object, ...], Field(strict=False)] = ()
    topology_spread: bool = True


class StreamSpec(Fields):
    """Everything that is declared about a stream; `time` and `payload` are required."""

    time: Time
    payload: Payload
    segments: int = Field(default=1, ge=1, le=1024)
    history: History = Field(default_factory=History)
    progress: Progress = Field(default_factory=Progress)
    watermark: Watermark = Field(default_factory=Watermark)
    push: Push = Field(default_factory=Push)
    access: Access = Field(default_factory=Access)
    publishers: Publishers = Field(default_factory=Publishers)
    relays: int = Field(default=0, ge=0, le=1000)


class Metadata(Fields):
    """The name of a stream, and labels and annotations as Kubernetes has them."""

    name: Name
    namespace: Namespace = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)

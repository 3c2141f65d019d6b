"""The bodies of the HTTP interface, as models: they read requests, and the OpenAPI document is made from them.

Apart from the records because the interface promises more slowly than the inside changes. Unknown fields of a request
are ignored, so a newer client can speak to an older catalog.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Address = Annotated[str, Field(min_length=1, max_length=512)]
Number = int | float


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Addresses(_Body):
    """Where a publisher's sockets are, as `tcp://host:port`; `http` is its `http://host:port`."""

    events: Address
    requests: Address
    ingest: Address
    http: Address | None = None


class Register(_Body):
    """A publisher process asks for segments."""

    publisher: Name
    instance: Name
    stream: Annotated[str, Field(pattern=r"^[^/]+/[^/]+$", description="namespace/name")]
    uid: Name
    segments: Annotated[list[Name], Field(min_length=1, max_length=1024)]
    addresses: Addresses


class Report(_Body):
    """What a publisher says of one segment; what is left out stays as it was."""

    incarnation: Count
    lower: list[Any] | None = None
    writers: Annotated[list[Name], Field(max_length=100_000)] | None = None
    counters: Annotated[dict[str, Number], Field(max_length=64)] = Field(default_factory=dict)


class Renew(_Body):
    """A publisher is alive."""

    token: Count
    segments: Annotated[dict[str, Report], Field(max_length=1024)] = Field(default_factory=dict)


class Finishing(_Body):
    """A publisher's finishing mark; `number` rises with every change of mind within an incarnation (E7)."""

    publisher: Name
    token: Count
    incarnation: Count
    number: Count
    finishing: bool


class Owner(_Answer):
    """The publisher that serves a segment."""

    id: str
    token: int
    verified: bool
    addresses: dict[str, str]
    since: str


class Segment(_Answer):
    """A key range of a stream. `lo` and `hi` are decimal strings; `lower` is null until first reported."""

    id: str
    lo: str
    hi: str
    state: str
    incarnation: int
    lower: list[Any] | None
    finishing: bool
    publisher: Owner | None
    counters: dict[str, Number]


class NotInEffect(_Answer):
    """A field that was given and whose function is planned."""

    path: str
    value: Any
    note: str


class StreamHead(_Answer):
    """A stream without its segments."""

    namespace: str
    name: str
    uid: str
    generation: int
    phase: Annotated[str, Field(pattern="^(Pending|Ready|Complete)$")]
    manifest: dict[str, Any]
    writers: list[str]
    created: str
    not_in_effect: list[NotInEffect]


class Stream(StreamHead):
    """A stream with its segments."""

    segments: list[Segment]


class Streams(_Answer):
    """All streams; `revision` rises with every stored change."""

    items: list[Stream]
    revision: int


class Lookup(_Answer):
    """Where to connect for a stream."""

    stream: StreamHead
    segments: list[Segment]


class Session(_Answer):
    """A writer's session number for the stream of this uid."""

    session: int
    uid: str


class Granted(_Answer):
    """A segment given to a publisher, with what its last incarnation reported."""

    id: str
    incarnation: int
    lo: str
    hi: str
    lower: list[Any] | None
    writers: list[str]
    finishing: bool
    complete: bool


class Registered(_Answer):
    """The fencing token, the seconds a lease lasts, and the segments."""

    token: int
    ttl: float
    segments: list[Granted]


class Renewed(_Answer):
    """The lease lasts another `ttl` seconds."""

    ttl: float
    complete: bool


class Completion(_Answer):
    """Whether completion is recorded."""

    complete: bool


class Publisher(Owner):
    """A registration. `live`: its lease has not lapsed; `superseded`: it must stop."""

    instance: str
    stream: str
    uid: str
    segments: dict[str, int]
    live: bool
    superseded: bool


class Publishers(_Answer):
    """All registrations."""

    items: list[Publisher]


class Health(_Answer):
    """How the process is."""

    status: str


class Flaw(_Answer):
    """One wrong field."""

    path: str
    reason: str
    hint: str


class ProblemDocument(_Answer):
    """An error (RFC 9457); `code` is stable, `retryable` says whether the same request can succeed later."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    problems: list[Flaw] | None = None

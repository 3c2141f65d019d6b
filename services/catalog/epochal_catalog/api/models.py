"""The bodies of the HTTP interface, as models: they read requests, and the OpenAPI document is made from them.

Separate from the stored records because the interface changes more slowly than they do. Unknown fields of a request
are ignored, so a newer client can speak to an older catalog.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, Field(ge=0, le=2**63 - 1), BeforeValidator(_whole)]
"""JSON has one kind of number, so 3.0 is a whole one."""
Name = Annotated[str, Field(min_length=1, max_length=253)]
Address = Annotated[str, Field(min_length=1, max_length=512)]
Number = int | float
Counters = Annotated[dict[Annotated[str, Field(max_length=64)], Number], Field(max_length=64)]


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
    stream: Annotated[str, Field(pattern=r"^([^/]+/[^/]+|\$[^/]+)$", description="namespace/name")]
    uid: Name
    segments: Annotated[list[Name], Field(min_length=1, max_length=1024)]
    addresses: Addresses
    incarnations: Annotated[dict[str, Count], Field(max_length=1024)] = Field(
        default_factory=dict, description="segment -> the last incarnation that its log on disk has seen"
    )


class Holder(_Body):
    """Who holds a time of a segment's lower frontier; `seconds` and `silent`: since when, and when last heard."""

    time: Any
    kind: Annotated[str, Field(min_length=1, max_length=32)]
    writer: Name | None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    silent: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


class Report(_Body):
    """What a publisher says of one segment; what is left out stays as it was.

    With `number` it is a record (E11): `lower`, `writers` and `horizon` are stored together, unless a record of this
    incarnation with this number or a higher one is stored already. Without, the stored horizon becomes unknown.
    """

    incarnation: Count
    lower: list[Any] | None = None
    writers: Annotated[list[Name], Field(max_length=100_000)] | None = None
    number: Count | None = Field(default=None, description="rises with every record of an incarnation")
    horizon: Annotated[list[Any], Field(max_length=1024)] | None = Field(
        default=None, description="the maximal times that may become active; needed with a number, and only grows"
    )
    final: bool = Field(default=False, description="the publisher stops: its horizon may shrink to what is open")
    marks: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=10_000)] = Field(
        default_factory=list, description="facts for the next publisher, stored with a record"
    )
    below: Annotated[list[Any], Field(max_length=1024)] = Field(
        default_factory=list, description="every time <= one of these is aborted, for its memory was lost"
    )
    counters: Counters = Field(default_factory=dict)
    holders: Annotated[list[Holder], Field(max_length=16)] = Field(default_factory=list)


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


class Subscribe(_Body):
    """A reader makes itself known; `subscriber` is a name for people."""

    subscriber: Name
    uid: Name


class RenewSubscription(_Body):
    """A reader is alive; `lower` is its frontier, null when not known yet."""

    token: Count
    lower: Annotated[list[Any], Field(max_length=1024)] | None = None
    counters: Counters = Field(default_factory=dict)


class Owner(_Answer):
    """The publisher that serves a segment."""

    id: str
    token: int
    verified: bool
    addresses: dict[str, str]
    since: str


class Held(_Answer):
    """A holder of a segment's time."""

    time: Any
    kind: str
    writer: str | None
    seconds: float
    silent: float | None


class HeldBack(_Answer):
    """What keeps a segment of a stream at its time, and that in words."""

    segment: str
    time: Any
    kind: str
    writer: str | None
    seconds: float | None
    silent: float | None
    words: str


class Segment(_Answer):
    """A key range of a stream. `lo` and `hi` are decimal strings; `lower` is null until first reported.

    Every time that is <= one of `below`, and was not complete, is aborted: a publisher lost it with its memory.
    `reported`: how many seconds ago the publisher said what `counters` and `holders` say.
    """

    id: str
    lo: str
    hi: str
    state: str
    incarnation: int
    lower: list[Any] | None
    below: list[Any]
    finishing: bool
    publisher: Owner | None
    reported: float | None
    counters: dict[str, Number]
    holders: list[Held]


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
    held_back: list[HeldBack]
    subscriptions: int


class Stream(StreamHead):
    """A stream with its segments."""

    segments: list[Segment]


class Reserved(_Answer):
    """The catalog's own stream. Watching can begin at `first_revision` or later.

    `identity` tells this catalog's database from any other; a copy of it has the same.
    """

    name: str
    identity: str
    revision: int
    first_revision: int
    watch: str
    streams: int
    publishers: int
    subscriptions: int


class _Page(_Answer):
    next: str | None
    revision: int


class Streams(_Page):
    """Streams by name, and the catalog's own. `next` is the `after` of the next page, null on the last one.

    `revision` is that of the newest change.
    """

    items: list[Stream]
    reserved: list[Reserved]


class StreamSegment(Segment):
    """A segment, with the stream that it is of."""

    stream: str


class Segments(_Page):
    """Segments, by stream and key range."""

    items: list[StreamSegment]


class Writer(_Answer):
    """A writer's last session number; `open`: a publisher counts it among its writers."""

    writer: str
    session: int
    open: bool


class Writers(_Page):
    """All that ever had a session of the stream, by id."""

    items: list[Writer]


class Subscribed(_Answer):
    """The subscription lasts `ttl` seconds from now; `token` is for its owner alone."""

    id: str
    token: int
    ttl: float


class SubscriptionRenewed(_Answer):
    """The subscription lasts another `ttl` seconds."""

    ttl: float


class Subscription(_Answer):
    """A live subscription; `verified` is false after a restart of the catalog until it renews."""

    id: str
    stream: str
    uid: str
    subscriber: str
    since: str
    verified: bool
    lower: list[Any] | None
    counters: dict[str, Number]


class Subscriptions(_Page):
    """Live subscriptions, by id."""

    items: list[Subscription]


class Lookup(_Answer):
    """Where to connect for a stream."""

    stream: StreamHead
    segments: list[Segment]


class Session(_Answer):
    """A writer's session number for the stream of this uid.

    `first`: it has had no session before; `before`: the number of its session before, or null.
    """

    session: int
    uid: str
    first: bool
    before: int | None


class Released(_Answer):
    """The writer's newest session, which is released (E46)."""

    writer: str
    session: int


class Granted(_Answer):
    """A segment given to a publisher, with what its last incarnation reported; `horizon` is null when not known."""

    id: str
    incarnation: int
    lo: str
    hi: str
    lower: list[Any] | None
    horizon: list[Any] | None
    marks: list[str]
    writers: list[str]
    finishing: bool
    complete: bool


class Registered(_Answer):
    """The fencing token, the seconds a lease lasts, and the segments.

    `sessions`: writer -> its newest session number, of all writers whose newest session is not their first (E6).
    """

    token: int
    ttl: float
    segments: list[Granted]
    sessions: dict[str, int]


class Renewed(_Answer):
    """The lease lasts another `ttl` seconds.

    `recorded`: segment -> the number of the record that is stored of it now, -1 for none, of those that were reported.
    `released`: writer -> its session that was released, of the writers that the publisher's segments still count (E46).
    """

    ttl: float
    complete: bool
    recorded: dict[str, int]
    released: dict[str, int]


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


class Publishers(_Page):
    """Registrations, by id."""

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

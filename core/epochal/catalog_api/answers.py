"""What the catalog answers: the catalog makes these values, and clients read them.

Their docstrings are those of the OpenAPI document, and so are their names, where they have a title. Key bounds are ints
(decimal strings on the wire), times are in the protocol's form, durations are seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.kinds import Answer, AnyTime, Flag, Key, Number, Seconds, Text, Times, Whole
from epochal.resources.manifest import StreamManifest


@dataclass(frozen=True, slots=True)
class Owner(Answer):
    """The publisher that serves a segment."""

    id: Text
    token: Whole
    verified: Flag
    """False after a restart of the catalog until the publisher has renewed."""
    addresses: Mapping[Text, Text]
    since: Text


@dataclass(frozen=True, slots=True)
class PublisherInfo(Owner):
    """A registration. `live`: its lease has not lapsed; `superseded`: it must stop."""

    __pydantic_config__ = ConfigDict(title="Publisher")

    instance: Text
    stream: Text
    uid: Text
    segments: Mapping[Text, Whole]
    """Segment -> the incarnation of it that the publisher was given."""
    live: Flag
    superseded: Flag
    """Another publisher has its segments, or its stream is gone."""


@dataclass(frozen=True, slots=True)
class Held(Answer):
    """A holder of a segment's time."""

    time: AnyTime
    kind: Text
    writer: Text | None
    seconds: Seconds
    silent: Seconds | None


@dataclass(frozen=True, slots=True)
class ChannelInfo(Answer):
    """A channel on which a publisher pushes to those who want the same topics.

    `filter` is cut to 60 characters. `share`: of the bytes that were pushed since there is the channel, 0 to 1.
    `coarse`: how many of the subscribers want less, and share it because the publisher has no more channels.
    """

    __pydantic_config__ = ConfigDict(title="Channel")

    filter: Text
    subscribers: Whole
    share: Seconds
    coarse: Whole


@dataclass(frozen=True, slots=True)
class SegmentInfo(Answer):
    """A key range of a stream. `lo` and `hi` are decimal strings; `lower` is null until first reported.

    Every time that is <= one of `below`, and was not complete, is aborted: a publisher lost it with its memory.
    `reported`: how many seconds ago the publisher said what `counters` and `holders` say.
    """

    __pydantic_config__ = ConfigDict(title="Segment")

    id: Text
    lo: Key
    hi: Key
    state: Text
    incarnation: Whole
    lower: Times | None = None
    below: Times = ()
    finishing: Flag = False
    publisher: Owner | None = None
    reported: Seconds | None = None
    counters: Annotated[
        Mapping[Text, Any],
        BeforeValidator(lambda value: value or {}),
        WithJsonSchema(
            {"type": "object", "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "number"}]}}
        ),
    ] = field(default_factory=dict)
    holders: tuple[Held, ...] = ()
    """The holders of the elements of `lower`, the longest first."""
    channels: tuple[ChannelInfo, ...] = ()
    """The channels with subscribers, those that carry most first; not all, if a publisher has very many."""


@dataclass(frozen=True, slots=True)
class FieldNotInEffect(Answer):
    """A field that was given and whose function is planned."""

    __pydantic_config__ = ConfigDict(title="NotInEffect")

    path: Text
    value: Any
    note: Text


@dataclass(frozen=True, slots=True)
class StreamHead(Answer):
    """A stream without its segments."""

    namespace: Text
    name: Text
    uid: Text
    """Fresh for every creation, also under a used name (S26)."""
    generation: Whole
    phase: Annotated[Text, WithJsonSchema({"type": "string", "pattern": "^(Pending|Ready|Complete)$"})]
    manifest: Mapping[Text, Any]
    writers: tuple[Text, ...] = ()
    created: Text = ""
    not_in_effect: tuple[FieldNotInEffect, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    """What holds the stream's time back, the longest first."""
    subscriptions: Whole = 0
    """How many read it now (S31)."""
    relays: Whole = 0
    """How many relays are listed for it."""


@dataclass(frozen=True, slots=True)
class StreamInfo(StreamHead):
    """A stream with its segments."""

    __pydantic_config__ = ConfigDict(title="Stream")

    segments: tuple[SegmentInfo, ...] = ()
    _declared: Annotated[Any, Field(exclude=True)] = field(default=None, init=False, repr=False, compare=False)

    @property
    def qualified(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def declared(self) -> StreamManifest:
        """The manifest as a checked value; checked once."""
        declared: StreamManifest | None = self._declared
        if declared is None:
            declared = StreamManifest.from_document(self.manifest)
            object.__setattr__(self, "_declared", declared)
        return declared


@dataclass(frozen=True, slots=True)
class WriterSession(Answer):
    """A writer's session number for the stream of this uid.

    `first`: it has had no session before; `before`: the number of its session before, or null.
    """

    __pydantic_config__ = ConfigDict(title="Session")

    number: Annotated[Whole, Field(alias="session")]
    """It fences all older sessions of the writer (E6 sessions)."""
    uid: Text
    first: Flag
    before: Whole | None = None


@dataclass(frozen=True, slots=True)
class SegmentGrant(Answer):
    """A segment given to a publisher, with what its last incarnation reported; `horizon` is null when not known."""

    __pydantic_config__ = ConfigDict(title="Granted")

    id: Text
    incarnation: Whole
    lo: Key
    hi: Key
    lower: Times | None = None
    horizon: Times | None = None
    """The maximal times that may have been active in the last incarnation (E11 horizon)."""
    marks: tuple[Text, ...] = ()
    writers: tuple[Text, ...] = ()
    finishing: Flag = False
    complete: Flag = False


@dataclass(frozen=True, slots=True)
class Registration(Answer):
    """The fencing token, the seconds a lease lasts, and the segments.

    `sessions`: writer -> its newest session number, of all writers that have had more than one (E6 sessions).
    """

    __pydantic_config__ = ConfigDict(title="Registered")

    token: Whole
    ttl: Seconds
    segments: tuple[SegmentGrant, ...]
    sessions: Mapping[Text, Whole] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Renewal(Answer):
    """The lease lasts another `ttl` seconds.

    `recorded`: segment -> the number of the record that is stored of it now, -1 for none, of those that were reported.
    `released`: writer -> its session that was released, of those that the publisher's segments still count (E46 hold).
    """

    __pydantic_config__ = ConfigDict(title="Renewed")

    ttl: Seconds
    complete: Flag
    """Every writer has finished the stream (E7 finish)."""
    recorded: Mapping[Text, Whole] = field(default_factory=dict)
    released: Mapping[Text, Whole] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriterInfo(Answer):
    """A writer's last session number; `open`: a publisher counts it among its writers."""

    __pydantic_config__ = ConfigDict(title="Writer")

    writer: Text
    session: Whole
    open: Flag


@dataclass(frozen=True, slots=True)
class SubscriptionLease(Answer):
    """The subscription lasts `ttl` seconds from now; `token` is for its owner alone."""

    __pydantic_config__ = ConfigDict(title="Subscribed")

    id: Text
    token: Whole
    """Anyone who has it can renew the subscription and withdraw it (S29)."""
    ttl: Seconds


@dataclass(frozen=True, slots=True)
class SubscriptionInfo(Answer):
    """A live subscription; `verified` is false after a restart of the catalog until it renews."""

    __pydantic_config__ = ConfigDict(title="Subscription")

    id: Text
    stream: Text
    uid: Text
    subscriber: Text
    since: Text
    verified: Flag
    lower: Times | None
    """The frontier that the subscriber last reported; None before."""
    counters: Mapping[Text, Number]


@dataclass(frozen=True, slots=True)
class RelayInfo(Answer):
    """A relay of a stream, as it last reported; `verified` is false after a restart of the catalog until it renews."""

    __pydantic_config__ = ConfigDict(title="Relay")

    id: Text
    name: Text
    """Shared by the replicas of the relay."""
    stream: Text
    uid: Text
    addresses: Mapping[Text, Text]
    segments: Mapping[Text, Mapping[Text, Text]]
    """Segment -> its addresses, of the segments that have others than `addresses`."""
    upstream: Text
    """`direct`, or the name of the relay that it reads from."""
    capacity: Whole
    """Subscribers at most."""
    state: Text
    """`ready`, `waiting` or `draining`; a later release may have more."""
    path: tuple[Text, ...]
    """The ids of the relays between it and the publishers."""
    load: Whole
    """Its subscribers."""
    lag: Seconds | None
    """Seconds that it is behind its upstream; None when not known."""
    filter: Text
    """What it reads upstream, for people; empty for everything."""
    since: Text
    verified: Flag


@dataclass(frozen=True, slots=True)
class CatalogEvent(Answer):
    """One change in the catalog (S26).

    `kind`: stream, segment, publisher, subscription, session or relay; `op`: put or delete; `object`: what it is
    now, in the form of docs/catalog.md, None once deleted. To resume after it, watch with `since=revision`.
    """

    revision: Whole
    kind: Text
    op: Text
    name: Text
    object: Mapping[Text, Any] | None

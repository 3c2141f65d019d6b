"""What is asked of the catalog: the bodies of requests, as a client makes them and as the catalog reads them.

Their docstrings and descriptions are those of the OpenAPI document. Times have their JSON form, ints or nested lists,
because only the shape of the stream says which times are right.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict

from epochal.catalog_api.kinds import Flag, Number, fields_of
from epochal.protocol import blockers
from epochal.protocol.times import to_json


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("an id must be printable characters")
    return value


Count = Annotated[int, Strict(), Field(ge=0, le=2**63 - 1), BeforeValidator(_whole)]
"""JSON has one kind of number, so 3.0 is a whole one."""
Name = Annotated[str, Strict(), Field(min_length=1, max_length=253)]
Id = Annotated[Name, AfterValidator(_printable)]
"""The id of a new object. Reports use `Name`: objects may be older than the rule that ids must be printable."""
Address = Annotated[str, Strict(), Field(min_length=1, max_length=512)]
Lasting = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Counters = Annotated[dict[Annotated[str, Strict(), Field(max_length=64)], Number], Field(max_length=64)]

MAX_PATH = 8
"""Relays between a reader and the publishers (F16)."""
MAX_FILTER = 256
"""Characters of a relay's filter as a text; a relay cuts what is longer."""


class Request:
    """A body: a dataclass whose fields are of the kinds of this module."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The form in which it is sent."""
        return fields_of(self)


@dataclass(frozen=True, slots=True)
class Addresses(Request):
    """Where a publisher's sockets are, as `tcp://host:port`; `http` is its `http://host:port`."""

    events: Address
    requests: Address
    ingest: Address
    http: Address | None = None

    def to_json(self) -> dict[str, Any]:
        """The addresses that are set, by name."""
        return {name: address for name, address in fields_of(self).items() if address is not None}


@dataclass(frozen=True, slots=True)
class Register(Request):
    """A publisher process asks for segments."""

    publisher: Id
    instance: Id
    stream: Annotated[str, Strict(), Field(pattern=r"^([^/]+/[^/]+|\$[^/]+)$", description="namespace/name")]
    uid: Name
    segments: Annotated[list[Name], Field(min_length=1, max_length=1024)]
    addresses: Addresses
    incarnations: Annotated[
        dict[Annotated[str, Strict()], Count],
        Field(max_length=1024, description="segment -> the last incarnation that its log on disk has seen"),
    ] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form in which it is sent."""
        return {**fields_of(self), "addresses": self.addresses.to_json()}


@dataclass(frozen=True, slots=True)
class ReportedHolder(Request):
    """Who holds a time of a segment's lower frontier; `seconds` and `silent`: since when, and when last heard."""

    __pydantic_config__ = ConfigDict(title="Holder")

    time: Any
    kind: Annotated[str, Strict(), Field(min_length=1, max_length=32)]
    writer: Name | None
    seconds: Lasting
    silent: Lasting | None

    @classmethod
    def of(cls, holder: blockers.Holder) -> Self:
        """What a publisher's machine says, in the form that is sent."""
        return cls(to_json(holder.time), str(holder.kind), holder.writer, holder.seconds, holder.silent)


MAX_FILTER_TEXT = 60
"""Characters of a filter in a report. One can have 4,096 prefixes, and people only need to recognise it."""

MAX_CHANNELS = 64
"""Channels of a segment in one report."""


@dataclass(frozen=True, slots=True)
class ReportedChannel(Request):
    """A channel on which a publisher pushes to those who want the same topics."""

    filter: Annotated[
        str, Strict(), Field(max_length=MAX_FILTER_TEXT, description="prefixes, those not wanted with a minus; cut")
    ]
    subscribers: Count
    share: Annotated[
        float,
        Strict(),
        Field(
            ge=0, le=1, description="of the bytes that were pushed since there is the channel, those that went to it"
        ),
    ]
    coarse: Annotated[Count, Field(description="subscribers that want less: channels are used up")] = 0


DISK_FULL = "disk_full"
"""A segment's counter: the operating system's error number (errno) while its log cannot be written; else 0."""
DISK_FULL_SECONDS = "disk_full_seconds"
"""A segment's counter: for how many seconds that has been so."""


@dataclass(frozen=True, slots=True)
class SegmentReport(Request):
    """What a publisher says of one segment; what is left out stays as it was.

    With `number` it is a record (E11 horizon): `lower`, `writers` and `horizon` are stored together, unless a record of
    this incarnation with this number or a higher one is stored already. Without, the stored horizon becomes unknown.
    """

    __pydantic_config__ = ConfigDict(title="Report")

    incarnation: Count
    lower: list[Any] | None = None
    writers: Annotated[list[Name], Field(max_length=100_000)] | None = None
    number: Annotated[Count | None, Field(description="rises with every record of an incarnation")] = None
    horizon: Annotated[
        Annotated[list[Any], Field(max_length=1024)] | None,
        Field(description="the maximal times that may become active; needed with a number, and only grows"),
    ] = None
    final: Annotated[Flag, Field(description="the publisher stops: its horizon may shrink to what is open")] = False
    marks: Annotated[
        list[Annotated[str, Strict(), Field(max_length=300)]],
        Field(max_length=10_000, description="facts for the next publisher, stored with a record"),
    ] = field(default_factory=list)
    below: Annotated[
        list[Any],
        Field(max_length=1024, description="every time <= one of these is aborted, for its memory was lost"),
    ] = field(default_factory=list)
    counters: Counters = field(default_factory=dict)
    holders: Annotated[list[ReportedHolder], Field(max_length=16)] = field(default_factory=list)
    channels: Annotated[
        list[ReportedChannel],
        Field(
            max_length=MAX_CHANNELS, description="those with subscribers, first those that carry most; perhaps not all"
        ),
    ] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The form in which it is sent: without what belongs to a record, unless it is one."""
        record = {"number": self.number, "horizon": self.horizon, "final": self.final, "marks": self.marks}
        return {
            "incarnation": self.incarnation,
            "lower": self.lower,
            "writers": self.writers,
            "counters": self.counters,
            "holders": [holder.to_json() for holder in self.holders],
            **({} if self.number is None else record),
            **({"below": self.below} if self.below else {}),
            **({"channels": [each.to_json() for each in self.channels]} if self.channels else {}),
        }


@dataclass(frozen=True, slots=True)
class Renew(Request):
    """A publisher is alive."""

    token: Count
    segments: Annotated[dict[Annotated[str, Strict()], SegmentReport], Field(max_length=1024)] = field(
        default_factory=dict
    )

    def to_json(self) -> dict[str, Any]:
        """The form in which it is sent."""
        return {"token": self.token, "segments": {name: report.to_json() for name, report in self.segments.items()}}


MOST_TOGETHER = 256
"""Leases in one request: of so many, the reports fit into the largest body that the catalog takes."""


@dataclass(frozen=True, slots=True)
class RenewOne(Request):
    """One lease of several that are renewed together."""

    publisher: Name
    token: Count
    segments: Annotated[dict[Annotated[str, Strict()], SegmentReport], Field(max_length=1024)] = field(
        default_factory=dict
    )

    def to_json(self) -> dict[str, Any]:
        """The form in which it is sent."""
        return {"publisher": self.publisher, **Renew(self.token, self.segments).to_json()}


@dataclass(frozen=True, slots=True)
class RenewTogether(Request):
    """A process that serves several streams is alive; each lease is judged by itself."""

    leases: Annotated[list[RenewOne], Field(min_length=1, max_length=MOST_TOGETHER)]

    def to_json(self) -> dict[str, Any]:
        """The form in which it is sent."""
        return {"leases": [lease.to_json() for lease in self.leases]}


@dataclass(frozen=True, slots=True)
class Finishing(Request):
    """A publisher's finishing mark; `number` rises with every change of mind within an incarnation (E7 finish)."""

    publisher: Name
    token: Count
    incarnation: Count
    number: Count
    finishing: Flag


@dataclass(frozen=True, slots=True)
class Subscribe(Request):
    """A reader makes itself known; `subscriber` is a name for people."""

    subscriber: Id
    uid: Name


@dataclass(frozen=True, slots=True)
class RenewSubscription(Request):
    """A reader is alive; `lower` is its frontier, null when not known yet."""

    token: Count
    lower: Annotated[list[Any], Field(max_length=1024)] | None = None
    counters: Counters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RelayAddresses(Request):
    """Where a relay's sockets are, as `tcp://host:port`; `http` is its `http://host:port`."""

    events: Address
    requests: Address
    http: Address | None = None

    def to_json(self) -> dict[str, Any]:
        """The addresses that are set, by name."""
        return {name: address for name, address in fields_of(self).items() if address is not None}


@dataclass(frozen=True, slots=True)
class RelayReport(Request):
    """What a relay says of itself: at its registration, and with each renewal."""

    state: Annotated[
        Literal["ready", "waiting", "draining"],
        Field(description="`waiting`: it cannot serve yet; `draining`: it takes no more readers and will stop"),
    ] = "waiting"
    load: Annotated[Count, Field(description="its subscribers now, readers over HTTP among them")] = 0
    lag: Annotated[Lasting | None, Field(description="seconds that it is behind its upstream; null: not known")] = None
    path: Annotated[
        list[Name],
        Field(max_length=MAX_PATH, description="the ids of the relays between it and the publishers, its own not"),
    ] = field(default_factory=list)
    filter: Annotated[
        str, Strict(), Field(max_length=MAX_FILTER, description="what it reads upstream, for people; empty: everything")
    ] = ""


@dataclass(frozen=True, slots=True)
class RegisterRelay(Request):
    """A relay makes itself known to the readers of one stream."""

    stream: Annotated[str, Strict(), Field(pattern=r"^([^/]+/[^/]+|\$[^/]+)$", description="namespace/name")]
    uid: Name
    name: Annotated[Id, Field(description="shared by all replicas of the relay")]
    id: Annotated[Id, Field(description="of the process; its entry replaces one of the same id")]
    addresses: RelayAddresses
    capacity: Annotated[Count, Field(description="subscribers at most")]
    segments: Annotated[
        dict[Name, RelayAddresses],
        Field(max_length=1024, description="segment -> its addresses, of those that have others than `addresses`"),
    ] = field(default_factory=dict)
    upstream: Annotated[Id, Field(description="`direct`, or the name of the relay that it reads from")] = "direct"
    report: RelayReport = field(default_factory=RelayReport)

    def to_json(self) -> dict[str, Any]:
        """The form in which it is sent."""
        return {
            **fields_of(self),
            "addresses": self.addresses.to_json(),
            "segments": {segment: addresses.to_json() for segment, addresses in self.segments.items()},
            "report": self.report.to_json(),
        }

"""What the catalog answers, as values.

Separate from the calls in `catalog` because code that only passes these on (commands, publishers) needs no HTTP.
Key bounds are ints (decimal strings on the wire), times are in the protocol's form, durations are seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from epochal.client.catalog.blockers import HeldBack
from epochal.protocol.blockers import Holder
from epochal.protocol.messages import FIRST_SESSION
from epochal.protocol.times import Time, from_json, to_json
from epochal.resources import StreamManifest


def _times(value: Sequence[Any] | None) -> tuple[Time, ...] | None:
    return None if value is None else tuple(from_json(time) for time in value)


@dataclass(frozen=True, slots=True)
class PublisherInfo:
    """A registered publisher; `verified` is false after a catalog restart until it has renewed.

    `live`: its lease has not lapsed. `superseded`: another one has its segments, or its stream is gone; it must stop.
    """

    id: str
    token: int
    verified: bool
    addresses: Mapping[str, str]
    since: str
    stream: str = ""
    segments: tuple[str, ...] = ()
    live: bool = True
    superseded: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read one of the catalog's publishers."""
        return cls(
            id=value.get("id") or value["publisher"],
            token=value["token"],
            verified=value.get("verified", True),
            addresses=dict(value["addresses"]),
            since=value.get("since", ""),
            stream=value.get("stream", ""),
            segments=tuple(value.get("segments", ())),
            live=value.get("live", True),
            superseded=value.get("superseded", False),
        )


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment [lo, hi): who serves it, and what its publisher last reported.

    `lower`: its lower frontier; `holders`: who holds the elements of that, the longest first.
    """

    id: str
    lo: int
    hi: int
    state: str
    incarnation: int
    lower: tuple[Time, ...] | None
    finishing: bool
    publisher: PublisherInfo | None
    counters: Mapping[str, Any]
    holders: tuple[HeldBack, ...] = ()
    below: tuple[Time, ...] = ()
    """Every time that is <= one of these, and was not complete, is aborted: a publisher lost its memory (E11)."""
    reported: float | None = None
    """How many seconds ago the publisher reported `counters` and `holders`."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read one segment of a stream or of a lookup."""
        publisher = value.get("publisher")
        return cls(
            id=value["id"],
            lo=int(value["lo"]),
            hi=int(value["hi"]),
            state=value["state"],
            incarnation=value["incarnation"],
            lower=_times(value.get("lower")),
            finishing=value.get("finishing", False),
            publisher=None if publisher is None else PublisherInfo.from_json(publisher),
            counters=dict(value.get("counters") or {}),
            holders=tuple(HeldBack.from_json({**item, "segment": value["id"]}) for item in value.get("holders", ())),
            below=tuple(from_json(time) for time in value.get("below", ())),
            reported=value.get("reported"),
        )


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A declared stream and its segments. `uid` is fresh for every creation, also under a used name (S26).

    `held_back`: what holds its time back, the longest first; `subscriptions`: how many read it now (S31).
    """

    namespace: str
    name: str
    uid: str
    generation: int
    phase: str
    manifest: Mapping[str, Any]
    segments: tuple[SegmentInfo, ...]
    writers: tuple[str, ...]
    created: str
    not_in_effect: tuple[Any, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    subscriptions: int = 0
    _declared: StreamManifest | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def qualified(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def declared(self) -> StreamManifest:
        """The manifest as a checked value; checked once."""
        if self._declared is None:
            object.__setattr__(self, "_declared", StreamManifest.from_document(self.manifest))
        assert self._declared is not None
        return self._declared

    @classmethod
    def from_json(cls, value: Mapping[str, Any], segments: Sequence[Mapping[str, Any]] | None = None) -> Self:
        """Read a stream; `segments` are given apart by a lookup."""
        found = value.get("segments", ()) if segments is None else segments
        return cls(
            namespace=value["namespace"],
            name=value["name"],
            uid=value["uid"],
            generation=value["generation"],
            phase=value["phase"],
            manifest=value["manifest"],
            segments=tuple(SegmentInfo.from_json(segment) for segment in found),
            writers=tuple(value.get("writers", ())),
            created=value.get("created", ""),
            not_in_effect=tuple(value.get("not_in_effect", ())),
            held_back=tuple(HeldBack.from_json(item) for item in value.get("held_back", ())),
            subscriptions=value.get("subscriptions", 0),
        )


@dataclass(frozen=True, slots=True)
class WriterSession:
    """A new session of a writer id, fencing all older ones (E6); `uid` is that of the stream it is for.

    `first`: the writer has had no session of the stream before.
    """

    number: int
    uid: str
    first: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the answer; a catalog of the release before counts sessions from 1, and does not say which is first."""
        number = value["session"]
        return cls(number, value["uid"], value.get("first", number == FIRST_SESSION))


@dataclass(frozen=True, slots=True)
class SegmentGrant:
    """What a publisher gets at registration about a segment: its incarnation, and what was reported last.

    `horizon`: the maximal times that may have been active in the last incarnation; None when that is not known (E11).
    """

    id: str
    incarnation: int
    lo: int
    hi: int
    lower: tuple[Time, ...] | None
    writers: tuple[str, ...]
    complete: bool
    horizon: tuple[Time, ...] | None = None
    marks: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read one segment of a registration."""
        return cls(
            id=value["id"],
            incarnation=value["incarnation"],
            lo=int(value["lo"]),
            hi=int(value["hi"]),
            lower=_times(value.get("lower")),
            writers=tuple(value.get("writers", ())),
            complete=value.get("complete", False),
            horizon=_times(value.get("horizon")),
            marks=tuple(value.get("marks", ())),
        )


@dataclass(frozen=True, slots=True)
class Registration:
    """A publisher's lease: renew within `ttl` seconds, with `token`.

    `sessions`: the newest session number of each writer whose newest session is not its first (E6).
    `keeps_horizons`: whether the catalog stores horizons (E11); one of the release before does not.
    """

    token: int
    ttl: float
    segments: tuple[SegmentGrant, ...]
    sessions: Mapping[str, int] = field(default_factory=dict)
    keeps_horizons: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the answer to a registration."""
        segments = tuple(SegmentGrant.from_json(segment) for segment in value["segments"])
        keeps_horizons = any("horizon" in segment for segment in value["segments"])
        return cls(value["token"], float(value["ttl"]), segments, value.get("sessions", {}), keeps_horizons)


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What a publisher reports about a segment when it renews.

    With a `number` it is a record (E11): `lower`, `writers`, `horizon` and `marks` are stored together, unless one with
    this number or a higher one is stored already. `final`: the horizon may shrink, because the publisher stops in good
    order. Without a `number`, the stored horizon becomes unknown. `below`: what is aborted because a publisher lost its
    memory.
    """

    incarnation: int
    lower: Sequence[Time] | None
    writers: Sequence[str] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    holders: Sequence[Holder] = ()
    number: int | None = None
    horizon: tuple[Time, ...] | None = None
    final: bool = False
    marks: tuple[str, ...] = ()
    below: tuple[Time, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The form in which it is sent."""
        horizon = None if self.horizon is None else [to_json(time) for time in self.horizon]
        record = {"number": self.number, "horizon": horizon, "final": self.final, "marks": list(self.marks)}
        below = [to_json(time) for time in self.below]
        return {
            "incarnation": self.incarnation,
            "lower": None if self.lower is None else [to_json(time) for time in self.lower],
            "writers": list(self.writers),
            "counters": dict(self.counters),
            "holders": [holder.to_json() for holder in self.holders],
            **({} if self.number is None else record),
            **({"below": below} if below else {}),
        }


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a renewal; `complete` once every writer has finished the stream (E7).

    `recorded`: the number of the record that the catalog has of each segment that was reported, -1 for none (E11).
    `released`: the session of each released writer that it still counts (E46). Both are empty from a catalog of the
    release before.
    """

    ttl: float
    complete: bool
    recorded: Mapping[str, int] = field(default_factory=dict)
    released: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the answer to a renewal."""
        return cls(value["ttl"], value["complete"], value.get("recorded", {}), value.get("released", {}))


@dataclass(frozen=True, slots=True)
class WriterInfo:
    """A writer of a stream: the last session number it was given (E6), and whether a publisher has it open."""

    writer: str
    session: int
    open: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read one of a stream's writers."""
        return cls(value["writer"], value["session"], value["open"])


@dataclass(frozen=True, slots=True)
class SubscriptionLease:
    """A subscription as its owner has it: renew it within `ttl` seconds. Anyone with `token` can withdraw it (S29)."""

    id: str
    token: int
    ttl: float


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A live subscription to `stream`; `verified` is false after a catalog restart until it has renewed.

    `lower` is the frontier that the subscriber last reported, None before; `counters` what it counted.
    """

    id: str
    stream: str
    subscriber: str
    since: str
    verified: bool
    lower: tuple[Time, ...] | None
    counters: Mapping[str, float]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read one of the catalog's subscriptions."""
        return cls(
            id=value["id"],
            stream=value["stream"],
            subscriber=value["subscriber"],
            since=value["since"],
            verified=value["verified"],
            lower=_times(value["lower"]),
            counters=dict(value["counters"]),
        )


@dataclass(frozen=True, slots=True)
class CatalogEvent:
    """One change in the catalog (S26).

    `kind`: stream, segment, publisher, subscription or session; `op`: put or delete; `object`: what it is now, in the
    form of docs/catalog.md, None once deleted. To resume after it, watch with `since=revision`.
    """

    revision: int
    kind: str
    op: str
    name: str
    object: Mapping[str, Any] | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the data of one event."""
        return cls(value["revision"], value["kind"], value["op"], value["name"], value["object"])


@dataclass(frozen=True, slots=True)
class Listing:
    """All streams at one revision of a catalog's database; `identity` is that database's own, equal to no other's.

    `follows`: the revision that the caller knew is of this database's past; false also when it is too old to say.
    """

    identity: str
    revision: int
    streams: tuple[StreamInfo, ...]
    follows: bool = False

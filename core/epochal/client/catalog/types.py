"""What the catalog answers, as values.

Separate from the calls in `catalog` because code that only passes these on (commands, publishers) needs no HTTP.
Key bounds are ints (decimal strings on the wire), times are in the protocol's form, durations are seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from epochal.client.catalog.answers import Answer, Flag, Key, Number, Seconds, Text, Times, Whole
from epochal.client.catalog.blockers import HeldBack
from epochal.protocol.blockers import Holder
from epochal.protocol.messages import FIRST_SESSION
from epochal.protocol.times import Time, to_json
from epochal.resources import StreamManifest


@dataclass(frozen=True, slots=True)
class PublisherInfo(Answer):
    """A registered publisher; `verified` is false after a catalog restart until it has renewed.

    `live`: its lease has not lapsed. `superseded`: another one has its segments, or its stream is gone; it must stop.
    """

    id: Annotated[Text, Field(validation_alias=AliasChoices("id", "publisher"))]
    token: Whole
    verified: Annotated[Flag, Field(default=True)]
    addresses: Mapping[Text, Text]
    since: Annotated[Text, Field(default="")]
    stream: Text = ""
    segments: Annotated[tuple[Text, ...], BeforeValidator(tuple)] = ()
    live: Flag = True
    superseded: Flag = False


@dataclass(frozen=True, slots=True)
class SegmentInfo(Answer):
    """One segment [lo, hi): who serves it, and what its publisher last reported.

    `lower`: its lower frontier; `holders`: who holds the elements of that, the longest first.
    """

    id: Text
    lo: Key
    hi: Key
    state: Text
    incarnation: Whole
    lower: Times | None = None
    finishing: Flag = False
    publisher: PublisherInfo | None = None
    counters: Annotated[Mapping[Text, Any], BeforeValidator(lambda value: value or {})] = field(default_factory=dict)
    holders: tuple[HeldBack, ...] = ()
    below: Times = ()
    """Every time that is <= one of these, and was not complete, is aborted: a publisher lost its memory (E11)."""
    reported: Seconds | None = None
    """How many seconds ago the publisher reported `counters` and `holders`."""

    @model_validator(mode="before")
    @classmethod
    def _name_segment(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Holders are sent without the segment that they are of."""
        return {**value, "holders": [{**item, "segment": value["id"]} for item in value.get("holders", ())]}


@dataclass(frozen=True, slots=True)
class StreamInfo(Answer):
    """A declared stream and its segments. `uid` is fresh for every creation, also under a used name (S26).

    `held_back`: what holds its time back, the longest first; `subscriptions`: how many read it now (S31).
    """

    namespace: Text
    name: Text
    uid: Text
    generation: Whole
    phase: Text
    manifest: Mapping[Text, Any]
    segments: tuple[SegmentInfo, ...] = ()
    writers: tuple[Text, ...] = ()
    created: Text = ""
    not_in_effect: tuple[Any, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    subscriptions: Whole = 0
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


@dataclass(frozen=True, slots=True)
class WriterSession(Answer):
    """A new session of a writer id, fencing all older ones (E6); `uid` is that of the stream it is for.

    `first`: the writer has had no session of the stream before.
    """

    number: Annotated[Whole, Field(validation_alias="session")]
    uid: Text
    first: Flag

    @model_validator(mode="before")
    @classmethod
    def _count_from_one(cls, value: dict[str, Any]) -> dict[str, Any]:
        """A catalog of the release before counts sessions from 1, and does not say which is first."""
        return {"first": value["session"] == FIRST_SESSION, **value}


@dataclass(frozen=True, slots=True)
class SegmentGrant(Answer):
    """What a publisher gets at registration about a segment: its incarnation, and what was reported last.

    `horizon`: the maximal times that may have been active in the last incarnation; None when that is not known (E11).
    """

    id: Text
    incarnation: Whole
    lo: Key
    hi: Key
    lower: Times | None = None
    writers: tuple[Text, ...] = ()
    complete: Flag = False
    horizon: Times | None = None
    marks: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True)
class Registration(Answer):
    """A publisher's lease: renew within `ttl` seconds, with `token`.

    `sessions`: the newest session number of each writer whose newest session is not its first (E6).
    `keeps_horizons`: whether the catalog stores horizons (E11); one of the release before does not.
    """

    token: Whole
    ttl: Seconds
    segments: tuple[SegmentGrant, ...]
    sessions: Mapping[Text, Whole] = field(default_factory=dict)
    keeps_horizons: Flag = False

    @model_validator(mode="before")
    @classmethod
    def _find_horizons(cls, value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "keeps_horizons": any("horizon" in segment for segment in value["segments"])}


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
class Renewal(Answer):
    """The answer to a renewal; `complete` once every writer has finished the stream (E7).

    `recorded`: the number of the record that the catalog has of each segment that was reported, -1 for none (E11).
    `released`: the session of each released writer that it still counts (E46). Both are empty from a catalog of the
    release before.
    """

    ttl: Seconds
    complete: Flag
    recorded: Mapping[Text, Whole] = field(default_factory=dict)
    released: Mapping[Text, Whole] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriterInfo(Answer):
    """A writer of a stream: the last session number it was given (E6), and whether a publisher has it open."""

    writer: Text
    session: Whole
    open: Flag


@dataclass(frozen=True, slots=True)
class SubscriptionLease:
    """A subscription as its owner has it: renew it within `ttl` seconds. Anyone with `token` can withdraw it (S29)."""

    id: str
    token: int
    ttl: float


@dataclass(frozen=True, slots=True)
class SubscriptionInfo(Answer):
    """A live subscription to `stream`; `verified` is false after a catalog restart until it has renewed.

    `lower` is the frontier that the subscriber last reported, None before; `counters` what it counted.
    """

    id: Text
    stream: Text
    subscriber: Text
    since: Text
    verified: Flag
    lower: Times | None
    counters: Mapping[Text, Number]


@dataclass(frozen=True, slots=True)
class CatalogEvent(Answer):
    """One change in the catalog (S26).

    `kind`: stream, segment, publisher, subscription or session; `op`: put or delete; `object`: what it is now, in the
    form of docs/catalog.md, None once deleted. To resume after it, watch with `since=revision`.
    """

    revision: Whole
    kind: Text
    op: Text
    name: Text
    object: Mapping[Text, Any] | None


@dataclass(frozen=True, slots=True)
class Listing:
    """All streams at one revision of a catalog's database; `identity` is that database's own, equal to no other's.

    `follows`: the revision that the caller knew is of this database's past; false also when it is too old to say.
    """

    identity: str
    revision: int
    streams: tuple[StreamInfo, ...]
    follows: bool = False

"""What the catalog answers, as values.

Apart from the calls in `catalog` because those who only pass these around (commands, publishers, tests) need no HTTP.
Key bounds are ints (decimal strings on the wire), times are in the protocol's form, durations are seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from epochal.protocol.times import Time, from_json, to_json
from epochal.resources import StreamManifest


def _times(value: Sequence[Any] | None) -> tuple[Time, ...] | None:
    return None if value is None else tuple(from_json(time) for time in value)


@dataclass(frozen=True, slots=True)
class PublisherInfo:
    """A registered publisher; `verified` is false after a catalog restart until it has renewed."""

    id: str
    token: int
    verified: bool
    addresses: Mapping[str, str]
    since: str
    stream: str = ""
    segments: tuple[str, ...] = ()

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
        )


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment [lo, hi): who serves it, and the lower frontier that its publisher last reported."""

    id: str
    lo: int
    hi: int
    state: str
    incarnation: int
    lower: tuple[Time, ...] | None
    finishing: bool
    publisher: PublisherInfo | None
    counters: Mapping[str, Any]

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
        )


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A declared stream and its segments. `uid` is fresh for every creation, also under a used name (S26)."""

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

    @property
    def qualified(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def declared(self) -> StreamManifest:
        """The manifest as a checked value."""
        return StreamManifest.from_document(self.manifest)

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
        )


@dataclass(frozen=True, slots=True)
class WriterSession:
    """A new session of a writer id, fencing all older ones (E6); `uid` is that of the stream it is for."""

    number: int
    uid: str


@dataclass(frozen=True, slots=True)
class SegmentGrant:
    """What a publisher is told of a segment at registration: its incarnation, and what was reported last."""

    id: str
    incarnation: int
    lo: int
    hi: int
    lower: tuple[Time, ...] | None
    writers: tuple[str, ...]
    complete: bool

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
        )


@dataclass(frozen=True, slots=True)
class Registration:
    """A publisher's lease: renew within `ttl` seconds, with `token`."""

    token: int
    ttl: float
    segments: tuple[SegmentGrant, ...]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the answer to a registration."""
        segments = tuple(SegmentGrant.from_json(segment) for segment in value["segments"])
        return cls(value["token"], float(value["ttl"]), segments)


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What a publisher tells of a segment when it renews."""

    incarnation: int
    lower: Sequence[Time] | None
    writers: Sequence[str] = ()
    counters: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form that travels."""
        return {
            "incarnation": self.incarnation,
            "lower": None if self.lower is None else [to_json(time) for time in self.lower],
            "writers": list(self.writers),
            "counters": dict(self.counters),
        }


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a renewal; `complete` once every writer has finished the stream (E7)."""

    ttl: float
    complete: bool

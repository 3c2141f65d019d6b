"""The answers that only the OpenAPI document needs as models: pages, problems and single values.

All that clients read as values are in `epochal.catalog_api`.
"""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from epochal.catalog_api.answers import (
    PublisherInfo,
    RelayInfo,
    Renewal,
    SegmentInfo,
    StreamHead,
    StreamInfo,
    SubscriptionInfo,
    WriterInfo,
)
from epochal.catalog_api.kinds import Text


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Reserved(_Answer):
    """The catalog's own stream. Watching can begin at `first_revision` or later.

    `identity` tells this catalog's database from any other; a copy of it has the same. `data` is the data directory of
    local mode: absent for other machines, in lists, and where the catalog is not local mode's.
    """

    name: str
    identity: str
    revision: int
    first_revision: int
    watch: str
    streams: int
    publishers: int
    subscriptions: int
    relays: int
    data: str = ""


class _Page(_Answer):
    next: str | None
    revision: int


class Streams(_Page):
    """Streams by name, and the catalog's own. `next` is the `after` of the next page, null on the last one.

    `revision` is that of the newest change.
    """

    items: list[StreamInfo]
    reserved: list[Reserved]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSegment(SegmentInfo):
    """A segment, with the stream that it is of."""

    __pydantic_config__ = ConfigDict(title="StreamSegment")

    stream: Text


class Segments(_Page):
    """Segments, by stream and key range."""

    items: list[StreamSegment]


class Writers(_Page):
    """All that ever had a session of the stream, by id."""

    items: list[WriterInfo]


class SubscriptionRenewed(_Answer):
    """The subscription lasts another `ttl` seconds."""

    ttl: float


class Subscriptions(_Page):
    """Live subscriptions, by id."""

    items: list[SubscriptionInfo]


class RelayRenewed(_Answer):
    """The relay is listed for another `ttl` seconds."""

    ttl: float


class Relays(_Page):
    """Relays, by id."""

    items: list[RelayInfo]


class Lookup(_Answer):
    """Where to connect for a stream."""

    stream: StreamHead
    segments: list[SegmentInfo]


class Released(_Answer):
    """The writer's newest session, which is released (E46)."""

    writer: str
    session: int


class Completion(_Answer):
    """Whether completion is recorded."""

    complete: bool


class Publishers(_Page):
    """Registrations, by id."""

    items: list[PublisherInfo]


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


class RenewedOne(_Answer):
    """What became of one lease: the renewal, or the error that a request of its own would have got."""

    renewed: Renewal | None
    problem: ProblemDocument | None


class RenewedTogether(_Answer):
    """In the order in which they were asked for."""

    items: list[RenewedOne]

"""Models of answers that only the OpenAPI document needs: pages, problems and single values.

The models that clients read are in `epochal.catalog_api`.
"""

from dataclasses import dataclass

from pydantic import ConfigDict

from epochal.catalog_api.answers import (
    PublisherInfo,
    Renewal,
    SegmentInfo,
    StreamHead,
    StreamInfo,
)
from epochal.catalog_api.kinds import Text
from epochal_catalog.domain.noun import Page, Shown


class Reserved(Shown):
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


class Streams(Page):
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


class Segments(Page):
    """Segments, by stream and key range."""

    items: list[StreamSegment]


class Lookup(Shown):
    """Where to connect for a stream."""

    stream: StreamHead
    segments: list[SegmentInfo]


class Completion(Shown):
    """Whether completion is recorded."""

    complete: bool


class Publishers(Page):
    """Registrations, by id."""

    items: list[PublisherInfo]


class Health(Shown):
    """How the process is."""

    status: str


class Flaw(Shown):
    """One wrong field."""

    path: str
    reason: str
    hint: str


class ProblemDocument(Shown):
    """An error (RFC 9457); `code` is stable, `retryable` says whether the same request can succeed later."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    problems: list[Flaw] | None = None


class RenewedOne(Shown):
    """What became of one lease: the renewal, or the error that a request of its own would have got."""

    renewed: Renewal | None
    problem: ProblemDocument | None


class RenewedTogether(Shown):
    """In the order in which they were asked for."""

    items: list[RenewedOne]

"""What a follower asks its shell to do, and what a follower and the subscriber's machine report.

Shells and simulations handle these values without knowing the machines. The order of a list is the order to act in.

Sources: rules S16-S19; E11, E15-E17.
"""

from typing import NamedTuple, TypeAlias

from epochal.errors import EpochalError
from epochal.protocol import messages as m
from epochal.protocol.log.history import SegmentState
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter

# ---- a follower to its shell ----


class Request(NamedTuple):
    """Send a message on `requests`."""

    message: m.Message


class SubscribePrefix(NamedTuple):
    """Subscribe to a prefix on `events`."""

    prefix: bytes


class UnsubscribePrefix(NamedTuple):
    """Leave a prefix on `events`."""

    prefix: bytes


FollowerEffect: TypeAlias = Request | SubscribePrefix | UnsubscribePrefix

# ---- a follower to the subscriber ----


class Began(NamedTuple):
    """The segment's events start after `state`.

    `resumed` is true if they start exactly where the last ones ended, so `state` adds nothing. `gap` is true if events
    between are lost for good, `filters` if epochs that are under way in `state` must be left out (E15). From here on
    batches of `topics` come, and perhaps of others; None for all topics.
    """

    incarnation: int
    state: SegmentState
    filters: bool
    gap: bool
    resumed: bool
    topics: TopicFilter | None = None


class Rejoined(NamedTuple):
    """Events go on without a hole; after `state` they have batches of `topics`, None for all (F8)."""

    state: SegmentState
    topics: TopicFilter | None


class Reached(NamedTuple):
    """All events up to `seq` that are for this subscriber have come (F7)."""

    seq: int


class Moved(NamedTuple):
    """The missing events up to `seq` are gone; in them only the lower frontier moved, to `lower` (E13 retention)."""

    seq: int
    lower: tuple[Time, ...]


class Broke(NamedTuple):
    """The connection must be closed and, if `error.retryable`, replaced by a new follower from the same position."""

    error: EpochalError


FollowerReport: TypeAlias = Began | Rejoined | Reached | Moved | Broke | m.Event

# ---- the subscriber to the application ----


class EpochBatches(NamedTuple):
    """A complete epoch: all its batches, in arrival order; per segment that is the order of the log."""

    time: Time
    batches: tuple[tuple[str, m.Data], ...]
    """(segment, batch) pairs."""


class EpochWasAborted(NamedTuple):
    """The epoch can never complete; nothing of it is delivered."""

    time: Time


class Arrived(NamedTuple):
    """A batch that passed the filters, of an epoch that may still grow or be aborted."""

    segment: str
    data: m.Data


class FrontierMoved(NamedTuple):
    """The merged lower frontier after a segment has moved (S16)."""

    frontier: tuple[Time, ...]


class GapFound(NamedTuple):
    """Events of `segment` between its last one and `seq` of `incarnation` are lost for good (E17).

    Every epoch that is <= one of the times `below` is aborted, unless it was handed out before (E11 horizon).
    """

    segment: str
    incarnation: int
    seq: int
    below: tuple[Time, ...] = ()


class RewoundTo(NamedTuple):
    """`segment` has a new incarnation, whose events start after `seq`."""

    segment: str
    incarnation: int
    seq: int


class SegmentWentDown(NamedTuple):
    """The connection to `segment` is lost; its part of the frontier stays where it is until it is back (S19)."""

    segment: str
    reason: str


class SegmentCameUp(NamedTuple):
    """`segment` is followed again."""

    segment: str


Happened: TypeAlias = Arrived | FrontierMoved | EpochWasAborted | GapFound | RewoundTo | SegmentWentDown | SegmentCameUp

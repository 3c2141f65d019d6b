"""What a follower of a segment is given, asks for and tells: plain values.

Apart from `following`, the machine, so that what begins a subscription and what feeds one can be read without it.

Sources: rules E13, E15-E17, E20; Push-Pull Publish-Subscribe.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from epochal.errors import EpochalError
from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import Wanted
from epochal.protocol.log.history import State

# ---- what the shell must do ----


class Request(NamedTuple):
    """Send a message on `requests`."""

    message: m.Message


class Subscribe(NamedTuple):
    """Subscribe to a prefix on `events`."""

    prefix: bytes


class Unsubscribe(NamedTuple):
    """Leave a prefix on `events`."""

    prefix: bytes


# ---- what the subscriber is told ----


class Began(NamedTuple):
    """The segment's events start behind `state`.

    `resumed` is true when they start exactly where the last ones ended, so `state` adds nothing. `gap` is true when
    events between are lost for good; `filters` when epochs that `state` has under way must be left out (E15).
    """

    incarnation: int
    state: State
    filters: bool
    gap: bool
    resumed: bool


class Broke(NamedTuple):
    """The connection must be closed and, if `error.retryable`, replaced by a new follower from the same position."""

    error: EpochalError


Told: TypeAlias = Began | Broke | m.Event
Effect: TypeAlias = Request | Subscribe | Unsubscribe


class From(StrEnum):
    """Where to begin, if not behind a position."""

    LIVE = "live"
    START = "start"


class Behind(NamedTuple):
    """Begin behind event `seq`, of the present incarnation for None, as one who joins there (E13)."""

    seq: int
    incarnation: int | None = None


Begin: TypeAlias = From | m.Position | Behind | Wanted
"""With `Wanted`: where all of what is wanted begins, which the history must hold."""


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Times in seconds; sizes in bytes."""

    join_timeout: float = 3.0
    silence: float = 3.0
    """Nothing heard for so long: the publisher is taken for gone, and looked up again.

    Two of the stream's heartbeats where those are rarer. At two thirds of it the follower asks by `since` (Q11). Set by
    the application, and not adapted to how often events come (Q13): heartbeats bound every silence, busy stream or
    quiet, and to ask sooner because of a pause between bursts would only cost requests.
    """
    poll: float = 1.0
    """Between two pulls where pushes are not followed (Q7)."""
    max_backlog: int = 64 * 2**20
    """Live events kept while history is pulled; above it they are dropped and pulled as well."""
    credit: int = 8

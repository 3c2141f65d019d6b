"""What a writer's machine asks its shell to do, and what it reports to the application.

Shells and simulations handle these values without knowing the machine. They are carried out in the order in which they
are taken.
"""

from typing import NamedTuple, TypeAlias

from epochal.errors import EpochalError
from epochal.protocol import messages as m
from epochal.protocol.times import Time


class Send(NamedTuple):
    """Send a message to the publisher of `segment` on `ingest`."""

    segment: str
    message: m.Message


class Reconnect(NamedTuple):
    """Drop the connection to the publisher of `segment` and connect again; then call `connected`."""

    segment: str
    reason: str


class SessionReady(NamedTuple):
    """Every segment has answered `open`; appends are possible from `held` on."""

    held: tuple[Time, ...]


class Acked(NamedTuple):
    """Append `ticket` is logged at `position` of `segment`."""

    ticket: int
    segment: str
    position: m.Position


class Moved(NamedTuple):
    """Move, abort or leave `ticket` has taken effect at every segment."""

    ticket: int


class Failed(NamedTuple):
    """`ticket` did not take effect."""

    ticket: int
    error: EpochalError


class Over(NamedTuple):
    """The session is over; every open ticket has failed. With `WriterLost` a new session may be opened."""

    error: EpochalError


WriterEffect: TypeAlias = Send | Reconnect
WriterReport: TypeAlias = SessionReady | Acked | Moved | Failed | Over

"""Who holds time back at a segment, and for how long: the answer to "why does this epoch not complete?".

The publisher finds them. Catalogs, clients and commands pass them on and put them in words.
"""

from dataclasses import dataclass
from enum import StrEnum

from epochal.protocol.times import Time

MOST_HOLDERS = 16
"""Holders that one segment reports: those that have held for longest."""


class HolderKind(StrEnum):
    """Why a time is held."""

    WRITER = "writer"
    """An open writer holds it."""
    OPENING = "opening"
    """The publisher holds bottom until `progress.minWriters` writers have opened (E5)."""
    RETURNING = "returning"
    """A writer of the last incarnation has not come back yet (E11 horizon)."""
    PARKED = "parked"
    """Every writer has left, and what the last one left is kept for the next (E3 lost writers)."""
    LOST = "lost"
    """A writer was lost, and with `whenLost: hold` what it held is kept until it is back, or released (E46 hold)."""
    FINISHING = "finishing"
    """The last writer has finished here, and other segments are not there yet (E7 finish)."""
    RECORDING = "recording"
    """Nobody holds it any more; the catalog has not recorded the frontier that comes after it (E11 horizon)."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One holder of one element of a segment's lower frontier.

    `seconds`: how long it has held that time. `silent`: how long ago `writer` was last heard; None without one.
    """

    time: Time
    kind: HolderKind
    writer: str | None
    seconds: float
    silent: float | None

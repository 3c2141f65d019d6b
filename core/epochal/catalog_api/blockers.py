"""What holds a stream's time back, as values and as sentences: the answer to "why does this epoch not complete?".

Catalog and commands use the same sentences: a page, a table and a log line show the same text.
"""

from dataclasses import dataclass

from pydantic import computed_field

from epochal.catalog_api.kinds import Answer, AnyTime, Seconds, Text
from epochal.catalog_api.texts import show_seconds, show_time
from epochal.protocol.blockers import HolderKind

NO_PUBLISHER = "no_publisher"
"""The kind of a segment that no publisher serves, or about which nothing was reported yet; the others are
`HolderKind`."""


@dataclass(frozen=True, slots=True)
class HeldBack(Answer):
    """What keeps a segment of a stream at its time, and that in words."""

    segment: Text
    time: AnyTime
    """None for a segment that has never reported."""
    kind: Text
    """A `HolderKind`, `no_publisher`, or one that is unknown here."""
    writer: Text | None
    seconds: Seconds | None
    """For how long; None when not known."""
    silent: Seconds | None
    """How long ago `writer` was last heard; None without one."""

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorators of properties
    @property
    def words(self) -> str:
        """One sentence for people.

        >>> HeldBack("1", 42, "writer", "w1", 192.0, 0.4).words
        'segment 1 is at 42: writer w1 has held it for 3m12s (last heard 0.4 s ago)'
        >>> HeldBack("0", None, "no_publisher", None, None, None).words
        'segment 0 has no publisher that has reported'
        """
        if self.kind != HolderKind.LOST or self.time is None:
            return self.seen
        advice = f"start {self.writer} again, or let it go with `epochal release`"
        return f"{self.seen} (progress.whenLost: hold); {advice}"

    @property
    def seen(self) -> str:
        """The same without what to do.

        >>> HeldBack("1", 42, "lost", "w1", 192.0, 40.0).seen
        'segment 1 is at 42: it has waited for 3m12s for lost writer w1'
        """
        if self.time is None:
            lasting = "" if self.seconds is None else f" for {show_seconds(self.seconds)}"
            return f"segment {self.segment} has no publisher that has reported{lasting}"
        return f"segment {self.segment} is at {show_time(self.time)}: {_reason(self)}"


def _reason(held: HeldBack) -> str:
    lasting = "" if held.seconds is None else f" for {show_seconds(held.seconds)}"
    match held.kind:
        case "writer":
            heard = "" if held.silent is None else f" (last heard {show_seconds(held.silent)} ago)"
            return f"writer {held.writer} has held it{lasting}{heard}"
        case "opening":
            return f"it has waited{lasting} until progress.minWriters writers have opened"
        case "returning":
            return f"it has waited{lasting} for writer {held.writer} to come back to the restarted publisher"
        case "lost":
            return f"it has waited{lasting} for lost writer {held.writer}"
        case "parked":
            return f"it has had no writer{lasting}; the next that opens goes on from here"
        case "finishing":
            return f"its writers have finished; it has waited{lasting} for the other segments to finish"
        case "recording":
            return f"no writer holds it any more; it has waited{lasting} for the catalog to record the next frontier"
        case "no_publisher":
            return f"it has had no publisher{lasting}"
        case other:
            return f"{other}{lasting}"

"""What a `SegmentServer` needs of that which it serves: a publisher, what is committed of it, or the run of a relay.

Sources: E9, E13, E24.
"""

from typing import Protocol

from epochal.errors import EpochalError
from epochal.protocol.log.history import Lull, SegmentState
from epochal.protocol.messages import Event, Position
from epochal.protocol.progress import Progress
from epochal.protocol.publisher.effects import PublisherEffect
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.topics.filter import TopicFilter


class ServedHistory(Protocol):
    """The events that can be had; see `History`."""

    @property
    def first(self) -> int:
        """The position before the first event that can be had."""
        ...

    @property
    def lull(self) -> Lull | None:
        """The lull that ends at `first` (E13 retention); None if it is not known whether there is one."""
        ...

    @property
    def last(self) -> int:
        """The newest event."""
        ...

    @property
    def truncated_at(self) -> int:
        """The newest event that is not in memory."""
        ...

    def survived(self, position: Position) -> int | None:
        """The last event at or before `position` that is, or was, in this log; None if not known (E10 durability)."""
        ...

    def whole_until(self, seq: int, topics: TopicFilter | None) -> int:
        """Up to which event, from `seq` on, everything of `topics` can be had (F15); None: of all topics."""
        ...

    def batch(self, seq: int, max_events: int, max_bytes: int) -> list[Event]:
        """The next events after `seq`, at least one if there is any, within the given sizes."""
        ...

    def after(self, seq: int, count: int) -> list[Event]:
        """The next `count` events after `seq`, or as many as there are."""
        ...

    def states(self) -> list[SegmentState]:
        """States that are known without a replay, oldest first."""
        ...

    def state_at(self, seq: int) -> Progress:
        """The state just after event `seq`."""
        ...

    def overtaken(self, at: int) -> EpochalError:
        """Why a reader that has all up to `at` cannot go on: what follows is gone."""
        ...


class Served(Protocol):
    """A segment's log, as its readers may see it. What is `emit`ted is carried out after all that was before (S9)."""

    @property
    def stream(self) -> str:
        """The stream's uid."""
        ...

    @property
    def incarnation(self) -> int:
        """The publisher's incarnation."""
        ...

    @property
    def gathering(self) -> bool:
        """Whether it is not known yet in which state it begins."""
        ...

    @property
    def settings(self) -> PublisherSettings:
        """Of the publisher."""
        ...

    @property
    def path(self) -> tuple[str, ...]:
        """The ids of the relays on the way to the publisher, this one first (F16)."""
        ...

    @property
    def history(self) -> ServedHistory:
        """The events that can be had."""
        ...

    @property
    def seq(self) -> int:
        """The newest event."""
        ...

    def state(self) -> SegmentState:
        """The state exactly after the newest event."""
        ...

    def emit(self, effect: PublisherEffect) -> None:
        """Queue an effect."""
        ...

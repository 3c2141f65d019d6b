"""What a `SegmentServer` needs from its source: a publisher, the committed part of one, or a relay's run of events.

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
    """The retained events; see `History`."""

    @property
    def first(self) -> int:
        """The position before the first retained event."""
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
        """The last event up to which no event of `topics` after `seq` is missing (None: of all topics); F15."""
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
        """The error for a reader that has everything up to `at`, when the events after it are gone."""
        ...


class Served(Protocol):
    """A segment's log, as its readers may see it. Emitted effects are carried out in their order (S9)."""

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
        """Whether the source still waits to learn its initial state."""
        ...

    @property
    def settings(self) -> PublisherSettings:
        """The settings of the publisher."""
        ...

    @property
    def path(self) -> tuple[str, ...]:
        """The ids of the relays on the way to the publisher, this one first (F16)."""
        ...

    @property
    def history(self) -> ServedHistory:
        """The retained events."""
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

"""A publisher as its readers see it: up to the last committed event, while later ones may wait for the disk (E9).

The publisher itself is ahead of its disk. A `SegmentServer` over this view answers at once, however slow or full the
disk is, and no answer holds events that are not durable yet. Its effects have a queue of their own.
"""

from epochal.errors import EpochalError
from epochal.protocol.log.history import History, Lull, SegmentState
from epochal.protocol.messages import Event, Position
from epochal.protocol.progress import Progress
from epochal.protocol.publisher.effects import PublisherEffect
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.topics.filter import TopicFilter


class CommittedHistory:
    """The part of a history up to the last committed event; see `History`."""

    def __init__(self, view: "CommittedView") -> None:
        self._view = view

    @property
    def _history(self) -> History:
        return self._view.publisher.history

    @property
    def last(self) -> int:
        """The last committed event."""
        return self._view.seq

    @property
    def first(self) -> int:
        """The position before the first retained event."""
        return self._history.first

    @property
    def lull(self) -> Lull | None:
        """The lull that ends at `first` (E13 retention)."""
        return self._history.lull

    @property
    def truncated_at(self) -> int:
        """The newest event that is no longer in memory; always a committed one."""
        return self._history.truncated_at

    def survived(self, position: Position) -> int | None:
        """The last committed event at or before `position` that survived its incarnation; None if that is not known."""
        seq = self._history.survived(position)
        return None if seq is None else min(seq, self.last)

    def batch(self, seq: int, max_events: int, max_bytes: int) -> list[Event]:
        """The next committed events after `seq`, at least one if there is any, within the given sizes."""
        return self._history.batch(seq, min(max_events, self.last - seq), max_bytes)

    def after(self, seq: int, count: int) -> list[Event]:
        """The next `count` committed events after `seq`, or as many as there are."""
        return self._history.after(seq, min(count, self.last - seq))

    def whole_until(self, seq: int, topics: TopicFilter | None) -> int:
        """The last committed event: a publisher has all topics up to there (`ServedHistory.whole_until`)."""
        return self.last

    def overtaken(self, at: int) -> EpochalError:
        """The error for a reader that has everything up to `at`, when the events after it are gone."""
        return self._history.overtaken(at)

    def states(self) -> list[SegmentState]:
        """States that are known without a replay, oldest first, up to the last committed event."""
        return [state for state in self._history.states() if state.seq <= self.last]

    def state_at(self, seq: int) -> Progress:
        """The state just after event `seq`, for `truncated_at <= seq <= last`."""
        return self._history.state_at(seq)


class CommittedView:
    """A publisher up to `seq`, its last committed event.

    Set `seq` just before the effects of later events are carried out. First carry out the effects that were taken from
    here under the earlier `seq`: a snapshot among them holds the events up to that one, and none after it (S9).
    """

    def __init__(self, publisher: SegmentPublisher, seq: int) -> None:
        self.publisher = publisher
        self.history = CommittedHistory(self)
        self._effects: list[PublisherEffect] = []
        self._state: SegmentState | None = None
        self.seq = seq

    @property
    def seq(self) -> int:
        """The last committed event."""
        return self._seq

    @seq.setter
    def seq(self, seq: int) -> None:
        self._seq = self.publisher.history.committed = seq

    @property
    def stream(self) -> str:
        """The stream's uid."""
        return self.publisher.stream

    @property
    def incarnation(self) -> int:
        """The publisher's incarnation."""
        return self.publisher.incarnation

    @property
    def gathering(self) -> bool:
        """Whether the publisher still waits to learn its initial state; see `SegmentPublisher.gathering`."""
        return self.publisher.gathering

    @property
    def path(self) -> tuple[str, ...]:
        """No relay is on the way to a publisher."""
        return ()

    @property
    def settings(self) -> PublisherSettings:
        """The settings of the publisher."""
        return self.publisher.settings

    def state(self) -> SegmentState:
        """The state exactly after the last committed event.

        Costs a replay of at most 1,024 events, once for each `seq`; nothing if the publisher is not ahead.
        """
        if self.seq == self.publisher.seq:
            return self.publisher.state()
        if self._state is None or self._state.seq != self.seq:
            self._state = SegmentState.of(self.seq, self.publisher.history.state_at(self.seq))
        return self._state

    def emit(self, effect: PublisherEffect) -> None:
        """Queue an effect at the end of this view's own queue."""
        self._effects.append(effect)

    def take(self) -> list[PublisherEffect]:
        """The effects since the last call, in order. They wait for nothing on disk."""
        effects, self._effects = self._effects, []
        return effects

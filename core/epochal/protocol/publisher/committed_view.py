"""A publisher as its readers see it: up to the last event that was carried out, whatever else waits for the disk (E9).

Apart from the publisher, which is ahead of its disk. A `SegmentServer` of this view is answered at once, and never with
what is not durable yet, however long the disk takes or how full it is; what it emits has a queue of its own.
"""

from epochal.protocol.log.history import History, SegmentState
from epochal.protocol.messages import Event
from epochal.protocol.progress import Progress
from epochal.protocol.publisher.effects import PublisherEffect
from epochal.protocol.publisher.machine import PublisherSettings, SegmentPublisher


class CommittedHistory:
    """The part of a history up to the last event that was told; see `History`."""

    def __init__(self, view: "CommittedView") -> None:
        self._view = view

    @property
    def _history(self) -> History:
        return self._view.publisher.history

    @property
    def last(self) -> int:
        """The last event that was told."""
        return self._view.seq

    @property
    def first(self) -> int:
        """The position before the first event that can still be had."""
        return self._history.first

    @property
    def truncated_at(self) -> int:
        """The newest event that is not in memory any more; never one that was not told."""
        return self._history.truncated_at

    def end_of(self, incarnation: int) -> int | None:
        """The last event of an incarnation, told so far if it is the present one; None if nothing is known of it."""
        end = self._history.end_of(incarnation)
        return None if end is None else min(end, self.last)

    def batch(self, seq: int, max_events: int, max_bytes: int) -> list[Event]:
        """The next told events after `seq`, at least one if there is any, within the given sizes."""
        return self._history.batch(seq, min(max_events, self.last - seq), max_bytes)

    def after(self, seq: int, count: int) -> list[Event]:
        """The next `count` told events after `seq`, or as many as there are."""
        return self._history.after(seq, min(count, self.last - seq))

    def states(self) -> list[SegmentState]:
        """States that are known without a replay, oldest first, up to the last event that was told."""
        return [state for state in self._history.states() if state.seq <= self.last]

    def state_at(self, seq: int) -> Progress:
        """The state just behind event `seq`, for `truncated_at <= seq <= last`."""
        return self._history.state_at(seq)


class CommittedView:
    """`seq` is the last event that was told; to be moved just before what comes behind it is carried out.

    What was taken from here before that has to be carried out before it too: a snapshot stands for the events up to
    `seq`, and for none behind (S9).
    """

    def __init__(self, publisher: SegmentPublisher, seq: int) -> None:
        self.publisher = publisher
        self.history = CommittedHistory(self)
        self._effects: list[PublisherEffect] = []
        self._state: SegmentState | None = None
        self.seq = seq

    @property
    def seq(self) -> int:
        """The last event that was told."""
        return self._seq

    @seq.setter
    def seq(self, seq: int) -> None:
        self._seq = self.publisher.history.told = seq

    @property
    def stream(self) -> str:
        """The stream's uid."""
        return self.publisher.stream

    @property
    def incarnation(self) -> int:
        """This life of the publisher."""
        return self.publisher.incarnation

    @property
    def gathering(self) -> bool:
        """Whether it is not known yet with what the publisher begins; never so with a log."""
        return self.publisher.gathering

    @property
    def settings(self) -> PublisherSettings:
        """The publisher's."""
        return self.publisher.settings

    def state(self) -> SegmentState:
        """The state exactly after the last event that was told; costs a replay of at most 1,024 events, once an event.

        A publisher that is not ahead knows it.
        """
        if self.seq == self.publisher.seq:
            return self.publisher.state()
        if self._state is None or self._state.seq != self.seq:
            self._state = SegmentState.of(self.seq, self.publisher.history.state_at(self.seq))
        return self._state

    def emit(self, effect: PublisherEffect) -> None:
        """Queue an effect behind those queued here."""
        self._effects.append(effect)

    def take(self) -> list[PublisherEffect]:
        """What must be done since the last call, in order, without waiting for anything."""
        effects, self._effects = self._effects, []
        return effects

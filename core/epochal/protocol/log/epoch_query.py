"""What a reader wants of a history by its times, and how much of a log it can do without.

Apart from the readers, who leave out what they do not want, and from the publishers, who need not send it: both judge a
state by the same words, so that what one leaves out the other takes for whole.

A log can be searched because of this: along it, `untouched` is true up to some event, and false from there on. An epoch
that has begun is active, or aborted, or one that the lower frontier no longer reaches; then it does not reach either
whatever wanted time reaches that epoch. And a lower frontier never goes back.

Sources: rules E13, E20, Q2; Push-Pull Publish-Subscribe (`since`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from epochal.protocol.frontier import Antichain, MutableAntichain
from epochal.protocol.log.history import CHECKPOINT_EVERY, SegmentState, apply
from epochal.protocol.messages import Aborted, Data, Event
from epochal.protocol.times import MAX_SHAPE_LEAVES, Time, less_equal

MOST_WANTED = MAX_SHAPE_LEAVES
"""Times that a publisher is asked for at once: as many as it takes to say what is not <= a time of any shape."""


class Searchable(Protocol):
    """What `EpochQuery` asks of a history, be it a publisher's or the part of it that readers were told."""

    def states(self) -> list[SegmentState]:
        """States that are known without a replay, oldest first."""
        ...

    def after(self, seq: int, count: int) -> list[Event]:
        """The next `count` events after `seq`, or as many as there are."""
        ...


class EpochQuery(NamedTuple):
    """All of every epoch that one of `times` reaches (E20)."""

    times: tuple[Time, ...]

    def whole_behind(self, state: SegmentState) -> bool:
        """Whether no such epoch can have anything in what lies before `state`."""
        if not all(any(less_equal(low, time) for low in state.lower) for time in self.times):
            return False
        return not any(map(Antichain(self.times).less_equal, (*state.active, *state.below)))

    def untouched(self, state: SegmentState) -> bool:
        """Whether nothing before `state` matters to such an epoch, not even an abort."""
        return self.whole_behind(state) and not any(map(Antichain(self.times).less_equal, state.aborted))

    def newest_untouched(self, states: Sequence[SegmentState]) -> SegmentState | None:
        """Of some states of a log, oldest first, the last one that is untouched."""
        at = bisect_left(states, True, key=lambda state: not self.untouched(state))
        return states[at - 1] if at else None

    def pass_over(self, state: SegmentState, events: Iterable[Event]) -> tuple[SegmentState, bool]:
        """From an untouched state go over the events that directly follow, up to the first one that matters.

        Returns the state there, and whether there was such an event.
        """
        reached, lower = Antichain(self.times).less_equal, MutableAntichain(state.lower)
        progress, seq, matters = state.progress(), state.seq, False
        for event in events:
            if type(event) is Data:
                matters = reached(event.time)
            elif type(event) is Aborted:
                matters = any(map(reached, event.times))
            else:
                lower.update(event.changes)  # type: ignore[union-attr]  # the third kind of event
                matters = not lower.frontier.reaches_all(self.times)
            if matters:
                break
            apply(progress, event)
            seq = event.seq
        return SegmentState.of(seq, progress), matters

    def beginning(self, history: Searchable) -> SegmentState | None:
        """Where all that is wanted of a history begins; None when that is before what is in memory."""
        state = self.newest_untouched(history.states())
        if state is None:
            return None
        return self.pass_over(state, history.after(state.seq, CHECKPOINT_EVERY))[0]

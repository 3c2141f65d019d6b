"""The epochs that a reader requests from a history, and the position in the log from which they can be read whole.

Readers and publishers judge a state by the same code. The publisher leaves out what the reader does not need, and the
reader must know that nothing it wanted is missing.

A log can be searched by bisection, because `untouched` is true up to some event and false from there on. Once an epoch
has begun, it is never latent again. While it is active or aborted, it is in the state. It leaves the state only when
the lower frontier has passed it, and then the frontier reaches no wanted time at or before it either. And a lower
frontier never moves back.

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
"""Most times in one query: as many as are needed to name all that is not <= one time, in any shape."""


class Searchable(Protocol):
    """The part of a history that `EpochQuery` uses."""

    def states(self) -> list[SegmentState]:
        """States that are known without a replay, oldest first."""
        ...

    def after(self, seq: int, count: int) -> list[Event]:
        """The next `count` events after `seq`, or as many as there are."""
        ...


class EpochQuery(NamedTuple):
    """A query for every epoch that one of `times` reaches, each of them whole (E20)."""

    times: tuple[Time, ...]

    def whole_after(self, state: SegmentState) -> bool:
        """Whether no wanted epoch can have any data before `state`."""
        if not all(any(less_equal(low, time) for low in state.lower) for time in self.times):
            return False
        return not any(map(Antichain(self.times).less_equal, (*state.active, *state.below)))

    def untouched(self, state: SegmentState) -> bool:
        """Whether nothing before `state` matters to a wanted epoch, not even an abort."""
        return self.whole_after(state) and not any(map(Antichain(self.times).less_equal, state.aborted))

    def newest_untouched(self, states: Sequence[SegmentState]) -> SegmentState | None:
        """The last untouched state among `states` of a log, which come oldest first; None if there is none."""
        at = bisect_left(states, True, key=lambda state: not self.untouched(state))
        return states[at - 1] if at else None

    def pass_over(self, state: SegmentState, events: Iterable[Event]) -> tuple[SegmentState, bool]:
        """Apply the events that directly follow an untouched state, up to the first one that matters.

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
        """The state before all wanted events; None if it is earlier than the part of the history in memory."""
        state = self.newest_untouched(history.states())
        if state is None:
            return None
        return self.pass_over(state, history.after(state.seq, CHECKPOINT_EVERY))[0]

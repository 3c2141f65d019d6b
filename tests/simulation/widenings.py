"""Topics that a reader came to want later: which of them an epoch must have whole, and which not at all (F8, F9).

Judges of a subscriber use it, whatever moves the machines.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation.oracle import Standing
from tests.simulation.order import covered, maximal, reached
from tests.simulation.stories import Topics

from epochal.protocol.log.history import SegmentState
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter


@dataclass(slots=True)
class Widened:
    """New topics, and where each segment stood when they came."""

    before: Topics
    after: Topics
    awaited: set[str]
    standings: list[Standing] = field(default_factory=list)

    def admits(self, time: Time) -> bool:
        """Whether the new topics are whole in epoch `time`, as far as is known."""
        return all(reached(there.lower, time) and not covered(time, there.active) for there in self.standings)


class Widenings:
    """All of one life of a reader; `segments` must each say from where on new topics come."""

    def __init__(self, segments: Iterable[str]) -> None:
        self.all: list[Widened] = []
        self._segments = frozenset(segments)

    def __len__(self) -> int:
        return len(self.all)

    def change(self, before: Topics, after: Topics) -> Topics:
        """The reader wants `after` instead of `before`; returns what it could have whole until then."""
        if self.all and self.all[-1].awaited:
            before &= self.all.pop().before
        if not after <= before:
            self.all.append(Widened(before & after, after, set(self._segments)))
        return before

    def resumed(self, wanted: Topics, everything: Topics, goes_on: Topics) -> "tuple[Widenings, Topics]":
        """Those of a life that resumes from a cursor, which was taken now, while `wanted` was wanted.

        With the topics that this life had from the start, or will have as every segment has said: what it does not yet
        know of new topics is judged again where it resumes (F9). So are new topics of which the other life, which
        begins with `goes_on`, wants none: if it comes to want them, they are new to it.
        """
        made = Widenings(self._segments)
        for each in self.all:
            if each.awaited:
                wanted &= each.before
            else:
                before = each.before | (everything - wanted)
                if not goes_on <= before:
                    made.all.append(Widened(before, each.after, set(), list(each.standings)))
        return made, wanted

    def always(self, topics: Topics) -> Topics:
        """Those of `topics` that are whole in every epoch."""
        return topics.intersection(*(each.before for each in self.all))

    def begin(self, segment: str, standing: Standing, topics: TopicFilter | None) -> None:
        """The batches of `topics` (None: all) come from there on."""
        if self.all:
            widened = self.all[-1]
            if all(topics is None or topics.wants(topic) for topic in widened.after) and segment in widened.awaited:
                widened.awaited.discard(segment)
                widened.standings.append(standing)

    def whole_in(self, time: Time, topics: Topics) -> Topics:
        """Which of the wanted `topics` the epoch must have whole; it must have nothing of others (F8)."""
        for each in self.all:
            seen = not each.awaited and each.admits(time)
            topics = topics if seen else topics & each.before
        return topics


def agrees(state: SegmentState, there: Standing) -> bool:
    """Whether a snapshot or an opening says what is so.

    Of times that are active, or aborted with a lost memory, the maximal ones are enough: none can be seen whole. Those
    that nothing can be published at any more say nothing.
    """
    unseen = [time for time in (*state.active, *state.below) if reached(there.lower, time)]
    return (
        set(state.lower) == there.lower
        and maximal(unseen) == maximal(there.active | there.below)
        and {time for time in state.aborted if not there.covers(time)}
        == {time for time in there.aborted if not there.covers(time)}
    )

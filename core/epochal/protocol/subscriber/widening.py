"""In which epochs topics can be seen whole that were not wanted from the beginning.

A *widening* is one change to more topics. Each segment reports the state after which batches of the new topics come.
An epoch that had not begun in any of these states is seen whole with the new topics; every other epoch is delivered
without them.

Why this is right. Take a new topic and an epoch T. A segment's state admits T if T can still arrive there and no batch
of T had been published before the state. Then all batches of T of that segment come after the state, on a channel that
carries the new topic, and none is missing. An epoch is made of the batches of all segments, so T is whole if all states
admit it. If one does not, a batch of T may have been published there while the new topic was not sent. It is not known
whether there was one, so the topic is left out of T in all segments: an epoch has all of a topic, or nothing of it.

Sources: rules F8, F9; E15.
"""

from collections.abc import Iterable

from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain, joint
from epochal.protocol.log.history import SegmentState
from epochal.protocol.subscriber.cursor import MAX_TOPICS, NewTopics, kept_of, length
from epochal.protocol.subscriber.epoch_state import BATCH_OVERHEAD
from epochal.protocol.subscriber.join_filter import JoinFilter
from epochal.protocol.times import Time, TimeShape
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter


class Widening:
    """The change from the topics `before` to `after`; the states of `segments` are awaited.

    >>> widening = Widening(TopicFilter([b"a"]), TopicFilter([b"a", b"b"]), ["0", "1"], Antichain([0]))
    >>> widening.begins("0", SegmentState(7, (3,), (3,), ()), None)
    False
    >>> [widening.admits(segment, 4, b"b") for segment in "01"]
    [None, False]
    >>> widening.begins("1", SegmentState(9, (4,), (), ()), None)
    True
    >>> [widening.admits("0", time, b"b") for time in (3, 4)]
    [False, True]
    """

    __slots__ = ("_awaited", "_joins", "after", "before", "held", "seen_from")

    def __init__(self, before: TopicFilter, after: TopicFilter, segments: Iterable[str], seen_from: Antichain) -> None:
        self.before = before
        self.after = after
        self.seen_from = seen_from
        """Epochs that this reaches are seen whole without the new topics."""
        self._awaited = set(segments)
        """Segments that have not reported yet where the new topics begin."""
        self.held: list[tuple[str, m.Data]] = []
        """Batches of new topics, with their segments, that are judged when no segment is awaited any more."""
        self._joins: list[JoinFilter] = []
        """What the states admit, one filter for each segment that has reported; what admits everything is dropped."""

    @classmethod
    def carried(cls, new: TopicFilter, whole_from: Iterable[Time]) -> "Widening":
        """A widening from a cursor, with no state awaited: `new` is whole in the epochs that `whole_from` reaches."""
        made = cls(EVERYTHING.without(new), EVERYTHING, (), Antichain())
        made._joins = [JoinFilter(whole_from)]
        return made

    @property
    def pending(self) -> bool:
        """Whether the state of a segment is awaited."""
        return bool(self._awaited)

    def begins(self, segment: str, state: SegmentState, topics: TopicFilter | None) -> bool:
        """A segment's batches of `topics` come after `state`; returns whether it was the last segment awaited.

        A join that was under way before the change does not carry all of `after`, and says nothing of the new topics.
        """
        if segment not in self._awaited or not (topics is None or topics.covers(self.after)):
            return False
        self._awaited.discard(segment)
        self._joins.append(JoinFilter(state.lower, state.active))
        return not self._awaited

    def admits(self, segment: str, time: Time, topic: bytes) -> bool | None:
        """Whether a batch of a wanted topic belongs to its epoch; None where that is not known yet."""
        if self.before.wants(topic):
            return True
        if segment in self._awaited:
            # The segment's state is still to come, so this batch is before it: in that state `time` will be active, or
            # over. It will not be admitted, except if it is aborted by then, and an aborted epoch is not delivered.
            return False
        if self._awaited:
            return None  # the other segments have not reported
        return all(join.admits(time) for join in self._joins)

    @property
    def held_bytes(self) -> int:
        """The size of the held batches."""
        return sum(BATCH_OVERHEAD + len(data.payload) for _, data in self.held)

    def frontier(self, shape: TimeShape) -> Antichain:
        """Epochs that this reaches are seen whole with all topics. Not to be asked while `pending`."""
        return joint([self.seen_from, *(join.frontier(shape) for join in self._joins)])

    def whole_from(self, shape: TimeShape) -> tuple[Time, ...] | None:
        """The new topics are whole in the epochs that one of these times reaches; None while `pending`."""
        return None if self._awaited else tuple(joint([join.frontier(shape) for join in self._joins]))

    def prune(self, frontier: Antichain) -> bool:
        """Drop what can no longer matter once only times that `frontier` reaches can be handed out.

        Returns whether anything is left.
        """
        if not self._awaited:
            self._joins = [join for join in self._joins if join.prune(frontier)]
        return bool(self._awaited or self._joins)


class WantedTopics:
    """The topics that a subscription wants, None for all, and the widenings that still matter.

    A widening stays until every epoch that can still be handed out has the new topics. Only the last one can be
    pending: a change that comes meanwhile replaces it, and counts its topics as new again.
    """

    __slots__ = ("_segments", "filter", "widenings")

    def __init__(self, topics: TopicFilter | None, segments: Iterable[str]) -> None:
        self.filter = topics
        self._segments = tuple(segments)
        self.widenings: list[Widening] = []
        """In the order of the changes."""

    @property
    def pending(self) -> Widening | None:
        """The widening for which a segment's state is awaited, if there is one."""
        return self.widenings[-1] if self.widenings and self.widenings[-1].pending else None

    @property
    def held_bytes(self) -> int:
        """The size of all batches that wait until no segment is awaited."""
        return sum(each.held_bytes for each in self.widenings)

    def widen(self, before: TopicFilter, seen_from: Antichain) -> None:
        """More than `before` is wanted now; `before` is whole in the epochs that `seen_from` reaches."""
        after = EVERYTHING if self.filter is None else self.filter
        self.widenings.append(Widening(before, after, self._segments, seen_from))

    def resume(self, new: TopicFilter, whole_from: Iterable[Time]) -> None:
        """A cursor says that the topics `new` are whole only in epochs that `whole_from` reaches."""
        self.widenings.append(Widening.carried(new, whole_from))

    def give_up(self) -> Widening | None:
        """Remove the pending widening, which another change replaces; None if there is none."""
        return self.widenings.pop() if self.pending is not None else None

    def begin(self, segment: str, state: SegmentState, topics: TopicFilter | None) -> Widening | None:
        """A segment's batches of `topics` come after `state`; returns the widening that awaited only this segment."""
        widening = self.pending
        return widening if widening is not None and widening.begins(segment, state, topics) else None

    def admits(self, segment: str, data: m.Data) -> bool | None:
        """Whether a batch is wanted and belongs to its epoch; None where that is not known yet, and it is held."""
        if self.filter is not None and not self.filter.wants(data.topic):
            return False
        for widening in self.widenings:
            admitted = widening.admits(segment, data.time, data.topic)
            if admitted is None:  # only the last one can be pending, so all others have admitted the batch
                widening.held.append((segment, data))
            if not admitted:
                return admitted
        return True

    def prune(self, frontier: Antichain) -> None:
        """Drop widenings that do not matter once only times that `frontier` reaches can be handed out, now or later.

        Later: after a resume from a cursor that is taken now.
        """
        self.widenings = [each for each in self.widenings if each.prune(frontier)]

    def new(self, shape: TimeShape) -> tuple[NewTopics, ...]:
        """The topics that are not whole in every epoch that can still come, and the epochs in which they are (F9).

        If that is too much for a cursor, all changes whose times are known become one.
        """
        wanted = EVERYTHING if self.filter is None else self.filter
        new: list[NewTopics] = []
        room = MAX_TOPICS
        for each in self.widenings:
            if not each.before.covers(wanted):
                new.append(NewTopics(kept_of(wanted, each.before), each.whole_from(shape)))
                room -= length(new[-1].kept)
                if room < 0:
                    return self._together(wanted, shape)
        return tuple(new)

    def _together(self, wanted: TopicFilter, shape: TimeShape) -> tuple[NewTopics, ...]:
        """The same as one change to all new topics, and the pending one.

        The joint of all `whole_from` is at or after each of them. So an epoch that it reaches has all the new topics
        whole, and the cursor promises nothing that does not hold. It promises less: epochs before that are resumed
        without any of the new topics, also without those that are whole there.
        """
        over = [each for each in self.widenings if not (each.pending or each.before.covers(wanted))]
        new: list[NewTopics] = []
        if over:
            first, *others = [each.before for each in over]
            whole_from = joint([Antichain(each.whole_from(shape) or ()) for each in over])
            new.append(NewTopics(kept_of(wanted, first.intersection(*others)), tuple(whole_from)))
        pending = self.pending
        if pending is not None and not pending.before.covers(wanted):
            new.append(NewTopics(kept_of(wanted, pending.before), None))
        return tuple(new)


def widened(before: TopicFilter | None, after: TopicFilter | None) -> bool:
    """Whether `after` has topics that `before` has not; None is all topics."""
    return before is not None and not before.covers(EVERYTHING if after is None else after)

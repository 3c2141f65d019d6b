"""Topics that were not wanted before: in which epochs they can be seen whole (F8, F9).

Each segment says, by the state from which on their batches come, which epochs had not begun there. Until all have said
so, batches of new topics are held.

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
    """From the topics `before` to `after`; the states of `segments` are awaited.

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
        """From when on epochs are seen whole, if the new topics are left aside."""
        self._awaited = set(segments)
        """Segments of which it is not known yet from where on the new topics come."""
        self.held: list[tuple[str, m.Data]] = []
        """Batches of new topics, with their segments, that wait for the other segments."""
        self._joins: list[JoinFilter] = []

    @classmethod
    def carried(cls, new: TopicFilter, whole_from: Iterable[Time]) -> "Widening":
        """One that is over, as a cursor has it: the topics `new` are whole in epochs that `whole_from` reaches (F9)."""
        made = cls(EVERYTHING.without(new), EVERYTHING, (), Antichain())
        made._joins = [JoinFilter(whole_from)]
        return made

    @property
    def pending(self) -> bool:
        """Whether the state of a segment is awaited."""
        return bool(self._awaited)

    def begins(self, segment: str, state: SegmentState, topics: TopicFilter | None) -> bool:
        """A segment's batches of `topics` come from `state` on; returns whether that was the last that was awaited."""
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
            return False
        if self._awaited:
            return None
        return all(join.admits(time) for join in self._joins)

    @property
    def held_bytes(self) -> int:
        """What the held batches take."""
        return sum(BATCH_OVERHEAD + len(data.payload) for _, data in self.held)

    def frontier(self, shape: TimeShape) -> Antichain:
        """From when on epochs are seen whole with all topics; once not `pending`."""
        return joint([self.seen_from, *(join.frontier(shape) for join in self._joins)])

    def whole_from(self, shape: TimeShape) -> tuple[Time, ...] | None:
        """In which epochs the new topics are whole: in those that one of these times reaches; None while `pending`."""
        return None if self._awaited else tuple(joint([join.frontier(shape) for join in self._joins]))

    def prune(self, frontier: Antichain) -> bool:
        """Drop what can no longer matter once only times that `frontier` reaches can be handed out.

        Returns whether anything is left.
        """
        if not self._awaited:
            self._joins = [join for join in self._joins if join.prune(frontier)]
        return bool(self._awaited or self._joins)


class WantedTopics:
    """What a subscription wants, and what has become of that: None is everything.

    A widening stays until no epoch can come that is torn by it; only the last one can be pending.
    """

    __slots__ = ("_segments", "filter", "widenings")

    def __init__(self, topics: TopicFilter | None, segments: Iterable[str]) -> None:
        self.filter = topics
        self._segments = tuple(segments)
        self.widenings: list[Widening] = []
        """From earlier to later."""

    @property
    def pending(self) -> Widening | None:
        """The widening for which a segment's state is awaited, if there is one."""
        return self.widenings[-1] if self.widenings and self.widenings[-1].pending else None

    @property
    def held_bytes(self) -> int:
        """What is held until all segments have said from where on the new topics come."""
        return sum(each.held_bytes for each in self.widenings)

    def widen(self, before: TopicFilter, seen_from: Antichain) -> None:
        """What is wanted is more than `before`, which is whole in epochs that `seen_from` reaches."""
        after = EVERYTHING if self.filter is None else self.filter
        self.widenings.append(Widening(before, after, self._segments, seen_from))

    def resume(self, new: TopicFilter, whole_from: Iterable[Time]) -> None:
        """Of what is wanted, `new` is whole only in epochs that `whole_from` reaches: a cursor says so."""
        self.widenings.append(Widening.carried(new, whole_from))

    def give_up(self) -> Widening | None:
        """The pending widening is replaced by another change."""
        return self.widenings.pop() if self.pending is not None else None

    def begin(self, segment: str, state: SegmentState, topics: TopicFilter | None) -> Widening | None:
        """A segment's batches of `topics` come from `state` on; returns the widening that ends with this."""
        widening = self.pending
        return widening if widening is not None and widening.begins(segment, state, topics) else None

    def admits(self, segment: str, data: m.Data) -> bool | None:
        """Whether a batch is wanted and belongs to its epoch; None where that is not known yet, and it is held."""
        if self.filter is not None and not self.filter.wants(data.topic):
            return False
        for widening in self.widenings:
            admitted = widening.admits(segment, data.time, data.topic)
            if admitted is None:
                widening.held.append((segment, data))
            if not admitted:
                return admitted
        return True

    def prune(self, frontier: Antichain) -> None:
        """Only times that `frontier` reaches can be handed out from now on, also after a resume."""
        self.widenings = [each for each in self.widenings if each.prune(frontier)]

    def new(self, shape: TimeShape) -> tuple[NewTopics, ...]:
        """Which topics are not whole in all epochs that can still come, and in which of these they are (F9).

        Where that is too much for a cursor, those whose times are known are taken together: all of them are whole from
        when on the last change has promised everything, and before that a resume leaves them out.
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
    """Whether anything is wanted that was not before; None is everything."""
    return before is not None and not before.covers(EVERYTHING if after is None else after)

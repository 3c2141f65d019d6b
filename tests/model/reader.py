"""A subscriber: what it reads from each segment, which epochs it delivers, and what it answers to `saw_whole`.

Only the oracle knows what the subscriber should have been given.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.model.clauses import Clause
from tests.model.order import NONE, Order, Time, Times
from tests.model.publisher import Event, Publisher


@dataclass(slots=True)
class Place:
    """The position in one segment: the incarnation, the next event, and whether its history is gone by now."""

    incarnation: int = 0
    index: int = 0
    forgotten: bool = False
    resumed: bool = False
    first: dict[Time, int] = field(default_factory=dict)
    """Epoch that is not yet decided -> its first event here."""


class Reader:
    """One subscriber, live or `since=start`."""

    def __init__(self, name: str, order: Order, segments: int, *, from_start: bool, off: frozenset[Clause]) -> None:
        self.name, self.from_start, self.off = name, from_start, off
        self.places = [Place() for _ in range(segments)]
        self.lower: list[Times] = [order.all] * segments
        self.merged: Times = order.all
        self.filters: list[tuple[int, Times]] = []
        self.undecided: set[Time] = set(order.written)
        self.data: dict[Time, set[tuple[int, int]]] = {}
        """Epoch that is not yet decided -> its (segment, record) pairs."""
        self.whole: dict[Time, frozenset[tuple[int, int]]] = {}
        """Epoch that `saw_whole` affirms -> what was given of it (nothing if it has no data)."""
        self.aborted: set[Time] = set()
        self.expected: set[Time] = set()
        """Epochs with data that no filter barred."""
        self.silent: set[Time] = set()
        """Epochs that were expected, but neither given nor reported as aborted: must stay empty."""

    @property
    def joined(self) -> bool:
        return all(place.incarnation for place in self.places)

    def read(self, segment: int, publisher: Publisher, most: int, on_join: Callable[[int], None]) -> bool:
        """Take up to `most` events of a segment, or a snapshot where the next event is not to be had."""
        place = self.places[segment]
        if place.incarnation != publisher.incarnation or place.forgotten:
            on_join(segment)
            self._join(segment, publisher)
            return True
        if place.resumed:
            place.resumed = False
            self._told(segment, publisher.reach_at(place.index))
        events = publisher.log[place.index : place.index + most]
        for event in events:
            place.index += 1
            self._event(segment, event)
        return bool(events)

    def resume(self) -> None:
        """Go on from the cursor: the merged frontier, the filters, and a place before every epoch not yet decided."""
        for place in self.places:
            place.index = min([place.index, *(at for time, at in place.first.items() if time in self.undecided)])
            place.first.clear()
            place.resumed = True
        self.lower = [self.merged] * len(self.lower)
        self.data.clear()
        self.expected.clear()

    def _join(self, segment: int, publisher: Publisher) -> None:
        place = self.places[segment]
        gap, same = bool(place.incarnation), place.incarnation == publisher.incarnation
        begin = publisher.opening() if self.from_start and not same else publisher.snapshot()
        self.places[segment] = Place(publisher.incarnation, begin.next)
        # Events of the epochs that are held but not delivered may be among those that the gap has taken.
        if gap and Clause.GAP_ABORTS not in self.off:
            for time in list(self.data):
                self._abort(time)
        if not gap or Clause.GAP_FILTERS not in self.off:
            self.filters.append((segment, begin.admits))
        self._told(segment, begin.reach, new=True)

    def _event(self, segment: int, event: Event) -> None:
        if event.kind == "frontier":
            self._told(segment, event.reach)
            return
        assert event.time is not None
        if event.kind == "abort":
            self._abort(event.time)
        elif event.time in self.undecided and event.time not in self.aborted:
            self.places[segment].first.setdefault(event.time, self.places[segment].index - 1)
            self.data.setdefault(event.time, set()).add((segment, event.record))
            if self.joined and all(event.time in admits for _, admits in self.filters):
                self.expected.add(event.time)

    def _abort(self, time: Time) -> None:
        self.data.pop(time, None)
        if time in self.undecided or time in self.whole:  # for one that it was given, it would be false
            self.aborted.add(time)

    def _told(self, segment: int, reach: Times, *, new: bool = False) -> None:
        # Joined and not replaced: a new incarnation's snapshot may reach times again that this segment had passed.
        replaced = new and Clause.JOINED in self.off
        self.lower[segment] = reach if replaced else self.lower[segment] & reach
        if self.joined:
            self._decide()

    def _decide(self) -> None:
        """Deliver, or pass over, what the merged frontier has passed."""
        self.merged = NONE.union(*self.lower)
        passed: set[Time] = {time for time in self.undecided if time not in self.merged}
        for time in sorted(passed):
            self.undecided.discard(time)
            seen = frozenset(self.data.pop(time, ()))
            admitted = all(time in admits for _, admits in self.filters)
            if time not in self.aborted and (admitted or (not seen and Clause.WHOLE_IF_ADMITTED in self.off)):
                self.whole[time] = seen
            elif seen and time in self.expected and time not in self.aborted:
                self.silent.add(time)
        # A filter that admits every time that can still come bars nothing any more.
        early = Clause.FILTER_KEPT in self.off
        self.filters = [
            (segment, admits)
            for segment, admits in self.filters
            if not (self.lower[segment] if early else self.merged) <= admits
        ]

"""Antichains of times: how a frontier is written down, and how it changes.

A frontier is the antichain of its minimal times; it represents every time that one of them reaches (`f <= t`). This is
pure algebra over the partial order: no streams, no publishers, no states of epochs.

As in timely dataflow's `progress/frontier`, methods that change something return what visibly changed, and callers
announce only that (S5).
"""

from collections.abc import Iterable, Iterator
from functools import reduce

from epochal.protocol.times import Time, join, less_equal

Change = tuple[Time, int]
"""A time and by how much its count changes: `(5, +1)`, `(3, -1)`."""


class Antichain:
    """A set of mutually incomparable times, kept minimal.

    With n elements (in practice one, or a few): O(n) for `insert`, `less_equal` and `less_than`, O(n m) for `join` and
    `reaches_all` with m others. The common case of one element is one comparison.

    >>> frontier = Antichain([(0, 3), (2, 1)])
    >>> frontier.insert((1, 1)), sorted(frontier)
    (True, [(0, 3), (1, 1)])
    >>> frontier.insert((4, 4))
    False
    """

    __slots__ = ("_elements",)

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._elements: list[Time] = []
        for time in times:
            self.insert(time)

    def insert(self, time: Time) -> bool:
        """Add `time` unless an element reaches it already; returns whether the antichain changed.

        >>> frontier = Antichain([3])
        >>> frontier.insert(5), frontier.insert(2), frontier
        (False, True, Antichain([2]))
        """
        if self.less_equal(time):
            return False
        self._elements = [element for element in self._elements if not less_equal(time, element)]
        self._elements.append(time)
        return True

    def less_equal(self, time: Time) -> bool:
        """Whether the frontier reaches `time`: some element is <= it.

        >>> frontier = Antichain([(0, 3), (2, 1)])
        >>> frontier.less_equal((2, 1)), frontier.less_equal((1, 1))
        (True, False)
        """
        elements = self._elements
        if len(elements) == 1:  # the usual frontier, spared the generator
            return less_equal(elements[0], time)
        return any(less_equal(element, time) for element in elements)

    def less_than(self, time: Time) -> bool:
        """Whether some element is strictly less than `time`.

        >>> frontier = Antichain([(0, 3), (2, 1)])
        >>> frontier.less_than((2, 1)), frontier.less_than((2, 2))
        (False, True)
        """
        return any(element != time and less_equal(element, time) for element in self._elements)

    def reaches_all(self, times: Iterable[Time]) -> bool:
        """Whether the frontier reaches every one of `times`.

        >>> Antichain([3]).reaches_all([3, 7]), Antichain([3]).reaches_all([2, 7]), Antichain([3]).reaches_all([])
        (True, False, True)
        """
        return all(map(self.less_equal, times))

    def join(self, other: "Antichain") -> "Antichain":
        """The frontier of the times that both reach (intersection of what they represent).

        >>> Antichain([(0, 3), (2, 0)]).join(Antichain([(1, 1)]))
        Antichain([(1, 3), (2, 1)])
        """
        return Antichain(join(a, b) for a in self._elements for b in other._elements)

    def __contains__(self, time: object) -> bool:
        """Whether `time` is an element."""
        return time in self._elements

    def __iter__(self) -> Iterator[Time]:
        """The elements, in a stable order."""
        return iter(sorted(self._elements))

    def __len__(self) -> int:
        """How many elements; 0 means that nothing is reached any more."""
        return len(self._elements)

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same elements."""
        if not isinstance(other, Antichain):
            return NotImplemented
        mine, theirs = self._elements, other._elements
        return len(mine) == len(theirs) and (mine == theirs or set(mine) == set(theirs))

    def changes_from(self, old: "Antichain") -> list[Change]:
        """What leaves `old` (-1) and what enters it (+1), each sorted, so that it becomes this.

        >>> Antichain([3, 4]).changes_from(Antichain([2]))
        [(2, -1), (3, 1)]
        """
        before, after = old._elements, self._elements
        if len(before) == len(after) == 1:  # the usual frontiers, spared the sets
            return [] if before == after else [(before[0], -1), (after[0], 1)]
        left, entered = set(before), set(after)
        changes: list[Change] = [(time, -1) for time in sorted(left - entered)]
        return changes + [(time, 1) for time in sorted(entered - left)]

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        """`Antichain([...])`, elements sorted."""
        return f"Antichain({list(self)!r})"


def joint(frontiers: Iterable[Antichain]) -> Antichain:
    """The minimal times that all of `frontiers` reach: what a writer holds after `open` at several segments (E5).

    There must be at least one. Costs a `join` for each further one.

    >>> joint([Antichain([3]), Antichain([5]), Antichain([4])])
    Antichain([5])
    """
    return reduce(Antichain.join, frontiers)


class Downset:
    """A downward-closed set of times: every time that is <= one of its maximal elements.

    An `Antichain` represents the times at or above its elements, this the times at or below. With n maximal elements
    (in practice few): O(n) for `insert` and `in`, O(n m) for `drop_passed` with a frontier of m.

    >>> lost = Downset([(0, 3), (2, 1)])
    >>> (1, 1) in lost, (1, 2) in lost
    (True, False)
    >>> lost.insert((2, 3)), lost
    (True, Downset([(2, 3)]))
    """

    __slots__ = ("_elements",)

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._elements: list[Time] = []
        for time in times:
            self.insert(time)

    def insert(self, time: Time) -> bool:
        """Add `time` and all that is <= it; returns whether that was not all in it already.

        >>> lost = Downset([5])
        >>> lost.insert(3), lost.insert(7), lost
        (False, True, Downset([7]))
        """
        if time in self:
            return False
        self._elements = [element for element in self._elements if not less_equal(element, time)]
        self._elements.append(time)
        return True

    def drop_passed(self, frontier: Antichain) -> bool:
        """Drop each maximal element that `frontier` does not reach: no time <= it can arrive any more.

        Returns whether there were any.

        >>> lost = Downset([(0, 3), (2, 1)])
        >>> lost.drop_passed(Antichain([(1, 0)])), lost
        (True, Downset([(2, 1)]))
        """
        kept = [element for element in self._elements if frontier.less_equal(element)]
        dropped, self._elements = len(kept) < len(self._elements), kept
        return dropped

    def __contains__(self, time: object) -> bool:
        """Whether `time` is <= an element."""
        elements = self._elements
        if len(elements) == 1:  # as in an antichain
            return less_equal(time, elements[0])  # type: ignore[arg-type]  # a time
        return any(less_equal(time, element) for element in elements)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Time]:
        """The maximal elements, in a stable order."""
        return iter(sorted(self._elements))

    def __len__(self) -> int:
        """How many maximal elements; 0 means that no time is in it."""
        return len(self._elements)

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same times."""
        return isinstance(other, Downset) and set(self._elements) == set(other._elements)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        """`Downset([...])`, elements sorted."""
        return f"Downset({list(self)!r})"


class MutableAntichain:
    """The minimal times of a counted multiset, with what changed at each update.

    Counts may pass through zero or below while updates that belong together arrive apart; only times with a positive
    count can be minimal (S4).

    An update costs O(changes) unless it touches the frontier, and then O(distinct times x elements of the frontier).
    Reading the frontier costs nothing.

    >>> counted = MutableAntichain([0])
    >>> counted.update([(1, +1)])
    []
    >>> counted.update([(0, -1)])
    [(0, -1), (1, 1)]

    """

    __slots__ = ("_counts", "_frontier")

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._counts: dict[Time, int] = {}
        self._frontier = Antichain()
        self.update((time, 1) for time in times)

    def update(self, changes: Iterable[Change]) -> list[Change]:
        """Apply `changes` at once; returns what left (-1) and what entered (+1) the frontier, in that order.

        Counts that pass through zero inside one update are not seen:

        >>> counted = MutableAntichain([3])
        >>> counted.update([(3, -1), (5, +1), (3, +1)])
        []
        >>> counted.update([(3, -1)])
        [(3, -1), (5, 1)]
        """
        stale = False
        for time, delta in changes:
            before = self._counts.get(time, 0)
            after = before + delta
            if after:
                self._counts[time] = after
            else:
                self._counts.pop(time, None)
            # A frontier can move only where an element of it vanishes, or where something it does not reach appears.
            if after > 0 >= before:
                stale = stale or not self._frontier.less_equal(time)
            elif before > 0 >= after:
                stale = stale or time in self._frontier._elements
        return self._rebuild() if stale else []

    def _rebuild(self) -> list[Change]:
        old, self._frontier = self._frontier, Antichain([time for time, count in self._counts.items() if count > 0])
        return self._frontier.changes_from(old)

    @property
    def frontier(self) -> Antichain:
        """The minimal times with a positive count; a new object after each visible change.

        >>> MutableAntichain([(0, 3), (2, 1), (2, 2)]).frontier
        Antichain([(0, 3), (2, 1)])
        """
        return self._frontier

    def less_equal(self, time: Time) -> bool:
        """Whether the frontier reaches `time`.

        >>> MutableAntichain([3, 5]).less_equal(4), MutableAntichain().less_equal(4)
        (True, False)
        """
        return self._frontier.less_equal(time)

    def count(self, time: Time) -> int:
        """The count of `time`, 0 where there is none.

        >>> MutableAntichain([3, 3, 5]).count(3), MutableAntichain([3]).count(4)
        (2, 0)
        """
        return self._counts.get(time, 0)

    def __repr__(self) -> str:
        """The counts, for people."""
        return f"MutableAntichain({self._counts!r})"

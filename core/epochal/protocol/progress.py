"""Which times can still arrive at a segment, which are under way, and in what state each epoch is.

The lower frontier comes from capabilities, the upper frontier from the data that was seen. Here the antichains get
their meaning: latent, active, completed, aborted (S1).

Sources: Strymon's publish-subscribe protocol, rules S1-S7, S14; E2, E15.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum

from epochal.protocol.frontier import Antichain, Change, Downset, MutableAntichain
from epochal.protocol.times import Time, TimeShape, less_equal


class EpochState(StrEnum):
    """What an epoch is at one segment; exactly one at any moment (S1)."""

    LATENT = "latent"
    ACTIVE = "active"
    COMPLETED = "completed"
    ABORTED = "aborted"


class LowerFrontier:
    """The minimal times that can still arrive: a counted antichain that starts with bottom (S4).

    Costs are those of `MutableAntichain`; `completed` is O(elements of the frontier).

    >>> lower = LowerFrontier([0])
    >>> lower.update([(0, +1)]), lower.update([(1, +1), (0, -2)])
    ([], [(0, -1), (1, 1)])
    """

    __slots__ = ("_counted",)

    def __init__(self, times: Iterable[Time]) -> None:
        self._counted = MutableAntichain(times)

    @classmethod
    def at_bottom(cls, shape: TimeShape) -> "LowerFrontier":
        """The frontier of a stream that has published nothing.

        >>> LowerFrontier.at_bottom(TimeShape.parse("(int, int)")).frontier
        Antichain([(0, 0)])
        """
        return cls([shape.bottom])

    def update(self, changes: Iterable[Change]) -> list[Change]:
        """Apply counted changes; returns only what is visible in the frontier (S5).

        >>> lower = LowerFrontier([0, 0])
        >>> lower.update([(0, -1), (4, +1)]), lower.update([(0, -1)])
        ([], [(0, -1), (4, 1)])
        """
        return self._counted.update(changes)

    def completed(self, time: Time) -> bool:
        """Whether `time` can no longer arrive: no element is <= it (S2, in its form for partial orders).

        >>> lower = LowerFrontier([(0, 3), (2, 1)])
        >>> lower.completed((1, 2)), lower.completed((2, 2))
        (True, False)
        """
        return not self._counted.less_equal(time)

    @property
    def frontier(self) -> Antichain:
        """The elements.

        >>> LowerFrontier([3, 5]).frontier
        Antichain([3])
        """
        return self._counted.frontier


class UpperFrontier:
    """The maximal active times.

    Completed and aborted times leave it (S7), so it stays small in a partial order too.

    With n active times of which m are maximal: O(1) to insert one that is active already, else O(m); O(n) for
    `drop_completed`; O(n m) only where a maximal time leaves.

    >>> upper = UpperFrontier()
    >>> upper.insert((0, 3)), upper.insert((0, 1)), upper.insert((2, 0)), sorted(upper)
    (True, False, True, [(0, 3), (2, 0)])

    """

    __slots__ = ("_active", "_maximal")

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._active: set[Time] = set()
        self._maximal: list[Time] = []
        for time in times:
            self.insert(time)

    def insert(self, time: Time) -> bool:
        """Note that `time` is active; returns whether the frontier changed (S6).

        >>> upper = UpperFrontier([3])
        >>> upper.insert(2), upper.insert(5), list(upper)
        (False, True, [5])
        """
        if time in self._active:
            return False
        self._active.add(time)
        if any(less_equal(time, other) for other in self._maximal):
            return False
        self._maximal = [other for other in self._maximal if not less_equal(other, time)]
        self._maximal.append(time)
        return True

    def drop_completed(self, lower: LowerFrontier) -> bool:
        """Forget what `lower` has completed (S7); returns whether the frontier changed.

        >>> upper = UpperFrontier([3, 5])
        >>> upper.drop_completed(LowerFrontier([4])), upper.drop_completed(LowerFrontier([6])), list(upper)
        (False, True, [])
        """
        return self._drop({time for time in self._active if lower.completed(time)})

    def drop(self, time: Time) -> bool:
        """Forget `time`, which was aborted.

        What it covered becomes visible again. Returns whether the frontier changed.

        >>> upper = UpperFrontier([3, 5])
        >>> upper.drop(5), list(upper)
        (True, [3])
        """
        return self._drop({time} & self._active)

    def _drop(self, gone: set[Time]) -> bool:
        if not gone:
            return False
        self._active -= gone
        if gone.isdisjoint(self._maximal):
            return False
        self._maximal = []
        for time in self._active:
            if not any(less_equal(time, other) for other in self._maximal):
                self._maximal = [other for other in self._maximal if not less_equal(other, time)] + [time]
        return True

    @property
    def active(self) -> frozenset[Time]:
        """Every active time, also those that are not maximal.

        >>> sorted(UpperFrontier([3, 5]).active)
        [3, 5]
        """
        return frozenset(self._active)

    @property
    def count(self) -> int:
        """How many times are active.

        >>> UpperFrontier([3, 5]).count
        2
        """
        return len(self._active)

    def __contains__(self, time: object) -> bool:
        """Whether `time` is active."""
        return time in self._active

    def __iter__(self) -> Iterator[Time]:
        """The maximal active times, sorted."""
        return iter(sorted(self._maximal))

    def __len__(self) -> int:
        """How many maximal active times there are."""
        return len(self._maximal)


class Progress:
    """Both frontiers of one segment and the aborted times: all that a snapshot says (E14).

    An aborted time is remembered until it can no longer arrive, so that it can never be taken for completed (E2).
    The times `below` are aborted as well: an earlier incarnation lost its memory, and may have had any of them
    (E11 horizon).

    A move that changes the frontier costs O(times under way), any other as `LowerFrontier.update`; all else is O(size
    of the frontiers).

    >>> progress = Progress([0])
    >>> progress.upper.insert(0), progress.state(0), progress.state(1)
    (True, <EpochState.ACTIVE: 'active'>, <EpochState.LATENT: 'latent'>)
    >>> progress.move([(0, -1), (1, +1)]), progress.state(0), list(progress.upper)
    ([(0, -1), (1, 1)], <EpochState.COMPLETED: 'completed'>, [])
    """

    __slots__ = ("aborted", "below", "lower", "upper")

    def __init__(
        self,
        lower: Iterable[Time],
        upper: Iterable[Time] = (),
        aborted: Iterable[Time] = (),
        below: Iterable[Time] = (),
    ) -> None:
        self.lower = LowerFrontier(lower)
        self.upper = UpperFrontier(upper)
        self.aborted: set[Time] = set(aborted)
        self.below = Downset(below)

    def state(self, time: Time) -> EpochState:
        """The state of the epoch `time` as this segment knows it.

        An aborted time that can no longer arrive has been forgotten, and is then reported as completed: only those who
        saw the abort know.

        >>> progress = Progress([3], upper=[4], aborted=[5])
        >>> [str(progress.state(time)) for time in (2, 3, 4, 5)]
        ['completed', 'latent', 'active', 'aborted']
        """
        if self.is_aborted(time):
            return EpochState.ABORTED
        if self.lower.completed(time):
            return EpochState.COMPLETED
        return EpochState.ACTIVE if time in self.upper else EpochState.LATENT

    def is_aborted(self, time: Time) -> bool:
        """Whether `time` is aborted and can still arrive.

        >>> progress = Progress([3], aborted=[7], below=[5])
        >>> [progress.is_aborted(time) for time in (2, 4, 6, 7)]
        [False, True, False, True]
        """
        return time in self.aborted or (time in self.below and not self.lower.completed(time))

    @property
    def under_way(self) -> int:
        """How many epochs are active, or aborted and not past yet.

        >>> Progress([3], upper=[3, 4], aborted=[5]).under_way
        3
        """
        return self.upper.count + len(self.aborted)

    def move(self, changes: Iterable[Change]) -> list[Change]:
        """Apply changes to the lower frontier.

        Returns the visible ones. Completed times leave `upper`, `aborted` and `below`.

        >>> progress = Progress([3], upper=[3, 4], aborted=[5])
        >>> progress.move([(3, -1), (6, +1)]), progress.under_way
        ([(3, -1), (6, 1)], 0)
        """
        visible = self.lower.update(changes)
        if visible:
            self.upper.drop_completed(self.lower)
            self.aborted = {time for time in self.aborted if not self.lower.completed(time)}
            self.below.drop_passed(self.lower.frontier)
        return visible

    def abort(self, times: Iterable[Time]) -> tuple[Time, ...]:
        """Abort what is neither completed nor aborted yet; returns those times, sorted.

        >>> progress = Progress([3], upper=[4], aborted=[5])
        >>> progress.abort([2, 4, 5]), list(progress.upper)
        ((4,), [])
        """
        fresh = sorted({t for t in times if not self.is_aborted(t) and not self.lower.completed(t)})
        for time in fresh:
            self.aborted.add(time)
            self.upper.drop(time)
        return tuple(fresh)

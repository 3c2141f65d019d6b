"""The epochs that a subscriber can see whole: one `JoinFilter` a segment and join (E15).

Epoch atomicity rests on these few lines. A set of such filters can also be written as a frontier and a few aborted
times; a cursor carries them in this form (E16). A topic never decides whether an epoch is whole.

Sources: Strymon's publish-subscribe protocol (design), rules S10-S15; E15-E17.
"""

from collections.abc import Iterable

from epochal.protocol.frontier import Antichain
from epochal.protocol.times import Time, TimeShape, less_equal


class JoinFilter:
    """Admits T if some element of `lower` is <= T, T is <= no element of `upper`, and T is not in `aborted`.

    >>> seen_from = JoinFilter(lower=[3], upper=[5])
    >>> [t for t in range(9) if seen_from.admits(t)]
    [6, 7, 8]
    """

    __slots__ = ("aborted", "lower", "upper")

    def __init__(self, lower: Iterable[Time], upper: Iterable[Time] = (), aborted: Iterable[Time] = ()) -> None:
        self.lower: Antichain | None = Antichain(lower)
        self.upper = list(upper)
        self.aborted = set(aborted)

    def admits(self, time: Time) -> bool:
        """Whether the epoch `time` can be delivered whole (E15)."""
        if self.lower is not None and not self.lower.less_equal(time):
            return False
        return not any(less_equal(time, under_way) for under_way in self.upper) and time not in self.aborted

    def prune(self, frontier: Antichain) -> bool:
        """Drop what can no longer matter once only times reached by `frontier` can arrive.

        Returns whether anything is left.

        An element equal to a frontier element stays: that epoch can still arrive (S13). It goes when no frontier
        element is <= it, which covers an empty frontier and one that has passed it incomparably (S14).
        """
        self.upper = [time for time in self.upper if frontier.less_equal(time)]
        self.aborted = {time for time in self.aborted if frontier.less_equal(time)}
        if self.lower is not None and self.lower.reaches_all(frontier):
            self.lower = None
        return self.lower is not None or bool(self.upper) or bool(self.aborted)

    def frontier(self, shape: TimeShape) -> Antichain:
        """The minimal times that are admitted, if none was aborted.

        A time is not <= `t` exactly if one of the minimal times that are not <= `t` reaches it.
        """
        admitted = Antichain([shape.bottom]) if self.lower is None else self.lower
        for time in self.upper:
            admitted = admitted.join(Antichain(shape.successors_past(time)))
        return admitted

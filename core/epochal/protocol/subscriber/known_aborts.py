"""Aborted times: those that segments have reported, those that the application does not know of yet, and lost memories.

Aborts come from segments, cursors, gaps and lost memories; whether a time is aborted is asked for each of its batches.
Sources: rules E10, E11, E16-E18.
"""

from collections.abc import Iterable

from epochal.protocol.frontier import Antichain, Downset, MutableAntichain
from epochal.protocol.times import Time

REMEMBERED_ABORTS = 65_536
"""Aborted times that are remembered for `saw_whole` when they cannot arrive any more; the oldest are forgotten."""


class KnownAborts:
    """What is known to be aborted."""

    __slots__ = ("_lost", "_remembered", "active", "torn", "unreported")

    def __init__(self) -> None:
        self.active: set[Time] = set()
        """Aborted times that may still arrive."""
        self.unreported: set[Time] = set()
        """Aborted times that are still to be reported to the application."""
        self.torn: set[Time] = set()
        """Times of data that came and was lost again before every segment had begun."""
        self._lost: list[tuple[Antichain, Downset]] = []
        """(frontier, times) of each lost memory: what is in both is aborted, even if it begins now (E11 horizon)."""
        self._remembered: dict[Time, None] = {}

    def know(self, times: Iterable[Time]) -> None:
        """These times are aborted."""
        for time in times:
            self.active.add(time)
            self._remembered[time] = None
            if len(self._remembered) > REMEMBERED_ABORTS:
                self._remembered.pop(next(iter(self._remembered)))

    def remembers(self, time: Time) -> bool:
        """Whether `time` was aborted, as far as that is remembered."""
        return time in self._remembered

    def lose(self, lower: Iterable[Time], below: Iterable[Time]) -> None:
        """A publisher lost its memory: all that `lower` reaches and is <= one of `below` is aborted (E11 horizon)."""
        lost = Antichain(lower), Downset(below)
        if lost not in self._lost:  # a publisher that dies again and again loses the same
            self._lost.append(lost)

    def is_lost(self, time: Time) -> bool:
        """Whether a lost memory covers `time`: no event of the log says that it is aborted."""
        return any(lower.less_equal(time) and time in below for lower, below in self._lost)

    def prune(self, merged: MutableAntichain) -> None:
        """Forget lost memories of which nothing can arrive any more."""
        self._lost = [(lower, below) for lower, below in self._lost if any(map(merged.less_equal, below))]

"""Which epochs this subscriber has seen from their beginning, in all segments, and so may deliver or call complete.

The answer outlives joins: an epoch that was seen whole stays so, whatever gap comes or whatever topics are wanted
later. Sources: rules E15, E18, E20.
"""

from collections import deque

from epochal.protocol.frontier import Antichain
from epochal.protocol.subscriber.join_filter import JoinFilter
from epochal.protocol.times import Time, TimeShape

REMEMBERED_GAPS = 1_000
"""Gaps after which it is still known of the epochs before the first of them whether they were seen whole."""


class SeenWhole:
    """The filters of all joins that still matter, and from where on times were seen whole."""

    __slots__ = ("_before", "_filters", "_shape", "seen_from")

    def __init__(self, shape: TimeShape) -> None:
        self._shape = shape
        self._filters: list[JoinFilter] = []
        """One for each segment and join, and for what a cursor or the application asked for (S15a)."""
        self.seen_from = Antichain([shape.bottom])
        """Times that can still come were seen whole if this reaches them."""
        self._before: deque[tuple[Antichain, Antichain]] = deque(maxlen=REMEMBERED_GAPS)
        """At each gap or wider filter, oldest first: the frontier, and what was seen whole of the times before it."""

    def admits(self, time: Time) -> bool:
        """Whether every join admits `time`."""
        return all(active.admits(time) for active in self._filters)

    def add(self, admitted: JoinFilter) -> None:
        """Deliver only what `admitted` admits as well."""
        self._filters.append(admitted)

    def remember(self, passed: Antichain) -> None:
        """What `passed` does not reach was seen whole, or was not, whatever changes from here on.

        Of two entries at the same frontier the first decides, because the later `seen_from` says nothing of times that
        were past already. So only the first is kept, and many changes at once push out none of the earlier ones.
        """
        if not (self._before and self._before[-1][0] == passed):
            self._before.append((passed, self.seen_from))

    def saw_whole(self, time: Time) -> bool:
        """Whether `time`, which is past, was seen whole: as it was known when it became past.

        Entries are in the order of their frontiers, which never go back. The first one whose frontier does not reach
        `time` was made when `time` had become past, so its `seen_from` is what held until then.
        """
        earlier = (seen_from for passed, seen_from in self._before if not passed.less_equal(time))
        return next(earlier, self.seen_from).less_equal(time)

    def frontier(self, frontier: Antichain) -> Antichain:
        """The minimal times that `frontier` reaches and all joins admit, aborted ones aside."""
        for active in self._filters:
            frontier = frontier.join(active.frontier(self._shape))
        return frontier

    def prune(self, frontier: Antichain) -> None:
        """Drop filters that do not matter any more once only times reached by `frontier` can arrive."""
        self._filters = [active for active in self._filters if active.prune(frontier)]

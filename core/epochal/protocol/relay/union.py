"""The filter that a relay asks for: the union of its subscribers' filters, of bounded size.

Sources: rules N18, F17.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from epochal.protocol.topics.filter import EVERYTHING, TopicFilter
from epochal.protocol.topics.merged import MergedFilters
from epochal.protocol.topics.publisher_trie import MAX_BYTES, MAX_ENTRIES

NOTHING = TopicFilter([])
"""No topic."""
MAX_LINGERING = 1024
"""How many filters without a subscriber are still asked for; beyond that, the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class UnionTimes:
    """Times in seconds."""

    linger: float = 30.0
    """How long a filter is asked for after its last subscriber has left: most subscribers come back."""
    recover: float = 60.0
    """How long a union that was too large must have been small before it replaces everything."""


class FilterUnion:
    """The union of all filters that subscribers have, or had within the last `linger` seconds.

    It is computed from the filters each time, and no prefix is counted up and down.

    A union of more than `most_entries` prefixes, or `most_bytes`, becomes everything, until one of half of that has
    held for `recover` seconds.
    """

    def __init__(self, times: UnionTimes, *, most_entries: int = MAX_ENTRIES, most_bytes: int = MAX_BYTES) -> None:
        self.wanted = NOTHING
        """The filter to ask for: the union, or everything."""
        self._times = times
        self._most = most_entries, most_bytes
        self._had: dict[TopicFilter, float] = {}
        """Filter -> when a subscriber last had it."""
        self._of: frozenset[TopicFilter] = frozenset()
        """The filters of which `_union` is the union."""
        self._union = NOTHING
        self._share = 0.0
        """The share of the bounds that it takes; above 1 it is too large."""
        self._everything = False
        """Whether it was too large."""
        self._small_since: float | None = None

    def asked(self, topics: TopicFilter, now: float) -> None:
        """A reader asks for history of these topics; one that pulls asks again and again, and is no subscriber."""
        self._had[topics] = now

    def update(self, living: Iterable[TopicFilter], now: float) -> None:
        """Set the filters that subscribers have now."""
        for each in living:
            self._had[each] = now
        for each in [each for each, had in self._had.items() if now - had > self._times.linger]:
            del self._had[each]
        lingering = sorted((had, at) for at, had in enumerate(self._had.values()) if had < now)
        if len(lingering) > MAX_LINGERING:
            filters = list(self._had)
            for _, at in lingering[:-MAX_LINGERING]:
                del self._had[filters[at]]
        of = frozenset(self._had)
        if of != self._of:
            self._of, self._share = of, self._share_of(of)
            self._union = EVERYTHING if self._share > 1 else _union(of)
        self._judge(now)

    def _share_of(self, filters: Iterable[TopicFilter]) -> float:
        """The share of the bounds that they take; a common prefix counts once. Stops counting above 1."""
        prefixes, size = set[bytes](), 0
        for each in filters:
            fresh = [prefix for prefix, _ in each if prefix not in prefixes]
            prefixes.update(fresh)
            size += sum(map(len, fresh))
            if len(prefixes) > self._most[0] or size > self._most[1]:
                break
        return max(len(prefixes) / self._most[0], size / self._most[1])

    def _judge(self, now: float) -> None:
        if self._share > 1:
            self._everything, self._small_since = True, None
        elif self._share > 1 / 2:
            self._small_since = None
        elif self._everything:
            self._small_since = now if self._small_since is None else self._small_since
            if now - self._small_since >= self._times.recover:
                self._everything, self._small_since = False, None
        self.wanted = EVERYTHING if self._everything else self._union


def _union(filters: Iterable[TopicFilter]) -> TopicFilter:
    """`TopicFilter.union` of many filters, where each prefix is decided by all filters at once."""
    merged, prefixes = MergedFilters(), set[bytes]()
    for number, each in enumerate(filters):
        merged.put(number, each)
        prefixes.update(prefix for prefix, _ in each)
    return TopicFilter.of({prefix: merged.wanting(prefix) != 0 for prefix in prefixes})

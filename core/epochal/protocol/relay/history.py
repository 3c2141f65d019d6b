"""The memory of a run: its newest events, the topics that they include from each position on, and states.

A run is a contiguous sequence of events of one incarnation, of the topics that the relay has asked for (F13). Readers
are answered from here only if nothing is missing for them; other requests go to the publisher.

Sources: E24; F13-F15.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from epochal.errors import EpochalError, Unavailable
from epochal.protocol.frontier import Antichain
from epochal.protocol.log.history import CHECKPOINT_EVERY, EVENT_OVERHEAD, Lull, SegmentState, apply, retained_size
from epochal.protocol.messages import Data, Event, Frontier, Position
from epochal.protocol.progress import Progress
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter

COMPACT_AT = 4096
"""The list is shortened once so many dropped entries are at its start, and more than half of it."""


class _Joined(NamedTuple):
    """The relay has joined another channel, whose state after event `seq` has these maximal active times."""

    seq: int
    upper: tuple[Time, ...]


class RunProgress:
    """The frontiers of a run, as far as a relay knows them (F14).

    Of the times that were active when it joined, the relay knows only the maximal ones. Each stays in the upper
    frontier until it can no longer arrive, even if it is aborted: smaller times may have begun earlier, with topics
    that the relay did not receive.
    """

    __slots__ = ("_joined", "_progress")

    def __init__(self, state: SegmentState) -> None:
        self._progress = Progress(state.lower, (), state.aborted, state.below)
        self._joined = frozenset(state.upper)

    def apply(self, entry: Event | _Joined) -> None:
        """Apply the next entry."""
        if isinstance(entry, _Joined):
            lower = self._progress.lower
            self._joined = self._joined.union(time for time in entry.upper if not lower.completed(time))
            return
        apply(self._progress, entry)
        if not isinstance(entry, Data) and self._joined:
            lower = self._progress.lower
            self._joined = frozenset(time for time in self._joined if not lower.completed(time))

    @property
    def lower(self) -> Antichain:
        """The lower frontier."""
        return self._progress.lower.frontier

    def progress(self) -> Progress:
        """A copy."""
        own = self._progress
        return Progress(own.lower.frontier, own.upper.active | self._joined, own.aborted, own.below)

    def copy(self) -> "RunProgress":
        """A copy that changes independently."""
        own = self._progress
        other = RunProgress(SegmentState(0, tuple(own.lower.frontier), (), tuple(own.aborted), tuple(own.below)))
        for time in own.upper.active:
            other._progress.upper.insert(time)
        other._joined = self._joined
        return other


class RunHistory:
    """The events of a run after `state`, of `topics`, newest last, in at most `max_bytes` of memory.

    Events keep the publisher's numbers, so there are holes where a topic was not asked for. `append` costs amortised
    O(1), `batch` O(log n) and the events that it returns, and `state_at` replays at most 1,024 entries.
    """

    def __init__(self, incarnation: int, state: SegmentState, topics: TopicFilter, *, max_bytes: int) -> None:
        self.incarnation = incarnation
        self.bytes = 0
        self.last = state.seq
        """All events of `topics` up to this one have come."""
        self.first = state.seq
        """The position before the oldest event in memory."""
        self._max_bytes = max_bytes
        self._entries: list[Event | _Joined] = []
        self._dropped = 0
        """How many entries at the start of the list were dropped."""
        self._base = RunProgress(state)
        """The state after `first`."""
        self._now = RunProgress(state)
        """The state after `last`."""
        self._checkpoints: deque[tuple[int, RunProgress]] = deque()
        """(position, state there), oldest first."""
        self._since_checkpoint = 0
        self._topics = deque([(state.seq, topics)])
        """(position, the topics that were asked for from there on), oldest first."""

    # ---- what comes from upstream ----

    @property
    def topics(self) -> TopicFilter:
        """The topics that come from upstream now."""
        return self._topics[-1][1]

    def append(self, event: Event) -> Event:
        """Append the next event. Returns it as readers get it: its `prev` is the event before it in this history."""
        if event.prev != self.last:
            event = event._replace(prev=self.last)
        self.last = event.seq
        self._add(event)
        return event

    def reached(self, seq: int) -> None:
        """Record that there is no further event up to `seq`."""
        self.last = max(self.last, seq)

    def joined(self, state: SegmentState, topics: TopicFilter) -> None:
        """Record that `topics` come after `state`, which the relay has reached."""
        self.reached(state.seq)
        if topics == self.topics:
            return
        if not self.topics.covers(topics):
            self._add(_Joined(self.last, state.upper))
        self._topics.append((self.last, topics))

    def _add(self, entry: Event | _Joined) -> None:
        # A state includes all entries with its number, so it is complete only when an entry with the next number comes.
        if self._since_checkpoint >= CHECKPOINT_EVERY and entry.seq > self._entries[-1].seq:
            self._since_checkpoint = 0
            self._checkpoints.append((self._entries[-1].seq, self._now.copy()))
        self._entries.append(entry)
        self._now.apply(entry)
        self._since_checkpoint += 1
        self.bytes += _size(entry)
        while self._dropped < len(self._entries) and (
            self.bytes > self._max_bytes or self._entries[self._dropped].seq <= self.first
        ):
            self._drop()

    def _drop(self) -> None:
        entry = self._entries[self._dropped]
        self._dropped += 1
        self._base.apply(entry)
        self.first = entry.seq
        self.bytes -= _size(entry)
        while len(self._topics) > 1 and self._topics[1][0] <= self.first:
            self._topics.popleft()
        while self._checkpoints and self._checkpoints[0][0] <= self.first:
            self._checkpoints.popleft()
        if self._dropped == len(self._entries) or (
            self._dropped >= COMPACT_AT and self._dropped * 2 > len(self._entries)
        ):
            del self._entries[: self._dropped]
            self._dropped = self._since_checkpoint = 0

    def moved(self, seq: int, lower: tuple[Time, ...]) -> Frontier | None:
        """Record that up to event `seq` the publisher has only moved the frontier, to `lower` (E13 retention).

        Returns the event that says so to readers, or None if the frontier was there already.
        """
        changes = Antichain(lower).changes_from(self._now.lower)
        if not changes:
            self.reached(seq)
            return None
        event = Frontier(seq, self.last, tuple(changes))
        self.append(event)
        return event

    # ---- what readers may have ----

    @property
    def lull(self) -> Lull | None:
        """Always None: a relay keeps nothing outside of its memory, and asks the publisher for the rest."""
        return None

    def has(self, position: Position, topics: TopicFilter) -> bool:
        """Whether all events of `topics` after `position` are in memory, and further ones come from upstream (F15)."""
        if position.incarnation != self.incarnation or not self.first <= position.seq <= self.last:
            return False
        return self.topics.covers(topics) and self.whole_until(position.seq, topics) == self.last

    def whole_until(self, seq: int, topics: TopicFilter | None) -> int:
        """The last event up to which everything of `topics` after `seq` is here; then the relay asked for others."""
        topics = EVERYTHING if topics is None else topics
        end = self.last
        for since, asked in reversed(self._topics):
            if not asked.covers(topics):
                end = max(since, seq)
            if since <= seq:
                break
        return end

    def survived(self, position: Position) -> int | None:
        """The last event at or before `position`, which must be of this incarnation: the run knows no other."""
        return min(self.last, position.seq) if position.incarnation == self.incarnation else None

    @property
    def truncated_at(self) -> int:
        """The same as `first`, because a relay keeps no events on disk."""
        return self.first

    def overtaken(self, at: int) -> EpochalError:
        """The error for a reader that was too slow for this memory; the publisher may still have what follows."""
        return Unavailable(f"events after {at} have left the relay's memory; ask again, which asks the publisher")

    def batch(self, seq: int, max_events: int, max_bytes: int) -> list[Event]:
        """The next events after `seq` within the given sizes, but at least one if there is any."""
        chosen: list[Event] = []
        size = 0
        for event in self._behind(seq):
            size += retained_size(event)
            if len(chosen) == max_events or (chosen and size > max_bytes):
                break
            chosen.append(event)
        return chosen

    def after(self, seq: int, count: int) -> list[Event]:
        """The next `count` events after `seq`, or as many as there are."""
        return self.batch(seq, count, self.bytes)

    def _behind(self, seq: int) -> Iterable[Event]:
        for at in range(self._place(seq), len(self._entries)):
            entry = self._entries[at]
            if not isinstance(entry, _Joined):
                yield entry

    def _place(self, seq: int) -> int:
        """The index in the list of the first entry after `seq`."""
        return bisect_right(self._entries, seq, lo=self._dropped, key=lambda entry: entry.seq)

    def states(self) -> list[SegmentState]:
        """States that are known without a replay, oldest first."""
        known = [(self.first, self._base), *self._checkpoints]
        return [SegmentState.of(seq, each.progress()) for seq, each in known]

    def state(self) -> SegmentState:
        """The state after `last`."""
        return SegmentState.of(self.last, self._now.progress())

    def state_at(self, seq: int) -> Progress:
        """The state just after event `seq`, for `first <= seq <= last`."""
        known = [(self.first, self._base), *self._checkpoints]
        start, base = known[bisect_right(known, seq, key=lambda each: each[0]) - 1]
        found = base.copy()
        for at in range(self._place(start), self._place(seq)):
            found.apply(self._entries[at])
        return found.progress()


def _size(entry: Event | _Joined) -> int:
    """Bytes that are counted for an entry."""
    return EVENT_OVERHEAD if isinstance(entry, _Joined) else retained_size(entry)

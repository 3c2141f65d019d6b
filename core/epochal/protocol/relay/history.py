"""What a relay remembers of a run: its newest events, from where on which topics are among them, and states.

A run is contiguous events of one incarnation, of the topics that the relay has asked for (F13). Readers are answered
from here only where nothing is missing for them; all else the origin is asked.

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
"""Dropped entries after which the list is made shorter, once they are more than half of it."""


class _Joined(NamedTuple):
    """The relay has joined another channel, whose state after `seq` has these maximal active times."""

    seq: int
    upper: tuple[Time, ...]


class RunProgress:
    """The frontiers of a run, as far as a relay can tell (F14).

    Of what was active when it joined, the relay knows the maximal times only. Each stays in the upper frontier until it
    can no longer arrive, also when it is aborted: smaller ones, of topics that the relay had not seen yet, may have
    begun before.
    """

    __slots__ = ("_joined", "_progress")

    def __init__(self, state: SegmentState) -> None:
        self._progress = Progress(state.lower, (), state.aborted, state.below)
        self._joined = frozenset(state.upper)

    def apply(self, entry: Event | _Joined) -> None:
        """What comes next."""
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
        """One that goes its own way."""
        own = self._progress
        other = RunProgress(SegmentState(0, tuple(own.lower.frontier), (), tuple(own.aborted), tuple(own.below)))
        for time in own.upper.active:
            other._progress.upper.insert(time)
        other._joined = self._joined
        return other


class RunHistory:
    """The events of a run after `state`, of `topics`, newest last, in at most `max_bytes` of memory.

    Events are numbered as by the origin, so numbers are left out where a topic was not asked for. `append` costs O(1)
    amortised; `batch` O(log n) and what it returns; `state_at` replays at most 1,024 entries.
    """

    def __init__(self, incarnation: int, state: SegmentState, topics: TopicFilter, *, max_bytes: int) -> None:
        self.incarnation = incarnation
        self.bytes = 0
        self.last = state.seq
        """All that is of `topics`, up to this event, has come."""
        self.first = state.seq
        """The position before the first event that can be had."""
        self._max_bytes = max_bytes
        self._entries: list[Event | _Joined] = []
        self._dropped = 0
        """How many entries at the start of the list are gone."""
        self._base = RunProgress(state)
        """After `first`."""
        self._now = RunProgress(state)
        """After `last`."""
        self._checkpoints: deque[tuple[int, RunProgress]] = deque()
        """(position, state there), oldest first."""
        self._since_checkpoint = 0
        self._topics = deque([(state.seq, topics)])
        """(position, what was asked for from there on), oldest first."""

    # ---- what comes from upstream ----

    @property
    def topics(self) -> TopicFilter:
        """What comes now."""
        return self._topics[-1][1]

    def append(self, event: Event) -> Event:
        """Take the next event; returned as readers get it: `prev` is where this history was."""
        if event.prev != self.last:
            event = event._replace(prev=self.last)
        self.last = event.seq
        self._add(event)
        return event

    def reached(self, seq: int) -> None:
        """There is nothing else up to `seq`."""
        self.last = max(self.last, seq)

    def joined(self, state: SegmentState, topics: TopicFilter) -> None:
        """After `state`, which the relay has reached, `topics` come."""
        self.reached(state.seq)
        if topics == self.topics:
            return
        if not self.topics.covers(topics):
            self._add(_Joined(self.last, state.upper))
        self._topics.append((self.last, topics))

    def _add(self, entry: Event | _Joined) -> None:
        # A state is that after all entries of its number, so one is kept only when the next number comes.
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
        """Up to event `seq` the origin has only moved the frontier, to `lower` (E13).

        Returns the event that says so to readers, None if the frontier was there already.
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
        """Whether anything else is gone the origin knows, which is asked for what is not here."""
        return None

    def has(self, position: Position, topics: TopicFilter) -> bool:
        """Whether everything of `topics` after `position` is here, and more of it comes (F15)."""
        if position.incarnation != self.incarnation or not self.first <= position.seq <= self.last:
            return False
        return self.topics.covers(topics) and self.whole_until(position.seq, topics) == self.last

    def whole_until(self, seq: int, topics: TopicFilter | None) -> int:
        """Up to which event, from `seq` on, everything of `topics` is here; others may have been asked for since."""
        topics = EVERYTHING if topics is None else topics
        end = self.last
        for since, asked in reversed(self._topics):
            if not asked.covers(topics):
                end = max(since, seq)
            if since <= seq:
                break
        return end

    def survived(self, position: Position) -> int | None:
        """The last event at or before `position`, of this incarnation; nothing is known of others."""
        return min(self.last, position.seq) if position.incarnation == self.incarnation else None

    @property
    def truncated_at(self) -> int:
        """All that can be had is in memory."""
        return self.first

    def overtaken(self, at: int) -> EpochalError:
        """A reader was too slow for this memory; the origin may still have what follows."""
        return Unavailable(f"events after {at} have left the relay's memory; ask again, which asks the publisher")

    def batch(self, seq: int, max_events: int, max_bytes: int) -> list[Event]:
        """The next events after `seq`, at least one if there is any, within the given sizes."""
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
        """Where in the list the first entry after `seq` is."""
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
    """Bytes of the bound that an entry takes."""
    return EVENT_OVERHEAD if isinstance(entry, _Joined) else retained_size(entry)

"""The newest part of a segment's log, in memory: a ring of events bounded by time and bytes.

The ring drops old events at any point (E13 retention) and keeps the state just after the last dropped event. So every
answer to `since` can open with the state from which its events start.

Sources: Push-Pull Publish-Subscribe (history window, `since`), rules E13, E16, Q2, Q3.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from epochal.errors import EpochalError, HistoryTruncated
from epochal.protocol.messages import NOTHING_YET, Aborted, Data, Event, Frontier, Position
from epochal.protocol.progress import Progress, UpperFrontier
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter

EVENT_OVERHEAD = 200
"""Bytes that one retained event takes besides its payload and topic, roughly measured.

They count towards the bounds so that empty events cannot fill the memory.
"""

CHECKPOINT_EVERY = 1024
"""Most events between two states that are known without a replay."""


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The state of a segment just after event `seq`, as snapshots and the openings of `since` answers carry it."""

    seq: int
    lower: tuple[Time, ...]
    active: tuple[Time, ...]
    aborted: tuple[Time, ...]
    below: tuple[Time, ...] = ()
    """Every time that is <= one of these is aborted as well (E11 horizon)."""

    @classmethod
    def of(cls, seq: int, progress: Progress) -> "SegmentState":
        """The state of `progress` after event `seq`, as a value."""
        return cls(
            seq,
            tuple(progress.lower.frontier),
            tuple(sorted(progress.upper.active)),
            tuple(sorted(progress.aborted)),
            tuple(progress.below),
        )

    def progress(self) -> Progress:
        """A new `Progress` in this state."""
        return Progress(self.lower, self.active, self.aborted, self.below)

    @property
    def upper(self) -> tuple[Time, ...]:
        """The maximal times that are active, or may have been before a crash: no joiner sees them whole (E15)."""
        return tuple(UpperFrontier((*self.active, *self.below)))


class Lull(NamedTuple):
    """A stretch of a log in which only the frontier moved: from `since` up to event `seq`, to `lower` (E13 retention).

    A reader that has everything up to some event of the stretch needs only `lower` from the rest of it. The state at
    any event of it can be replaced by `since`. What is active or aborted in `since` and no longer at that event has
    been passed by the frontier. And a time without data at `since` has none at that event either.
    """

    since: SegmentState
    seq: int
    lower: tuple[Time, ...]


def apply(progress: Progress, event: Event) -> None:
    """Apply one event of the log to `progress`, as the publisher applied it."""
    match event:
        case Data():
            progress.upper.insert(event.time)
        case Frontier():
            progress.move(event.changes)
        case Aborted():
            progress.abort(event.times)


def apply_in_lull(quiet_since: SegmentState | None, progress: Progress, event: Event) -> SegmentState | None:
    """Apply one event of the log; returns the state since which only the frontier has moved, None if no lull lasts.

    `quiet_since` is the result for the event before, None at the start of a log.
    """
    if type(event) is not Frontier:
        apply(progress, event)
        return None
    since = SegmentState.of(event.seq - 1, progress) if quiet_since is None else quiet_since
    progress.move(event.changes)
    return since


class History:
    """Events from `first` on, newest last, without holes.

    `max_bytes` and `max_age` (seconds) bound them; 0 bytes keeps none.

    `append` costs O(1) amortised; `state_at` replays at most 1,024 events.
    """

    def __init__(self, start: SegmentState, *, max_bytes: int, max_age: float) -> None:
        self._events: deque[tuple[float, Event]] = deque()
        self._checkpoints: deque[SegmentState] = deque([start])
        self._base = start.progress()
        self._base_since: SegmentState | None = None
        """At `truncated_at`, the state since which only the frontier had moved; None if no lull ends there."""
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._last = start.seq
        self.bytes = 0
        self.incarnations: list[tuple[int, int]] = []
        """(incarnation, its first event), oldest first."""
        self.pristine = False
        """Whether it is known that no earlier incarnation had any event: then a reader of one of them lost nothing."""
        self.archived: int | None = None
        """The position before the first event on disk; None without a disk."""
        self.archived_lull: Lull | None = None
        """The lull that ends at `archived`; None if the log file could not say."""
        self.committed: int | None = None
        """The last committed event. Later ones are not on disk yet, so they are never dropped. None without a disk."""

    def empty_after(self, state: SegmentState) -> "History":
        """An empty history with the same bounds that continues after `state`."""
        return History(state, max_bytes=self._max_bytes, max_age=self._max_age)

    @property
    def last(self) -> int:
        """The sequence number of the newest event ever appended."""
        return self._last

    @property
    def truncated_at(self) -> int:
        """The sequence number of the newest event that is gone; `since` works from this position on."""
        return self._last - len(self._events)

    def whole_until(self, seq: int, topics: TopicFilter | None) -> int:
        """The newest event: a publisher has all topics up to there (`ServedHistory.whole_until`)."""
        return self._last

    def overtaken(self, at: int) -> EpochalError:
        """The error for a reader that has everything up to `at`, when the events after it are gone."""
        return HistoryTruncated(f"events after {at} are gone; the first retained position is {self.first}")

    @property
    def first(self) -> int:
        """The position before the first event that can still be read, from memory or from disk."""
        return self.truncated_at if self.archived is None else min(self.archived, self.truncated_at)

    @property
    def lull(self) -> Lull | None:
        """The lull that ends at `first`, in the events that are gone. None if it is not known whether there is one.

        It is empty, with `since` at `first`, if the last event that is gone was a batch or an abort.
        """
        first = self.truncated_at
        if self.archived is not None and self.archived <= first:
            return self.archived_lull
        since = SegmentState.of(first, self._base) if self._base_since is None else self._base_since
        return Lull(since, first, tuple(self._base.lower.frontier))

    def end_of(self, incarnation: int) -> int | None:
        """The last event of `incarnation`, for the present one so far; None for an unknown one (E10 durability).

        >>> history = History(empty_state((0,)), max_bytes=0, max_age=0.0)
        >>> history.incarnations = [(2, 0), (5, 30)]
        >>> history.end_of(1), history.end_of(2), history.end_of(4)
        (None, 29, 29)
        """
        if not self.incarnations or incarnation < self.incarnations[0][0]:
            return None
        return next((first - 1 for later, first in self.incarnations if later > incarnation), self._last)

    def survived(self, position: Position) -> int | None:
        """The last event at or before `position` that is, or was, in this log; None if not known (E10 durability)."""
        end = self.end_of(position.incarnation)
        if end is None:
            return NOTHING_YET if self.pristine and position.seq == NOTHING_YET else None
        return min(position.seq, end)

    def archive(self, first: int, lull: Lull | None) -> None:
        """Note that the disk keeps the events after position `first`, and the lull that ends there."""
        self.archived, self.archived_lull = first, lull

    def append(self, event: Event, now: float) -> None:
        """Retain one event, which must directly follow the last one. Drops the oldest events that exceed the bounds."""
        self._events.append((now, event))
        self._last = event.seq
        self.bytes += retained_size(event)
        if event.seq % CHECKPOINT_EVERY == 0:
            self._checkpoints.append(SegmentState.of(self._last, self.state_at(self._last)))
        if self.bytes > self._max_bytes:
            self.trim(now)

    def trim(self, now: float) -> None:
        """Drop the oldest events that exceed the bounds at `now` (seconds of the publisher's clock)."""
        while self._events and (self.bytes > self._max_bytes or now - self._events[0][0] > self._max_age):
            if self.committed is not None and self.truncated_at >= self.committed:
                return
            _, event = self._events.popleft()
            self.bytes -= retained_size(event)
            self._base_since = apply_in_lull(self._base_since, self._base, event)

    def since(self, seq: int) -> Iterator[Event]:
        """The events strictly after `seq`, in order (Q3); the caller has checked `seq >= truncated_at`."""
        return (event for _, event in islice(self._events, seq - self.truncated_at, None))

    def batch(self, seq: int, max_events: int, max_bytes: int) -> list[Event]:
        """The next events after `seq`, at least one if there is any, within the given sizes."""
        chosen: list[Event] = []
        size = 0
        for event in self.after(seq, max_events):
            size += retained_size(event)
            if chosen and size > max_bytes:
                break
            chosen.append(event)
        return chosen

    def states(self) -> list[SegmentState]:
        """States that are known without a replay, oldest first; the first is that at `truncated_at`."""
        while len(self._checkpoints) > 1 and self._checkpoints[1].seq <= self.truncated_at:
            self._checkpoints.popleft()
        kept = [point for point in self._checkpoints if point.seq > self.truncated_at]
        return [SegmentState.of(self.truncated_at, self._base), *kept]

    def state_at(self, seq: int) -> Progress:
        """The state just after event `seq`, for `truncated_at <= seq <= last`."""
        states = self.states()
        start = states[bisect_right(states, seq, key=lambda state: state.seq) - 1]
        progress = start.progress()
        for event in self.after(start.seq, seq - start.seq):
            apply(progress, event)
        return progress

    def after(self, seq: int, count: int) -> list[Event]:
        """The next `count` events after `seq`, or as many as there are; the deque is walked from its nearer end."""
        skip = seq - self.truncated_at
        rest = max(len(self._events) - skip - count, 0)
        if skip <= rest:
            return [event for _, event in islice(self._events, skip, skip + count)]
        events = [event for _, event in islice(reversed(self._events), rest, len(self._events) - skip)]
        events.reverse()
        return events


def retained_size(event: Event) -> int:
    """How many bytes one event counts towards the bounds."""
    if type(event) is not Data:
        return EVENT_OVERHEAD
    beside = 0 if event.meta is None else event.meta.size
    return EVENT_OVERHEAD + len(event.payload) + len(event.topic) + beside


def empty_state(lower: tuple[Time, ...], below: tuple[Time, ...] = ()) -> SegmentState:
    """The state of a log without events: lower frontier `lower`, every time <= one of `below` aborted (E11 horizon)."""
    return SegmentState(NOTHING_YET, lower, (), (), below)

"""A reader's position in a segment's history, which moves forward as events are carried out.

Long polls, server-sent events and web-hooks all read with the same steps, first history and then live events, without a
gap between. Only the position is kept for a reader, so a slow reader costs nothing; in the end retention overtakes it.

Sources: rules E9, E10, E13, Q2, Q3, Q5, Q14.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Protocol, TypeVar

from epochal.errors import HistoryTruncated, Problem, Unavailable
from epochal.protocol.log.history import Lull, SegmentState
from epochal.protocol.messages import Event, Position
from epochal.protocol.publisher.effects import FindState
from epochal.service.errors import InvalidRequest, ShuttingDown
from epochal_publisher.errors import EventsTruncated
from epochal_publisher.segments.segment import HostedSegment

T = TypeVar("T")


class NamedPlace(StrEnum):
    """Positions that have a name."""

    START = "start"
    NOW = "now"


StartPlace = NamedPlace | Position
"""Where to begin. For a position of incarnation -1, only the seq counts."""
PRESENT = -1


class PassedLull(Unavailable):
    """A slow reader missed only moves of the frontier, and the next opening has them (E13 retention)."""


class HistoryOwner(Protocol):
    """The process whose history is read."""

    @property
    def http_closing(self) -> bool:
        """Whether the process stops, so that readers over HTTP must end."""
        ...

    async def read(self, work: Callable[[], T]) -> T:
        """Run `work`, which may block on the disk, on a thread for readers. Raises what `work` raises."""
        ...


class HistoryFollower:
    """Begins with `open`; `at` is the seq of the last event that was read."""

    def __init__(self, publisher: HistoryOwner, served: HostedSegment) -> None:
        self._publisher = publisher
        self.served = served
        self.at = served.published_seq
        self._news = asyncio.Event()

    # ---- where it is ----

    def position_of(self, seq: int) -> Position:
        """The position just after event `seq`, with the incarnation that the event belongs to."""
        known = self.served.publisher.history.incarnations
        incarnation = next((number for number, first in reversed(known) if first <= seq), known[0][0])
        return Position(incarnation, seq)

    @property
    def position(self) -> Position:
        """The position after the last event read."""
        return self.position_of(self.at)

    @property
    def complete(self) -> bool:
        """Whether everything was read and nothing can follow (E7 finish)."""
        return not self.served.published_lower and self.at >= self.served.publisher.seq

    async def open(self, start: StartPlace) -> SegmentState:
        """Go to a position; returns the state there. From within a lull that is gone, go to its end (E13 retention).

        Raises `InvalidRequest`, `EventsTruncated`, `LogError`, `Unavailable`.
        """
        history = self.served.publisher.history
        while True:
            self.at, reachable, lull = self._locate(start)
            try:
                state = await self._state()
            except HistoryTruncated:
                if self.served.store is not None:
                    history.archive(*self.served.store.log.start)
                if self.at >= history.first:
                    raise
                if self.served.published_seq < history.first:
                    # Only while the process waits for its lease: all events that it may serve now are gone.
                    raise Unavailable("nothing can be sent at this moment; ask again soon") from None
                continue  # retention removed it meanwhile: look again
            if lull is not None:  # with the times aborted at its start: the frontier may have passed some since
                state = replace(state, aborted=lull.since.aborted, below=lull.since.below)
            if not reachable:
                seq = start.seq if isinstance(start, Position) else history.first
                raise EventsTruncated(seq, self.position, state.lower)
            return state

    def _locate(self, start: StartPlace) -> tuple[int, bool, Lull | None]:
        """Where to begin: (seq, whether no event before it was missed, the lull that ends there, if one was passed).

        If the requested position is gone, this is the first retained one.
        """
        publisher, published = self.served.publisher, self.served.published_seq
        history = publisher.history
        first, lull = min(history.first, published), history.lull
        if lull is not None and not lull.since.seq < lull.seq == first:
            lull = None
        if not isinstance(start, Position):
            return (published, True, None) if start is NamedPlace.NOW else (first, True, lull)
        incarnation, seq = start
        if incarnation == PRESENT:
            incarnation = publisher.incarnation
        if incarnation > publisher.incarnation or (incarnation == publisher.incarnation and seq > published):
            here = f"{publisher.incarnation}.{published}"
            wrong = Problem("since", f"is ahead of this segment, which is at {here}", "use a position it gave")
            raise InvalidRequest("there is no such position", [wrong])
        survived = history.survived(Position(incarnation, seq))
        if survived is None or seq < history.first:
            passed = lull if survived is not None and lull is not None and lull.since.seq <= survived else None
            return first, passed is not None, passed
        return min(survived, published), True, None  # what came later did not survive (E10 durability)

    async def _state(self) -> SegmentState:
        history, store, at = self.served.publisher.history, self.served.store, self.at
        if at >= history.truncated_at:
            return SegmentState.of(at, history.state_at(at))
        if store is None:
            raise HistoryTruncated(f"events after {at} are gone")
        return await self._publisher.read(lambda: store.state_at(FindState(b"", 0, at)))

    # ---- what comes after ----

    async def next(self, max_events: int, max_bytes: int) -> Sequence[Event]:
        """The next events, at least one if there is any, all carried out (E9). Raises `EventsTruncated`, `LogError`."""
        served, at = self.served, self.at
        history, store = served.publisher.history, served.store
        count = min(max_events, served.published_seq - at)
        if count <= 0:
            return ()
        try:
            if at >= history.truncated_at:
                events = history.batch(at, count, max_bytes)
            elif store is None:
                raise HistoryTruncated(f"events after {at} are gone")
            else:
                events = await self._publisher.read(lambda: store.events(at, count, max_bytes))
        except HistoryTruncated:
            await self.open(Position(PRESENT, at))  # raises an error with the first position that can be read
            raise PassedLull(f"events after {at} are gone, which were progress alone; ask again") from None
        self.at += len(events)
        return events

    async def news(self, seconds: float | None) -> bool:
        """Wait at most `seconds` for an event after `at`, or until none can follow; returns whether either came true.

        Raises `ShuttingDown`.
        """
        served = self.served
        served.listeners.add(self._news)
        try:
            async with asyncio.timeout(seconds):
                while served.published_seq <= self.at and not self.complete:
                    if self._publisher.http_closing:
                        raise ShuttingDown("this publisher is stopping; ask again in a moment")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        finally:
            served.listeners.discard(self._news)
        return True

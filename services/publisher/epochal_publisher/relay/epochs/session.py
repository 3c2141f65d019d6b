"""One reader of whole epochs: the shell of its `RingReader`, which opens and closes a subscription of its own."""

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from epochal.errors import CursorError, Problem, TimeShapeError, UsageError
from epochal.protocol.epochs.reader import ReaderStep, RingReader
from epochal.protocol.epochs.ring import EpochRing
from epochal.protocol.subscriber.cursor import Cursor
from epochal.service.errors import InvalidRequest
from epochal_publisher.http.reader_places import ReaderPlaces
from epochal_publisher.relay.epochs.encoding import Outcome
from epochal_publisher.relay.epochs.feeds import Feed, Feeds, in_time
from epochal_publisher.relay.epochs.question import Question
from epochal_publisher.relay.epochs.source import Source


class Session:
    """Reads `feed`, whose ring is `ring`, while the context is entered.

    `places` bounds the subscriptions of readers that catch up, in all and for each `address`.
    """

    def __init__(
        self, feeds: Feeds, feed: Feed, ring: EpochRing[Outcome], question: Question, places: ReaderPlaces, address: str
    ) -> None:
        self._feeds = feeds
        self._feed = feed
        self._places = places
        self._address = address
        self._field = question.field
        self._reader = RingReader(ring, question.since, question.text)
        self._own: tuple[Source, AsyncExitStack] | None = None
        self.over = False
        """Whether the reader has all outcomes and the stream is complete."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own is not None:
            await self._own[1].__aexit__(kind, error, trace)

    @property
    def alone(self) -> bool:
        """Whether the reader reads a subscription of its own."""
        return self._reader.alone

    @property
    def current(self) -> bool:
        """Whether the reader has all that is complete now."""
        return self._reader.current and (self._own is not None or not self.alone)

    @property
    def overtaken(self) -> bool:
        """Whether the ring has dropped the outcome that the reader got last."""
        return self._reader.overtaken

    @property
    def cursor(self) -> Cursor:
        """The reader's cursor. While it is alone, there is none before all segments have answered its subscription."""
        since = self._reader.since
        return since if isinstance(since, Cursor) else self._source.cursor()

    @property
    def _source(self) -> Source:
        assert self._own is not None, "the reader is alone"
        return self._own[0]

    async def next(self, seconds: float) -> Outcome | None:
        """The next outcome, or None; waits for at most so long, and longer while there is history to read.

        Raises `InvalidRequest` for a cursor of another stream, and the error that has ended the subscription.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while True:
            self._feeds.check_open()
            left = until - clock()
            step = self._reader.step()
            if step is ReaderStep.ALONE:
                outcome = await self._alone(max(left, 0))
                if outcome is not None or (self.alone and (self.over or self.current or left <= 0)):
                    return outcome
                if not self.alone:
                    until = clock()  # it has all of history; the caller decides how long to wait for more
                continue
            if self._own is not None:
                await self._leave()
                continue  # the ring may have dropped meanwhile what the reader was to take
            if step is ReaderStep.TAKE:
                return self._reader.take()
            self.over = step is ReaderStep.END
            if self.over:
                return None
            if self._feed.error is not None:
                raise self._feed.error
            if left <= 0:
                return None
            await self._feed.news(left)
            if self._reader.step() is ReaderStep.WAIT:
                return None

    async def _alone(self, seconds: float) -> Outcome | None:
        """The next outcome of the reader's own subscription; None if there is none in time, or it follows the ring."""
        source = self._own[0] if self._own is not None else await self._open()
        source.sending = 0
        if not source.has_gap:
            await source.fetch(min(seconds, self._feeds.settings.frontier_interval))
        step = self._reader.look(source.cursor(), gap=source.has_gap, item=source.has_item, complete=source.complete)
        if step is ReaderStep.GAP:
            return source.gap()
        if step is ReaderStep.TAKE:
            outcome, after = await source.take()
            source.sending = outcome.size
            self._reader.took(after)
            return outcome
        self.over = step is ReaderStep.END
        return None

    async def _open(self) -> Source:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._places.take(self._address))
            opened = self._feeds.source(self._feed.topics, self._reader.since)
            async with in_time(self._feeds.settings.join_timeout):
                try:
                    source = await stack.enter_async_context(opened)
                except (CursorError, TimeShapeError, UsageError) as error:
                    wrong = [Problem(self._field, str(error))]
                    raise InvalidRequest("the epochs cannot be read from there", wrong) from None
                await source.ready()
            self._own = source, stack.pop_all()
            return source

    async def _leave(self) -> None:
        if self._own is not None:
            (_, stack), self._own = self._own, None
            await stack.aclose()

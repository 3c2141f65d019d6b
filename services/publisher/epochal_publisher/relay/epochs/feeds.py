"""The subscriptions that readers share: one for each filter, while it has readers and for some time afterwards."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from epochal.errors import EpochalError, TimedOut, Unavailable
from epochal.protocol.epochs.reader import Since
from epochal.protocol.epochs.ring import EpochRing, EpochRings
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter
from epochal.service.errors import Overloaded, ShuttingDown
from epochal.transport.shutdown import ended
from epochal_publisher.relay.epochs.encoding import EpochEncoder, Outcome
from epochal_publisher.relay.epochs.errors import TooManyFilters
from epochal_publisher.relay.epochs.memory import SubscriptionMemory
from epochal_publisher.relay.epochs.settings import RelayHttpSettings
from epochal_publisher.relay.epochs.source import OpenSubscription, Source

_log = logging.getLogger("epochal.relay")


@asynccontextmanager
async def in_time(seconds: float) -> AsyncIterator[None]:
    """Raise `TimedOut` if the segments of the stream do not answer within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimedOut(f"not all segments of the stream have answered within {seconds:g} s; try again") from None


class Feed:
    """The outcomes of one filter from now on, in a ring that a task fills."""

    def __init__(self, feeds: "Feeds", topics: TopicFilter) -> None:
        self.topics = topics
        self.readers: Counter[str] = Counter()
        """How many answers each address has under way; addresses with none are not in it."""
        self.last_reader = ""
        """The address whose answer was the last one to end."""
        self.ring: EpochRing[Outcome] | None = None
        """None until all segments have answered."""
        self.error: EpochalError | None = None
        """Why the feed has ended."""
        self.task = asyncio.create_task(self._run(), name=f"feed {topics!r:.80}")
        self.ends: asyncio.TimerHandle | None = None
        """The timer that ends the feed, while it has no readers."""
        self._feeds = feeds
        self._changed = asyncio.Event()

    def counts_for(self, address: str) -> bool:
        """Whether `address` reads it, or was its last reader where it has none now."""
        return address in self.readers if self.readers else address == self.last_reader

    async def begun(self) -> EpochRing[Outcome]:
        """The ring, once there is one. Raises the feed's error, `TimedOut`, or `ShuttingDown`."""
        async with in_time(self._feeds.settings.join_timeout):
            while self.ring is None:
                if self.error is not None:
                    raise self.error
                self._feeds.check_open()
                await self._changed.wait()
        return self.ring

    async def news(self, seconds: float) -> None:
        """Wait for anything new, for at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def wake(self) -> None:
        """End all waits for news."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self) -> None:
        try:
            async with self._feeds.source(self.topics, None) as source:
                await source.ready()
                self.ring = self._feeds.rings.open(source.cursor())
                self.wake()
                await self._follow(source, self.ring)
        except EpochalError as error:
            self.error = error
        except Exception:
            _log.exception("%s failed", self.task.get_name())
            self.error = Unavailable("the relay failed on this filter; its log says how")
        if self.error is not None:
            self._feeds.failed(self)
        self.wake()

    async def _follow(self, source: Source, ring: EpochRing[Outcome]) -> None:
        rings = self._feeds.rings
        while not ring.complete:
            await source.fetch(self._feeds.settings.frontier_interval)
            gaps = list[Outcome]()
            while source.has_gap:
                gaps.append(source.gap())
            new = rings.move(ring, source.cursor(), [(gap, gap.size) for gap in gaps])
            if source.has_item:
                outcome, after = await source.take()
                rings.append(ring, outcome, outcome.size, after)
                new = True
            ring.complete = source.complete
            if new or ring.complete:
                self.wake()


class Feeds:
    """All feeds of a relay; `open_subscription` subscribes to its stream."""

    def __init__(self, settings: RelayHttpSettings, encoding: str, open_subscription: OpenSubscription) -> None:
        self.settings = settings
        self.rings = EpochRings[Outcome](settings.ring_bytes)
        self.memory = SubscriptionMemory(
            settings.subscription_bytes,
            settings.max_feeds + settings.max_catch_ups,
            settings.variable("subscription_bytes"),
        )
        self.closing = False
        self._encoder = EpochEncoder(encoding)
        self._one_at_a_time = asyncio.Lock()
        self._open = open_subscription
        self._feeds: dict[TopicFilter, Feed] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many filters are followed."""
        return len(self._feeds)

    @asynccontextmanager
    async def source(self, topics: TopicFilter, since: Since | None) -> AsyncIterator[Source]:
        """A new subscription to `topics` from `since` on. Raises `CursorError` and others for a wrong `since`."""
        wanted, rejected = topics.prefixes
        subscription = self._open(None if topics == EVERYTHING else wanted, rejected, since)
        source = Source(subscription, self._encoder, self._one_at_a_time)
        if since is not None:
            # Pushes to a reader that does not read would wait in ZeroMQ's queue, which `memory` does not count.
            subscription.push(False)
        subscription.share_memory(self.memory.share, lambda: self.memory.check(source))
        async with subscription:
            with self.memory.used_by(source):
                yield source

    def check_open(self) -> None:
        """Raise `ShuttingDown` if the process is stopping."""
        if self.closing:
            raise ShuttingDown("this relay is stopping; ask again in a moment")

    @asynccontextmanager
    async def followed(self, topics: TopicFilter, address: str) -> AsyncIterator[Feed]:
        """The feed of a filter while `address` reads it. Raises `TooManyFilters` and `Overloaded`."""
        self.check_open()
        feed = self._feeds.get(topics)
        if feed is None or not feed.counts_for(address):
            self._make_room_of(address)
        if feed is None:
            feed = self._begin(topics)
        feed.readers[address] += 1
        if feed.ends is not None:
            feed.ends.cancel()
            feed.ends = None
        try:
            yield feed
        finally:
            feed.readers -= Counter((address,))
            if not feed.readers:
                feed.last_reader = address
                self._left(feed)

    def failed(self, feed: Feed) -> None:
        """Readers that are there keep the feed's outcomes; new readers get another feed."""
        if self._feeds.get(feed.topics) is feed:
            del self._feeds[feed.topics]

    async def close(self) -> None:
        """End all feeds, and all waits for them."""
        self.closing = True
        for feed in [*self._feeds.values()]:
            feed.wake()
            self._end(feed)
        await ended(self._tasks)

    def _make_room_of(self, address: str) -> None:
        """Let `address` read one more filter, by ending one of its feeds without readers if it has too many."""
        own = [feed for feed in self._feeds.values() if feed.counts_for(address)]
        if len(own) >= self.settings.max_feeds_per_address and not self._end_unread(own):
            raise TooManyFilters(
                f"{address} reads {len(own)} different filters already, as many as one address may "
                f"({self.settings.variable('max_feeds_per_address')}); take one of these, or try again later"
            )

    def _begin(self, topics: TopicFilter) -> Feed:
        if len(self._feeds) >= self.settings.max_feeds and not self._end_unread(self._feeds.values()):
            raise Overloaded(
                f"{len(self._feeds)} different filters are read already "
                f"({self.settings.variable('max_feeds')}); take one of these, or try again later"
            )
        feed = self._feeds[topics] = Feed(self, topics)
        self._tasks.add(feed.task)
        feed.task.add_done_callback(self._tasks.discard)
        return feed

    def _end_unread(self, feeds: Iterable[Feed]) -> bool:
        """End the first of these that has no readers; returns whether there was one."""
        unread = next((feed for feed in feeds if not feed.readers), None)
        if unread is not None:
            self._end(unread)
        return unread is not None

    def _left(self, feed: Feed) -> None:
        """The last reader has left."""
        if self._feeds.get(feed.topics) is not feed:  # it has ended, and was kept for its last readers
            self._end(feed)
        elif not self.closing:
            del self._feeds[feed.topics]  # moved to the end, because the feed without readers for longest goes first
            self._feeds[feed.topics] = feed
            loop = asyncio.get_running_loop()
            feed.ends = loop.call_later(self.settings.feed_timeout, self._end, feed)

    def _end(self, feed: Feed) -> None:
        self.failed(feed)
        if feed.ends is not None:
            feed.ends.cancel()
        feed.task.cancel()
        if feed.ring is not None:
            self.rings.close(feed.ring)

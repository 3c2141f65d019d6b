"""One segment as this process serves it: its two machines, its channels, and what was published and reported of it.

An instance is of one incarnation; the next owner of the segment makes its own.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epochal.catalog_api.answers import SegmentGrant, StreamInfo
from epochal.catalog_api.requests import MAX_CHANNELS, MAX_FILTER_TEXT, ReportedChannel, ReportedHolder, SegmentReport
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.committed_view import CommittedView
from epochal.protocol.publisher.effects import PublisherEffect as Effect
from epochal.protocol.publisher.effects import Push
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SegmentServer, ServingSettings
from epochal.protocol.publisher.views import ViewMemory, Views
from epochal.protocol.times import Time, to_json
from epochal_publisher.counters import SegmentCounters
from epochal_publisher.segments.store import SegmentStore
from epochal_publisher.settings import Settings

CHANNELS_FOR = 1.0
"""Seconds for which the list of channels is reused: streams without storage report more often than it changes."""


@dataclass(slots=True)
class HostedSegment:
    """A segment that is served; `frontier_since`: when its lower frontier last moved, in monotonic seconds."""

    publisher: SegmentPublisher
    server: SegmentServer
    channels: Channels
    frontier_since: float
    store: SegmentStore | None
    """Its log on disk; None for a stream that is kept in memory."""
    published_lower: tuple[Time, ...]
    """The lower frontier after the effects that were carried out: the one that may be reported (E9)."""
    published_seq: int
    """The last event whose effects were carried out. Readers are served up to it (E9)."""
    committed_view: CommittedView | None
    """The view that answers subscribers while a commit is on its way to the disk; None without a disk."""
    asks: bool = False
    """Whether it must be reported to the catalog before the next regular renewal."""
    recorded_number: int = -1
    """The last record that the catalog has answered."""
    waiting_since: float | None = None
    """Since when appends have waited without any record by the catalog; None if none waits."""
    listeners: set[asyncio.Event] = field(default_factory=set)
    """Events that are set when `published_seq` moves, and at the end."""
    counters: SegmentCounters = field(default_factory=SegmentCounters)
    _frontier: object = None
    _channels: Sequence[ReportedChannel] = ()
    _channels_at: float = float("-inf")
    """When `_channels` was made, in monotonic seconds."""

    @classmethod
    def start(
        cls,
        stream: StreamInfo,
        grant: SegmentGrant,
        sessions: Mapping[str, int],
        settings: Settings,
        store: SegmentStore | None,
        view_memory: ViewMemory,
        now: float,
    ) -> "HostedSegment":
        """Begin an incarnation where the log on disk ends, or where the catalog's record ends (E11 horizon).

        `sessions`: the newest session of each writer that had more than one. With a log, `store.commit` must be
        written first. Raises `LogError`.
        """
        spec = stream.declared().spec
        kept = spec.history.retention
        limits = PublisherSettings(
            shape=spec.time.shape,
            min_writers=spec.progress.min_writers,
            writer_timeout=spec.progress.writer_timeout,
            hold_lost=spec.progress.when_lost == "hold",
            stall=settings.stall,
            window=settings.window,
            max_payload=settings.max_payload,
            retention_bytes=kept.bytes if kept.mode == "keep" else 0,
            retention_age=kept.time_seconds,
            memory_bytes=settings.log_memory if store is not None else None,
            durable=store is not None,
        )
        if store is not None:
            store.check(grant.id, grant.lower)
        publisher = SegmentPublisher(
            stream.uid, grant.id, limits, incarnation=grant.incarnation, now=now, lower=grant.lower,
            horizon=grant.horizon, known_writers=grant.writers, sessions=sessions, complete=grant.complete,
            finishing=any(segment.id == grant.id and segment.finishing for segment in stream.segments),
            marks=grant.marks, restored=None if store is None else store.restored,
        )  # fmt: skip
        if store is not None and not publisher.gathering:
            store.begin(grant.incarnation, publisher)
        # Each incarnation has new tokens, so that no old event can be taken for a new one.
        at = publisher.seq if store is None else store.log.durable
        channels = Channels(lambda: secrets.token_bytes(8), most=settings.max_channels, last=at)
        view = None if store is None else CommittedView(publisher, store.log.durable)
        serving = ServingSettings(heartbeat=spec.push.heartbeat)
        views = Views(serving.view_ttl, view_memory)
        server = SegmentServer(view or publisher, channels, serving, now, views=views)
        lower = tuple(publisher.progress.lower.frontier)
        return cls(publisher, server, channels, now, store, lower, at, view)

    def tick(self, now: float, *, reads: bool = True) -> None:
        """Let time pass for both machines. While writers are not read, none of them counts as silent (E8)."""
        if reads:
            self.publisher.tick(now)
        self.server.tick(now)
        if not self.publisher.waiting_bytes:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = now
        frontier = self.publisher.progress.lower.frontier
        if frontier is not self._frontier:
            self._frontier = frontier
            self.frontier_since = now

    def recorded(self, number: int, now: float) -> None:
        """The catalog has stored record `number`, and none after it (E11 horizon)."""
        if number != self.recorded_number:
            self.recorded_number = number
            self.waiting_since = None
        self.publisher.recorded(number, now)

    def carried_out(self, effects: Sequence[Effect]) -> None:
        """`effects` are about to be carried out; the last event or heartbeat among them gives `published_seq`."""
        for effect in reversed(effects):
            if type(effect) is Push:
                moved, self.published_seq = effect.message.seq > self.published_seq, effect.message.seq
                if self.committed_view is not None:
                    self.committed_view.seq = self.published_seq
                if moved:
                    self.wake()
                return

    def wake(self) -> None:
        """Wake all listeners."""
        for listener in self.listeners:
            listener.set()

    def reported_channels(self, now: float, most: int) -> Sequence[ReportedChannel]:
        """At most `most` channels with subscribers, those that carry most first; the list is at most a second old."""
        if now - self._channels_at >= CHANNELS_FOR:
            self._channels_at, self._channels = now, self._report_channels(most)
        return self._channels

    def _report_channels(self, most: int) -> list[ReportedChannel]:
        joined = self.server.subscriptions.values()
        subscribers = Counter(each.channel.token for each in joined)
        coarse = Counter(each.channel.token for each in joined if each.coarse)
        found = [
            ReportedChannel(
                channel.filter.text(MAX_FILTER_TEXT),
                subscribers[channel.token],
                round(self.channels.share(channel), 4),
                coarse[channel.token],
            )
            for channel in self.channels
            if subscribers[channel.token]
        ]
        return sorted(found, key=lambda each: (-each.share, -each.subscribers, each.filter))[:most]

    def report(self, now: float, *, final: bool = False, most_channels: int = MAX_CHANNELS) -> SegmentReport:
        """The report for the catalog in a renewal, with at most `most_channels` channels.

        `final`: the last report of a publisher that stops in order.
        """
        publisher, counters = self.publisher, self.counters
        record = publisher.record(final=final)
        lower = self.published_lower if record is None or self.store is not None else record.lower
        return SegmentReport(
            incarnation=publisher.incarnation,
            lower=[to_json(time) for time in lower],
            number=None if record is None else record.number,
            horizon=None if record is None else [to_json(time) for time in record.horizon],
            final=final and record is not None,
            marks=[] if record is None else [*record.marks],
            below=[to_json(time) for time in publisher.progress.below],
            writers=publisher.writers,
            holders=[ReportedHolder.of(holder) for holder in publisher.holders(now)],
            channels=list(self.reported_channels(now, most_channels)),
            counters={
                "events": publisher.seq + 1,
                "appends": counters.appends,
                "records": publisher.records,
                "pushed_bytes": counters.pushed_bytes,
                "subscribers": len(self.server.subscriptions),
                "channels": len(self.channels),
                "coarse": self.server.coarse,
                "history_bytes": publisher.history.bytes,
                "open_epochs": publisher.progress.upper.count,
                "waiting_bytes": publisher.waiting_bytes,
                "waiting_seconds": 0.0 if self.waiting_since is None else now - self.waiting_since,
                **({} if self.store is None else self.store.full_counters),
            },
        )

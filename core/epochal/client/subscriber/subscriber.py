"""`client.subscribe(...)`: sockets and tasks around the subscriber's machines.

The machines decide what is delivered. Here connections are made, bytes become messages, and the application is woken
up.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import zmq

from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import Directory
from epochal.client.catalog.relay_choice import Via
from epochal.client.catalog.routes import ListRelays, Routes
from epochal.client.encoding.encodings import decoder
from epochal.client.options import NOTHING, Expected
from epochal.client.subscriber import values
from epochal.client.subscriber.delivery import OVER, Hand, Hands, Reading
from epochal.client.subscriber.lease import Announcement, SubscriptionReport
from epochal.client.subscriber.segment_reader import SegmentReader
from epochal.client.subscriber.wanted_prefixes import WantedPrefixes
from epochal.errors import EpochalError, HistoryTruncated, UsageError
from epochal.protocol import messages as m
from epochal.protocol.subscriber import effects
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.subscriber.effects import Began, Broke, Reached, Rejoined
from epochal.protocol.subscriber.follower import FollowerSettings
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.subscriber.received import Received
from epochal.protocol.subscriber.since import From, placed, read_since
from epochal.protocol.time_codec import TimeCodec
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter
from epochal.transport.shutdown import background, ended, to_the_end

REMEMBERED_GAPS = 1_000
"""Gaps that a reader of epochs has not asked for yet; of more, the newest."""

MAX_WAITING_BYTES = 64 * 2**20
"""Bytes that wait for the application before the sockets are no longer read.

They are read again when less than half of it waits (E18).
"""

StartFrom: TypeAlias = str | Cursor | None
"""Where to begin: None is live; the texts are `epochal.protocol.subscriber.since.FORMS`."""


class _Memory(NamedTuple):
    """Bytes that a subscription may hold: in all, and of what waits for the program. `check` raises when it is over."""

    max_buffer: int
    max_waiting: int
    check: Callable[[], None] | None = None


class Subscription:
    """One subscription to one stream; made by `client.subscribe`, used as an async context manager.

    Reads with `epochs()` or with `events()`, one of them. `ready`, an `asyncio.Event`, is set once the snapshots of all
    segments are in (S17), or when the subscription is over. Entering raises `StreamNotFound`, `NoPublisher`,
    `SchemaMismatch` (S28), `CatalogUnavailable`, and `CursorError`, `TimeShapeError` or `UsageError` where `since` is
    not of this stream. Leaving closes all sockets, also when it is cancelled.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        directory: Directory,
        list_relays: ListRelays | None,
        *,
        since: StartFrom = None,
        topics: Iterable[bytes] | None = None,
        reject: Iterable[bytes] = (),
        partial: bool = False,
        time_codec: TimeCodec[Any] | None = None,
        expected: Expected = NOTHING,
        max_buffer_bytes: int = 256 * 2**20,
        settings: FollowerSettings | None = None,
        push: bool = True,
        poll: float | None = None,
        via: Via | str = "auto",
        announce: tuple[CatalogClient, str] | None = None,
    ) -> None:
        if poll is not None and not poll > 0:
            raise UsageError(f"poll is the seconds between two pulls, above 0, not {poll!r}")
        self.context = context
        self.directory = directory
        self.routes = Routes(directory, list_relays, Via.parse(via))
        self._since = read_since(since)
        self._prefixes = WantedPrefixes(topics, reject)
        self._partial = partial
        self._memory = _Memory(max_buffer_bytes, MAX_WAITING_BYTES)
        self._expected = expected
        self._announce = announce
        self._announcement: Announcement | None = None
        self._counters = dict.fromkeys(("gaps", "healed", "epochs", "aborted"), 0)
        self._began: set[str] = set()
        self._gaps: deque[values.Gap] = deque(maxlen=REMEMBERED_GAPS)
        self._decode_time: Callable[[Time], Any] = (lambda time: time) if time_codec is None else time_codec.decode
        self._encode_time: Callable[[Any], Time] = (lambda time: time) if time_codec is None else time_codec.encode
        settings = settings or FollowerSettings()
        self.follower_settings = settings if poll is None else replace(settings, poll=poll)
        self.pushes = push
        self.relay: str | None = None
        """No relay is fed."""
        self._links: list[SegmentReader] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._error: EpochalError | None = None
        self._changed = asyncio.Event()
        self._paused = False
        self._caught_up = 0.0
        """When something came last while nothing waited for the program; the loop's clock, seconds."""
        self._reads = ""
        self._hands = Hands[Any](self._passed)
        self.ready = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Look the stream up and begin to follow its segments; returns before they have answered (see `ready`)."""
        info = await self.routes.look_up(self._expected)
        segments = self.directory.segments
        beginning = placed(self._since, info.uid, self.directory.shape, segments)
        self._decode = decoder(self.directory.encoding)
        self._machine = SubscriberMachine(
            info.uid,
            self.directory.shape,
            segments,
            partial=self._partial,
            max_buffer_bytes=self._memory.max_buffer,
            cursor=beginning.cursor,
            wanted=beginning.wanted,
            topics=self._prefixes.filter,
        )
        self._links = [SegmentReader(self, segment, beginning.places[segment]) for segment in segments]
        self._tasks = [
            background(
                link.run(), f"the subscription to {info.qualified}", self.fail,
                name=f"follow {info.qualified}/{link.segment}",
            )
            for link in self._links
        ]  # fmt: skip
        if self._announce is not None:
            catalog, subscriber = self._announce
            self._announcement = Announcement(catalog, info, subscriber, self._report)
            self._tasks.append(asyncio.create_task(self._announcement.run(), name=f"announce {info.qualified}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave; sockets and tasks are gone when this returns."""
        self.fail(UsageError("the subscription was left; open a new one"))
        await to_the_end(self._end())

    def share_memory(self, share: int, check: Callable[[], None]) -> None:
        """Hold few bytes, because there are others in this process; call this before it is entered.

        `share`: bytes that may wait for the program, and of live events while history is read. `check` is called after
        each change of `held_bytes`, in place of `max_buffer_bytes`, and raises why the subscription is over.
        """
        self._memory = _Memory(sys.maxsize, share, check)
        self.follower_settings = replace(self.follower_settings, max_backlog=share)

    @property
    def held_bytes(self) -> int:
        """Bytes of epochs that are not complete, or wait for the program, once it is entered."""
        return self._machine.held_bytes

    async def _abandon(self) -> None:
        """Leave, if the subscription is still open: its client is being closed."""
        if any(not task.done() for task in self._tasks):
            await self.__aexit__(None, None, None)

    async def _end(self) -> None:
        await ended(self._tasks)
        if self._announcement is not None:
            await self._announcement.withdraw()

    # ---- what the application reads ----

    def epochs(self) -> Reading[values.Epoch | values.EpochAborted]:
        """Complete and aborted epochs, each once, in a linear extension of time, as an asynchronous iterator.

        Ends when the stream is complete (E18). A read that is cancelled or times out loses nothing: the cursor has not
        passed what it did not return, and the next read returns that (E16).

        A read raises `EpochTooLarge` when epochs that are not complete exceed `max_buffer_bytes`, `HistoryTruncated`
        when `since` is older than the history, or "start" and of a complete stream no epoch is whole, `StreamGone` when
        the stream is deleted, and `UsageError` with `partial` or where `events()` is read already.
        """
        return Reading(self._take_epoch, self._more, self._changed.set)

    def _take_epoch(self, hand: Hand[values.Epoch | values.EpochAborted]) -> bool:
        """Put the next epoch into the hand, or the end; False when there is neither yet."""
        if self._reads != "epochs":
            if self._partial:
                raise UsageError("partial=True delivers what arrives, so there are no whole epochs; read events()")
            self._begin_to_read("epochs", SubscriberMachine.only_epochs)
        epoch = self._hands.take(hand, self._machine.hand_out_epoch)
        if epoch is None:
            return self._at_the_end(hand)
        if self._paused:
            self._relieve()
        hand.item = self._public_epoch(epoch)
        return True

    def events(self) -> Reading[values.Event]:
        """Everything as it comes, in each segment's order (S16), as an asynchronous iterator.

        `Data` before its epoch is complete, `FrontierChanged` with and without data, `EpochAborted`, `Gap`, `Rewound`,
        `SegmentDown` and `SegmentUp`. Without `partial`, epochs that had begun before the join are left out (S10).
        Ends when the stream is complete. A read that is cancelled loses nothing, as with `epochs()`.

        A read raises `HistoryTruncated` as `epochs()` does, but not with `partial` of a complete stream; `StreamGone`
        when the stream is deleted, and `UsageError` where `epochs()` is read already.
        """
        return Reading(self._take_event, self._more, self._changed.set)

    def _take_event(self, hand: Hand[values.Event]) -> bool:
        if self._reads != "events":
            self._begin_to_read("events", SubscriberMachine.only_events)
        event = self._hands.take(hand, self._machine.hand_out_event)
        if event is None:
            return self._at_the_end(hand)
        if self._paused:
            self._relieve()
        hand.item = self._public_event(event)
        return True

    def _begin_to_read(self, method: str, only: Callable[[SubscriberMachine], None]) -> None:
        self._check_entered()
        if self._reads:
            raise UsageError(f"this subscription is read by {self._reads}(); open another one to read {method}()")
        self._reads = method
        only(self._machine)
        if self._paused:
            self._relieve()

    def _passed(self, taken: Any) -> None:
        """The application has the item: the cursor moves past it (E16)."""
        if self._reads == "events":
            self._machine.pass_event(taken)
        else:
            self._machine.pass_epoch(taken)
            if type(taken) is effects.EpochBatches:
                self._counters["epochs"] += 1
        if type(taken) is effects.EpochWasAborted:
            self._counters["aborted"] += 1

    def gaps(self) -> tuple[values.Gap, ...]:
        """The events lost for good since the last call, for readers of `epochs()`, which shows only aborts (E17)."""
        gaps = tuple(self._gaps)
        self._gaps.clear()
        return gaps

    def frontier(self) -> tuple[Any, ...]:
        """The merged lower frontier.

        Every time that can still arrive is at or after one of these; empty when complete.

        Before `ready` is set there is none: raises `UsageError`, or why the subscription failed before that.
        """
        self._check_ready()
        return tuple(map(self._decode_time, self._machine.frontier))

    def cursor(self) -> Cursor:
        """Where to resume: everything that no read has returned yet comes again, whole (E16).

        Before `ready` is set there is none, except the cursor that the subscription resumes from: raises `UsageError`,
        or why the subscription failed before that.
        """
        if isinstance(self._since, Cursor) and not (self._links and self._machine.ready):
            return self._since
        self._check_ready()
        self._hands.settle()
        return self._machine.cursor()

    # ---- topics ----

    @property
    def topics(self) -> TopicFilter | None:
        """The wanted topics; None for all."""
        return self._machine.topics if self._links else self._prefixes.filter

    @property
    def whole_filter(self) -> bool:
        """Whether publishers get the filter when a connection joins; else they push everything."""
        return self.directory.declared.push.initial_filter == "none"

    async def change(self, *, topics: Iterable[bytes] | None = None, reject: Iterable[bytes] = ()) -> tuple[Any, ...]:
        """Want other topics from now on; both parameters are as in `subscribe`, and replace what was wanted before.

        Topics that are no longer wanted leave all epochs that no read has returned. New ones are in every epoch that
        has begun at no segment when its publisher answered, so none has only a part of them (F8); an epoch that is
        complete before that is delivered without them. Returns the frontier from which epochs have all topics, once
        every publisher has answered; that can be cancelled, and the change still happens.

        Raises `UsageError` for what is no list of prefixes as bytes of at most 1,024 each, and before the subscription
        is opened; and why the subscription is over.
        """
        self._check_entered()
        self._check_open()
        self._prefixes = WantedPrefixes(topics, reject)
        self._apply_topics()
        while self._machine.widening or not self._machine.ready:
            self._check_open()
            if self._paused:
                self._go_on()  # the answer comes after what was not read yet
            await self._more()
        return tuple(map(self._decode_time, self._machine.whole_from()))

    def add_topic(self, prefix: bytes) -> None:
        """Want topics with this prefix too, as by `change`, without waiting; `drop_topic` undoes one call.

        Raises `UsageError` for what is no prefix, and why the subscription is over.
        """
        self._check_open()
        if self._prefixes.add(prefix):
            self._apply_topics()

    def drop_topic(self, prefix: bytes) -> None:
        """Take back one `add_topic`, or one of `topics`; with the last one the prefix is no longer wanted (N20).

        Raises `UsageError` for a prefix that is not wanted, and why the subscription is over.
        """
        self._check_open()
        if self._prefixes.drop(prefix):
            self._apply_topics()

    def _apply_topics(self) -> None:
        wanted = self._prefixes.filter
        if not self._links or wanted == self._machine.topics:
            return  # not opened yet, or nothing new
        widens = self._machine.change(wanted)
        for link in self._links:
            link.want(wanted, widens=widens)
        if self._paused:
            self._relieve()
        self._changed.set()

    def push(self, on: bool) -> None:
        """Have events pushed from now on, or only pull them, every `poll` seconds (Q15).

        No event is lost or repeated by the change, and it can be called at any time.
        """
        self.pushes = on
        for link in self._links:
            link.follow_pushes(on)

    @property
    def via(self) -> dict[str, str]:
        """Segment -> the way on which it is read, `direct` or `relay:NAME`, of the segments that have a connection."""
        return {} if self._error is not None else self.routes.via

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_entered(self) -> None:
        if not self._links:
            raise self._error or UsageError("open the subscription first: async with client.subscribe(...) as sub")

    def _check_ready(self) -> None:
        self._check_entered()
        if not self._machine.ready:
            raise self._error or UsageError("the subscription has no position yet: await sub.ready.wait() first")

    def saw_whole(self, time: Any) -> bool:
        """Whether epoch `time` is complete and was seen whole, so that no data means that there was none (E18).

        Raises `UsageError` before the subscription is opened.
        """
        self._check_entered()
        return self._machine.saw_whole(self._encode_time(time))

    def _at_the_end(self, hand: Hand[Any]) -> bool:
        """Whether the stream is complete, so that nothing follows; raises why the subscription is over."""
        if self._machine.complete:
            if self._since is From.START and self._machine.nothing_whole:
                raise HistoryTruncated(
                    f"{self.directory.qualified} is complete, and none of its epochs is retained whole; a stream"
                    " without history.storage forgets its records when its publisher ends"
                )
            hand.state = OVER
            return True
        if self._error is not None:
            raise self._error
        return False

    async def _more(self) -> None:
        """Wait for something new."""
        self._changed.clear()
        await self._changed.wait()

    def _relieve(self) -> None:
        if self._machine.waiting_bytes < self._memory.max_waiting // 2:
            self._go_on()

    def _go_on(self) -> None:
        self._paused = False
        for link in self._links:
            link.resume()

    # ---- what the segment readers report ----

    def take_reports(self, segment: str, reports: Sequence[effects.FollowerReport]) -> None:
        """Hand a follower's reports to the machine, and wake the application."""
        machine = self._machine
        if self._error is not None:
            return  # the machine stays as it was at the error, for `cursor()`
        if not machine.waits:
            self._caught_up = asyncio.get_running_loop().time()
        for report in reports:
            if type(report) is Reached:
                machine.reached(segment, report.seq)
            elif type(report) is Began:
                self._count_beginning(segment, report)
                machine.began(segment, report)
            elif type(report) is Rejoined:
                machine.rejoined(segment, report)
            elif type(report) is not Broke:
                machine.event(segment, report)  # type: ignore[arg-type]  # what is left are events, and `Moved`
        if self._memory.check is not None:
            self._memory.check()
        if machine.ready and not self.ready.is_set():
            self.ready.set()
        if machine.waiting_bytes > self._memory.max_waiting and not self._paused:
            self._paused = True
            for link in self._links:
                link.pause()
        self._changed.set()

    def _count_beginning(self, segment: str, began: Began) -> None:
        if began.gap:
            self._counters["gaps"] += 1
            below = tuple(map(self._decode_time, began.state.below))
            self._gaps.append(values.Gap(segment, began.incarnation, began.state.seq, below))
        elif segment in self._began:
            self._counters["healed"] += 1  # joined again, with nothing lost between
        self._began.add(segment)

    def down(self, segment: str, reason: str) -> None:
        """A connection to a segment is lost, or could not be made, and is tried again."""
        self._machine.down(segment, reason)
        self._changed.set()

    def up(self, segment: str) -> None:
        """A connection to a segment is live."""
        self._machine.up(segment)
        self._changed.set()

    def position(self, segment: str) -> m.Position:
        """The last event of a segment that was taken in."""
        return self._machine.position(segment)

    def fail(self, error: EpochalError) -> None:
        """End the subscription: nothing more is received, and once what waits is read, a read raises `error`."""
        if self._error is None:
            self._error = error
        for task in self._tasks:
            task.cancel()
        self.ready.set()
        self._changed.set()

    def _report(self) -> SubscriptionReport:
        self._hands.settle()
        machine, received = self._machine, Received()
        for link in self._links:
            link.add_received(received)
        lower = tuple(machine.frontier) if machine.ready else None
        return lower, {
            **self._counters,
            "received_records": received.records,
            "received_bytes": received.bytes,
            "unwanted_bytes": received.unwanted_bytes,
            "firehose_bytes": received.firehose_bytes,
            "damaged": sum(link.damaged for link in self._links),
            "wrong_addresses": sum(link.wrong_addresses for link in self._links),
            "relayed": sum(via != "direct" for via in self.via.values()),
            "waiting_bytes": machine.waiting_bytes,
            "waiting_epochs": machine.waiting_epochs,
            "waiting_seconds": round(asyncio.get_running_loop().time() - self._caught_up, 3) if machine.waits else 0.0,
        }

    def _public_data(self, segment: str, data: m.Data) -> values.Data:
        time = self._decode_time(data.time)
        meta = data.meta or values.NO_META
        return values.Data(time, data.topic, segment, data.seq, data.records, data.payload, self._decode, meta)

    def _public_epoch(
        self, epoch: effects.EpochBatches | effects.EpochWasAborted
    ) -> values.Epoch | values.EpochAborted:
        if isinstance(epoch, effects.EpochWasAborted):
            return values.EpochAborted(self._decode_time(epoch.time))
        batches = tuple(self._public_data(segment, data) for segment, data in epoch.batches)
        time, stream = self._decode_time(epoch.time), self.directory
        return values.Epoch(time, batches, stream.qualified, epoch.time, stream.schema)

    def _public_event(self, event: effects.Happened) -> values.Event:
        match event:
            case effects.Arrived():
                return self._public_data(event.segment, event.data)
            case effects.FrontierMoved():
                return values.FrontierChanged(tuple(map(self._decode_time, event.frontier)))
            case effects.EpochWasAborted():
                return values.EpochAborted(self._decode_time(event.time))
            case effects.GapFound():
                below = tuple(map(self._decode_time, event.below))
                return values.Gap(event.segment, event.incarnation, event.seq, below)
            case effects.RewoundTo():
                return values.Rewound(*event)
            case effects.SegmentWentDown():
                return values.SegmentDown(*event)
            case effects.SegmentCameUp():
                return values.SegmentUp(*event)

"""The publisher process: it owns three sockets, runs the machines, and carries out their effects in order.

The machines make every decision; this module only determines when they run. The order serves three purposes. Joins are
atomic (S9). No writer is judged silent before everything that arrived was read (E8). And a process that was stopped for
a while sends nothing until the catalog has confirmed that it still owns its segments (E12 fencing).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import zmq

from epochal.catalog_api.answers import Registration, Renewal, StreamInfo
from epochal.catalog_api.requests import MAX_CHANNELS, SegmentReport
from epochal.errors import (
    EpochalError,
    LogFailed,
    StreamGone,
    Unavailable,
)
from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import (
    AskRecord,
    FindBeginning,
    FindState,
    Log,
    ReadLog,
    Reply,
    ReportFinishing,
)
from epochal.protocol.publisher.effects import PublisherEffect as Effect
from epochal.protocol.publisher.views import ViewMemory
from epochal.transport.sockets import Socket
from epochal_publisher.counters import ProcessCounters
from epochal_publisher.segments.commits import Appends, CommitPipeline, Durable
from epochal_publisher.segments.lease import PublisherLease
from epochal_publisher.segments.segment import HostedSegment
from epochal_publisher.segments.store import SegmentStore, SegmentStores
from epochal_publisher.settings import Settings
from epochal_publisher.sockets.delivery import Delivery
from epochal_publisher.sockets.events import Events
from epochal_publisher.sockets.peer_limits import BlockedPeers
from epochal_publisher.sockets.router import Ingest, Requests, Router

logger = logging.getLogger("epochal.publisher")
T = TypeVar("T")

MOST_CHANNELS = 1024
"""Channels of all segments in one report to the catalog; each takes up to 150 bytes, every second."""
MOST_WAITING = 32 * 2**20
"""Bytes of appends of one segment that may wait for its disk, or for the catalog (E11 horizon).

Together with the bytes that are read in one burst, they fit one frame.
"""


class PublisherProcess:
    """Binds its sockets at once, and serves clients after `serve`.

    `over` is the reason why this process takes nothing any more: another process owns the segments, the stream is
    gone, its log has failed, or the catalog refuses its reports.

    `context`: the ZeroMQ context of a process that serves several streams; None to make one.
    """

    def __init__(
        self, settings: Settings, lease: PublisherLease, context: "zmq.Context[zmq.Socket[bytes]] | None" = None
    ) -> None:
        self.settings = settings
        self._lease = lease
        self.counters = ProcessCounters()
        self.segments: dict[str, HostedSegment] = {}
        self.over: asyncio.Future[EpochalError] = asyncio.get_running_loop().create_future()
        self.stalls = 0
        self.on_commit: Callable[[float], object] = float
        """Called with the seconds that each group commit took, including the wait for a thread."""
        self.appends = Appends.start(settings.stream)
        self._confirmed = 0
        self._draining = False
        self.http_closing = False
        self.encoding = "bytes"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context() if context is None else context
        self._shares = context is not None
        if not self._shares:
            self._context.max_sockets = 64
        self.discarded = (self._new_discarded(), self._new_discarded())
        self._ingest = Ingest(self.segments)
        self._requests = Requests(self.segments)
        try:
            self._events = Events(
                self._context,
                self.segments,
                self.flush,
                self.counters,
                settings.patience,
                self._refuse_join,
            )
            self._ingest.router = self._router("ingest", self._ingest)
            self._requests.router = self._router("requests", self._requests)
        except zmq.ZMQError as error:
            self._abandon()
            raise Unavailable(f"cannot listen on {settings.host}: {error}") from error
        self._delivery = Delivery(self._events, self._requests.router, self.counters)
        self._sockets: tuple[Socket, ...] = (
            self._ingest.router.socket,
            self._requests.router.socket,
            self._events.socket,
        )
        self._alive = monotonic()

    def _abandon(self) -> None:
        """Close the sockets that were opened so far."""
        if not self._shares:
            self._context.destroy(0)
            return
        for owner, name in ((self, "_events"), (self._ingest, "router"), (self._requests, "router")):
            made: Events | Router | None = getattr(owner, name, None)
            if made is not None:
                made.socket.close()

    def _refuse_join(self, nonce: bytes) -> None:
        """Refuse a join without a hello; any segment gives the same answer."""
        next(iter(self.segments.values())).server.subscribed(nonce, monotonic())

    def _new_discarded(self) -> BlockedPeers:
        return BlockedPeers(self.settings.max_discarded, self.settings.discard_ttl)

    def _address(self, port: int) -> str:
        host = self.settings.host
        return f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}"

    def _router(self, name: str, handler: Ingest | Requests) -> Router:
        writes, settings = isinstance(handler, Ingest), self.settings
        port = settings.ingest_port if writes else settings.requests_port
        return Router(
            self._context, name, self._address(port), handler.handle, self.flush,
            send_queue=handler.SEND_QUEUE, max_frame=handler.MAX_FRAME, max_messages=handler.MAX_MESSAGES,
            counters=self.counters, discarded=self.discarded[not writes], patience=settings.patience,
        )  # fmt: skip

    def listen(self, stream: StreamInfo) -> None:
        """Let subscribers connect, with the stream's buffer for each. Raises `Unavailable`."""
        try:
            self._events.listen(self._address(self.settings.events_port), stream.declared().spec.push.buffer_bytes)
        except zmq.ZMQError as error:
            raise Unavailable(f"cannot listen on {self.settings.host}: {error}") from error

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the sockets by name, once it listens: `events`, `requests`, `ingest`."""
        host = self.settings.advertise or self.settings.host
        host = f"[{host}]" if ":" in host else host
        names = ("ingest", "requests", "events")
        ports = (socket.zmq.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2] for socket in self._sockets)
        return {name: f"tcp://{host}:{port}" for name, port in zip(names, ports, strict=True)}

    @property
    def ready(self) -> bool:
        """Whether clients are served now."""
        return bool(self.segments) and not self._draining and not self.over.done() and self._confirmed == self.stalls

    async def serve(self, stream: StreamInfo, registration: Registration, stores: SegmentStores) -> None:
        """Make the machines, then begin to read; earlier messages wait in the sockets. Raises `LogError`."""
        self._stores = stores
        self._commits = CommitPipeline(stores, self.settings.log_retry, self.over, self._written)
        self.encoding = stream.declared().spec.payload.encoding
        started, view_memory = {}, ViewMemory()
        for grant in registration.segments:
            store = stores.of(grant.id)
            start = partial(
                HostedSegment.start, stream, grant, registration.sessions, self.settings, store, view_memory,
                monotonic(),
            )  # fmt: skip
            started[grant.id] = await stores.write(start)
            if store is not None and store.begun:
                await self._commits.begin(store)
        now = monotonic()
        self.segments.update(started)
        self._alive = now
        self.flush()
        for socket in self._sockets:
            socket.start()

    # ---- time ----

    async def keep_time(self) -> None:
        """Tick for ever."""
        while True:
            await asyncio.sleep(self.settings.tick)
            self.tick()

    def tick(self) -> None:
        """Let time pass. Everything that arrived is read before any writer is judged silent (E8)."""
        self._ingest.router.socket.drain()
        now = monotonic()
        if self._must_wait(now):
            return
        reads = not self._ingest.router.socket.paused
        for served in self.segments.values():
            served.tick(now, reads=reads)  # a writer that is not read is not silent (E8)
            self._commits.sweep(served, now)
        for discarded in self.discarded:
            discarded.expire(now)
        self.flush()

    def _must_wait(self, now: float) -> bool:
        """Whether the lease must be confirmed before anything is sent, since the loop paused too long (E12 fencing)."""
        stalled = now - self._alive > self.settings.stall
        self._alive = now
        if stalled and not self.over.done():
            logger.warning("the process stood still for more than %g s; asking for the lease", self.settings.stall)
            self.stalls += 1
            self.counters.stalls += 1
            self._ingest.router.socket.pause()  # appends that cannot be acknowledged must not pile up here
            self._lease.ask_now()
        return self._confirmed != self.stalls or self.over.done()

    # ---- carrying out the machines' decisions ----

    def flush(self) -> None:
        """Carry out the effects of the machines, in order. Runs after each burst of messages."""
        if self._must_wait(monotonic()):
            return
        for served in self.segments.values():
            publisher, store = served.publisher, served.store
            if max(publisher.waiting_bytes, 0 if store is None else publisher.untaken_bytes) > MOST_WAITING:
                self._ingest.router.socket.pause()
            if store is None:
                effects = publisher.take()
                if effects:
                    self._publish(served, Durable(effects, tuple(publisher.progress.lower.frontier), None))
                continue
            if served.committed_view is not None and (answers := served.committed_view.take()):
                self._carry_out(served, answers)  # first: they cover no event published below (S9)
            if publisher.gathering:
                self._carry_out(served, publisher.take())
            else:
                for durable in self._commits.durable(served, store):
                    self._publish(served, durable)

    def _publish(self, served: HostedSegment, durable: Durable) -> None:
        """Carry out durable effects; from then on readers and the catalog may know of them."""
        effects, served.published_lower, began = durable
        served.carried_out(effects)
        self._carry_out(served, effects)
        if self.appends is not None:
            seconds = 0.0 if began is None else monotonic() - began
            self.appends.committed(served.publisher.segment, served.publisher.incarnation, effects, seconds)

    # ---- the disk ----

    def _written(self, seconds: float | None) -> None:
        """A commit is on disk."""
        if seconds is not None:
            self.on_commit(seconds)
        self.flush()
        self._read_writers()

    def _read_writers(self) -> None:
        """Resume reading from writers if the lease is confirmed and not too much waits."""
        publishers = [served.publisher for served in self.segments.values()]
        waiting = any(max(each.untaken_bytes, each.waiting_bytes) > MOST_WAITING for each in publishers)
        if self._confirmed == self.stalls and not waiting:
            self._ingest.router.socket.resume()

    def _read(self, served: HostedSegment, store: SegmentStore, ask: FindState | FindBeginning | ReadLog) -> None:
        if self._stores.closed:
            return  # the reader asks again, at the next owner
        last = served.published_seq
        future = self._stores.read(lambda: store.answer(ask, last))
        future.add_done_callback(lambda future: self._was_read(served, store, ask, future))

    def _was_read(
        self,
        served: HostedSegment,
        store: SegmentStore,
        ask: FindState | FindBeginning | ReadLog,
        future: "asyncio.Future[Any]",
    ) -> None:
        if future.cancelled() or self.over.done():
            return
        error, server = future.exception(), served.server
        if isinstance(error, EpochalError):
            served.publisher.history.archive(*store.log.start)
            server.not_read(ask.peer, ask.request, error)
        elif error is not None:
            self.over.set_result(LogFailed(f"{error!r}"))
        elif not isinstance(ask, ReadLog):
            server.state_found(ask.peer, ask.request, future.result())
        elif future.result() is None:  # the next events are still on their way to the disk
            asyncio.get_running_loop().call_later(self.settings.tick, self._read, served, store, ask)
        else:
            messages, last = future.result()
            self._requests.router.send_frames(ask.peer, messages)
            server.was_read(ask.peer, ask.request, last)
        self.flush()

    async def read(self, work: Callable[[], T]) -> T:
        """Run `work`, which may block on the disk, on a thread for readers. Raises what `work` raises."""
        return await self._on_a_thread(self._stores.read, work)

    async def encode(self, work: Callable[[], T]) -> T:
        """Run `work`, which encodes events and takes long, on a thread, for one reader at a time."""
        return await self._on_a_thread(self._stores.encode, work)

    async def _on_a_thread(self, run: "Callable[[Callable[[], T]], asyncio.Future[T]]", work: Callable[[], T]) -> T:
        try:
            future = run(work)
        except RuntimeError:  # the threads have ended
            raise Unavailable("this publisher is stopping") from None
        return await future

    def wake_readers(self) -> None:
        """End all waits for news, because the process ends."""
        self.http_closing = True
        for served in self.segments.values():
            served.wake()

    # ---- effects ----

    def _carry_out(self, served: HostedSegment, effects: Sequence[Effect]) -> None:
        counters = served.counters
        replies: dict[bytes, list[m.Message]] = {}
        for effect in self._delivery.carry_out(served, effects):
            if type(effect) is Reply:
                replies.setdefault(effect.peer, []).append(effect.message)
            else:
                self._carry_out_rare(served, effect)
        send = self._ingest.router.send
        for peer, messages in replies.items():
            send(peer, messages)
            for message in messages:
                if type(message) is m.Ack:
                    counters.acks += 1
                    counters.appends += message.run
                elif type(message) is m.Opened and message.granted:
                    self._ask_now(served)  # the next incarnation must know which writers to wait for (E11 horizon)

    def _carry_out_rare(self, served: HostedSegment, effect: Effect) -> None:
        match effect:
            case AskRecord():
                self._ask_now(served)
            case ReportFinishing(number, finishing):
                self._lease.report_finishing(served.publisher.segment, number, finishing)
            case FindState() | FindBeginning() | ReadLog() if served.store is not None:
                self._read(served, served.store, effect)

    def _ask_now(self, served: HostedSegment) -> None:
        served.asks = True
        self._lease.ask_now()

    # ---- answers of the catalog ----

    def reports(self, *, urgent: bool = False, final: bool = False) -> Mapping[str, SegmentReport]:
        """The state of each segment, for the catalog. `urgent`: only of segments that asked to be reported now."""
        now = monotonic()
        reported = {segment: served for segment, served in self.segments.items() if served.asks or not urgent}
        for served in reported.values():
            served.asks = False
        most = min(MAX_CHANNELS, max(MOST_CHANNELS // len(self.segments), 1))
        return {segment: served.report(now, final=final, most_channels=most) for segment, served in reported.items()}

    def renewed(self, renewal: Renewal) -> None:
        """The catalog has the last report: send what waited for that (E11 horizon). Also release lost writers."""
        if self._draining:
            return  # the last record was made: it would lack an append that became active now
        now = monotonic()
        for segment, number in renewal.recorded.items():
            self.segments[segment].recorded(number, now)
        if renewal.released:
            for served in self.segments.values():
                served.publisher.release(renewal.released)
        self.flush()
        self._read_writers()

    def confirmed(self, stalls: int) -> None:
        """The lease was valid after stall number `stalls`: send what waited for it."""
        if self._confirmed != stalls == self.stalls:
            logger.info("the lease is still valid; going on")
        self._confirmed = max(self._confirmed, stalls)
        if self._confirmed == self.stalls:
            self.flush()
            self._read_writers()

    def completed(self) -> None:
        """The stream is complete, and so is every segment."""
        for served in self.segments.values():
            served.publisher.completed()
        self.flush()

    def finishing_answered(self, segment: str, number: int, complete: bool) -> None:
        """The catalog answered report `number` of `segment` (E7 finish)."""
        self.segments[segment].publisher.finishing_answered(number, complete, monotonic())
        if complete:
            self.completed()  # the other segments of this process need not wait for the next renewal
        self.flush()

    def ended(self, error: EpochalError) -> None:
        """The segments are no longer ours. Writers of a deleted stream are notified; a superseded process is silent."""
        if self.over.done():
            return
        if isinstance(error, StreamGone):
            self._confirmed = self.stalls  # no other process can own a stream that is gone
            for served in self.segments.values():
                served.publisher.deleted()
                if served.store is not None:  # its log is deleted too: nothing waits for the disk any more
                    self._carry_out(served, [effect for effect in served.publisher.take() if type(effect) is not Log])
            self.flush()
        self.over.set_result(error)

    # ---- the end ----

    def drain(self) -> None:
        """Take no more appends, abort epochs that cannot complete without a volume, and send everything."""
        self._draining = True
        self._ingest.router.socket.drain()
        self._ingest.draining = True
        if not self.over.done():
            for served in self.segments.values():
                served.publisher.drain()
            self.flush()

    async def settle(self) -> None:
        """Wait until everything decided is on disk, for at most the drain time-out."""
        stores = [served.store for served in self.segments.values() if served.store is not None]
        if stores:
            await self._commits.settle(stores, self.settings.drain_timeout)

    def close(self) -> None:
        """Close the sockets. Waits for slow peers, for at most the drain time-out."""
        linger = 0 if self._must_be_silent() else int(self.settings.drain_timeout * 1000)
        for socket in self._sockets:
            socket.zmq.linger = linger
            socket.close()
        self.segments.clear()  # frees their history: this object is in cycles, and a shared process collects rarely
        if not self._shares:
            self._context.term()

    def _must_be_silent(self) -> bool:
        """Whether nothing may be sent any more: another process owns the segments, or decisions are not on disk."""
        return self.over.done() and not isinstance(self.over.result(), StreamGone)

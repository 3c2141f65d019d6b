"""The publisher process: three sockets, the machines behind them, and the order in which effects are carried out.

Apart from the machines, which decide everything; here is only when they run. That order makes joins atomic (S9),
keeps silence from being judged before everything was read (E8), and keeps a process that was stopped for a while from
sending before it has asked whether its segments are still its own (E12).
"""

import asyncio
import logging
from collections.abc import Mapping
from time import monotonic

import zmq

from epochal.client.catalog_types import Registration, SegmentReport, StreamInfo
from epochal.client.sockets import Socket
from epochal.errors import EpochalError, LocalProtocolError, StreamGone, Unavailable
from epochal.protocol import messages as m
from epochal.protocol.effects import Answer, Private, Push, Reply, ReportFinishing
from epochal.protocol.effects import PublisherEffect as Effect
from epochal.protocol.wire import encode
from epochal_publisher import ingest, requests
from epochal_publisher.counters import ProcessCounters
from epochal_publisher.discarded import Discarded
from epochal_publisher.events import Events
from epochal_publisher.ingest import Ingest
from epochal_publisher.lease import Lease
from epochal_publisher.requests import Requests
from epochal_publisher.router import Router
from epochal_publisher.segment import Served
from epochal_publisher.settings import Settings

logger = logging.getLogger("epochal.publisher")


class Publisher:
    """Bound sockets from the start; serves from `serve` on. `over` tells why the segments are no longer ours."""

    def __init__(self, settings: Settings, lease: Lease) -> None:
        self.settings, self._lease = settings, lease
        self.counters = ProcessCounters()
        self.segments: dict[str, Served] = {}
        self.over: asyncio.Future[EpochalError] = asyncio.get_running_loop().create_future()
        self.stalls = 0
        self._confirmed = 0
        self._draining = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.max_sockets = 64
        self.discarded = (self._new_discarded(), self._new_discarded())
        self._ingest, self._requests = Ingest(self.segments), Requests(self.segments)
        try:
            self._events = Events(
                self._context,
                self._address(settings.events_port),
                self.segments,
                self.flush,
                self.counters,
                settings.patience,
            )
            self._ingest.router = self._router("ingest", self._ingest)
            self._requests.router = self._router("requests", self._requests)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise Unavailable(f"cannot listen on {settings.host}: {error}") from error
        self._sockets: tuple[Socket, ...] = (
            self._ingest.router.socket,
            self._requests.router.socket,
            self._events.socket,
        )
        self._alive = monotonic()

    def _new_discarded(self) -> Discarded:
        return Discarded(self.settings.max_discarded, self.settings.discard_ttl)

    def _address(self, port: int) -> str:
        host = self.settings.host
        return f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}"

    def _router(self, name: str, handler: Ingest | Requests) -> Router:
        writes, settings = isinstance(handler, Ingest), self.settings
        limits, port = (ingest, settings.ingest_port) if writes else (requests, settings.requests_port)
        return Router(
            self._context, name, self._address(port), handler.handle, self.flush,
            send_queue=limits.SEND_QUEUE, max_frame=limits.MAX_FRAME, max_messages=limits.MAX_MESSAGES,
            counters=self.counters, discarded=self.discarded[not writes], patience=settings.patience,
        )  # fmt: skip

    @property
    def addresses(self) -> dict[str, str]:
        """Where the sockets are reached: `events`, `requests`, `ingest`."""
        host = self.settings.advertise or self.settings.host
        host = f"[{host}]" if ":" in host else host
        names = ("ingest", "requests", "events")
        ports = (socket.zmq.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2] for socket in self._sockets)
        return {name: f"tcp://{host}:{port}" for name, port in zip(names, ports, strict=True)}

    @property
    def ready(self) -> bool:
        """Whether clients are served at this moment."""
        return bool(self.segments) and not self._draining and not self.over.done() and self._confirmed == self.stalls

    def serve(self, stream: StreamInfo, registration: Registration) -> None:
        """Make the machines, and begin to read what arrived meanwhile."""
        now = monotonic()
        for grant in registration.segments:
            self.segments[grant.id] = Served.start(stream, grant, self.settings, now)
        self._events.bound(stream.declared().spec.push.buffer_bytes)
        self._alive = now
        for socket in self._sockets:
            socket.start()

    # ---- time ----

    async def keep_time(self) -> None:
        """Tick for ever: everything that arrived is read before anybody's silence is judged (E8)."""
        while True:
            await asyncio.sleep(self.settings.tick)
            self._ingest.router.socket.drain()
            now = monotonic()
            if self._must_wait(now):
                continue
            for served in self.segments.values():
                served.tick(now)
            for discarded in self.discarded:
                discarded.expire(now)
            self.flush()

    def _must_wait(self, now: float) -> bool:
        """Whether the lease must be confirmed before anything is sent: the loop stood still for too long (E12)."""
        stalled = now - self._alive > self.settings.stall
        self._alive = now
        if stalled and not self.over.done():
            logger.warning("the process stood still for more than %g s; asking for the lease", self.settings.stall)
            self.stalls += 1
            self.counters.stalls += 1
            self._ingest.router.socket.pause()  # what is not acknowledged must not pile up here
            self._lease.ask_now()
        return self._confirmed != self.stalls or self.over.done()

    # ---- effects ----

    def flush(self) -> None:
        """Carry out what the machines have decided, in their order. Runs after each burst that was read."""
        if self._must_wait(monotonic()):
            return
        for served in self.segments.values():
            effects = served.publisher.take()
            if effects:
                self._carry_out(served, effects)

    def _carry_out(self, served: Served, effects: list[Effect]) -> None:
        counters, packer, events = served.counters, served.packer, self._events
        subscribed, add = served.subscribed, served.packer.add
        replies: dict[bytes, list[m.Message]] = {}
        unsent = 0
        for effect in effects:
            kind = type(effect)
            if kind is Push:
                if not subscribed:
                    unsent += type(effect.message) is not m.Heartbeat  # type: ignore[union-attr]
                    continue
                try:
                    add(effect.message)  # type: ignore[union-attr]  # `kind` says so; `match` costs twice as much
                except LocalProtocolError as error:
                    logger.error("an event cannot be pushed, subscribers will pull it: %s", error)
            elif kind is Reply:
                replies.setdefault(effect.peer, []).append(effect.message)  # type: ignore[union-attr]
            else:
                self._carry_out_rare(served, effect)
        counters.unsent_events += unsent
        pushed = packer.flush()
        if pushed:
            counters.pushed_messages += len(pushed)
            counters.pushed_bytes += events.send(pushed)
        send = self._ingest.router.send
        for peer, messages in replies.items():
            send(peer, messages)
            for message in messages:
                if type(message) is m.Ack:
                    counters.acks += 1
                    counters.appends += message.run
                elif type(message) is m.Opened and message.granted:
                    self._lease.ask_now()  # an incarnation after this one must know whom to wait for (E11)

    def _carry_out_rare(self, served: Served, effect: Effect) -> None:
        match effect:
            case Private(subscription, message):
                # The snapshot stands for every event before it: those go out first (S9).
                served.counters.pushed_bytes += self._events.send(served.packer.flush())
                try:
                    self._events.send(encode(message, prefix=b"P" + subscription))
                except LocalProtocolError as error:
                    logger.error("a subscriber cannot be answered: %s", error)
                    self.counters.failures += 1
            case Answer(peer, messages):
                self._requests.router.send(peer, messages)
            case ReportFinishing(number, finishing):
                self._lease.report_finishing(served.publisher.segment, number, finishing)

    # ---- what the catalog says ----

    def reports(self) -> Mapping[str, SegmentReport]:
        """The state of each segment, for the catalog."""
        now = monotonic()
        return {segment: served.report(now) for segment, served in self.segments.items()}

    def confirmed(self, stalls: int) -> None:
        """The lease stood after stall number `stalls`: what waited for it goes out."""
        if self._confirmed != stalls == self.stalls:
            logger.info("the lease still stands; going on")
        self._confirmed = max(self._confirmed, stalls)
        if self._confirmed == self.stalls:
            self._ingest.router.socket.resume()
            self.flush()

    def completed(self) -> None:
        """The stream is complete: so is every segment."""
        for served in self.segments.values():
            served.publisher.completed()
        self.flush()

    def finishing_answered(self, segment: str, number: int, complete: bool) -> None:
        """The catalog answered report `number` of `segment` (E7)."""
        self.segments[segment].publisher.finishing_answered(number, complete, monotonic())
        if complete:
            self.completed()  # the other segments of this process need not wait for the next renewal
        self.flush()

    def ended(self, error: EpochalError) -> None:
        """The segments are not ours any more. Writers of a deleted stream are told; a superseded process is silent."""
        if self.over.done():
            return
        if isinstance(error, StreamGone):
            self._confirmed = self.stalls  # nobody else can own a stream that is gone
            for served in self.segments.values():
                served.publisher.deleted()
            self.flush()
        self.over.set_result(error)

    # ---- the end ----

    def drain(self) -> None:
        """Take no more appends, abort what can never complete without a volume, and send everything (fault 60)."""
        self._draining = True
        self._ingest.router.socket.drain()
        self._ingest.draining = True
        if not self.over.done():
            for served in self.segments.values():
                served.publisher.drain()
            self.flush()

    def close(self) -> None:
        """Close the sockets; waits for slow peers as long as the drain time-out allows."""
        linger = 0 if self._superseded() else int(self.settings.drain_timeout * 1000)
        for socket in self._sockets:
            socket.zmq.linger = linger
            socket.close()
        self._context.term()

    def _superseded(self) -> bool:
        return self.over.done() and not isinstance(self.over.result(), StreamGone)

"""The relay's process: two sockets for subscribers, and for each segment one connection upstream.

The machines decide; this module runs them and carries out their effects in order. Nothing is kept on disk, and no run
outlives the process: its subscribers join again and ask the publisher for what they missed (F13).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic

import zmq

from epochal.catalog_api.requests import MAX_FILTER, RelayReport
from epochal.client.catalog.directory import Directory
from epochal.client.catalog.routes import Routes
from epochal.client.subscriber.subscriber import Subscription
from epochal.errors import EpochalError, NoPublisher, RelayEnded, RemoteProtocolError, Unavailable
from epochal.protocol import messages as m
from epochal.protocol.epochs.reader import Since
from epochal.protocol.publisher.effects import SendAnswers
from epochal.protocol.publisher.views import ViewMemory
from epochal.protocol.relay.effects import ForReaders, Forward, HangUp, RelayEffect, Want
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter
from epochal.protocol.wire import encode
from epochal.service.errors import Overloaded
from epochal.transport.sockets import Socket
from epochal_publisher.counters import ProcessCounters
from epochal_publisher.relay.epochs.source import OpenSubscription
from epochal_publisher.relay.segment import HostedRelaySegment, ServedRun
from epochal_publisher.relay.settings import RelaySettings
from epochal_publisher.sockets.delivery import Delivery
from epochal_publisher.sockets.events import Events
from epochal_publisher.sockets.peer_limits import BlockedPeers
from epochal_publisher.sockets.router import Requests, Router

logger = logging.getLogger("epochal.relay")

_MAX_SOCKETS = 65_535
"""ZeroMQ sockets of this process: as many as the library allows. A watched socket counts as three. Each segment has two
upstream, and two for each filter that is read over HTTP; each forwarded request has one."""


_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that listen on all interfaces, each with the address to connect to on this machine."""


class RelayProcess:
    """Binds its sockets at once, and serves subscribers after `serve`.

    `over` is set when no retry can help: the stream is gone, or upstream cannot be followed.
    """

    def __init__(self, settings: RelaySettings) -> None:
        self.settings = settings
        self.counters = ProcessCounters()
        self.segments: dict[str, HostedRelaySegment] = {}
        self.over: asyncio.Future[EpochalError] = asyncio.get_running_loop().create_future()
        self.draining = False
        self.on_ready: Callable[[], object] = bool
        """Called when `ready` has changed."""
        self.discarded = BlockedPeers(settings.max_discarded, settings.discard_ttl)
        self._runs: dict[str, ServedRun] = {}
        """The run that is served, by segment; segments of which nothing has come yet are not in it."""
        self._carrying_out = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.max_sockets = _MAX_SOCKETS
        try:
            self._events = Events(
                self._context, self._runs, self.flush, self.counters, settings.patience, self._refuse_join,
            )  # fmt: skip
            self._requests = Router(
                self._context, "requests", self._address(settings.requests_port), self._receive, self.flush,
                send_queue=Requests.SEND_QUEUE, max_frame=Requests.MAX_FRAME, max_messages=Requests.MAX_MESSAGES,
                counters=self.counters, discarded=self.discarded, patience=settings.patience,
            )  # fmt: skip
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise Unavailable(f"cannot listen on {settings.host}: {error}") from error
        self._delivery = Delivery(self._events, self._requests, self.counters)
        self._sockets: tuple[Socket, ...] = (self._requests.socket, self._events.socket)

    def _address(self, port: int) -> str:
        host = self.settings.host
        return f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}"

    def listen(self, buffer_bytes: int) -> None:
        """Let subscribers connect, with buffers of about `buffer_bytes` for each. Raises `Unavailable`."""
        try:
            self._events.listen(self._address(self.settings.events_port), buffer_bytes)
        except zmq.ZMQError as error:
            raise Unavailable(f"cannot listen on {self.settings.host}: {error}") from error

    @property
    def host(self) -> str:
        """The host that clients use, as it is written in a URL."""
        host = self.settings.advertise or self.settings.host
        return f"[{host}]" if ":" in host else host

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the sockets that clients get, by name, once it listens: `events`, `requests`."""
        return self._addresses_at(self.host)

    @property
    def own_addresses(self) -> dict[str, str]:
        """The same for connections from this process, because the clients' addresses may not work from here."""
        host = _HERE.get(self.settings.host, self.settings.host)
        return self._addresses_at(f"[{host}]" if ":" in host else host)

    def _addresses_at(self, host: str) -> dict[str, str]:
        ports = (socket.zmq.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2] for socket in self._sockets)
        return {name: f"tcp://{host}:{port}" for name, port in zip(("requests", "events"), ports, strict=True)}

    @property
    def ready(self) -> bool:
        """Whether subscribers of every segment are served now."""
        hosted = self.segments.values()
        return bool(hosted) and not self.draining and all(each.machine.alive for each in hosted)

    async def serve(self, directory: Directory, routes: Routes) -> None:
        """Follow every segment until cancelled, and serve subscribers."""
        segments = directory.segments
        limits, view_memory = self.settings.of_segment(len(segments)), ViewMemory()
        for segment in segments:
            self.segments[segment] = HostedRelaySegment(
                segment, self._context, directory, routes, self.settings.id, limits, view_memory, self.flush,
                self._failed,
            )  # fmt: skip
        for socket in self._sockets:
            socket.start()
        async with asyncio.TaskGroup() as tasks:
            for hosted in self.segments.values():
                tasks.create_task(hosted.run(), name=f"follow {directory.qualified}/{hosted.segment}")
            tasks.create_task(self._keep_time())

    async def _keep_time(self) -> None:
        ready = False
        while True:
            await asyncio.sleep(self.settings.tick)
            if ready != self.ready:
                ready = self.ready
                self.on_ready()
            now = monotonic()
            for hosted in self.segments.values():
                hosted.machine.tick(now)
            self.discarded.expire(now)
            self.flush()

    def _failed(self, error: EpochalError) -> None:
        if not self.over.done():
            self.over.set_result(error)

    def subscriptions(self, directory: Directory) -> OpenSubscription:
        """How readers of whole epochs subscribe to this relay, as any other reader does."""

        def opened(topics: Sequence[bytes] | None, reject: Sequence[bytes], since: Since | None) -> Subscription:
            if self._most_subscribers >= self.settings.capacity:
                raise Overloaded(
                    f"a segment has {self._most_subscribers} subscribers, as many as this relay takes "
                    f"({self.settings.variable('capacity')}), so no other filter can be read; ask another relay"
                )
            return Subscription(self._context, directory, None, topics=topics, reject=reject, since=since, via="direct")

        return opened

    # ---- subscribers ----

    def _receive(self, peer: bytes, message: m.Message, now: float) -> None:
        match message:
            case m.Hello() | m.Since() | m.Filter():
                hosted = self.segments.get(message.segment)
                if hosted is not None and not self.draining:
                    hosted.machine.receive(peer, message, now)
                    return
                error: EpochalError = RelayEnded("this relay stops; join elsewhere")
                if hosted is None:
                    error = NoPublisher(f"segment {message.segment!r} is not relayed here; look it up again")
                asked = 0 if isinstance(message, m.Filter) else message.request
                self._requests.send(peer, (m.Refused(asked, error.code, str(error)),))
            case m.Credit():
                for hosted in self.segments.values():  # credit names a request, which only one segment has
                    hosted.machine.receive(peer, message, now)
            case _:
                raise RemoteProtocolError(f"a subscriber does not send {type(message).__name__}")

    def _refuse_join(self, nonce: bytes) -> None:
        """Refuse a subscription id without a hello. It may be of a run that has ended, so the peer may try again."""
        refused = m.Refused(0, RelayEnded.code, "this subscription id is of no hello to what this relay serves now")
        self._events.send(encode(refused, prefix=b"P" + nonce))

    # ---- what the machines have decided ----

    def flush(self) -> None:
        """Carry out what the machines have decided, in their order."""
        if self._carrying_out:
            return  # the call that is under way carries these out next
        self._carrying_out = True
        try:
            while any(self._carry_out_all(hosted) for hosted in self.segments.values()):
                pass
        finally:
            self._carrying_out = False

    def _carry_out_all(self, hosted: HostedRelaySegment) -> bool:
        effects = hosted.machine.take()
        for effect in effects:
            self._carry_out(hosted, effect)
        served = hosted.served
        if served is None:
            self._runs.pop(hosted.segment, None)
        else:
            self._runs[hosted.segment] = served
        return bool(effects)

    def _carry_out(self, hosted: HostedRelaySegment, effect: RelayEffect) -> None:
        match effect:
            case ForReaders(run, effects):
                served = ServedRun(run, hosted.counters)
                self._delivery.carry_out(served, effects)
                if run.over is not None:
                    logger.info("segment %s: a run has ended: %s", hosted.segment, run.over)
                    run.channels.end(run.over)
                    self._delivery.flush(served)
            case SendAnswers(peer, messages):
                self._requests.send(peer, messages)
            case Want(topics, widens):
                hosted.want(topics, widens=widens)
            case Forward():
                hosted.forward(effect)
            case HangUp(number):
                hosted.hang_up(number)

    # ---- the end ----

    def drain(self, why: str) -> None:
        """Stop serving: notify all subscribers, which join elsewhere."""
        self.draining = True
        for hosted in self.segments.values():
            hosted.machine.end(why)
        self.flush()

    def close(self) -> None:
        """Close the sockets. Waits for slow peers, for at most the drain time-out."""
        for hosted in self.segments.values():
            hosted.close()
        for socket in self._sockets:
            socket.zmq.linger = int(self.settings.drain_timeout * 1000)
            socket.close()
        self._context.term()

    # ---- the report to the catalog ----

    @property
    def _most_subscribers(self) -> int:
        """The subscribers of the segment that has most; readers of whole epochs count once for each filter."""
        return max((len(served.server.subscriptions) for served in self._runs.values()), default=0)

    def report(self, shared: int = 0) -> RelayReport:
        """The state of the relay: the load of the segment with most subscribers, the lag of the one that lags most.

        `shared` is the number of readers of whole epochs that share a subscription with another one.
        """
        now, hosted, runs = monotonic(), self.segments.values(), self._runs.values()
        lags = [each.lag(now) for each in hosted]
        known = [lag for lag in lags if lag is not None]
        return RelayReport(
            state="draining" if self.draining else "ready" if self.ready else "waiting",
            load=max(self._most_subscribers + shared, 0),
            lag=max(known) if known and len(known) == len(lags) else None,
            path=list(next((served.run.path[1:] for served in runs), ())),
            filter=_shown([each.machine.wanted for each in hosted]),
        )


def _shown(filters: Sequence[TopicFilter]) -> str:
    """The topics that are asked for upstream, as text for people; empty for everything."""
    wanted = filters[0].union(*filters[1:]) if filters else EVERYTHING
    if wanted == EVERYTHING:
        return ""
    return (
        " ".join(f"{'+' if sign else '-'}{prefix.decode(errors='backslashreplace')}" for prefix, sign in wanted)[
            :MAX_FILTER
        ]
        or "nothing"
    )

"""One segment of a relay: the shell of its machine, with the connection upstream and those of forwarded requests.

The process owns the sockets that subscribers connect to.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from time import monotonic

import zmq

from epochal.client.catalog.directory import Directory
from epochal.client.catalog.routes import Routes
from epochal.client.subscriber.segment_reader import SegmentReader
from epochal.errors import EpochalError
from epochal.protocol import messages as m
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.server import SegmentServer
from epochal.protocol.publisher.views import ViewMemory
from epochal.protocol.relay.effects import Forward
from epochal.protocol.relay.run import Run
from epochal.protocol.relay.segment import RelayedSegment, RelayLimits
from epochal.protocol.subscriber.effects import FollowerReport
from epochal.protocol.subscriber.follower import FollowerSettings
from epochal.protocol.subscriber.since import From
from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.wire import Frames, decode, encode
from epochal.transport.sockets import Socket
from epochal_publisher.counters import SegmentCounters

logger = logging.getLogger("epochal.relay")


class ServedRun:
    """A run with the counters of its segment."""

    def __init__(self, run: Run, counters: SegmentCounters) -> None:
        self.run = run
        self.server: SegmentServer = run.server
        self.channels: Channels = run.channels
        self.counters = counters


class HostedRelaySegment:
    """Follows one segment and feeds its machine; the `Reader` of its `SegmentReader`.

    `relay` is the relay's id. `flush` carries out what the machine has decided; `failed` is called where no retry can
    help.
    """

    pushes = True
    whole_filter = True

    def __init__(
        self,
        segment: str,
        context: "zmq.Context[zmq.Socket[bytes]]",
        directory: Directory,
        routes: Routes,
        relay: str,
        limits: RelayLimits,
        view_memory: ViewMemory,
        flush: Callable[[], None],
        failed: Callable[[EpochalError], None],
    ) -> None:
        self.segment = segment
        self.context = context
        self.directory = directory
        self.routes = routes
        self.follower_settings = FollowerSettings()
        self.relay: str | None = relay
        self.machine = RelayedSegment(
            directory.info.uid, segment, directory.shape, relay, limits, lambda size: secrets.token_bytes(size),
            view_memory,
        )  # fmt: skip
        self.counters = SegmentCounters()
        self.runs = 0
        """Runs that have begun."""
        self.received_bytes = 0
        """Bytes of batches received from upstream."""
        self._flush = flush
        self._failed = failed
        self._link = SegmentReader(self, segment, From.LIVE)
        self._forwarded_requests: dict[int, Socket] = {}
        self._served: ServedRun | None = None
        self._down = False
        self._caught_up: float | None = None
        """When the connection was last live; None before that."""

    async def run(self) -> None:
        """Follow until cancelled, or until no retry can help."""
        await self._link.run()

    # ---- the reader of the connection ----

    @property
    def topics(self) -> TopicFilter | None:
        """The topics to ask for upstream."""
        return self.machine.wanted

    def take_reports(self, segment: str, reports: Sequence[FollowerReport]) -> None:
        """Take what the follower has reported since the last call, in order."""
        if not reports:
            return
        for report in reports:
            if type(report) is m.Data:
                self.received_bytes += len(report.payload)
        self.machine.reported(reports, self._link.welcome, monotonic())
        self._flush()

    def down(self, segment: str, reason: str) -> None:
        """A connection is lost, perhaps before it was live, or could not be made (F16)."""
        if not self._down:  # logged once for all attempts
            self._down = True
            logger.warning("segment %s: the connection upstream is lost: %s", segment, reason)
        self.machine.lost()
        self._flush()

    def up(self, segment: str) -> None:
        """A connection is live."""
        if self._down:
            self._down = False
            logger.info("segment %s: connected upstream again", segment)

    def position(self, segment: str) -> m.Position:
        """The last event that was taken in."""
        return self.machine.position

    def fail(self, error: EpochalError) -> None:
        """Following has failed with an error that no retry can mend."""
        self._failed(error)

    @property
    def live(self) -> bool:
        """Whether all events that upstream has sent by now were published."""
        return self.machine.alive and self._link.live

    def lag(self, now: float) -> float | None:
        """Seconds since all events of upstream were published; None before that was so once."""
        if self.live:
            self._caught_up = now
        return None if self._caught_up is None else now - self._caught_up

    # ---- what the machine decides ----

    @property
    def served(self) -> ServedRun | None:
        """The run that is served now."""
        run = self.machine.run
        if run is None:
            self._served = None
        elif self._served is None or self._served.run is not run:
            self._served = ServedRun(run, self.counters)
            self.runs += 1
        return self._served

    def want(self, topics: TopicFilter, *, widens: bool) -> None:
        """Ask upstream for other topics."""
        self._link.want(topics, widens=widens)

    def forward(self, effect: Forward) -> None:
        """Forward a request on its own connection."""
        socket = self._forwarded_requests.get(effect.number)
        if socket is None:
            address = self._link.requests_address
            if address is None:
                self._cut_later(effect.number)
                return
            try:
                socket = self._forwarded_requests[effect.number] = self._connected(effect.number, address)
            except zmq.ZMQError as error:
                logger.warning("segment %s: what is asked for cannot be passed on: %s", self.segment, error)
                self._cut_later(effect.number)
                return
        for frames in encode(effect.message):
            socket.send(frames)

    def _connected(self, number: int, address: str) -> Socket:
        socket = Socket(self.context, zmq.DEALER, lambda frames: self._answered(number, frames), self._flush)
        socket.connect(address, lambda: self._cut(number))
        socket.start()
        return socket

    def _answered(self, number: int, frames: Frames) -> None:
        try:
            self.machine.answered(number, list(decode(frames)), monotonic())
        except EpochalError as error:
            logger.warning("segment %s: what was passed on was answered by no message: %s", self.segment, error)
            self._cut(number)

    def _cut_later(self, number: int) -> None:
        asyncio.get_running_loop().call_soon(self._cut, number)

    def _cut(self, number: int) -> None:
        self.machine.cut(number)
        self._flush()

    def hang_up(self, number: int) -> None:
        """Close the connection of a forwarded request that has ended."""
        socket = self._forwarded_requests.pop(number, None)
        if socket is not None:
            socket.close()

    def close(self) -> None:
        """Close the connections of all forwarded requests."""
        for number in list(self._forwarded_requests):
            self.hang_up(number)

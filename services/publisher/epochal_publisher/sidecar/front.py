"""The sidecar's sockets: writers on one side, publishers on the other, frames passed between them unchanged.

`lanes` decides which writer uses which connection. This module only moves bytes, without decoding frames, and traces
that: a writer names its trace when it opens the connection.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import zmq

from epochal.client.tracing import contexts
from epochal.errors import EpochalError, RemoteProtocolError, Unavailable
from epochal.otel import names, sdk
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.wire import Frames
from epochal.transport.sockets import Socket
from epochal_publisher.sidecar.lanes import Close, Connect, Lanes
from epochal_publisher.sockets.peer_limits import BlockedPeers, SocketTimeouts
from epochal_publisher.sockets.router import Ingest

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


logger = logging.getLogger("epochal.sidecar")

PUBLISHER_QUEUE = 8
"""How many messages, of up to 240 KiB, wait in the library for one publisher. Further ones wait in `Front`."""
MAX_SOCKETS = 8192

Control = Callable[[bytes, m.Message], None]


class Front:
    """Binds `addresses` and forwards frames. `control(peer, message)` gets the messages for the sidecar itself."""

    def __init__(self, addresses: list[str], lanes: Lanes, control: Control) -> None:
        self._lanes = lanes
        self._control = control
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._publishers: dict[int, Socket] = {}
        self._waiting: dict[int, deque[list[Any]]] = {}
        self._discarded = BlockedPeers(1024, 60.0)
        self._cut = BlockedPeers(4096, 60.0)
        """Writers that were disconnected from their publisher and may not know it yet; their messages are dropped."""
        self.forwards = Forwards.start()
        self.refused = 0
        """Messages that broke the protocol."""
        self.passed_bytes = 0
        """Bytes from writers to publishers."""
        self._writers = Socket(
            self._context, zmq.ROUTER, self._from_writer, self._act,
            max_message=Ingest.MAX_FRAME, send_queue=Ingest.SEND_QUEUE, copy=False,
        )  # fmt: skip
        self._writers.zmq.setsockopt(zmq.ROUTER_MANDATORY, 1)
        SocketTimeouts().apply(self._writers.zmq)
        for address in addresses:
            self._writers.zmq.bind(address)

    def start(self) -> None:
        """Begin to read."""
        self._writers.start()

    def close(self) -> None:
        """Close all sockets."""
        if self.forwards is not None:
            self.forwards.close()
        self._writers.close()
        for socket in self._publishers.values():
            socket.close()
        self._context.destroy(linger=0)

    def send(self, peer: bytes, message: m.Message) -> None:
        """Send a message from the sidecar itself."""
        for frames in wire.encode(message):
            try:
                self._writers.send([peer, b"", *frames])
            except zmq.ZMQError:  # the writer left, or does not read
                self._gone(peer)

    def tick(self) -> None:
        """Let time pass."""
        now = monotonic()
        self._lanes.tick(now)
        self._discarded.expire(now)
        self._cut.expire(now)
        self._act()

    # ---- from writers ----

    def _from_writer(self, frames: Any) -> None:
        peer: bytes = frames[0].bytes
        if peer in self._discarded:
            return
        if len(frames) > 1 and not len(frames[1]):
            self._controlled(peer, [frame.bytes for frame in frames[2:]])
            return
        now = monotonic()
        connection = self._lanes.came(peer, now)
        if connection is None:
            if peer not in self._cut:
                self._refuse(peer, RemoteProtocolError("say to which publisher this connection goes (Pass)"))
            return
        rest = frames[1:]
        size = sum(map(len, rest))
        self.passed_bytes += size
        waiting = self._waiting.get(connection)
        if waiting:
            waiting.append(rest)
        else:
            try:
                self._publishers[connection].pass_on(rest)
                return
            except zmq.Again:
                self._waiting[connection] = deque([rest])
                if self.forwards is not None:
                    self.forwards.waits(peer, self._lanes.held + size)
        self._lanes.waits_for(connection, size)
        if self._lanes.full:
            self._writers.pause()

    def _controlled(self, peer: bytes, frames: Frames) -> None:
        try:
            (message,) = wire.decode(frames, max_messages=1)
            match message:
                case m.Pass():
                    self._lanes.passes(peer, message, monotonic())
                    if self.forwards is not None and self._lanes.is_connected(peer):
                        self.forwards.begins(peer, message)
                    self._do()  # make the connection now: the next frames need it
                case m.Free():
                    self._lanes.freed(peer, monotonic())
                    if self.forwards is not None:
                        self.forwards.ends(peer)
                    self._do()
                case m.Cut():
                    self._gone(peer, message.code)
                    self._do()
                case m.Greet() | m.Ask() | m.Left():
                    self._control(peer, message)
                case _:
                    raise RemoteProtocolError(f"a writer does not send {type(message).__name__} to a sidecar")
        except (EpochalError, ValueError) as error:
            wrong = error if isinstance(error, EpochalError) else RemoteProtocolError("one message at a time")
            self._refuse(peer, wrong)

    def _refuse(self, peer: bytes, error: EpochalError) -> None:
        """Send one refusal, and read nothing more from this peer."""
        self.refused += 1
        self._discarded.add(peer, monotonic())
        self._gone(peer)
        self._do()
        self.send(peer, m.Refused(0, error.code, str(error)[:1000]))

    # ---- from and to publishers ----

    def _connect(self, number: int, address: str) -> None:
        socket = Socket(
            self._context, zmq.DEALER, lambda frames: self._from_publisher(number, frames),
            lambda: self._flush(number), send_queue=PUBLISHER_QUEUE,
        )  # fmt: skip
        self._publishers[number] = socket
        try:
            socket.connect(address, lambda: self._lost(number))
            socket.start()
        except zmq.ZMQError as error:
            logger.warning("%s cannot be connected to: %s", address, error)
            asyncio.get_running_loop().call_soon(self._lost, number)

    def _lost(self, number: int) -> None:
        if number in self._publishers:
            self._lanes.lost(number)
            self._act()

    def _from_publisher(self, number: int, frames: Frames) -> None:
        peer = self._lanes.peer(number)
        if peer is None:
            return  # a late message for a writer that has left
        try:
            self._writers.send([peer, *frames])
        except zmq.ZMQError:  # the writer left without notice, or does not read
            self._gone(peer)
            self._do()

    def _gone(self, peer: bytes, code: str = Unavailable.code) -> None:
        self._lanes.gone(peer)
        if self.forwards is not None:
            self.forwards.ends(peer, code)

    def _flush(self, number: int) -> None:
        """Send the messages that wait for a publisher, as many as it takes."""
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        socket = self._publishers[number]
        try:
            while waiting:
                socket.pass_on(waiting[0])
                self._lanes.taken(number, sum(map(len, waiting.popleft())))
        except zmq.Again:
            pass
        if not waiting:
            del self._waiting[number]
        if self._writers.paused and not self._lanes.full:
            self._writers.resume()

    # ---- what the lanes decided ----

    def _act(self) -> None:
        for number in list(self._waiting):
            self._flush(number)
        self._do()

    def _do(self) -> None:
        for effect in self._lanes.take():
            match effect:
                case Connect():
                    self._connect(effect.number, effect.address)
                case Close():
                    self._publishers.pop(effect.number).close()
                    self._waiting.pop(effect.number, None)
                case _:
                    if isinstance(effect.message, m.Cut):
                        self._cut.add(effect.peer, monotonic())
                        if self.forwards is not None:
                            self.forwards.ends(effect.peer, effect.message.code)
                    self.send(effect.peer, effect.message)
        if self._writers.paused and not self._lanes.full:
            self._writers.resume()


class Forwards:
    """The spans `forward STREAM`: one for each connection of a writer with a sampled trace, from opening to end."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._spans: dict[bytes, Span] = {}

    @classmethod
    def start(cls) -> Self | None:
        """None if this process sends no traces."""
        provider = sdk.provider()
        return None if provider is None else cls(provider.get_tracer(names.SCOPE))

    def begins(self, peer: bytes, request: m.Pass) -> None:
        """A writer has a connection to a publisher."""
        if request.trace is None or not request.trace[24] & 1:
            return
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        (parent,), _, _ = contexts([m.Meta(trace=request.trace)])
        self._spans[peer] = self._tracer.start_span(
            names.span_name("forward", request.stream), set_span_in_context(NonRecordingSpan(parent)),
            attributes={**names.on_stream("forward", request.stream), names.PUBLISHER: request.address},
        )  # fmt: skip

    def waits(self, peer: bytes | None, held: int) -> None:
        """The publisher does not take the writer's messages. Called once each time that the writer begins to wait."""
        span = None if peer is None else self._spans.get(peer)
        if span is not None:
            span.add_event("waiting for credit", {names.HELD: held})

    def ends(self, peer: bytes, error: str = "") -> None:
        """The writer has left, or its connection is lost."""
        span = self._spans.pop(peer, None)
        if span is None:
            return
        if error:
            from opentelemetry.trace import Status, StatusCode

            span.set_attribute(names.ERROR, error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def close(self) -> None:
        """The process ends."""
        for peer in list(self._spans):
            self.ends(peer, "sidecar_unavailable")

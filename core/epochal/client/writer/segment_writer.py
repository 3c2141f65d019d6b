"""A writer's connection to the publisher of one segment: kept open, and made again when it breaks.

A connection comes and goes; the session, its append numbers and its unacknowledged appends stay (E6 sessions).
"""

import asyncio
import contextlib
import itertools
import time as clock
from typing import Any, Protocol

import zmq

from epochal.backoff import Backoff
from epochal.client.catalog.directory import RECONNECT_FIRST, RECONNECT_LAST, Directory, worth_retrying
from epochal.client.sidecar.connections import Use, connections
from epochal.client.sidecar.sidecar import LINGER_MS, PACK, Sidecar
from epochal.client.tracing import current_trace
from epochal.errors import EpochalError, RemoteProtocolError, TimedOut, Unavailable, from_code
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.wire import Frames
from epochal.protocol.writer.machine import WriterMachine
from epochal.transport.sockets import Socket

ANSWER_TIMEOUT = 10.0
"""Seconds without any message of a publisher that owes an answer before the connection is made again."""
TRIES = 6
"""Pauses between tries that fit into the time that a restarted publisher waits for its writers (E3 lost writers)."""

_requests = itertools.count(1)
"""Request numbers of `Pass`: no two on one connection are equal, even when it serves one writer after another."""


class SessionOwner(Protocol):
    """What a connection needs from the session whose machine it feeds."""

    context: zmq.Context[Any]
    sidecar: Sidecar | None
    directory: Directory

    @property
    def machine(self) -> WriterMachine:
        """What decides; another one once the session was opened again."""
        ...

    def act(self) -> None:
        """Carry out what the machine has decided."""

    def fail(self, error: EpochalError) -> None:
        """No retry can help: the session is over."""


class SegmentWriter:
    """One segment's connection on `ingest`: kept up until cancelled."""

    def __init__(self, session: SessionOwner, segment: str) -> None:
        self._session = session
        self._segment = segment
        self._socket: Socket | None = None
        self._packer = self._new_packer()
        self._lost: asyncio.Future[EpochalError] | None = None
        self._heard = clock.monotonic()
        self._passes = False
        """Whether the sidecar forwards this connection to the publisher."""
        self._asked = 0
        """The request of the `Pass` that asked for it."""
        self._passed = False
        """Whether it is answered; what comes before is for an earlier writer, and dropped (E6 sessions)."""
        self._freed = False
        """Whether the connection may serve another writer."""

    async def run(self) -> None:
        """Connect, and connect again while a retry can help."""
        timeout = self._session.directory.declared.progress.writer_timeout
        longest = max(RECONNECT_FIRST, min(RECONNECT_LAST, timeout / TRIES))  # each try asks the catalog
        backoff = Backoff(RECONNECT_FIRST, longest)
        while True:
            try:
                error = await self._connect_once(backoff)
            except EpochalError as failed:
                error = failed
            except zmq.ZMQError as failed:
                error = Unavailable(f"segment {self._segment} cannot be connected to: {failed}")
            if not worth_retrying(error):
                self._session.fail(error)
                return
            self._session.directory.stale()
            await self._session.directory.pause(self._segment, backoff.delay())

    async def _connect_once(self, backoff: Backoff) -> EpochalError:
        session = self._session
        sidecar = session.sidecar
        address = await session.directory.address(self._segment, "ingest")
        self._lost = asyncio.get_running_loop().create_future()
        self._backoff = backoff
        self._freed = False
        try:
            if sidecar is None:
                self._socket = Socket(session.context, zmq.DEALER, self._received, session.act)
                self._socket.connect(address, self._broke)
                self._socket.start()
            else:
                self._socket = connections().take(
                    sidecar.address, Use.APPENDS, self._received, session.act, self._broke
                )
                self._pass_through(sidecar, address)
            self._heard = clock.monotonic()
            session.machine.connected(self._segment)
            session.act()
            return await self._lost
        finally:
            session.machine.disconnected(self._segment)
            self.close()

    def _pass_through(self, sidecar: Sidecar, address: str) -> None:
        """Ask the sidecar to forward this connection to a publisher."""
        trace = current_trace()  # this task was started where the writer was opened, so that is the trace
        stream = self._session.directory.qualified
        self._passes = True
        self._passed = False
        self._asked = next(_requests)
        self._say(m.Pass(self._asked, sidecar.instance, address, stream, None if trace is None else trace[0]))

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._socket is not None

    def send(self, message: m.Message) -> None:
        """Gather a message; `flush` sends."""
        self._packer.add(message)

    def flush(self) -> None:
        """Send what was gathered, together."""
        for frames in self._packer.flush():
            if self._socket is None:
                continue  # sent again after the reconnect (E10 durability)
            try:
                self._socket.send(frames)
            except zmq.Again:
                self.lose(Unavailable(f"the send queue to segment {self._segment} is full"))
                return

    def _received(self, frames: Frames) -> None:
        self._heard = clock.monotonic()
        try:
            if not frames[0] and len(frames) > 1:
                self._told_by_sidecar(frames[1:])
                return
            if not self._passed and self._session.sidecar is not None:
                return
            for message in wire.decode(frames):
                if type(message) is m.Opened:
                    self._backoff.reset()
                self._session.machine.receive(self._segment, message)
        except EpochalError as error:
            self.lose(error)

    def _new_packer(self) -> wire.Packer:
        return wire.Packer() if self._session.sidecar is None else wire.Packer(most=PACK)

    def _say(self, message: m.Message) -> None:
        """Say something to the sidecar itself."""
        if self._socket is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.send([b"", *wire.encode(message)[0]])

    def _told_by_sidecar(self, frames: Frames) -> None:
        for message in wire.decode(frames):
            match message:
                case m.Passed():
                    self._passed = message.request == self._asked
                case m.Refused() | m.Cut():
                    if self._passed or (isinstance(message, m.Refused) and message.op in (0, self._asked)):
                        self._passes = False
                        self.lose(from_code(message.code, message.detail))
                case _:
                    raise RemoteProtocolError(f"a sidecar does not send {type(message).__name__} here")

    def _broke(self) -> None:
        sidecar = self._session.sidecar
        if sidecar is None:
            self.lose(Unavailable(f"the connection to segment {self._segment} was lost"))
        else:  # what answers there next is another process, and a writer never uses two sidecars
            self._passes = False
            self.lose(sidecar.unavailable("the connection to it was lost"))

    def free(self) -> None:
        """Every answer has come and nothing more is sent: another writer may use the connections."""
        self._freed = self._passes and self._passed
        self._last_word(m.Free())

    def _last_word(self, message: m.Free | m.Cut) -> None:
        """Say once, when the writer leaves the sidecar, how it leaves."""
        if self._passes and self._socket is not None:
            self._passes = False
            self._socket.zmq.linger = LINGER_MS
            self._say(message)

    def check(self, now: float) -> None:
        """Give up the connection to a publisher that owes answers and is silent."""
        if not self._session.machine.owed(self._segment):
            self._heard = now
        elif now - self._heard > ANSWER_TIMEOUT:
            self.lose(TimedOut(f"segment {self._segment} has not answered for {ANSWER_TIMEOUT:g} s"))

    def lose(self, error: EpochalError) -> None:
        """Give the connection up; `run` makes it again."""
        self._freed = False
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(error)

    def close(self) -> None:
        """Close the socket, or keep it for another writer; what was gathered is dropped."""
        self._packer = self._new_packer()
        self._last_word(m.Cut(Unavailable.code, "the writer has left without all its answers"))
        socket, self._socket = self._socket, None
        if socket is None:
            return
        if self._freed and self._session.sidecar is not None:
            self._freed = False
            connections().give_back(self._session.sidecar.address, Use.APPENDS, socket)
        else:
            if self._session.machine.over and not socket.zmq.closed:
                socket.zmq.linger = LINGER_MS  # a session that was given up leaves with its last message (E4)
            socket.close()

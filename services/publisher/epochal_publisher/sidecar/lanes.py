"""Decides, without any I/O, which writer uses which connection from the sidecar to a publisher.

A publisher knows a session by its connection and segment, so a connection serves one writer at a time. If a writer has
left with all its answers (`Free`), its connection is kept warm for the next writer to the same publisher. Any other
connection is closed with its writer, because late messages on it must never reach another writer (E6 sessions).

The sidecar acknowledges nothing, and keeps nothing for a publisher that is away. Only the publisher acknowledges. A
writer keeps what is not acknowledged, and sends it again (E10 durability).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from epochal.errors import EpochalError, LimitExceeded, NoPublisher, SidecarUnavailable, Unavailable
from epochal.protocol import messages as m

MOST_ADDRESSES = 4096
"""How many addresses of publishers are remembered; the one that the catalog named longest ago is forgotten first."""

Peer: TypeAlias = bytes
"""A writer's connection: its routing id at the sidecar."""


class Connect(NamedTuple):
    """Make connection `number` to a publisher."""

    number: int
    address: str


class Close(NamedTuple):
    """Close connection `number`; messages that wait for it are dropped."""

    number: int


class SendToWriter(NamedTuple):
    """Send a writer a message from the sidecar itself."""

    peer: Peer
    message: m.Message


Effect: TypeAlias = Connect | Close | SendToWriter


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what the sidecar holds; durations in seconds."""

    held: int = 64 * 2**20
    """Bytes that publishers have not taken yet, of all writers. Above this, writers are not read."""
    held_each: int = 32 * 2**20
    """The same for one writer at one segment. Its window is 8 MiB, so only a writer that ignores it gets this far."""
    lanes: int = 1024
    """Connections of writers at once."""
    silence: float = 120.0
    """How long a writer may be silent. An open one sends heartbeats, so after this time it is gone."""
    warm: float = 60.0
    """How long a connection waits for its next writer."""
    warm_most: int = 64
    """The most connections that wait for their next writer."""


@dataclass(slots=True)
class Lane:
    """One writer at one segment."""

    peer: Peer
    connection: int
    heard: float
    waiting: int = 0
    """Bytes that the publisher has not taken yet."""


class Warm(NamedTuple):
    """A connection that waits for its next writer."""

    connection: int
    since: float


class Lanes:
    """Assigns connections to writers; `take` returns the effects to carry out, in order."""

    def __init__(self, instance: str, limits: Limits) -> None:
        self._instance = instance
        self._limits = limits
        self._lanes: dict[Peer, Lane] = {}
        self._by_connection: dict[int, Peer] = {}
        self._addresses: dict[int, str] = {}
        self._warm: dict[str, deque[Warm]] = {}
        self._known: dict[str, None] = {}
        self._effects: list[Effect] = []
        self._next = 0
        self.held = 0
        """Bytes that publishers have not taken yet."""
        self.waits = 0
        """How often reading stopped because `held` was too large."""
        self._full = False
        self.draining = False
        """Whether no new writer is taken."""

    def take(self) -> list[Effect]:
        """The effects to carry out now."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def count(self) -> int:
        """Connections of writers at present."""
        return len(self._lanes)

    @property
    def warm(self) -> int:
        """Connections that wait for a writer."""
        return sum(map(len, self._warm.values()))

    @property
    def full(self) -> bool:
        """Whether reading from writers is stopped, until the held bytes have fallen to half of the limit."""
        return self._full

    def know(self, addresses: Iterable[str]) -> None:
        """The catalog named these addresses of publishers. Writers are connected to no others."""
        for address in addresses:
            self._known.pop(address, None)
            self._known[address] = None
        while len(self._known) > MOST_ADDRESSES:
            del self._known[next(iter(self._known))]

    # ---- writers ----

    def passes(self, peer: Peer, request: m.Pass, now: float) -> None:
        """A writer wants a connection to a publisher."""
        refusal = self._refusal(peer, request)
        if refusal is not None:
            self._effects.append(SendToWriter(peer, m.Refused(request.request, refusal.code, str(refusal))))
            return
        waiting = self._warm.get(request.address)
        if waiting:
            number = waiting.pop().connection  # the most recently used one
            if not waiting:
                del self._warm[request.address]
        else:
            number, self._next = self._next, self._next + 1
            self._addresses[number] = request.address
            self._effects.append(Connect(number, request.address))
        self._lanes[peer] = Lane(peer, number, now)
        self._by_connection[number] = peer
        self._effects.append(SendToWriter(peer, m.Passed(request.request)))

    def _refusal(self, peer: Peer, request: m.Pass) -> EpochalError | None:
        if peer in self._lanes:
            return LimitExceeded("this connection goes through to a publisher already; open another one")
        if request.instance != self._instance:
            return SidecarUnavailable("this sidecar is not the one that the writer was opened with; open it again")
        if self.draining:
            return SidecarUnavailable("the sidecar stops and takes no more writers")
        if request.address not in self._known:
            return NoPublisher(f"the catalog did not name {request.address} here; look the stream up again")
        if len(self._lanes) >= self._limits.lanes:
            return LimitExceeded(f"{self._limits.lanes} writers' connections go through this sidecar already")
        return None

    def is_connected(self, peer: Peer) -> bool:
        """Whether this writer has a connection to a publisher."""
        return peer in self._lanes

    def came(self, peer: Peer, now: float) -> int | None:
        """A writer sent something for its publisher; returns the connection for it, None if the writer has none."""
        lane = self._lanes.get(peer)
        if lane is None:
            return None
        lane.heard = now
        return lane.connection

    def waits_for(self, connection: int, size: int) -> None:
        """The publisher does not take `size` bytes now."""
        lane = self._lanes[self._by_connection[connection]]
        lane.waiting += size
        self.held += size
        if lane.waiting > self._limits.held_each:
            error = LimitExceeded(f"a writer has sent {lane.waiting} bytes that its publisher has not taken")
            self._cut(lane, error)
        elif self.held > self._limits.held and not self._full:
            self._full = True
            self.waits += 1

    def taken(self, connection: int, size: int) -> None:
        """The publisher took `size` bytes that had waited."""
        lane = self._lanes[self._by_connection[connection]]
        lane.waiting -= size
        self._less(size)

    def freed(self, peer: Peer, now: float) -> None:
        """A writer has left with all its answers."""
        lane = self._lanes.get(peer)
        if lane is None:
            return
        clean = not lane.waiting  # else the rest would be sent after the next writer has the connection
        self._forget(lane)
        if clean and not self.draining and self.warm < self._limits.warm_most:
            self._warm.setdefault(self._addresses[lane.connection], deque()).append(Warm(lane.connection, now))
        else:
            self._close(lane.connection)

    def gone(self, peer: Peer) -> None:
        """A writer's connection is lost, or the writer broke the protocol."""
        lane = self._lanes.get(peer)
        if lane is not None:
            self._forget(lane)
            self._close(lane.connection)

    # ---- publishers ----

    def peer(self, connection: int) -> Peer | None:
        """The writer that gets what comes from a publisher on `connection`; None if it has left."""
        return self._by_connection.get(connection)

    def lost(self, connection: int) -> None:
        """The connection to a publisher is broken."""
        peer = self._by_connection.get(connection)
        if peer is not None:
            self._cut(self._lanes[peer], Unavailable("the connection to the publisher was lost"))
            return
        address = self._addresses.get(connection)
        if address is None:
            return
        left = deque(warm for warm in self._warm.get(address, ()) if warm.connection != connection)
        if left:
            self._warm[address] = left
        else:
            self._warm.pop(address, None)
        self._close(connection)

    # ---- time ----

    def tick(self, now: float) -> None:
        """End writers that were silent for too long, and connections that waited too long for a writer."""
        for lane in [lane for lane in self._lanes.values() if now - lane.heard > self._limits.silence]:
            self._cut(lane, Unavailable(f"nothing was heard of the writer for {self._limits.silence:g} s"))
        for address, waiting in list(self._warm.items()):
            while waiting and now - waiting[0].since > self._limits.warm:
                self._close(waiting.popleft().connection)
            if not waiting:
                del self._warm[address]

    def drain(self) -> None:
        """Take no more writers; present ones go on."""
        self.draining = True
        for waiting in self._warm.values():
            for warm in waiting:
                self._close(warm.connection)
        self._warm.clear()

    # ---- both ----

    def _cut(self, lane: Lane, error: EpochalError) -> None:
        self._forget(lane)
        self._close(lane.connection)
        self._effects.append(SendToWriter(lane.peer, m.Cut(error.code, str(error))))

    def _forget(self, lane: Lane) -> None:
        del self._lanes[lane.peer], self._by_connection[lane.connection]
        self._less(lane.waiting)

    def _less(self, size: int) -> None:
        self.held -= size
        if self._full and self.held <= self._limits.held // 2:
            self._full = False

    def _close(self, connection: int) -> None:
        del self._addresses[connection]
        self._effects.append(Close(connection))

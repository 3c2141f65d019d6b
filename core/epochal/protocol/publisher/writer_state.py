"""A segment's writers: their identity, what each holds, and the held times at which each has appended.

The publisher turns changes of this state into log events and answers. The rules about what a writer may do (S35) are
here, where they can be tested without a log; the numbers of its appends have modules of their own.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from epochal.errors import CapabilityError
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.log.history import EVENT_OVERHEAD
from epochal.protocol.publisher.append_numbers import AppendNumbers
from epochal.protocol.publisher.logged_sources import LoggedSources
from epochal.protocol.times import Time
from epochal.protocol.transitions import Transitions

Connection: TypeAlias = bytes
"""The connection of a writer: its routing id on `ingest`."""

REMEMBERED_WRITERS = 10_000
"""How many departed writers are remembered for their numbers; the one that left first is forgotten first.

Writers with source numbers have as much room again, so that writers without an id cannot push them out (E50 sources).
"""

DEPARTED_BYTES = 16 * 2**20
"""Most bytes of fingerprints of all departed writers; those of the writer that left first are dropped first."""

QueuedMessage: TypeAlias = m.Append | m.Hold | m.Abort | m.Leave
"""What a writer can request within its session."""


@dataclass(slots=True)
class WaitingLine:
    """The requests of one writer that must wait, in order, with their size."""

    messages: deque[QueuedMessage] = field(default_factory=deque)
    payload_bytes: int = 0
    """Payload bytes of the appends: what counts against the writer's window."""
    bytes: int = 0
    """Bytes of all requests; an upper bound of what they take in memory."""
    operations: int = 0
    """How many of the requests are not appends."""
    newest: Time | None = None
    """The time of the last append that was added."""

    def add(self, message: QueuedMessage) -> None:
        """Add one message at the end."""
        self.messages.append(message)
        self._count(message, 1)
        if type(message) is m.Append:
            self.newest = message.time

    def drop_first(self) -> None:
        """Remove the first message: it no longer waits."""
        self._count(self.messages.popleft(), -1)

    def _count(self, message: QueuedMessage, sign: int) -> None:
        if isinstance(message, m.Append):
            size = len(message.payload)
            self.payload_bytes += sign * size
            self.bytes += sign * (size + len(message.topic) + EVENT_OVERHEAD)
            return
        self.operations += sign
        times = 0 if isinstance(message, m.Leave) else len(message.times)
        self.bytes += sign * EVENT_OVERHEAD * (1 + times)


class WriterPresence(StrEnum):
    """Whether a writer is at a segment; what its capability is kept for."""

    PRESENT = "present"
    """A session is open, though its connection may be broken."""
    LOST = "lost"
    """Nothing was heard of it for the time-out, and its capability is kept until it is back or released (E46 hold)."""
    LEFT = "left"
    """It has left; it is remembered for its numbers."""
    RELEASED = "released"
    """It was lost, and its capability was released (E3 lost writers); it is remembered for its numbers."""


class PresenceEvent(StrEnum):
    """An event that changes a writer's presence."""

    OPENED = "a session opens, or comes back over another connection (E6 sessions)"
    SILENT = "nothing was heard of it for the time-out (E8)"
    DEPARTED = "it leaves, or is released after it was lost: at once, or with `whenLost: hold` by command (E46 hold)"
    REPLACED = "a newer session comes back that this incarnation had not known: the older one is undone (E6 sessions)"


_P, _E = WriterPresence, PresenceEvent

PRESENCE_TRANSITIONS = Transitions(
    _P.PRESENT,
    {
        _P.PRESENT: {_E.OPENED: _P.PRESENT, _E.SILENT: _P.LOST, _E.DEPARTED: _P.LEFT, _E.REPLACED: _P.LEFT},
        _P.LOST: {_E.OPENED: _P.PRESENT, _E.DEPARTED: _P.RELEASED, _E.REPLACED: _P.RELEASED},
        _P.LEFT: {_E.OPENED: _P.PRESENT, _E.REPLACED: _P.LEFT},
        _P.RELEASED: {_E.OPENED: _P.PRESENT, _E.REPLACED: _P.RELEASED},
    },
)


def restored_presence(*, present: bool, lost: bool) -> WriterPresence:
    """The presence of a writer as the log on disk has it."""
    if present:
        return WriterPresence.LOST if lost else WriterPresence.PRESENT
    return WriterPresence.RELEASED if lost else WriterPresence.LEFT


@dataclass(slots=True)
class WriterIdentity:
    """A writer's id, its newest session at the segment, and the connection of that session."""

    writer: str
    session: int
    peer: Connection
    under: str | None
    """The writer whose capability it uses; None for its own."""


@dataclass(slots=True)
class WriterState:
    """One writer at one segment. It outlives sessions, so that a writer that comes back is recognised.

    Besides identity and numbers it has the writer's capability: what it holds, whether it is there to use it, and the
    times at which it has appended under it.
    """

    identity: WriterIdentity
    heard: float
    """When the writer was last heard; publisher's clock, seconds."""
    appends: AppendNumbers = field(default_factory=AppendNumbers)
    sources: LoggedSources = field(default_factory=LoggedSources)
    held: Antichain = field(default_factory=Antichain)
    held_since: dict[Time, float] = field(default_factory=dict)
    """When each element of `held` was taken, in seconds of the publisher's clock."""
    touched: set[Time] = field(default_factory=set)
    """Times at which it has appended and which it still holds (E3 lost writers)."""
    presence: WriterPresence = PRESENCE_TRANSITIONS.start
    answered_lost: set[Time] = field(default_factory=set)
    """Times of appends that this incarnation does not have. Every answer to a resume repeats them, because the writer
    may not have received an earlier one (E10 durability)."""
    waiting: WaitingLine | None = None
    """Requests that wait until the catalog has recorded a horizon that covers them, and later ones (E11 horizon)."""
    granted: bool = False
    """Whether `held` was granted and has not moved since. Its session may not know yet that it was released."""
    closed: bool = False
    """Whether it has closed or finished, and moved nothing since. So it did not leave as a lost writer: all its
    appends, here and elsewhere, had been acknowledged (E1 barrier)."""
    departures: int = 0
    """How often it has left this incarnation."""

    def enter(self, event: PresenceEvent) -> None:
        """Change `presence`; raises `LocalProtocolError` where the table has no such event."""
        self.presence = PRESENCE_TRANSITIONS.after(self.presence, event)

    @property
    def present(self) -> bool:
        """Whether it may use its capability. After it has left or was released, only its numbers are remembered."""
        return self.presence is WriterPresence.PRESENT or self.presence is WriterPresence.LOST

    @property
    def lost(self) -> bool:
        """Whether its newest session ended because nothing was heard of it."""
        return self.presence is WriterPresence.LOST or self.presence is WriterPresence.RELEASED

    def aborted(self, time: Time) -> None:
        """The epoch `time` is aborted."""
        self.touched.discard(time)
        self.sources.aborted(time)

    def was_a_repeat(self, append: m.Append) -> bool:
        """Whether this old append was a repeat by its source number: acknowledged, but not logged (E50 sources)."""
        if append.meta is None or append.meta.source is None or append.meta.source > self.sources.highest:
            return False
        return not self.appends.has_logged(append.number)

    def hold(self, times: tuple[Time, ...]) -> Antichain:
        """The antichain of `times`, if each is reached by what is held now; else `CapabilityError` (S35)."""
        wanted = Antichain(times)
        if not len(wanted):
            raise CapabilityError(
                "a writer holds something until it leaves; close() or finish() instead of releasing all"
            )
        for time in wanted:
            if not self.held.less_equal(time):
                raise CapabilityError(
                    f"writer {self.identity.writer!r} cannot move to {time!r}: it holds {list(self.held)!r}; "
                    "capabilities only move forward"
                )
        return wanted

    def move(self, held: Antichain, now: float) -> None:
        """Hold `held` from now on, and nothing else."""
        self.held = held
        self.held_since = {time: self.held_since.get(time, now) for time in held}
        self.forget_left()

    def forget_left(self) -> None:
        """Drop from `touched` the times that are no longer held: those epochs have all of this writer's records."""
        if self.touched:
            self.touched = {time for time in self.touched if self.held.less_equal(time)}
            self.sources.times &= self.touched

    def reaches(self, time: Time) -> bool:
        """Whether some held capability is <= `time`."""
        return self.held.less_equal(time)


class KnownWriters:
    """The writers that a segment knows, by id and by connection. Iterates over all."""

    def __init__(self) -> None:
        self._by_id: dict[str, WriterState] = {}
        self._by_peer: dict[bytes, WriterState] = {}
        self._departed: deque[tuple[WriterState, int]] = deque()
        """Writers that left, in that order, each with the number of its departure. Some have come back since."""
        self._departed_numbered: deque[tuple[WriterState, int]] = deque()
        self._departed_bytes: dict[str, int] = {}
        """Writers that left, in that order, with the bytes of their fingerprints. Some may have come back since."""
        self._departed_total = 0

    def __iter__(self) -> Iterator[WriterState]:
        return iter(self._by_id.values())

    @property
    def present(self) -> int:
        """How many writers are present, at least: one that came back is also counted among the departed."""
        return len(self._by_id) - len(self._departed) - len(self._departed_numbered)

    def get(self, writer: str) -> WriterState | None:
        """The writer of that id."""
        return self._by_id.get(writer)

    def at(self, peer: bytes) -> WriterState | None:
        """The writer that speaks on connection `peer`."""
        return self._by_peer.get(peer)

    def peers(self) -> list[bytes]:
        """All connections that some writer speaks on."""
        return list(self._by_peer)

    def add(self, state: WriterState) -> None:
        """A writer opened here for the first time."""
        self._by_id[state.identity.writer] = state

    def bind(self, state: WriterState, peer: bytes) -> None:
        """From now on the writer speaks on `peer`, and on no other connection."""
        if self._by_peer.get(state.identity.peer) is state:
            del self._by_peer[state.identity.peer]
        state.identity.peer = peer
        self._by_peer[peer] = state

    def unbind(self, peer: bytes) -> bool:
        """Forget a connection, not its writer; returns whether it was known."""
        return self._by_peer.pop(peer, None) is not None

    def departed(self, state: WriterState) -> list[WriterState]:
        """The writer left: remember it for its numbers. Returns the writers that are forgotten to make room for it.

        The writer that left first is forgotten first.
        """
        state.departures += 1
        self._departed.append((state, state.departures))
        self._bound_fingerprints(state)
        forgotten: list[WriterState] = []
        while len(self._departed) > REMEMBERED_WRITERS:
            oldest, nth = self._departed.popleft()
            if oldest.sources.highest >= 0:
                self._departed_numbered.append((oldest, nth))
            else:
                self._forget_unless_back(oldest, nth, forgotten)
        while len(self._departed_numbered) > REMEMBERED_WRITERS:
            self._forget_unless_back(*self._departed_numbered.popleft(), forgotten)
        return forgotten

    def _forget_unless_back(self, left: WriterState, nth: int, forgotten: list[WriterState]) -> None:
        """Forget a writer that has not come back since it left for the `nth` time."""
        if not left.present and nth == left.departures and self._by_id.get(left.identity.writer) is left:
            self.forget(left)
            forgotten.append(left)

    def _bound_fingerprints(self, left: WriterState) -> None:
        """While departed writers' fingerprints take too much room, drop those of the writer that left first."""
        known = self._departed_bytes
        self._departed_total += left.appends.fingerprint_bytes - known.pop(left.identity.writer, 0)
        known[left.identity.writer] = left.appends.fingerprint_bytes
        while self._departed_total > DEPARTED_BYTES:
            oldest = next(iter(known))
            self._departed_total -= known.pop(oldest)
            if not self._by_id[oldest].present:
                self._by_id[oldest].appends.forget_fingerprints()

    def forget(self, state: WriterState) -> None:
        """Drop all that is known of the writer."""
        del self._by_id[state.identity.writer]
        self._departed_total -= self._departed_bytes.pop(state.identity.writer, 0)
        self._by_peer.pop(state.identity.peer, None)

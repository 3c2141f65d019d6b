"""Writers as a segment knows them.

Their sessions, append numbers, capabilities, and what they appended and have not left.

Apart from the publisher, which turns these into log events and answers, because the rules about *who may do what* (E5,
E6, S35) can be read and tested here without a log.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from epochal.errors import CapabilityError
from epochal.protocol.frontier import Antichain
from epochal.protocol.times import Time

REMEMBERED_RUNS = 4096
"""How many of a writer's last runs of appends (each in one go, without another's between) are remembered with their
positions, to answer one that is sent again."""

REMEMBERED_DENIALS = 4096
"""How many of its refused appends, to refuse one that is sent again."""

REMEMBERED_WRITERS = 10_000
"""How many writers that left are remembered for their numbers, oldest forgotten first."""

FIRST_SESSION = 1
"""The number of a writer's first session where sessions are counted: no earlier one has left anything (E6).

Catalogs give numbers out by their clocks, and say which session is a writer's first.
"""

GROUP = 32
"""`number >> GROUP` is an append number's group; numbers are without holes within a group."""


def follows(number: int, last: int) -> bool:
    """Whether append `number` may come next after `last`: the next one, or the first of a later group (E6).

    >>> follows(6, 5), follows(7, 5), follows(1 << 32, 5), follows((1 << 32) + 1, 5)
    (True, False, True, False)
    """
    return number == last + 1 or (number > last and number & ((1 << GROUP) - 1) == 0)


@dataclass(slots=True)
class WriterState:
    """One writer at one segment; outlives its sessions, so that a writer that comes back is recognised."""

    writer: str
    session: int
    peer: bytes
    under: str | None
    heard: float
    """Publisher's clock, seconds, when the writer was last heard."""
    number: int = -1
    held: Antichain = field(default_factory=Antichain)
    held_since: dict[Time, float] = field(default_factory=dict)
    """When each element of `held` was taken, in seconds of the publisher's clock."""
    touched: set[Time] = field(default_factory=set)
    """Times appended at and not left: still held (E3)."""
    present: bool = True
    """False once it left or was lost; the record stays for its numbers."""
    lost: bool = False
    anew: bool = False
    """Whether `held` was granted and not moved since: then some session may not know yet that it was given up (E3)."""
    _runs: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_RUNS))
    """(last number, its event, how many), oldest first."""
    _refused: dict[int, tuple[str, str]] = field(default_factory=dict)

    def logged(self, number: int, seq: int) -> None:
        """Remember that append `number` became event `seq`."""
        self.number = number
        runs = self._runs
        if runs and runs[-1][0] + 1 == number and runs[-1][1] + 1 == seq:
            runs[-1] = (number, seq, runs[-1][2] + 1)
        else:
            runs.append((number, seq, 1))

    def refused(self, number: int, code: str, detail: str) -> None:
        """Remember that append `number` was refused for good, so that the same answer is given if it is sent again."""
        self.number = number
        if len(self._refused) >= REMEMBERED_DENIALS:
            self._refused.pop(next(iter(self._refused)))
        self._refused[number] = (code, detail)

    def answer_again(self, number: int) -> int | tuple[str, str]:
        """The first answer to an old append: its event's sequence number, or (code, detail) of its refusal.

        Of appends too old to be remembered the oldest remembered position is given: an upper bound, which is all that
        marks need.
        """
        if number in self._refused:
            return self._refused[number]
        for last, seq, run in reversed(self._runs):
            if last - run < number <= last:
                return seq - (last - number)
        return self._runs[0][1] - self._runs[0][2] + 1 if self._runs else -1

    def runs(self, limit: int) -> Iterator[tuple[int, int, int]]:
        """The appends remembered as (last number, its seq, how many), oldest first, at most the last `limit` runs."""
        return islice(self._runs, max(len(self._runs) - limit, 0), None)

    def restore_run(self, number: int, seq: int, run: int) -> None:
        """Know again that the `run` appends up to `number` are the events up to `seq`."""
        self.number = max(self.number, number)
        self._runs.append((number, seq, run))

    def denials(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """The refused appends remembered: number, (code, detail)."""
        return iter(self._refused.items())

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
                    f"writer {self.writer!r} cannot move to {time!r}: it holds {list(self.held)!r}; "
                    "capabilities only move forward"
                )
        return wanted

    def move(self, held: Antichain, now: float) -> None:
        """Hold `held` from now on, and nothing else."""
        self.held = held
        self.held_since = {time: self.held_since.get(time, now) for time in held}
        self.forget_left()

    def forget_left(self) -> None:
        """Drop from `touched` what is no longer held: those epochs are whole as far as this writer goes."""
        if self.touched:
            self.touched = {time for time in self.touched if self.held.less_equal(time)}

    def reaches(self, time: Time) -> bool:
        """Whether some held capability is <= `time`."""
        return self.held.less_equal(time)


class Writers:
    """The writers that a segment knows, by id and by the connection that each speaks on; iterates over all."""

    def __init__(self) -> None:
        self._by_id: dict[str, WriterState] = {}
        self._by_peer: dict[bytes, WriterState] = {}
        self._departed: deque[WriterState] = deque()

    def __iter__(self) -> Iterator[WriterState]:
        return iter(self._by_id.values())

    @property
    def present(self) -> int:
        """How many have opened and neither left nor been lost, at least."""
        return len(self._by_id) - len(self._departed)

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
        self._by_id[state.writer] = state

    def bind(self, state: WriterState, peer: bytes) -> None:
        """From now on the writer speaks on `peer`, and on no other connection."""
        if self._by_peer.get(state.peer) is state:
            del self._by_peer[state.peer]
        state.peer = peer
        self._by_peer[peer] = state

    def unbind(self, peer: bytes) -> bool:
        """Forget a connection, not its writer; returns whether it was known."""
        return self._by_peer.pop(peer, None) is not None

    def departed(self, state: WriterState) -> list[str]:
        """The writer left: remember it for its numbers, and forget who left longest ago if there are too many.

        Returns the ids of those.
        """
        self._departed.append(state)
        forgotten = []
        while len(self._departed) > REMEMBERED_WRITERS:
            oldest = self._departed.popleft()
            if not oldest.present and self._by_id.get(oldest.writer) is oldest:
                self.forget(oldest)
                forgotten.append(oldest.writer)
        return forgotten

    def forget(self, state: WriterState) -> None:
        """Drop all that is known of the writer."""
        del self._by_id[state.writer]
        self._by_peer.pop(state.peer, None)


def joint(frontiers: list[Antichain]) -> Antichain:
    """The minimal times reachable at all of several segments: what a writer holds after `open` (E5).

    >>> joint([Antichain([3]), Antichain([5]), Antichain([4])])
    Antichain([5])
    """
    first, *rest = frontiers
    for other in rest:
        first = first.join(other)
    return first

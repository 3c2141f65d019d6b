"""Writers as a segment knows them: sessions, append numbers, capabilities, and times appended at and still held.

Separate from the publisher, which turns these into log events and answers, because the rules about *who may do what*
(E5, E6, S35) can be read and tested here without a log.
"""

import sys
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import TypeAlias

from epochal.errors import CapabilityError
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.log.history import EVENT_OVERHEAD
from epochal.protocol.messages import GROUP
from epochal.protocol.times import Time

Connection: TypeAlias = bytes
"""The connection of a writer: its routing id on `ingest`."""

REMEMBERED_RUNS = 4096
"""How many of a writer's last runs of appends are remembered with their positions, to answer one that is sent again.

A run is a series of appends with consecutive numbers and consecutive events, with no other writer's between.
"""

REMEMBERED_DENIALS = 4096
"""How many of a writer's last refused appends are remembered, to refuse one that is sent again."""

REMEMBERED_APPENDS = 4096
"""How many of a writer's last appends are remembered with their fingerprints, at least (E49); 16 bytes each."""

SPARE_APPENDS = 1024
"""How many more are kept before the oldest are dropped, so that many are dropped at once."""

REMEMBERED_WRITERS = 10_000
"""How many departed writers are remembered for their numbers; the one that left first is forgotten first.

As many more of those that have source numbers, so that writers without an id do not push them out (E50).
"""

DEPARTED_BYTES = 16 * 2**20
"""Most bytes of fingerprints of all departed writers; those of the writer that left first are dropped first."""


def follows(number: int, last: int) -> bool:
    """Whether append `number` may come next after `last`: the next one, or the first of a later group (E6).

    >>> follows(6, 5), follows(7, 5), follows(1 << 32, 5), follows((1 << 32) + 1, 5)
    (True, False, True, False)
    """
    return number == last + 1 or (number > last and number & ((1 << GROUP) - 1) == 0)


def fingerprint(time: Time, records: int, crc: int) -> int:
    """An append's time, record count and checksum in 64 bits, the same in every version and on every machine (E49).

    Two appends at one time have the same fingerprint exactly if count and checksum are the same. At different times
    they have the same one with probability 2^-64.

    >>> fingerprint(7, 2, 5) ^ fingerprint(7, 3, 5), fingerprint((0, 7), 2, 5) == fingerprint(7, 2, 5)
    (1, False)
    """
    return (crc << 32 | records) ^ _time_bits(time)


@lru_cache(maxsize=4096)
def _time_bits(time: Time) -> int:
    return int.from_bytes(blake2b(repr(time).encode(), digest_size=8).digest(), "big")


QueuedMessage: TypeAlias = m.Append | m.Hold | m.Abort | m.Leave
"""What a writer can request within its session."""


@dataclass(slots=True)
class WaitingLine:
    """The requests of one writer that must wait, in order, with their size."""

    messages: deque[QueuedMessage] = field(default_factory=deque)
    payload_bytes: int = 0
    """Payload bytes of the appends: what counts against the writer's window."""
    bytes: int = 0
    """Bytes of all requests; at least what they take in memory."""
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


@dataclass(slots=True)
class WriterState:
    """One writer at one segment. It outlives sessions, so that a writer that comes back is recognised."""

    writer: str
    session: int
    peer: bytes
    under: str | None
    heard: float
    """When the writer was last heard; publisher's clock, seconds."""
    number: int = -1
    held: Antichain = field(default_factory=Antichain)
    held_since: dict[Time, float] = field(default_factory=dict)
    """When each element of `held` was taken, in seconds of the publisher's clock."""
    touched: set[Time] = field(default_factory=set)
    """Times at which it has appended and which it still holds (E3)."""
    present: bool = True
    """False once it has left or was given up; the rest stays, for its numbers."""
    lost: bool = False
    answered_lost: set[Time] = field(default_factory=set)
    """Times of appends that this incarnation does not have. Every answer to a resume repeats them, because the writer
    may not have received an earlier one (E10)."""
    waiting: WaitingLine | None = None
    """Requests that wait until the catalog has recorded a horizon that covers them, and all that came after (E11)."""
    granted: bool = False
    """Whether `held` was granted and not moved since. A session may then not know yet that it was given up (E3)."""
    closed: bool = False
    """Whether it has closed or finished, and moved nothing since. Then it was not given up: all that it had appended,
    here and elsewhere, was acknowledged before (E1)."""
    source: int = -1
    """The highest source number that is logged, -1 for none; what is not above it is a repeat (E50)."""
    source_seq: int = -1
    """The event with that number, or a later one."""
    whole: int = -1
    """Up to this source number all is published at every segment, in epochs that the writer has left."""
    torn: bool = False
    """Whether an epoch with some of these numbers was aborted before the writer had left it."""
    refusing: bool = False
    """Whether a source number of this session was refused: no higher one is logged, or the first would be skipped."""
    numbered: set[Time] = field(default_factory=set)
    """Those times of `touched` at which it has appended with source numbers."""
    departures: int = 0
    """How often it has left this incarnation."""
    _runs: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_RUNS))
    """(last number, its event, how many), oldest first."""
    _refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    _numbers: "array[int]" = field(default_factory=lambda: array("Q"))
    """Numbers of the last appends, rising; none is missing from the first of them on."""
    _prints: "array[int]" = field(default_factory=lambda: array("Q"))
    """The `fingerprint` of each of these appends."""
    _stretch: "array[int]" = field(default_factory=lambda: array("I"))
    """Checksums of the newest appends, which are in none of the above yet.

    Their numbers are consecutive from `_first` on, their events from `_first_seq` on, and all have the same time and
    the same count of records.
    """
    _first: int = 0
    _first_seq: int = 0
    _time: Time | None = None
    _records: int = 0

    def logged(self, number: int, seq: int, time: Time, records: int, crc: int) -> None:
        """Remember that append `number`, of `records` records, became event `seq`. Hot path: called once an append."""
        self.number = number
        stretch = self._stretch
        count = len(stretch)
        if not (
            number == self._first + count
            and seq == self._first_seq + count
            and records == self._records
            and time == self._time
            and count < SPARE_APPENDS
        ):
            self._end_stretch()
            self._first = number
            self._first_seq = seq
            self._time = time
            self._records = records
        stretch.append(crc)

    def _end_stretch(self) -> None:
        """Move the newest appends to what is remembered of each append."""
        stretch, count = self._stretch, len(self._stretch)
        if not count:
            return
        assert self._time is not None
        same = fingerprint(self._time, self._records, 0)
        self._prints.extend([(crc << 32) ^ same for crc in stretch])  # the `fingerprint` of each
        self._numbers.extend(range(self._first, self._first + count))
        if len(self._numbers) > REMEMBERED_APPENDS + SPARE_APPENDS:
            self._forget_oldest()
        last, at, run = self._runs[-1] if self._runs else (-1, -1, 0)
        if run and (last + 1, at + 1) == (self._first, self._first_seq):
            self._runs[-1] = (last + count, at + count, run + count)
        else:
            self._runs.append((self._first + count - 1, self._first_seq + count - 1, count))
        del stretch[:]

    def refused(self, number: int, code: str, detail: str) -> None:
        """Remember that append `number` was refused for good, so that the same answer is given if it is sent again."""
        self.number = number
        if len(self._refused) >= REMEMBERED_DENIALS:
            self._refused.pop(next(iter(self._refused)))
        self._refused[number] = (code, detail)

    def aborted(self, time: Time) -> None:
        """The epoch `time` is aborted."""
        self.touched.discard(time)
        if time in self.numbered:
            self.numbered.discard(time)
            self.torn = True

    def published_up_to(self, whole: int, seq: int) -> None:
        """A move says that up to source number `whole` all is published; the last event is `seq` (E50)."""
        self.whole = max(self.whole, whole)
        if whole > self.source:
            self.source, self.source_seq = whole, seq

    def repeats(self, number: int, mark: int) -> bool:
        """Whether an append with an old number that was not refused is, by its `fingerprint`, the one logged (E49).

        True also for one that is older than all that are remembered, of which nothing is known.
        """
        self._end_stretch()
        numbers = self._numbers
        if not numbers or number < numbers[0]:
            return True
        at = bisect_left(numbers, number)
        return at < len(numbers) and numbers[at] == number and self._prints[at] == mark

    def was_a_repeat(self, append: m.Append) -> bool:
        """Whether an old number is that of a repeat by its source number, of which nothing was logged (E50)."""
        if append.meta is None or append.meta.source is None or append.meta.source > self.source:
            return False
        self._end_stretch()
        at = bisect_left(self._numbers, append.number)
        return not (at < len(self._numbers) and self._numbers[at] == append.number)

    @property
    def fingerprint_bytes(self) -> int:
        """How much memory the fingerprints take."""
        self._end_stretch()
        return 16 * len(self._numbers)

    def forget_fingerprints(self) -> None:
        """Drop all fingerprints; keep the appends' numbers and positions."""
        self._end_stretch()
        self._numbers = array("Q")
        self._prints = array("Q")

    def _forget_oldest(self) -> None:
        gone = max(len(self._numbers) - REMEMBERED_APPENDS, 0)
        del self._numbers[:gone], self._prints[:gone]

    def answer_again(self, number: int) -> int | tuple[str, str]:
        """The first answer to an old append: its event's sequence number, or (code, detail) of its refusal.

        For an append too old to be remembered it is the oldest remembered position: an upper bound, which is all that
        marks need.
        """
        self._end_stretch()
        if number in self._refused:
            return self._refused[number]
        for last, seq, run in reversed(self._runs):
            if last - run < number <= last:
                return seq - (last - number)
        return self._runs[0][1] - self._runs[0][2] + 1 if self._runs else -1

    def runs(self, limit: int) -> Iterator[tuple[int, int, int]]:
        """The appends remembered as (last number, its seq, how many), oldest first, at most the last `limit` runs."""
        self._end_stretch()
        return islice(self._runs, max(len(self._runs) - limit, 0), None)

    def restore_run(self, number: int, seq: int, run: int, prints: Sequence[int] = ()) -> None:
        """Restore that the last `run` appends up to `number` are the events up to `seq`, with their fingerprints.

        Without `prints` all earlier fingerprints are dropped as well. They must have no holes: a number after the first
        remembered one that is not among them counts as never logged.
        """
        self._end_stretch()
        self.number = max(self.number, number)
        self._runs.append((number, seq, run))
        if len(prints) != run:
            self.forget_fingerprints()
            return
        self._numbers.extend(range(number - run + 1, number + 1))
        self._prints.extend(prints)
        self._forget_oldest()

    def fingerprints(self, most: int = 2**63) -> tuple[int, bytes, bytes]:
        """(last number, all numbers, their fingerprints), as a log keeps them: eight bytes each, big endian.

        The newest that fit into `most` bytes, at most `REMEMBERED_APPENDS`. The numbers are left empty when they are
        consecutive.
        """
        self._end_stretch()
        numbers = self._numbers
        count = min(len(numbers), REMEMBERED_APPENDS, most // 8)
        gapless = self._is_gapless(count)
        if not gapless:
            count = min(count, most // 16)
        if not count:
            return -1, b"", b""
        return numbers[-1], b"" if gapless else _to_bytes(numbers[-count:]), _to_bytes(self._prints[-count:])

    @property
    def kept_bytes(self) -> int:
        """How many bytes `fingerprints` returns without a limit."""
        self._end_stretch()
        count = min(len(self._numbers), REMEMBERED_APPENDS)
        return (8 if self._is_gapless(count) else 16) * count

    def _is_gapless(self, count: int) -> bool:
        """Whether the last `count` numbers are consecutive."""
        return count == 0 or self._numbers[-1] - self._numbers[-count] == count - 1

    def restore_fingerprints(self, last: int, numbers: bytes, prints: bytes) -> None:
        """Restore what `fingerprints` returned. Raises `ValueError` for anything else."""
        self._prints = _from_bytes(prints)
        count = len(self._prints)
        self._numbers = _from_bytes(numbers) if numbers else array("Q", range(last - count + 1, last + 1))
        if len(self._numbers) != count:
            raise ValueError(f"{count} fingerprints of {len(self._numbers)} appends")

    def denials(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """The refused appends that are remembered: number, (code, detail)."""
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
        """Drop from `touched` what is no longer held: this writer has written those epochs whole."""
        if self.touched:
            self.touched = {time for time in self.touched if self.held.less_equal(time)}
            self.numbered &= self.touched

    def reaches(self, time: Time) -> bool:
        """Whether some held capability is <= `time`."""
        return self.held.less_equal(time)


def _to_bytes(values: "array[int]") -> bytes:
    if sys.byteorder == "little":
        values.byteswap()
    return values.tobytes()


def _from_bytes(data: bytes) -> "array[int]":
    values = array("Q")
    values.frombytes(data)
    if sys.byteorder == "little":
        values.byteswap()
    return values


class KnownWriters:
    """The writers that a segment knows, by id and by the connection of each. Iterates over all."""

    def __init__(self) -> None:
        self._by_id: dict[str, WriterState] = {}
        self._by_peer: dict[bytes, WriterState] = {}
        self._departed: deque[tuple[WriterState, int]] = deque()
        """Writers that left, the first to leave first, each with the number of that departure; some have come back."""
        self._departed_numbered: deque[tuple[WriterState, int]] = deque()
        self._departed_bytes: dict[str, int] = {}
        """Writers that left, the first to leave first, and the bytes of their fingerprints; some may be back."""
        self._departed_total = 0

    def __iter__(self) -> Iterator[WriterState]:
        return iter(self._by_id.values())

    @property
    def present(self) -> int:
        """How many have opened and neither left nor been given up; a lower bound."""
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

    def departed(self, state: WriterState) -> list[WriterState]:
        """The writer left: remember it for its numbers. Returns the writers that are forgotten to make room for it.

        Those that left first are forgotten first.
        """
        state.departures += 1
        self._departed.append((state, state.departures))
        self._bound_fingerprints(state)
        forgotten: list[WriterState] = []
        while len(self._departed) > REMEMBERED_WRITERS:
            oldest, nth = self._departed.popleft()
            if oldest.source >= 0:
                self._departed_numbered.append((oldest, nth))
            else:
                self._forget_unless_back(oldest, nth, forgotten)
        while len(self._departed_numbered) > REMEMBERED_WRITERS:
            self._forget_unless_back(*self._departed_numbered.popleft(), forgotten)
        return forgotten

    def _forget_unless_back(self, left: WriterState, nth: int, forgotten: list[WriterState]) -> None:
        """Forget a writer that has not come back since it left for the `nth` time."""
        if not left.present and nth == left.departures and self._by_id.get(left.writer) is left:
            self.forget(left)
            forgotten.append(left)

    def _bound_fingerprints(self, left: WriterState) -> None:
        """Drop the fingerprints of the writers that left first while all together take too much room."""
        known = self._departed_bytes
        self._departed_total += left.fingerprint_bytes - known.pop(left.writer, 0)
        known[left.writer] = left.fingerprint_bytes
        while self._departed_total > DEPARTED_BYTES:
            oldest = next(iter(known))
            self._departed_total -= known.pop(oldest)
            if not self._by_id[oldest].present:
                self._by_id[oldest].forget_fingerprints()

    def forget(self, state: WriterState) -> None:
        """Drop all that is known of the writer."""
        del self._by_id[state.writer]
        self._departed_total -= self._departed_bytes.pop(state.writer, 0)
        self._by_peer.pop(state.peer, None)

"""The numbers of one writer's appends at a segment, and the answer to each, which a repeated append gets again.

A writer that lost its connection sends again what was not acknowledged, and a task that runs again sends all it had
sent. The newest appends are remembered with their events and fingerprints; older ones only by their number. How a log
keeps them is part of its format (docs/log.md).

Sources: rules E6, E49.
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

from epochal.protocol.messages import GROUP
from epochal.protocol.times import Time

REMEMBERED_RUNS = 4096
"""How many of a writer's last runs of appends are remembered with their positions, to answer one that is sent again.

A run is a series of appends with consecutive numbers and consecutive events, with no other writer's between.
"""

REMEMBERED_DENIALS = 4096
"""How many of a writer's last refused appends are remembered, to refuse one that is sent again."""

REMEMBERED_APPENDS = 4096
"""How many of a writer's last appends are remembered with their fingerprints, at least (E49); 16 bytes each."""

SPARE_APPENDS = 1024
"""How many more are kept before the oldest are dropped, so that dropping is rare and takes many at once."""


def follows(number: int, last: int) -> bool:
    """Whether append `number` may come next after `last`: the next one, or the first of a later group (E6 sessions).

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


@dataclass(slots=True)
class AppendNumbers:
    """The appends of one writer at one segment, in two forms.

    All appends since one point are in `_stretch` as four bytes each, as long as numbers and events rise by one and time
    and record count stay: so remembering an append on the hot path costs a comparison and an `array.append`. When that
    ends, `_end_stretch` moves them to the form in which they are looked up.
    """

    last: int = -1
    """The number of the last append that was answered; -1 for none."""
    _runs: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_RUNS))
    """(last number, its event, how many), oldest first."""
    _refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    _numbers: "array[int]" = field(default_factory=lambda: array("Q"))
    """Numbers of the last logged appends, rising; no logged append after the first of them is missing."""
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
        self.last = number
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
        """Move the newest appends from the compact form to `_runs`, `_numbers` and `_prints`."""
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
        self.last = number
        if len(self._refused) >= REMEMBERED_DENIALS:
            self._refused.pop(next(iter(self._refused)))
        self._refused[number] = (code, detail)

    def repeats(self, number: int, mark: int) -> bool:
        """Whether an append with an old number has the same `fingerprint` as the logged one with that number (E49).

        Also true for numbers older than the remembered ones, which cannot be checked.
        """
        self._end_stretch()
        numbers = self._numbers
        if not numbers or number < numbers[0]:
            return True
        at = bisect_left(numbers, number)
        return at < len(numbers) and numbers[at] == number and self._prints[at] == mark

    def has_logged(self, number: int) -> bool:
        """Whether the fingerprint of append `number` is remembered: an event of the log came from it."""
        self._end_stretch()
        at = bisect_left(self._numbers, number)
        return at < len(self._numbers) and self._numbers[at] == number

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

        For an append too old to be remembered it is the oldest remembered position. The append is at or before it, and
        marks need only such an upper bound.
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
        self.last = max(self.last, number)
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

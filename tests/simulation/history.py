"""What a simulated run did and saw, in the form that the chaos kit's checker reads.

Separate from the oracle, which judges each event as it is logged and knows what the publishers hold: this is only what
applications could have written down themselves, and what was done to the parts. So the same rules judge simulated runs
and real processes.
"""

from collections.abc import Callable, Iterable
from typing import Any

from tests.chaos.checker import check
from tests.chaos.history import NEMESIS, Entry, Phase, times
from tests.simulation.oracle import Asked, Violation, digest_of, topic_of

from epochal.protocol.times import Time

INSTANT = 1e-9
"""Seconds between two entries that virtual time puts at the same moment: the checker compares by time."""


class History:
    """The entries of one run, in the order in which things happened."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.entries: list[Entry] = []
        self._clock = clock
        self._moves = 0

    def write(self, actor: str, life: int, op: str, phase: Phase = Phase.INFO, /, **data: Any) -> None:
        """Add an entry."""
        now = self._clock()
        if self.entries:
            now = max(now, self.entries[-1].at + INSTANT)
        self.entries.append(Entry(now, actor, life, op, phase, data))

    def append(self, asked: Asked, phase: Phase, **data: Any) -> None:
        """A writer asked for an append, or heard how it ended."""
        payload = asked.payload.decode()
        self.write(
            asked.session.writer, asked.session.number, "append", phase, ids=[payload],
            digests=[digest_of(asked.payload)], segment=asked.segment, time=asked.time,
            topic=topic_of(asked.payload).decode(), **data,
        )  # fmt: skip

    def leave(self, writer: str, life: int, held: Iterable[Time]) -> int:
        """A writer holds only `held` from now on. Returns the number by which `left` confirms it."""
        self._moves += 1
        self.write(writer, life, "leave", Phase.INVOKE, n=self._moves, held=times(held))
        return self._moves

    def left(self, writer: str, life: int, move: int) -> None:
        """All segments have confirmed a move."""
        self.write(writer, life, "leave", Phase.OK, n=move)

    def fault(self, what: str, *targets: str, **data: Any) -> None:
        """Something was done to these processes."""
        self.write(NEMESIS, 0, what, targets=list(targets), **data)

    def lost(self, segment: str) -> None:
        """All that a publisher had in memory, or had not yet on disk, is gone."""
        self.write(NEMESIS, 0, "lost", target=segment, segments=[segment])

    def judge(self) -> None:
        """Raise for what the checker finds first."""
        found = check(self.entries)
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise Violation(f"history, {found[0].rule}: {found[0].detail}{more}")

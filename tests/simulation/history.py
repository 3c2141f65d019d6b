"""What a simulated run did and saw, in the form that the chaos kit's checker reads.

Separate from the oracle, which judges each event as it is logged and knows what the publishers hold: this is only what
applications could have written down themselves, and what was done to the parts. So the same rules judge simulated runs
and real processes.
"""

from collections.abc import Callable, Iterable, Mapping
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
        session, payload = asked.session, asked.payload
        self.record(
            session.writer, session.number, asked.segment, asked.time, topic_of(payload), payload, phase, **data
        )  # fmt: skip

    def record(
        self, writer: str, life: int, segment: str, time: Time, topic: bytes, payload: bytes, phase: Phase, **data: Any
    ) -> None:
        """The same where no `Asked` is kept."""
        self.write(
            writer, life, "append", phase, ids=[payload.decode()], digests=[digest_of(payload)], segment=segment,
            time=time, topic=topic.decode(), **data,
        )  # fmt: skip

    def leave(self, writer: str, life: int, held: Iterable[Time], *, closes: bool = False) -> int:
        """A writer holds only `held` from now on, or closes. Returns the number by which `left` confirms it."""
        self._moves += 1
        self.write(writer, life, "leave", Phase.INVOKE, n=self._moves, held=times(held), closes=closes)
        return self._moves

    def left(self, writer: str, life: int, move: int) -> None:
        """All segments have confirmed a move."""
        self.write(writer, life, "leave", Phase.OK, n=move)

    def fault(self, what: str, *targets: str, **data: Any) -> None:
        """Something was done to these processes."""
        self.write(NEMESIS, 0, what, targets=list(targets), **data)

    def lost(self, segment: str, incarnation: int) -> None:
        """All that this publisher had in memory, or had not yet on disk, is gone."""
        self.write(NEMESIS, 0, "lost", target=segment, segments=[segment], incarnation=incarnation)

    def forgot(self, segment: str) -> None:
        """A publisher begins of which nothing is known: what it had may be gone, and nobody can say what it was."""
        self.write(NEMESIS, 0, "forgot", target=segment)

    def judge(self) -> None:
        """Raise for what the checker finds first."""
        found = check(self.entries)
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise Violation(f"history, {found[0].rule}: {found[0].detail}{more}")


class Diary:
    """What one reading application writes down of what it asks for and is given, through its lives."""

    def __init__(self, history: History, name: str) -> None:
        self.life = 0
        self._history, self._name = history, name

    def _write(self, op: str, /, **data: Any) -> None:
        self._history.write(self._name, self.life, op, **data)

    def joins(self, since: str | None, wanted: Iterable[Time], *, partial: bool = False) -> None:
        """It begins: with what there is from `since` on, as far as `wanted` reaches it."""
        self._write("join", since=since, times=times(wanted), partial=partial)

    def resumes(self, saved: int) -> None:
        """It goes on from the cursor that it saved under this number."""
        self._write("join", since="cursor", n=saved)

    def always(self, topics: Iterable[bytes]) -> None:
        """It has wanted these all the time, and could have them whole."""
        self._write("always", topics=_named(topics))

    def wants(self, topics: Iterable[bytes]) -> None:
        """It wants these from now on."""
        self._write("wants", topics=_named(topics))

    def ready(self, frontier: Iterable[Time]) -> None:
        """All segments have answered its join."""
        self._write("ready", frontier=times(frontier))

    def follows(self, segment: str, incarnation: int) -> None:
        """It has gone over to this publisher."""
        self._write("follows", segment=segment, incarnation=incarnation)

    def truncated(self) -> None:
        """It has learned that not all of what comes next for it was retained."""
        self._write("truncated")

    def epoch(
        self, time: Time, frontier: Iterable[Time], payloads: Mapping[str, Iterable[bytes]], topics: Iterable[bytes]
    ) -> None:
        """It is given an epoch, which must have all of these topics and nothing else."""
        parts = {segment: [(each.decode(), digest_of(each)) for each in part] for segment, part in payloads.items()}
        self._write("epoch", time=time, frontier=times(frontier), parts=parts, topics=_named(topics))

    def aborted(self, time: Time, frontier: Iterable[Time]) -> None:
        """An epoch is reported to it as aborted."""
        self._write("aborted", time=time, frontier=times(frontier))

    def whole(self, time: Time, frontier: Iterable[Time], topics: Iterable[bytes]) -> None:
        """It asked, and has seen a time whole, as far as these topics go."""
        self._write("whole", frontier=times(frontier), times=times([time]), topics=_named(topics))

    def saves(self, number: int, frontier: Iterable[Time], untold: Iterable[Time]) -> None:
        """It saved a cursor."""
        self._write("save", n=number, frontier=times(frontier), untold=times(untold))

    def ends(self) -> None:
        """It has come to the end of the stream."""
        self._write("end", frontier=[])


def _named(topics: Iterable[bytes]) -> list[str]:
    return sorted(topic.decode() for topic in topics)

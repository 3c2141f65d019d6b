"""Judges a history: what was lost, doubled, torn, out of order or claimed wrongly, by rules that know of no machinery.

Apart from the actors and the faults, so that whatever happened, in whatever kind of test, is judged by the same rules.
Pure: entries in, violations out. `RULES` lists them, with what each of them forbids.

Without a volume a publisher that dies takes its memory with it (E11). What may then be missing, and only then, is said
in one place: `_Story.forgotten`. With its log on disk nothing is excused.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.chaos.history import NEMESIS, Entry, Phase

from epochal.errors import HistoryTruncated
from epochal.protocol.times import Time, less_equal


class Violation(NamedTuple):
    """A broken rule; `detail` names who, which time and which record."""

    rule: str
    detail: str


@dataclass(slots=True)
class Append:
    """One record that a writer asked for. `position` is (segment, incarnation, seq) once it was acknowledged."""

    id: str
    writer: str
    life: int
    order: int
    time: Time
    segment: str
    digest: int
    invoked: float
    done: float | None = None
    position: tuple[str, int, int] | None = None
    failed: bool = False


@dataclass(slots=True)
class Leave:
    """A call that gave up every time that `to` does not reach (None: all times)."""

    writer: str
    life: int
    to: Time | None
    invoked: float
    failed: bool = False

    def leaves(self, time: Time) -> bool:
        """Whether `time` cannot be written to after it."""
        return not self.failed and (self.to is None or not less_equal(self.to, time))


@dataclass(slots=True)
class Given:
    """One epoch as a reader was given it: per segment (id, digest) pairs."""

    at: float
    life: int
    time: Time
    frontier: tuple[Time, ...]
    parts: dict[str, list[tuple[str, int]]]

    @property
    def ids(self) -> list[str]:
        """All records."""
        return [record for part in self.parts.values() for record, _ in part]


@dataclass(slots=True)
class Reader:
    """All lives of one reader from one beginning; a life that resumes from a cursor belongs to the one before."""

    name: str
    entries: list[Entry] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    aborted: dict[Time, float] = field(default_factory=dict)
    ended: bool = False

    def __str__(self) -> str:
        return self.name


class _Story:
    """The history, put together."""

    def __init__(self, history: Sequence[Entry]) -> None:
        self.appends: dict[str, Append] = {}
        self.leaves: list[Leave] = []
        self.told_lost: list[Entry] = []
        self.lost: dict[str, list[float]] = defaultdict(list)
        """Segment -> when its publisher died with what it remembered."""
        self.faults = [entry for entry in history if entry.actor == NEMESIS]
        self.stored: set[str] = set()
        """Publishers whose logs are on disk: nothing may come of their deaths."""
        self.errors: list[Entry] = []
        self.aborts: list[Entry] = []
        self.readers: list[Reader] = []
        self.healed = any(entry.op == "over" for entry in self.faults)
        orders: dict[tuple[str, int], int] = defaultdict(int)
        current: dict[str, Reader] = {}
        moves: dict[tuple[str, int, int], Leave] = {}
        for entry in history:
            if entry.actor == NEMESIS:
                if entry.op == "lost":
                    for segment in entry.data["segments"]:
                        self.lost[segment].append(entry.at)
                elif entry.op == "stored":
                    self.stored |= set(entry.data["targets"])
            elif entry.op == "append":
                self._append(entry, orders)
            elif entry.op == "leave":
                self._leave(entry, moves)
            elif entry.op == "abort":
                self.aborts.append(entry)
            elif entry.op == "told":
                self.told_lost.append(entry)
            else:
                if entry.op == "error":
                    self.errors.append(entry)
                self._read(entry, current)

    def _append(self, entry: Entry, orders: dict[tuple[str, int], int]) -> None:
        data = entry.data
        for index, record in enumerate(data["ids"]):
            if entry.phase is Phase.INVOKE:
                key = (entry.actor, entry.life)
                orders[key] += 1
                self.appends[record] = Append(
                    record, *key, orders[key], entry.time(), data["segment"], data["digests"][index], entry.at
                )
            elif record in self.appends:
                append = self.appends[record]
                append.done, append.failed = entry.at, entry.phase is Phase.FAIL
                if entry.phase is Phase.OK:
                    append.position = (append.segment, *data["position"])

    def _leave(self, entry: Entry, moves: dict[tuple[str, int, int], Leave]) -> None:
        key = (entry.actor, entry.life, entry.data["n"])
        if entry.phase is Phase.INVOKE:
            to = None if entry.data["to"] is None else entry.time("to")
            moves[key] = Leave(*key[:2], to, entry.at)
            self.leaves.append(moves[key])
        elif key in moves:
            moves[key].failed = entry.phase is Phase.FAIL

    def _read(self, entry: Entry, current: dict[str, Reader]) -> None:
        if entry.op == "join" and (entry.data["since"] != "cursor" or entry.actor not in current):
            current[entry.actor] = Reader(entry.actor)
            self.readers.append(current[entry.actor])
        reader = current.get(entry.actor)
        if reader is None:
            return
        reader.entries.append(entry)
        if entry.op == "epoch":
            parts = {name: [(r, d) for r, d in part] for name, part in entry.data["parts"].items()}
            reader.given.append(Given(entry.at, entry.life, entry.time(), entry.times("frontier"), parts))
        elif entry.op == "aborted":
            reader.aborted.setdefault(entry.time(), entry.at)
        elif entry.op == "end":
            reader.ended = True

    def lost_between(self, segment: str, begin: float, end: float) -> list[float]:
        """When the memory of `segment` was lost in that time."""
        return [at for at in self.lost[segment] if begin <= at <= end]

    def forgotten(self, append: Append, end: float) -> bool:
        """E11: whether an acknowledged record may be missing from its epoch.

        Its publisher died after it was asked for, and its writer either had left the time by then, or went away, so
        that nobody told the next incarnation what it lacks. Who was told of the loss must see the epoch aborted.
        """
        leave = min((x.invoked for x in self.leaves if self._of(x, append) and x.leaves(append.time)), default=None)
        told = [x.at for x in self.told_lost if (x.actor, x.life) == (append.writer, append.life)]
        crashes = self.lost_between(append.segment, append.invoked, end)
        return any(leave is None or not any(crash < at < leave for at in told) for crash in crashes)

    @staticmethod
    def _of(leave: Leave, append: Append) -> bool:
        return (leave.writer, leave.life) == (append.writer, append.life)

    def at(self, time: Time) -> list[Append]:
        """The appends at a time."""
        return [append for append in self.appends.values() if append.time == time]


Found = Iterator[str]


def _invented(story: _Story) -> Found:
    for reader in story.readers:
        for epoch in reader.given:
            for segment, part in epoch.parts.items():
                for record, digest in part:
                    append = story.appends.get(record)
                    if append is None or (append.time, append.segment, append.digest) != (epoch.time, segment, digest):
                        yield f"{reader} was given {record} at {epoch.time} in segment {segment}, not as it was written"


def _duplicate(story: _Story) -> Found:
    for reader in story.readers:
        seen: set[str] = set()
        for ids in _readings(reader):
            for record in ids:
                if record in seen:
                    yield f"{reader} was given {record} twice"
                seen.add(record)


def _readings(reader: Reader) -> Iterator[list[str]]:
    """What counts as given: a yield that no saved cursor covers comes again after a kill, as it should (E16)."""
    epochs = {epoch.at: epoch for epoch in reader.given}
    unsaved: list[list[str]] = []
    for entry in reader.entries:
        if entry.op == "save":
            yield from unsaved
            unsaved = []
        elif entry.op == "join":
            unsaved = []
        elif entry.op == "epoch":
            unsaved.append(epochs[entry.at].ids)
    yield from unsaved


def _order(story: _Story) -> Found:
    for reader in story.readers:
        for epoch in reader.given:
            for segment, part in epoch.parts.items():
                last: dict[str, tuple[int, int]] = {}
                for record, _ in part:
                    append = story.appends.get(record)
                    if append is not None:
                        place = (append.life, append.order)
                        if place <= last.get(append.writer, (-1, -1)):
                            yield f"{reader} was given {record} of segment {segment} at {epoch.time} out of order"
                        last[append.writer] = place


def _atomic(story: _Story) -> Found:
    """I1."""
    for reader in story.readers:
        for epoch in reader.given:
            ids = set(epoch.ids)
            for append in story.at(epoch.time):
                if append.position and append.id not in ids and not story.forgotten(append, epoch.at):
                    yield f"{reader} was given {epoch.time} without {append.id}, which was acknowledged"
                if append.failed and append.id in ids:
                    yield f"{reader} was given {append.id} at {epoch.time}, which was refused"
            if epoch.time in reader.aborted:
                yield f"{reader} was given {epoch.time} and told that it was aborted"


def _same(story: _Story) -> Found:
    first: dict[Time, tuple[Reader, Given]] = {}
    for reader in story.readers:
        for epoch in reader.given:
            other, before = first.setdefault(epoch.time, (reader, epoch))
            for record in set(epoch.ids) ^ set(before.ids):
                append = story.appends.get(record)
                end = max(epoch.at, before.at)
                if append is None or not story.lost_between(append.segment, append.invoked, end):
                    yield f"{other} and {reader} were given different epochs {epoch.time}: {record}"


def _left(story: _Story) -> Found:
    """E3, E4."""
    for reader in story.readers:
        for epoch in reader.given:
            for append in [story.appends[record] for record in epoch.ids if record in story.appends]:
                if not any(
                    leave.writer == append.writer
                    and leave.life >= append.life
                    and leave.invoked < epoch.at
                    and leave.leaves(epoch.time)
                    for leave in story.leaves
                ):
                    yield f"{reader} was given {epoch.time}, which {append.writer} (life {append.life}) has not left"
                    break


def _lost(story: _Story) -> Found:
    """I2, E18: who says that it saw a time whole was given all of it."""
    for reader, time, whole in _not_given(story):
        if whole:
            yield f"{reader} says that it saw {time} whole, and was given nothing of it"


def _silent(story: _Story) -> Found:
    """I2: what is not given is told of, unless it was under way at the join or at a gap (E15, E17)."""
    for reader, time, whole in _not_given(story):
        begun = reader.entries[0]
        ready = next((entry.at for entry in reader.entries if entry.op == "ready"), begun.at)
        late = begun.data["since"] is None and any(append.invoked <= ready for append in story.at(time))
        # A gap cannot touch what was over for the reader before any memory was lost.
        over = _over(reader, time)
        gap = any(at <= over for losses in story.lost.values() for at in losses)
        if not whole and not late and not gap:
            yield f"{reader} was neither given {time} nor told why"


def _over(reader: Reader, time: Time) -> float:
    """When nothing more could come at `time`: a reader that is killed knows of it only what its cursor says."""
    over, saved = None, False
    for entry in reader.entries:
        if entry.op == "join" and not saved:
            over = None
        passed = "frontier" in entry.data and not _reached(entry.times("frontier"), time)
        if over is None and passed:
            over = entry.at
        saved |= passed and entry.op == "save"
    return reader.entries[-1].at if over is None else over


def _not_given(story: _Story) -> Iterator[tuple[Reader, Time, bool]]:
    """Times with acknowledged records that a reader, which saw the end, was neither given nor told to be aborted."""
    for reader in (reader for reader in story.readers if reader.ended):
        whole = {time for entry in reader.entries if entry.op == "whole" for time in entry.times("times")}
        given = {epoch.time for epoch in reader.given}
        end = reader.entries[-1].at
        for time in sorted({append.time for append in story.appends.values()} - given - set(reader.aborted)):
            if any(append.position and not story.forgotten(append, end) for append in story.at(time)):
                yield reader, time, time in whole


def _back(story: _Story) -> Found:
    """I6."""
    for reader in story.readers:
        last: tuple[Time, ...] | None = None
        saved: tuple[Time, ...] | None = None
        for entry in reader.entries:
            if entry.op == "join":
                last = saved if entry.data["since"] == "cursor" else None
            elif "frontier" in entry.data:
                now = entry.times("frontier")
                if entry.op == "save":
                    saved = now
                    continue
                if last is not None and not all(_reached(last, time) for time in now):
                    yield f"the frontier of {reader} went back from {last} to {now}"
                last = now


def _reached(frontier: Sequence[Time], time: Time) -> bool:
    return any(less_equal(element, time) for element in frontier)


def _dishonest(story: _Story) -> Found:
    """S35, I6: what was said to be complete gets no more records, and nothing is given before it is."""
    for reader in story.readers:
        for epoch in reader.given:
            if _reached(epoch.frontier, epoch.time):
                yield f"{reader} was given {epoch.time} while its frontier was {epoch.frontier}"
        passed = [entry for entry in reader.entries if "frontier" in entry.data and entry.op != "save"]
        for append in story.appends.values():
            if append.position is None or append.done is None:
                continue
            if any(at <= append.done for at in story.lost[append.segment]):
                continue  # given again after the loss of memory (E11)
            # Frontiers only move on: the last one before the append decides.
            before = [entry for entry in passed if entry.at < append.invoked]
            if before and not _reached(before[-1].times("frontier"), append.time):
                yield f"{append.id} was accepted at {append.time} after {reader} was told that it was complete"


def _extension(story: _Story) -> Found:
    """E16, E18."""
    for reader in story.readers:
        for index, later in enumerate(reader.given):
            for earlier in reader.given[:index]:
                if earlier.life == later.life and less_equal(later.time, earlier.time):
                    yield f"{reader} was given {later.time} after {earlier.time}"


def _owners(story: _Story) -> Found:
    """E12, E6."""
    acked = sorted((x for x in story.appends.values() if x.position), key=lambda x: x.invoked)
    highest: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for append in acked:
        assert append.position is not None
        assert append.done is not None
        highest[append.segment].append((append.done, append.position[1]))
    batches: dict[tuple[str, int, int], tuple[Time, str, int]] = {}
    last: dict[tuple[str, int, str], tuple[int, int]] = {}
    for append in acked:
        assert append.position is not None
        segment, incarnation, seq = append.position
        if any(done < append.invoked and other > incarnation for done, other in highest[segment]):
            yield f"{append.id} was acknowledged by incarnation {incarnation} of segment {segment}, which was over"
        origin = (append.time, append.writer, append.life)
        if batches.setdefault(append.position, origin) != origin:
            yield f"{append.id} has the position {append.position} of another one"
        key = (append.writer, append.life, segment)
        if (incarnation, seq) < last.get(key, (0, -1)):
            yield f"{append.id} was acknowledged at {append.position}, before an earlier one"
        last[key] = (incarnation, seq)


def _kept(story: _Story) -> Found:
    """E10, I5: with a log on disk nobody misses anything, and every cursor is good."""
    if story.stored:
        yield from (f"{entry.actor} was told that its appends were lost" for entry in story.told_lost)
        for entry in story.errors:
            if entry.data["code"] == HistoryTruncated.code:
                yield f"{entry.actor} was told that its history is gone: {entry.data['text']}"


def _causeless(story: _Story) -> Found:
    """E3. The death of a publisher whose logs are on disk is no cause (E10)."""
    causes = [fault.at for fault in story.faults if fault.op not in ("over", "stored") and not _harmless(story, fault)]
    for reader in story.readers:
        for time, at in reader.aborted.items():
            asked = any(entry.time() == time for entry in story.aborts if entry.phase is Phase.INVOKE)
            if not asked and not any(cause < at for cause in causes):
                yield f"{reader} was told that {time} was aborted, and nobody did that"


def _harmless(story: _Story, fault: Entry) -> bool:
    """Whether it cannot silence a writer: a subscriber is hurt, the catalog, or a publisher with its logs on disk."""
    target = fault.data.get("target", "")
    return target in story.stored or any(target == reader.name for reader in story.readers)


def _unfinished(story: _Story) -> Found:
    if story.healed:
        for name in dict.fromkeys(reader.name for reader in story.readers):
            if not [reader for reader in story.readers if reader.name == name][-1].ended:
                yield f"{name} has not seen the end of the stream, though all was healed and finished"


RULES: dict[str, Callable[[_Story], Found]] = {
    "invented": _invented,
    "duplicate": _duplicate,
    "order": _order,
    "atomic": _atomic,
    "same": _same,
    "left": _left,
    "lost": _lost,
    "silent": _silent,
    "back": _back,
    "dishonest": _dishonest,
    "extension": _extension,
    "owners": _owners,
    "kept": _kept,
    "causeless": _causeless,
    "unfinished": _unfinished,
}


def check(history: Sequence[Entry]) -> list[Violation]:
    """Every violation in `history`, which is in the order of time; none is what is hoped for."""
    story = _Story(history)
    return [Violation(rule, detail) for rule, judge in RULES.items() for detail in judge(story)]


def counts(history: Sequence[Entry]) -> dict[str, Any]:
    """How much a history holds, for people: a round in which nothing happened shows nothing."""
    story = _Story(history)
    return {
        "appends": len(story.appends),
        "acknowledged": sum(append.position is not None for append in story.appends.values()),
        "given": sum(len(reader.given) for reader in story.readers),
        "aborted": sum(len(reader.aborted) for reader in story.readers),
        "faults": sum(fault.op not in ("over", "stored") for fault in story.faults),
    }

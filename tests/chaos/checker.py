"""Judges a history: what was lost, doubled, torn, out of order or claimed wrongly, by rules that know of no machinery.

Separate from the actors and the faults, so that whatever happened, in whatever kind of test, is judged by the same
rules. Pure: entries in, violations out. `RULES` lists them, with what each of them forbids. Nothing of the project is
used but the codes of its errors: times are compared and sets are built here, by brute force.

No loss is excused: an epoch that is given has every record that was acknowledged at its time, whatever died meanwhile.
What a reader may miss without a word is bounded in one place, `_Story.missed_by_a_gap`, and never counts as seen whole.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.history import NEMESIS, Entry, Phase, Time

EPOCH_ABORTED, HISTORY_TRUNCATED = "epoch_aborted", "history_truncated"
NO_FAULT = ("over", "stored", "lost")
"""What the nemesis writes down without having done something: who is hurt by it, and how, stands beside it."""


class Violation(NamedTuple):
    """A broken rule; `detail` names who, which time and which record."""

    rule: str
    detail: str


@dataclass(slots=True)
class Append:
    """One record that a writer asked for. `position` is (segment, incarnation, seq) once it was acknowledged.

    `batch`: all records of the same call.
    """

    id: str
    writer: str
    life: int
    order: int
    time: Time
    segment: str
    digest: int
    batch: tuple[str, ...]
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
        return not self.failed and (self.to is None or not reaches(self.to, time))


@dataclass(slots=True)
class Told:
    """What a reader was told of one time: per segment (id, digest) pairs, or None where it was aborted.

    `stay`: the number of the subscription; `joined`: when that was asked for.
    """

    at: float
    stay: int
    joined: float
    time: Time
    frontier: tuple[Time, ...]
    parts: dict[str, list[tuple[str, int]]] | None

    @property
    def ids(self) -> list[str]:
        """All records."""
        return [record for part in (self.parts or {}).values() for record, _ in part]


@dataclass(slots=True)
class Asked:
    """Which times a reader said that it saw whole, of those that it was asked about."""

    at: float
    stay: int
    frontier: tuple[Time, ...]
    whole: tuple[Time, ...]


@dataclass(slots=True)
class Reader:
    """All subscriptions of one reader from one beginning; one that resumes a cursor belongs to the one before.

    `told` is everything; `kept` is what it knows: a yield that no saved cursor covers is forgotten by a kill, and comes
    again (E16). `saves`: (when, frontier) of the saved cursors that were not forgotten.
    """

    name: str
    entries: list[Entry] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    kept: list[Told] = field(default_factory=list)
    saves: list[tuple[float, tuple[Time, ...]]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    ended: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def given(self) -> list[Told]:
        """All epochs."""
        return [told for told in self.told if told.parts is not None]

    def at_the_beginning(self) -> float:
        """When the first subscription was ready, or was asked for if it never was."""
        return next((entry.at for entry in self.entries if entry.op == "ready"), self.entries[0].at)


def reaches(element: Time, time: Time) -> bool:
    """Whether `element <= time`: component by component, all the way down."""
    if isinstance(element, int) and isinstance(time, int):
        return element <= time
    assert isinstance(element, tuple)
    assert isinstance(time, tuple)
    return all(reaches(a, b) for a, b in zip(element, time, strict=True))


def reached(frontier: Sequence[Time], time: Time) -> bool:
    """Whether something at `time` can still come."""
    return any(reaches(element, time) for element in frontier)


class _Story:
    """The history, put together."""

    def __init__(self, history: Sequence[Entry]) -> None:
        self.appends: dict[str, Append] = {}
        self.at: dict[Time, list[Append]] = defaultdict(list)
        self.leaves: list[Leave] = []
        self.told_lost: list[Entry] = []
        self.lost: list[tuple[str, float]] = []
        """(segment, when its publisher ended with all that it remembered)"""
        self.faults = [entry for entry in history if entry.actor == NEMESIS and entry.op not in NO_FAULT]
        self.stored: set[str] = set()
        """Whose death aborts nothing and loses nothing: publishers whose logs are on disk."""
        self.errors: list[Entry] = []
        self.aborts: list[Entry] = []
        self.over: dict[Time, tuple[float, str]] = {}
        """Time -> when a writer was first told that it was aborted, and which."""
        self.readers: list[Reader] = []
        self.healed = any(entry.actor == NEMESIS and entry.op == "over" for entry in history)
        orders: Counter[tuple[str, int]] = Counter()
        current: dict[str, Reader] = {}
        moves: dict[tuple[str, int, int], Leave] = {}
        for entry in history:
            if entry.actor == NEMESIS:
                if entry.op == "lost":
                    self.lost += [(segment, entry.at) for segment in entry.data["segments"]]
                elif entry.op == "stored":
                    self.stored |= set(entry.data["targets"])
            elif entry.op == "append":
                self._append(entry, orders)
            elif entry.op == "leave":
                self._leave(entry, moves)
            elif entry.op == "abort":
                self.aborts.append(entry)
                if entry.phase is Phase.OK:
                    self._aborted(entry)
            elif entry.op == "told":
                self.told_lost.append(entry)
            else:
                if entry.op == "error":
                    self.errors.append(entry)
                self._read(entry, current)
        for reader in self.readers:
            self._tell(reader)

    def _append(self, entry: Entry, orders: Counter[tuple[str, int]]) -> None:
        data = entry.data
        for index, record in enumerate(data["ids"]):
            if entry.phase is Phase.INVOKE:
                key = (entry.actor, entry.life)
                orders[key] += 1
                append = Append(
                    record, *key, orders[key], entry.time(), data["segment"], data["digests"][index],
                    tuple(data["ids"]), entry.at,
                )  # fmt: skip
                self.appends[record] = append
                self.at[append.time].append(append)
            elif record in self.appends:
                append = self.appends[record]
                append.done, append.failed = entry.at, entry.phase is Phase.FAIL
                if entry.phase is Phase.OK:
                    append.position = (append.segment, *data["position"])
        if entry.phase is Phase.FAIL and data.get("code") == EPOCH_ABORTED:
            self._aborted(entry)

    def _leave(self, entry: Entry, moves: dict[tuple[str, int, int], Leave]) -> None:
        key = (entry.actor, entry.life, entry.data["n"])
        if entry.phase is Phase.INVOKE:
            to = None if entry.data["to"] is None else entry.time("to")
            moves[key] = Leave(*key[:2], to, entry.at)
            self.leaves.append(moves[key])
        elif key in moves:
            moves[key].failed = entry.phase is Phase.FAIL

    def _aborted(self, entry: Entry) -> None:
        self.over.setdefault(entry.time(), (entry.at, entry.actor))

    def _read(self, entry: Entry, current: dict[str, Reader]) -> None:
        if entry.op == "join" and (entry.data["since"] != "cursor" or entry.actor not in current):
            current[entry.actor] = Reader(entry.actor)
            self.readers.append(current[entry.actor])
        if entry.actor in current:
            current[entry.actor].entries.append(entry)

    def _tell(self, reader: Reader) -> None:
        """Replay what a reader wrote down: each subscription forgets what the cursor that it resumes does not cover."""
        saved: dict[int, tuple[int, int]] = {}
        stay, joined = 0, 0.0
        for entry in reader.entries:
            if entry.op == "join":
                stay, joined = stay + 1, entry.at
                if entry.data["since"] == "cursor":
                    kept, saves = saved.get(entry.data["n"], (0, 0))
                    del reader.kept[kept:], reader.saves[saves:]
            elif entry.op in ("epoch", "aborted"):
                parts = entry.data.get("parts")
                parts = None if parts is None else {name: [(r, d) for r, d in part] for name, part in parts.items()}
                told = Told(entry.at, stay, joined, entry.time(), entry.times("frontier"), parts)
                reader.told.append(told)
                reader.kept.append(told)
            elif entry.op == "save":
                reader.saves.append((entry.at, entry.times("frontier")))
                saved[entry.data["n"]] = (len(reader.kept), len(reader.saves))
            elif entry.op == "whole":
                reader.asked.append(Asked(entry.at, stay, entry.times("frontier"), entry.times("times")))
            elif entry.op == "end":
                reader.ended = True

    def acknowledged(self, time: Time) -> set[str]:
        """The records at a time that were promised."""
        return {append.id for append in self.at[time] if append.position is not None}

    def missed_by_a_gap(self, reader: Reader, time: Time) -> bool:
        """Whether `time` may have passed a reader by without a word: it was under way where it joined (E15, E17).

        A publisher ended with its memory before the reader was through with the time, and the time (or one that can
        hold it back) was under way before the reader was back at the next one.
        """
        through = next((at for at, frontier in reader.saves if not reached(frontier, time)), float("inf"))
        begun = self.begun(time)
        return any(at <= through and begun <= self._back_by(reader, segment, at) for segment, at in self.lost)

    def begun(self, time: Time) -> float:
        """When somebody first asked to write at a time, or at one after it."""
        return min(append.invoked for append in self.appends.values() if reaches(time, append.time))

    def _back_by(self, reader: Reader, segment: str, lost: float) -> float:
        """When the reader certainly followed the publisher that came after a loss of memory.

        It was ready again after it asked to, or it was given what only that publisher can have had.
        """
        old = max(
            (x.position[1] for x in self.appends.values()
             if x.position and x.segment == segment and x.done is not None and x.done <= lost),
            default=0,
        )  # fmt: skip
        ready = [
            later.at
            for number, entry in enumerate(reader.entries)
            if entry.op == "join" and entry.at > lost
            for later in reader.entries[number:]
            if later.op == "ready"
        ]
        given = [
            told.at
            for told in reader.given
            if told.at > lost
            for record, _ in (told.parts or {}).get(segment, ())
            if record in self.appends and (self.appends[record].position or ("", 0))[1] > old
        ]
        return min([*ready, *given], default=float("inf"))


Found = Iterator[str]


def _invented(story: _Story) -> Found:
    for reader in story.readers:
        for epoch in reader.given:
            for segment, part in (epoch.parts or {}).items():
                for record, digest in part:
                    append = story.appends.get(record)
                    if append is None or (append.time, append.segment, append.digest) != (epoch.time, segment, digest):
                        yield f"{reader} was given {record} at {epoch.time} in segment {segment}, not as it was written"


def _duplicate(story: _Story) -> Found:
    for reader in story.readers:
        for record, count in Counter(record for told in reader.kept for record in told.ids).items():
            if count > 1:
                yield f"{reader} was given {record} {count} times"


def _order(story: _Story) -> Found:
    for reader in story.readers:
        for epoch in reader.given:
            for segment, part in (epoch.parts or {}).items():
                last: dict[str, tuple[int, int]] = {}
                for record, _ in part:
                    append = story.appends.get(record)
                    if append is not None:
                        place = (append.life, append.order)
                        if place <= last.get(append.writer, (-1, -1)):
                            yield f"{reader} was given {record} of segment {segment} at {epoch.time} out of order"
                        last[append.writer] = place


def _atomic(story: _Story) -> Found:
    """I1, E11."""
    for reader in story.readers:
        for epoch in reader.given:
            ids = set(epoch.ids)
            for append in story.at[epoch.time]:
                if append.position and append.id not in ids:
                    yield f"{reader} was given {epoch.time} without {append.id}, which was acknowledged"
                if append.failed and append.id in ids:
                    yield f"{reader} was given {append.id} at {epoch.time}, which was refused"
                if append.id in ids and not ids.issuperset(append.batch):
                    yield f"{reader} was given {append.id} at {epoch.time} without the rest of its batch"


def _same(story: _Story) -> Found:
    first: dict[Time, tuple[Reader, Told]] = {}
    for reader in story.readers:
        for epoch in reader.given:
            other, before = first.setdefault(epoch.time, (reader, epoch))
            for record in sorted(set(epoch.ids) ^ set(before.ids)):
                yield f"{other} and {reader} were given different epochs {epoch.time}: {record}"


def _once(story: _Story) -> Found:
    """E17, E11 (d)."""
    for reader in story.readers:
        for time, count in Counter(told.time for told in reader.kept if told.parts is None).items():
            if count > 1:
                yield f"{reader} was told {count} times that {time} was aborted"
            if any(told.time == time and told.parts is not None for told in reader.kept):
                yield f"{reader} was given {time} and told that it was aborted"


def _final(story: _Story) -> Found:
    """E2: once anybody was told of an abort, nobody who joins after that is given the epoch.

    An epoch that a gap may have taken from a reader is aborted for that one alone (E17).
    """
    over = dict(story.over)
    for reader in story.readers:
        for told in reader.told:
            if told.parts is None and not story.missed_by_a_gap(reader, told.time):
                over[told.time] = min(over.get(told.time, (told.at, str(reader))), (told.at, str(reader)))
    for reader in story.readers:
        for epoch in reader.given:
            at, whom = over.get(epoch.time, (float("inf"), ""))
            if at < epoch.joined:
                yield f"{reader} joined and was given {epoch.time} after {whom} was told that it was aborted"


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


def _whole(story: _Story) -> Found:
    """E18, E11 (d): who says that it saw a time whole is given all of it, or there was nothing."""
    for reader in story.readers:
        for asked in reader.asked:
            for time in asked.whole:
                says = f"{reader} says that it saw {time} whole"
                if reached(asked.frontier, time):
                    yield f"{says}, while its frontier was {asked.frontier}"
                here = [told for told in reader.told if told.time == time and told.stay == asked.stay]
                known = [told for told in reader.kept if told.time == time]
                before = [] if here else [told for told in known if told.stay < asked.stay]
                if any(told.parts is None for told in (*here, *before)):
                    yield f"{says}, and was told that it was aborted"
                elif _is_through(reader, asked, time):
                    ids = {record for told in (*here, *known) for record in told.ids}
                    for record in sorted(_there_was(story, time) - ids):
                        yield f"{says}, and was not given {record}"


def _is_through(reader: Reader, asked: Asked, time: Time) -> bool:
    """Whether by then, or later in the same subscription, all that it had of a time was handed over.

    A saved cursor says so, or the end.
    """
    stay = 0
    for entry in reader.entries:
        stay += entry.op == "join"
        if stay <= asked.stay and entry.op in ("save", "end") and not reached(entry.times("frontier"), time):
            return True
    return False


def _there_was(story: _Story, time: Time) -> set[str]:
    """What is known to be in an epoch: what was acknowledged, and what anybody was given."""
    given = {record for reader in story.readers for told in reader.given if told.time == time for record in told.ids}
    return given | story.acknowledged(time)


def _silent(story: _Story) -> Found:
    """I2: what is not given is told of, unless it was under way at the join or at a gap (E15, E17)."""
    for reader in story.readers:
        known = {told.time for told in reader.kept}
        late = reader.at_the_beginning() if reader.entries[0].data["since"] is None else -1.0
        for time in sorted(set(story.at) - known):
            # The last saved cursor passes only what was handed over.
            passed = reader.ended or (reader.saves and not reached(reader.saves[-1][1], time))
            seen = passed and story.acknowledged(time) and story.begun(time) > late
            if seen and not story.missed_by_a_gap(reader, time):
                yield f"{reader} was neither given {time} nor told why"


def _back(story: _Story) -> Found:
    """I6."""
    for reader in story.readers:
        last: tuple[Time, ...] | None = None
        saved: dict[int, tuple[Time, ...]] = {}
        for entry in reader.entries:
            if entry.op == "join":
                last = saved.get(entry.data["n"]) if entry.data["since"] == "cursor" else None
            elif entry.op == "save":
                saved[entry.data["n"]] = entry.times("frontier")
            elif "frontier" in entry.data:
                now = entry.times("frontier")
                if last is not None and not all(reached(last, time) for time in now):
                    yield f"the frontier of {reader} went back from {last} to {now}"
                last = now


def _dishonest(story: _Story) -> Found:
    """S35, I6, E11 (b): what was said to be complete gets no more records, and nothing is given before it is."""
    for reader in story.readers:
        for epoch in reader.given:
            if reached(epoch.frontier, epoch.time):
                yield f"{reader} was given {epoch.time} while its frontier was {epoch.frontier}"
        passed = [entry for entry in reader.entries if "frontier" in entry.data and entry.op != "save"]
        for append in story.appends.values():
            if append.position is None:
                continue
            # Frontiers only move on: the last one before the append decides.
            before = [entry for entry in passed if entry.at < append.invoked]
            if before and not reached(before[-1].times("frontier"), append.time):
                yield f"{append.id} was accepted at {append.time} after {reader} was told that it was complete"


def _extension(story: _Story) -> Found:
    """E16, E18."""
    for reader in story.readers:
        given = [told for told in reader.kept if told.parts is not None]
        for index, later in enumerate(given):
            for earlier in given[:index]:
                if later.time != earlier.time and reaches(later.time, earlier.time):
                    yield f"{reader} was given {later.time} after {earlier.time}"


def _owners(story: _Story) -> Found:
    """E12, E6."""
    acked = sorted((x for x in story.appends.values() if x.position), key=lambda x: x.invoked)
    highest: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for append in acked:
        assert append.position is not None
        assert append.done is not None
        highest[append.segment].append((append.done, append.position[1]))
    batches: dict[tuple[str, int, int], tuple[str, ...]] = {}
    last: dict[tuple[str, int, str], tuple[int, int]] = {}
    for append in acked:
        assert append.position is not None
        segment, incarnation, seq = append.position
        if any(done < append.invoked and other > incarnation for done, other in highest[segment]):
            yield f"{append.id} was acknowledged by incarnation {incarnation} of segment {segment}, which was over"
        if batches.setdefault(append.position, append.batch) != append.batch:
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
            if entry.data["code"] == HISTORY_TRUNCATED:
                yield f"{entry.actor} was told that its history is gone: {entry.data['text']}"


def _causeless(story: _Story) -> Found:
    """E3. The death of a publisher whose logs are on disk is no cause (E10)."""
    causes = [fault.at for fault in story.faults if not _harmless(story, fault)]
    asked = {entry.time() for entry in story.aborts if entry.phase is Phase.INVOKE}
    for reader in story.readers:
        for told in reader.told:
            if told.parts is None and told.time not in asked and not any(cause < told.at for cause in causes):
                yield f"{reader} was told that {told.time} was aborted, and nobody did that"


def _harmless(story: _Story, fault: Entry) -> bool:
    """Whether it cannot silence a writer: only readers are hurt, or publishers with their logs on disk."""
    targets = fault.data.get("targets") or [fault.data.get("target", "")]
    return story.stored.union(reader.name for reader in story.readers).issuperset(targets)


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
    "once": _once,
    "final": _final,
    "left": _left,
    "whole": _whole,
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
    return [Violation(rule, detail) for rule, judge in RULES.items() for detail in dict.fromkeys(judge(story))]


def counts(history: Sequence[Entry]) -> dict[str, int]:
    """How much a history holds, for people: a round in which nothing happened shows nothing."""
    story = _Story(history)
    return {
        "appends": len(story.appends),
        "acknowledged": sum(append.position is not None for append in story.appends.values()),
        "given": sum(len(reader.given) for reader in story.readers),
        "aborted": sum(told.parts is None for reader in story.readers for told in reader.told),
        "faults": len(story.faults),
    }


def faults(history: Sequence[Entry]) -> Counter[str]:
    """How often each kind of fault was done."""
    return Counter(fault.op for fault in _Story(history).faults)

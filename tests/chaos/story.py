"""A history put together: who appended what, left what, was given what, and what was done to whom.

All rules judge the same story. From the project it uses only the codes of its errors: times are compared here, by brute
force. Only `Story.missed_by_a_gap` decides what a reader may miss without a report, and only `Story.has_a_cause` what
may have aborted an epoch.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.history import NEMESIS, Entry, Phase, Time

EPOCH_ABORTED, CAPABILITY = "epoch_aborted", "capability"
"""The errors after which a writer goes on as before: its session is still valid."""
NEVER = float("inf")
NO_FAULT = ("over", "stored", "lost", "spared", "stalled")
"""What the nemesis writes down without having done anything. The fields of an entry say whom it concerns, and how."""


Topics = frozenset[str] | None
"""The topics that something is about; None for all."""


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
    topic: str
    invoked: float
    done: float | None = None
    position: tuple[str, int, int] | None = None
    failed: bool = False
    aborted: bool = False
    """Whether it failed because its epoch was aborted."""


@dataclass(slots=True)
class Leave:
    """A call that released every time that `held` does not reach (empty: all times)."""

    writer: str
    life: int
    held: tuple[Time, ...]
    invoked: float
    done: float | None = None
    failed: bool = False
    closes: bool = False
    """Whether it ends the session without finishing the stream: then no time is complete that was not before."""

    def leaves(self, time: Time) -> bool:
        """Whether `time` cannot be written to after it."""
        return not self.failed and not reached(self.held, time)


@dataclass(slots=True)
class Told:
    """What a reader was given for one time: (id, digest) pairs by segment, or None if it was reported as aborted.

    `stay`: the number of the subscription; `joined`: when the reader asked for that subscription.
    """

    at: float
    stay: int
    joined: float
    time: Time
    frontier: tuple[Time, ...]
    parts: dict[str, list[tuple[str, int]]] | None
    topics: Topics = None
    """What it must hold all of, and nothing else."""

    @property
    def ids(self) -> list[str]:
        """The ids of all records."""
        return [record for part in (self.parts or {}).values() for record, _ in part]


@dataclass(slots=True)
class Asked:
    """The times for which a reader answered that it saw them whole, among those that it was asked about."""

    at: float
    stay: int
    frontier: tuple[Time, ...]
    whole: tuple[Time, ...]
    topics: Topics = None
    """The topics that this is said of."""


class Saved(NamedTuple):
    """A cursor that was saved. `untold`: aborted times that a reader which resumes it must still report."""

    at: float
    frontier: tuple[Time, ...]
    untold: tuple[Time, ...]


@dataclass(slots=True)
class Reader:
    """All subscriptions of one reader from one beginning; one that resumes a cursor belongs to the one before.

    `told` is all that it was ever given; `kept` is what it still knows: a kill makes it forget what no saved cursor
    covers, and that is given again (E16). `saves`: the saved cursors that were not forgotten.
    """

    name: str
    entries: list[Entry] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    kept: list[Told] = field(default_factory=list)
    saves: list[Saved] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    truncated: list[float] = field(default_factory=list)
    """When it learned that its publisher no longer retained what came next for it."""
    always: Topics = None
    """What it has wanted all the time, and was promised whole."""
    wishes: list[tuple[float, int, Topics]] = field(default_factory=list)
    """What it came to want: when, and in which subscription; empty where it did not write that down."""
    ended: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def given(self) -> list[Told]:
        """The complete epochs that it was given, without the aborted ones."""
        return [told for told in self.told if told.parts is not None]

    @property
    def partial(self) -> bool:
        """Whether it also takes epochs of which it cannot have all: those under way where it joins, and at gaps."""
        return bool(self.entries[0].data.get("partial"))

    def wants(self, time: Time) -> bool:
        """Whether it asked for `time`: a reader may begin at some times, and then asks for what these reach."""
        join = self.entries[0]
        return "times" not in join.data or reached(join.times("times"), time)

    def wanted_since(self, time: Time, asked: "Asked") -> list[Topics]:
        """All that it wanted from when `time` was not complete for it to the end of the subscription in which it asked.

        It had the epoch from then on, and dropped of it what it did not want any more. A saved cursor does not show
        that a time was open: it is before all that the reader has and was not handed yet.
        """
        open_at = [
            entry.at
            for entry in self.entries
            if "frontier" in entry.data and entry.op != "save" and reached(entry.times("frontier"), time)
        ]
        before = max((at for at in open_at if at <= asked.at), default=-1.0)
        now = [topics for at, _, topics in self.wishes if at <= before][-1:]
        later = [topics for at, stay, topics in self.wishes if at > before and stay <= asked.stay]
        return [*now, *later] or [self.always]

    def since_when(self) -> float:
        """Since when it is owed all that begins: from the start of the history, or since it was ready."""
        return self.at_the_beginning() if self.entries[0].data["since"] is None else -1.0

    def at_the_beginning(self) -> float:
        """When the first subscription was ready; if it never was, when it was asked for."""
        return next((entry.at for entry in self.entries if entry.op == "ready"), self.entries[0].at)


def topics_of(entry: Entry) -> Topics:
    """The topics that an entry is about."""
    return frozenset(entry.data["topics"]) if "topics" in entry.data else None


def common(*each: Topics) -> Topics:
    """The topics that are among all of these."""
    named = [topics for topics in each if topics is not None]
    return frozenset.intersection(*named) if named else None


def wanted(append: Append, topics: Topics) -> bool:
    """Whether a record is of these topics."""
    return topics is None or append.topic in topics


class Loss(NamedTuple):
    """A publisher of `segment` ended, and all that it had in memory is gone.

    `begun`: when the fault began; `at`: when the publisher was gone. One that stops in order aborts what is open in
    between.
    """

    segment: str
    begun: float
    at: float
    incarnation: int = 0
    """Which publisher of the segment it was; 0 where nobody wrote that down."""


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


class Story:
    """The history, put together."""

    def __init__(self, history: Sequence[Entry]) -> None:
        self.appends: dict[str, Append] = {}
        self.at: dict[Time, list[Append]] = defaultdict(list)
        self.leaves: list[Leave] = []
        self.opened: dict[str, dict[int, tuple[Time, ...]]] = defaultdict(dict)
        """Writer -> life -> what it held when it began, where it wrote that down."""
        self.told_lost: list[Entry] = []
        self.losses: list[Loss] = []
        self.forgotten: list[float] = []
        """When a publisher began of which nothing is known but its name: no volume, and no record of what was lost."""
        self.faults: list[Entry] = []
        self.stored: set[str] = set()
        """Those whose death aborts nothing and loses nothing: publishers whose logs are on disk, and their catalog."""
        self.spared: dict[str, float] = {}
        """Writers that no fault hits -> after how many seconds of silence they are given up."""
        self.given_up: dict[str, list[float]] = defaultdict(list)
        """Writer -> when it was killed, began again, learned that a session is over, or ended one by an error."""
        self.stalls: list[tuple[str, float, float]] = []
        """(whose loop was late, from when, until when)"""
        self.errors: list[Entry] = []
        self.asked: dict[Time, float] = {}
        """Time -> when a writer first asked to abort it."""
        self.over: dict[Time, tuple[float, str]] = {}
        """Time -> when a writer first learned that it was aborted, and which writer."""
        self.readers: list[Reader] = []
        self.healed = False
        self._hurt: dict[str | None, float] = {}
        """Name -> when something was last done to it; None: to any of them."""
        self._acknowledged_after: dict[Loss, set[Time]] = {}
        self._doubtful: dict[Time, bool] = {}
        orders: Counter[tuple[str, int]] = Counter()
        current: dict[str, Reader] = {}
        moves: dict[tuple[str, int, int], Leave] = {}
        lives: Counter[str] = Counter()
        for entry in history:
            if entry.life > lives[entry.actor]:
                lives[entry.actor] = entry.life
                self.given_up[entry.actor].append(entry.at)
            if entry.op == "stalled":
                self.stalls.append((entry.actor, entry.at - entry.data["seconds"], entry.at))
            elif entry.actor == NEMESIS:
                self._suffer(entry)
            elif entry.op == "append":
                self._append(entry, orders)
            elif entry.op == "leave":
                self._leave(entry, moves)
            elif entry.op == "holds":
                self.opened[entry.actor].setdefault(entry.life, entry.times("times"))
            elif entry.op == "abort":
                self.asked.setdefault(entry.time(), entry.at)
                if entry.phase is Phase.OK:
                    self._aborted(entry)
            elif entry.op == "told":
                self.told_lost.append(entry)
            else:
                if entry.op == "error":
                    self._fail(entry)
                self._read(entry, current)
        for reader in self.readers:
            self._tell(reader)

    def _suffer(self, entry: Entry) -> None:
        """Take in what the nemesis wrote down."""
        data = entry.data
        targets = data.get("targets", [data["target"]] if "target" in data else [])
        if entry.op == "over":
            self.healed = True
        elif entry.op == "stored":
            self.stored |= set(targets)
        elif entry.op == "spared":
            self.spared |= dict.fromkeys(targets, data["seconds"])
        elif entry.op == "lost":
            begun = self._hurt.get(data.get("target"), entry.at)
            which = data.get("incarnation", 0)
            self.losses += [Loss(segment, begun, entry.at, which) for segment in data["segments"]]
        elif entry.op == "forgot":
            self.forgotten.append(entry.at)
        else:
            self.faults.append(entry)
            self._hurt |= dict.fromkeys([None, *targets], entry.at)
            if entry.op.startswith("kill"):
                for name in targets:
                    self.given_up[name].append(entry.at)

    def _fail(self, entry: Entry) -> None:
        self.errors.append(entry)
        if entry.data["code"] not in (EPOCH_ABORTED, CAPABILITY):
            self.given_up[entry.actor].append(entry.at)

    def _append(self, entry: Entry, orders: Counter[tuple[str, int]]) -> None:
        data = entry.data
        for index, record in enumerate(data["ids"]):
            if entry.phase is Phase.INVOKE:
                key = (entry.actor, entry.life)
                orders[key] += 1
                append = Append(
                    record, *key, orders[key], entry.time(), data["segment"], data["digests"][index],
                    tuple(data["ids"]), data.get("topic", ""), entry.at,
                )  # fmt: skip
                self.appends[record] = append
                self.at[append.time].append(append)
            elif record in self.appends:
                append = self.appends[record]
                append.done, append.failed = entry.at, entry.phase is Phase.FAIL
                append.aborted = append.failed and data.get("code") == EPOCH_ABORTED
                if entry.phase is Phase.OK:
                    append.position = (append.segment, *data["position"])
        if entry.phase is Phase.FAIL and data.get("code") == EPOCH_ABORTED:
            self._aborted(entry)

    def _leave(self, entry: Entry, moves: dict[tuple[str, int, int], Leave]) -> None:
        key = (entry.actor, entry.life, entry.data["n"])
        if entry.phase is Phase.INVOKE:
            moves[key] = Leave(*key[:2], entry.times("held"), entry.at, closes=entry.data.get("closes", False))
            self.leaves.append(moves[key])
        elif key in moves:
            moves[key].failed, moves[key].done = entry.phase is Phase.FAIL, entry.at

    def _aborted(self, entry: Entry) -> None:
        self.over.setdefault(entry.time(), (entry.at, entry.actor))

    def _read(self, entry: Entry, current: dict[str, Reader]) -> None:
        if entry.op == "join" and (entry.data["since"] != "cursor" or entry.actor not in current):
            current[entry.actor] = Reader(entry.actor)
            self.readers.append(current[entry.actor])
        if entry.actor in current:
            current[entry.actor].entries.append(entry)

    def _tell(self, reader: Reader) -> None:
        """Replay what a reader wrote down: a subscription that resumes a cursor forgets what that does not cover."""
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
                told = Told(entry.at, stay, joined, entry.time(), entry.times("frontier"), parts, topics_of(entry))
                reader.told.append(told)
                reader.kept.append(told)
            elif entry.op == "save":
                untold = entry.times("untold") if "untold" in entry.data else ()
                reader.saves.append(Saved(entry.at, entry.times("frontier"), untold))
                saved[entry.data["n"]] = (len(reader.kept), len(reader.saves))
            elif entry.op == "whole":
                asked = Asked(entry.at, stay, entry.times("frontier"), entry.times("times"), topics_of(entry))
                reader.asked.append(asked)
            elif entry.op == "always":
                reader.always = topics_of(entry)
            elif entry.op == "wants":
                reader.wishes.append((entry.at, stay, topics_of(entry)))
            elif entry.op == "truncated":
                reader.truncated.append(entry.at)
            elif entry.op == "end":
                reader.ended = True

    def acknowledged(self, time: Time, topics: Topics = None) -> set[str]:
        """The records of these topics at a time that were acknowledged."""
        return {append.id for append in self.at[time] if append.position is not None and wanted(append, topics)}

    def doubtful(self, time: Time) -> bool:
        """Whether a publisher of which nothing is known may have had something of `time`, or have decided it (E11).

        Nobody can say what became of that: no promise about the epoch is left. What begins afterwards is promised.
        """
        if time not in self._doubtful:
            begun = min(self.begun(time), self.asked.get(time, NEVER))
            passed = min(
                (leave.invoked for leave in self.leaves if not leave.closes and leave.leaves(time)), default=NEVER
            )
            self._doubtful[time] = any(min(begun, passed) <= at for at in self.forgotten)
        return self._doubtful[time]

    def owed(self, reader: Reader) -> list[Told]:
        """The epochs that a reader was given and that must be whole for it."""
        return [
            told
            for told in reader.given
            if not self.doubtful(told.time) and not (reader.partial and self._may_be_partial(reader, told.time))
        ]

    def _may_be_partial(self, reader: Reader, time: Time) -> bool:
        """Whether it was under way where the reader joined, or at a gap."""
        return self.begun(time) <= reader.since_when() or self.missed_by_a_gap(reader, time)

    def missed_by_a_gap(self, reader: Reader, time: Time) -> bool:
        """Whether a reader may miss `time` without a report: it was under way where the reader joined (E15, E17).

        For that, a publisher lost its memory before the reader was through with the time. And one of these holds: the
        time (or one that can hold it back) was under way before the reader followed the next publisher; or the loss
        came before the reader joined, and aborted the time. The latter can happen to a time that no one had begun:
        publishers record a horizon that is ahead, and a loss aborts all that it covers (E11).
        """
        begun = self.begun(time)
        through = next((saved.at for saved in reader.saves if not reached(saved.frontier, time)), NEVER)
        joined = reader.entries[0].at
        return any(begun <= at for at in reader.truncated) or any(
            begun <= self._back_by(reader, loss) or (loss.at < joined and self._went_with(loss, time))
            for loss in self.losses
            if loss.at <= through
        )

    def _went_with(self, loss: Loss, time: Time) -> bool:
        """Whether the first append at `time` to that segment after the loss was refused: the epoch was aborted."""
        later = (each for each in self.at[time] if each.segment == loss.segment and each.invoked > loss.at)
        first = min(later, key=lambda each: each.invoked, default=None)
        return first is not None and first.aborted

    def begun(self, time: Time) -> float:
        """When any writer first asked to write at a time, or at one after it."""
        return min((append.invoked for append in self.appends.values() if reaches(time, append.time)), default=NEVER)

    def _before(self, loss: Loss) -> int:
        """The incarnation that lost its memory; 0 if nothing shows its number."""
        return loss.incarnation or max(
            (x.position[1] for x in self.appends.values()
             if x.position and x.segment == loss.segment and x.done is not None and x.done <= loss.at),
            default=0,
        )  # fmt: skip

    def _back_by(self, reader: Reader, loss: Loss) -> float:
        """The first moment at which the reader certainly followed the publisher that came after a loss of memory.

        Then it was given a record that only that publisher can have had, or it was ready after it had joined again.
        Where it wrote down which publisher it follows, that decides: a relay may serve what the lost one had.
        """
        segment, old, lost = loss.segment, self._before(loss), loss.at
        follows = [entry for entry in reader.entries if entry.op == "follows" and entry.data["segment"] == segment]
        ready = (
            [entry.at for entry in follows if entry.data["incarnation"] > old]
            if follows
            else [
                later.at
                for number, entry in enumerate(reader.entries)
                if entry.op == "join" and entry.at > lost
                for later in reader.entries[number:]
                if later.op == "ready"
            ]
        )
        given = [
            told.at
            for told in reader.given
            if told.at > lost
            for record, _ in (told.parts or {}).get(segment, ())
            if record in self.appends and (self.appends[record].position or ("", 0))[1] > old
        ]
        return min([*ready, *given], default=NEVER)

    def has_a_cause(self, reader: Reader, told: Told) -> bool:
        """Whether anything before the report may have aborted an epoch that a reader got as aborted (E2)."""
        return (
            self.asked.get(told.time, told.at) < told.at
            or any(self._was_not_left(append) for append in self.at.get(told.time, ()) if append.invoked < told.at)
            or any(loss.begun < told.at and not self._went_on(loss, told.time) for loss in self.losses)
            or self.missed_by_a_gap(reader, told.time)
        )

    def _was_not_left(self, append: Append) -> bool:
        """Whether its writer may have been lost after the append, while it still held the time (E3, E4).

        The history may show the loss only after the abort: a connection may be blocked. But once every segment has
        confirmed that the writer left the time, no loss of the writer aborts it any more. What an earlier life left
        says nothing about what a later one appended.
        """
        gone = min((at for at in self.given_up[append.writer] if at > append.invoked), default=None)
        return gone is not None and not any(
            leave.writer == append.writer
            and leave.life >= append.life
            and leave.leaves(append.time)
            and leave.done is not None
            and append.invoked < leave.done <= gone
            for leave in self.leaves
        )

    def _went_on(self, loss: Loss, time: Time) -> bool:
        """Whether the publisher that came after a loss has acknowledged a record at or before a time.

        The set of times that a loss of memory aborts is downward closed (E11). So if it does not hold that earlier
        time, it does not hold this one either.
        """
        if loss not in self._acknowledged_after:
            old = self._before(loss)
            self._acknowledged_after[loss] = {
                x.time
                for x in self.appends.values()
                if x.position and x.segment == loss.segment and x.invoked > loss.at and x.position[1] > old
            }
        return any(reaches(accepted, time) for accepted in self._acknowledged_after[loss])

    def late(self, actor: str, since: float, until: float) -> float:
        """For how many seconds between two moments the loop of an actor, or of the round itself, did not run."""
        seconds = 0.0
        for whose, begun, over in sorted(self.stalls, key=lambda stall: stall[1]):
            if whose in (actor, NEMESIS):
                seconds += max(0.0, min(over, until) - max(begun, since))
                since = max(since, over)  # time in which neither ran counts once
        return seconds

"""A subscriber of two segments whose user changes his mind, with a network that drops and loses messages.

In every state, what the application was given is what both logs say: each epoch whole as to the topics that it must
have whole, and nothing of others; and none is missing. The checker of the chaos tests judges that. And from every
state, with no further fault, no further change of mind and nothing more published, a way leads to where all that was
published has been taken in, and everything that can be yielded is yielded: there is no trap.

A state is three parts: the two connections, and the subscriber with its application. What one part does depends on
nothing but itself, so each step of it is taken once, however many states have that part.

Sources: rules F6-F10, E14-E17, E19.
"""

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from tests.exploration import connections, readers
from tests.exploration.connections import Connection, FixedLog, Reports, open_connection
from tests.exploration.ends import Judge
from tests.exploration.readers import ALL, Reader, filter_of
from tests.exploration.tries import reach
from tests.simulation.order import minimal
from tests.simulation.stories import Topics

from epochal.protocol import messages as m
from epochal.protocol.publisher import server
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter

SEGMENTS = ("0", "1")
FILTERS = tuple(Topics(each) for count in (1, 2) for each in combinations(sorted(ALL), count))


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may happen. `logs`: the steps of each segment's publisher, as `FixedLog` reads them."""

    logs: tuple[str, str] = ("a0 b0 1 b1 2 a2 .", "b0 1 a1 2 b2 .")
    before: tuple[int, int] = (0, 0)
    """How many events of each are pushed, and taken in, before anything else happens."""
    wanted: str = "a"
    """The topics that are wanted at first."""
    changes: int = 1
    drops: int = 0
    """How often a pushed message is dropped."""
    losses: int = 0
    """How often a request or an answer is lost."""
    timers: int = 0
    """How often a timer fires that need not fire yet."""
    restarts: int = 0
    """How often the subscriber's process begins again from its cursor, with the same topics or others."""
    queue: int = 1
    """How many pushed messages may wait at one connection before the next event comes."""
    history: bool = True
    firehose: bool = False
    """Whether the publishers send everything at first, or what the hello names."""
    hello_entries: int = m.MAX_FILTER_ENTRIES
    parts: ClassVar[bool] = False
    """The most prefixes that a message names; with 0, every filter is told before a join."""
    reads: bool = True
    """Whether the application takes an epoch as soon as it can, or some time later."""


class Budget(NamedTuple):
    """What may still happen."""

    changes: int
    drops: int
    losses: int
    timers: int
    restarts: int


B = TypeVar("B", bound=NamedTuple)


def less(budget: B, what: str) -> B | None:
    """What may still happen, with one less of `what`; None where there is none left."""
    left = getattr(budget, what)
    return budget._replace(**{what: left - 1}) if left else None


class Part(Protocol):
    """A part of the state."""

    def key(self) -> Hashable:
        """Equal for values to which the same can happen."""
        ...

    def dump(self) -> bytes:
        """The value, to be loaded again."""
        ...


P = TypeVar("P", bound=Part)
S = TypeVar("S", bound=Hashable)
Output = Any


class Parts(Generic[P]):
    """All values that one part of the state has had, each with a number, and what came of each.

    With `doubts`, what was met again under a known key, and is not the same to the byte, is kept for `differences`.
    """

    def __init__(self, load: Callable[[bytes], P], *, doubts: bool = False) -> None:
        self._load = load
        self._doubts = doubts
        self._numbers: dict[Hashable, int] = {}
        self._parts: list[P] = []
        self._dumped: list[bytes] = []
        self._taken: dict[tuple[int, Hashable], tuple[int, Output]] = {}
        self._acts: dict[int, list[tuple[Hashable, Callable[[P], Output]]]] = {}
        self._twins: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._parts)

    def number(self, part: P) -> int:
        """Its number, a new one if it was never met."""
        key = part.key()
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self._parts)
            self._parts.append(part)
            self._dumped.append(part.dump())
        elif self._doubts and (dumped := part.dump()) != self._dumped[known]:
            self._twins.append((known, dumped))
        return known

    def look(self, number: int) -> P:
        """A value that must not be changed."""
        return self._parts[number]

    def step(self, number: int, act: Hashable, do: Callable[[P], Output]) -> tuple[int, Output]:
        """What `do`, named by `act`, makes of a value, and what it returns."""
        taken = self._taken.get((number, act))
        if taken is None:
            part = self._load(self._dumped[number])
            output = do(part)
            taken = self._taken[number, act] = self.number(part), output
            if self._doubts:
                self._acts.setdefault(number, []).append((act, do))
        return taken

    def differences(self) -> Iterator[tuple[Hashable, tuple[int, Output], tuple[int, Output]]]:
        """Of two values with one key, what came of each step of the first, and of the same step of the second."""
        for number, dumped in tuple(self._twins):
            for act, do in self._acts.get(number, ()):
                twin = self._load(dumped)
                output = do(twin)
                yield act, self._taken[number, act], (self.number(twin), output)


class State(NamedTuple):
    """By their numbers: both connections, and the reader; and what may still happen."""

    connections: tuple[int, int]
    reader: int
    left: Budget


class Moves(NamedTuple):
    """What a connection can do: by itself, and otherwise, with the budget that it takes."""

    fair: tuple[str, ...]
    other: tuple[tuple[str, str], ...]
    publishes: bool
    connects: bool
    """Whether there is none, so that the client connects."""
    live: tuple[int, TopicFilter] | None
    """The last event that was pushed, and the filter of the channel, where nothing else is being done."""


class Goal(NamedTuple):
    """Where a reader is settled: it is over, or ready, and it has all: up to `seqs` and `frontier`, on its channels."""

    over: bool
    ready: bool
    seqs: tuple[int, ...]
    frontier: frozenset[Time]
    topics: TopicFilter


class Search:
    """The states of one configuration."""

    def __init__(self, bounds: Bounds, *, doubts: bool = False) -> None:
        self.bounds = bounds
        self.logs = {
            segment: FixedLog(segment, script, keeps=bounds.history)
            for segment, script in zip(SEGMENTS, bounds.logs, strict=True)
        }
        self.judge = Judge(self.logs)
        self.connections: tuple[Parts[Connection], ...] = tuple(
            Parts(partial(connections.load, log=log), doubts=doubts) for log in self.logs.values()
        )
        self.readers = Parts[Reader](readers.load, doubts=doubts)
        self._moves: tuple[dict[int, Moves], dict[int, Moves]] = ({}, {})
        self._goals: dict[int, Goal] = {}
        one, other = (log.standings for log in self.logs.values())
        self._frontiers: dict[tuple[int, ...], frozenset[Time]] = {
            (at - 1, there - 1): minimal(one[at].lower | other[there].lower)
            for at, there in product(range(len(one)), range(len(other)))
        }
        """By the last events of both segments."""
        self._checked: set[tuple[int, int, int]] = set()
        """Readers that were found right, each with the events that both publishers had pushed."""

    def start(self) -> State:
        """The client follows both segments, and has what was published before."""
        state = self._settled_after(self.unconnected())
        for at, count in enumerate(self.bounds.before):
            for _ in range(count):
                state = self._settled_after(self.acts(state, at, "publish"))
        return state

    def _settled_after(self, state: State) -> State:
        """The first settled state to which a way leads."""
        found: dict[State, None] = {state: None}
        for each in (waiting := list(found)):
            if self.settled(each):
                return each
            after = [one for one in self.fair(each) if one not in found]
            found.update(dict.fromkeys(after))
            waiting += after
        raise AssertionError(f"no way leads on from {state}")

    def unconnected(self) -> State:
        """The client has not connected."""
        opened = [
            parts.number(open_connection(log, From.LIVE, whole_filter=not self.bounds.firehose))
            for parts, log in zip(self.connections, self.logs.values(), strict=True)
        ]
        reader = self.readers.number(readers.start(self.logs, Topics(each.encode() for each in self.bounds.wanted)))
        left = Budget(**{name: getattr(self.bounds, name) for name in Budget._fields})
        return State((opened[0], opened[1]), reader, left)

    # ---- what can happen ----

    def fair(self, state: State) -> Iterator[State]:
        """What happens by itself."""
        if self.reader(state.reader).over:
            return
        for at in (0, 1):
            moves = self.moves(state, at)
            for act in moves.fair:
                yield self.acts(state, at, act)
            if moves.connects:
                yield self.connects(state, at)
        if not self.bounds.reads:
            number, is_read = self.readers.step(state.reader, "read", lambda reader: reader.read(self.judge))
            if is_read:
                yield state._replace(reader=number)

    def other(self, state: State) -> Iterator[State]:
        """Events, faults, and what the user does."""
        if self.reader(state.reader).over:
            return
        for at in (0, 1):
            moves = self.moves(state, at)
            if moves.publishes:
                yield self.acts(state, at, "publish")
            for act, what in moves.other:
                left = less(state.left, what)
                if left is not None:
                    yield self.acts(state._replace(left=left), at, act)
        left = less(state.left, "changes")
        if left is not None:
            for topics in FILTERS:
                if topics != self.reader(state.reader).topics:
                    yield self.changes(state._replace(left=left), topics)
        left = less(state.left, "restarts")
        if left is not None:
            for topics in FILTERS:
                yield from self.restarts(state._replace(left=left), topics)

    def acts(self, state: State, at: int, act: str) -> State:
        """A connection does something, and the reader is told what comes of it."""
        number, reports = self.connections[at].step(state.connections[at], act, getattr(Connection, act))
        return self._told(state, at, number, reports)

    def connects(self, state: State, at: int) -> State:
        """The client connects to a segment."""
        reader = self.reader(state.reader)
        begin = self.connection(state, at).begin
        if begin is None:
            begin = reader.machine.position(SEGMENTS[at])
        topics = filter_of(reader.topics)
        number, reports = self.connections[at].step(
            state.connections[at], ("connect", begin, topics), lambda connection: connection.connect(begin, topics)
        )
        return self._told(state, at, number, reports)

    def changes(self, state: State, topics: Topics) -> State:
        """The user wants other topics."""
        reader, widens = self.readers.step(state.reader, topics, lambda reader: reader.change(topics))
        state, wanted = state._replace(reader=reader), filter_of(topics)
        for at in (0, 1):
            number, reports = self.connections[at].step(
                state.connections[at], (wanted, widens), lambda connection: connection.want(wanted, widens)
            )
            state = self._told(state, at, number, reports)
        return state

    def restarts(self, state: State, topics: Topics) -> Iterator[State]:
        """The process begins again from its cursor, with these topics."""
        reader, positions = self.readers.step(
            state.reader, ("restart", topics), lambda reader: reader.restart(topics, self.logs)
        )
        if positions is None:
            return
        numbers = [
            self.connections[at].step(
                state.connections[at], positions[segment], partial(Connection.restart, begin=positions[segment])
            )[0]
            for at, segment in enumerate(SEGMENTS)
        ]
        yield state._replace(reader=reader, connections=(numbers[0], numbers[1]))

    def _told(self, state: State, at: int, number: int, reports: Reports) -> State:
        numbers = (number, state.connections[1]) if at == 0 else (state.connections[0], number)
        reader = state.reader
        if reports:
            segment, reads = SEGMENTS[at], self.bounds.reads
            reader, _ = self.readers.step(
                reader, (segment, reports), lambda reader: reader.take(segment, reports, self.judge, reads=reads)
            )
        return state._replace(connections=numbers, reader=reader)

    def connection(self, state: State, at: int) -> Connection:
        """One connection, for looking only."""
        return self.connections[at].look(state.connections[at])

    def reader(self, number: int) -> Reader:
        """A reader, for looking only."""
        return self.readers.look(number)

    def moves(self, state: State, at: int) -> Moves:
        """What a connection can do."""
        moves = self._moves[at].get(state.connections[at])
        if moves is None:
            moves = self._moves[at][state.connections[at]] = _moves(self.connection(state, at), self.bounds.queue)
        return moves

    @property
    def parts(self) -> tuple[int, ...]:
        """How many values the connections and the reader have had."""
        return *map(len, self.connections), len(self.readers)

    # ---- what must hold ----

    def check(self, state: State) -> None:
        """Raise `AssertionError` for a state that must not be."""
        one, other = (self.connection(state, at).position for at in (0, 1))
        if (state.reader, one, other) not in self._checked:
            standings = {"0": self.logs["0"].standings[one], "1": self.logs["1"].standings[other]}
            self.reader(state.reader).check(standings)
            self._checked.add((state.reader, one, other))

    def settled(self, state: State) -> bool:
        """Whether all that was published has been taken in and yielded, new topics come, and no others.

        Where the publishers send everything at first, others may come.
        """
        goal = self._goals.get(state.reader)
        if goal is None:
            goal = self._goals[state.reader] = goal_of(self.reader(state.reader), SEGMENTS)
        if goal.over or not goal.ready:
            return goal.over
        for at in (0, 1):
            live = self.moves(state, at).live
            if live is None or live[0] != goal.seqs[at]:
                return False
            if live[1] != goal.topics and not (self.bounds.firehose and live[1].covers(goal.topics)):
                return False
        return goal.frontier == self._frontiers[goal.seqs]


def goal_of(reader: Reader, segments: Iterable[str]) -> Goal:
    """What must be so where a reader of these segments is settled."""
    machine = reader.machine
    ready = machine.ready and not machine.waiting_epochs and not machine.widening
    return Goal(
        reader.over,
        ready,
        tuple(machine.position(segment).seq for segment in segments),
        reader.frontier,
        EVERYTHING if machine.topics is None else machine.topics,
    )


def _moves(connection: Connection, queue: int) -> Moves:
    follower = connection.follower
    publishes = connection.position < len(connection.log.events) and len(connection.pushes) < queue
    if follower is None:
        return Moves((), (), publishes, connects=True, live=None)
    arrive = ("subscriptions", "subscribe"), ("requests", "request"), ("pushes", "push"), ("answers", "answer")
    fair = [act for queue, act in arrive if getattr(connection, queue)]
    if connection.quiet:
        fair += ["beat", "soon"] if follower.live else ["soon", "give_up"]
    other = []
    if connection.pushes:
        other.append(("drop_push", "drops"))
    if connection.requests:
        other.append(("lose_request", "losses"))
    if connection.answers:
        other.append(("lose_answer", "losses"))
    other += [(act, "timers") for act in ("beat", "soon", "look", "give_up")]
    return Moves(tuple(fair), tuple(other), publishes, False, connection.live)


@dataclass
class Explored:
    """What was found: how many states, and how many of them are settled."""

    states: int = 0
    settled: int = 0
    steps: int = 0
    parts: tuple[int, ...] = ()
    """How many values each part of the states has."""
    trapped: list[str] = field(default_factory=list)


class Limits(Protocol):
    """What all bounds have."""

    @property
    def hello_entries(self) -> int:
        """The most prefixes that a message names."""
        ...

    @property
    def parts(self) -> bool:
        """Whether answers come in parts, for one event of the log each."""
        ...


class Searched(Protocol[S]):
    """What is searched."""

    @property
    def bounds(self) -> Limits:
        """How much may happen."""
        ...

    def start(self) -> S:
        """The first state."""
        ...

    def fair(self, state: S) -> Iterator[S]:
        """What happens by itself."""
        ...

    def other(self, state: S) -> Iterator[S]:
        """Events, faults, and what the user does."""
        ...

    def check(self, state: S) -> None:
        """Raise `AssertionError` for a state that must not be."""
        ...

    def settled(self, state: S) -> bool:
        """Whether nothing is left to be done."""
        ...

    @property
    def parts(self) -> tuple[int, ...]:
        """How many values each part of the states has had."""
        ...


def explore(search: Searched[S]) -> Explored:
    """Look at every state; raises where one is wrong, and lists those from which no way leads on.

    Garbage is not collected meanwhile: hardly anything becomes garbage, and each look at all that is kept takes long.
    """
    gc.disable()
    try:
        with limited(search.bounds):
            return _explored(search)
    finally:
        gc.enable()


@contextmanager
def limited(bounds: Limits) -> Iterator[None]:
    """Messages name no more than that, and answers look at no more."""
    limits = m.MAX_FILTER_ENTRIES, server.SCAN_EVENTS, server.CHUNK_EVENTS
    m.MAX_FILTER_ENTRIES = bounds.hello_entries
    if bounds.parts:
        server.SCAN_EVENTS = server.CHUNK_EVENTS = 1
    try:
        yield
    finally:
        m.MAX_FILTER_ENTRIES, server.SCAN_EVENTS, server.CHUNK_EVENTS = limits


def _explored(search: Searched[S]) -> Explored:
    first = search.start()
    found: dict[S, int] = {first: 0}
    waiting = deque([first])
    back: list[list[int]] = [[]]
    """State -> those from which it comes by itself."""
    settled: list[int] = []
    result = Explored()
    while waiting:
        state = waiting.popleft()
        at = found[state]
        search.check(state)
        if search.settled(state):
            settled.append(at)
        for fair, successors in ((True, search.fair(state)), (False, search.other(state))):
            for after in successors:
                result.steps += 1
                known = found.get(after)
                if known is None:
                    known = found[after] = len(found)
                    back.append([])
                    waiting.append(after)
                if fair:
                    back[known].append(at)
    reached = reach(settled, back)
    result.states, result.settled = len(found), len(settled)
    result.parts = search.parts
    result.trapped = [str(state) for state, at in found.items() if at not in reached][:10]
    return result

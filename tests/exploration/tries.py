"""The two tries of one connection, with a network that loses, repeats and reorders, and a user who changes his mind.

In every state: what is wanted and not sent has a step under way, or one that waits for room (N14); at most `window` are
under way; a batch causes at most one. And from every state, with no further fault and no further change of mind, a way
leads to where the publisher has the normal form of the user's filter and nothing else: there is no trap.

Sources: rules N8, N14, N16, F1-F5.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple, TypeVar

from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.topics.publisher_trie import PublisherTrie
from epochal.protocol.topics.requests import Confirm, Request
from epochal.protocol.topics.subscriber_trie import NO_NODE, SubscriberTrie

M = TypeVar("M")


class Change(NamedTuple):
    """The user adds a prefix to what is wanted or rejected, or takes it away."""

    prefix: bytes
    wanted: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may happen. `alphabet` and `depth`: of topics and prefixes; all of them are published."""

    alphabet: bytes = b"ab"
    depth: int = 2
    changes: int = 1
    losses: int = 0
    copies: int = 0
    overtakings: int = 0
    """How often a message arrives before one that was sent earlier."""
    restarts: int = 0
    window: int = 2
    firehose: bool = True
    """Whether a publisher sends everything at first, or what the hello names."""
    hurries: bool = False
    """Whether no batch comes, and all steps are taken for which there is room."""

    @property
    def topics(self) -> list[bytes]:
        """Every topic, which is every prefix too."""
        lengths = range(self.depth + 1)
        return [bytes(letters) for length in lengths for letters in product(self.alphabet, repeat=length)]


@dataclass(slots=True)
class State:
    """Both ends, what is between them, and what may still happen."""

    wanted: frozenset[Change]
    subscriber: SubscriberTrie
    publisher: PublisherTrie
    requests: tuple[Request, ...]
    confirms: tuple[Confirm, ...]
    left: Bounds

    def fork(self, *, subscriber: bool = False, publisher: bool = False) -> "State":
        """One that changes by itself, and so do these ends of it; the others must stay as they are."""
        return State(
            self.wanted,
            _fork(self.subscriber) if subscriber else self.subscriber,
            _fork(self.publisher) if publisher else self.publisher,
            self.requests,
            self.confirms,
            self.left,
        )

    def filter(self) -> TopicFilter:
        """What the user wants."""
        return _filter(self.wanted)

    def key(self) -> Hashable:
        """Equal for states from which the same can happen: numbers count from the last request."""
        subscriber, publisher = self.subscriber, self.publisher
        last = subscriber._last
        nodes = tuple([
            (prefix, user, known, number and number - last - 1, step)
            for prefix, (user, known, number, step) in subscriber.nodes()
        ])  # fmt: skip
        requests = tuple([(number - last, oldest - last, *what) for number, oldest, *what in self.requests])
        confirms = tuple([(number - last, *what) for number, *what in self.confirms])
        applied = tuple(sorted(number - last for number in publisher._applied))
        oldest = publisher._oldest
        left = self.left
        budget = (left.changes, left.losses, left.copies, left.overtakings, left.restarts)
        bits = tuple(sorted(publisher.bits.items()))
        order = (tuple(subscriber._untried), *map(tuple, subscriber._unsynced))  # what is tried first
        return (self.wanted, nodes, order, bits, oldest - last, applied, requests, confirms, budget)

    def settled(self) -> bool:
        """Whether the publisher has what the user wants, in normal form, and the subscriber knows it."""
        wanted = dict(self.filter())
        return self.subscriber.converged and dict(self.publisher.bits) == wanted

    # ---- what can happen ----

    def fair(self) -> Iterator["State"]:
        """What happens by itself: batches, messages in order, and a timer where nothing is on its way."""
        for topic in () if self.left.hurries else self.left.topics:
            if self.publisher.filter.wants(topic):
                after = self.fork(subscriber=True)
                asked = len(after.requests)
                after.subscriber.batch(topic)
                after.sent()
                assert len(after.requests) <= asked + 1, f"a batch of {topic!r} causes more than one step"
                yield after
        if self.requests:
            yield self.delivered(0)
        if self.confirms:
            yield self.confirmed(0)
        if not self.requests and not self.confirms and self.subscriber._under_way:
            after = self.fork(subscriber=True)
            after.subscriber.again()
            after.sent()
            yield after

    def other(self) -> Iterator["State"]:
        """Faults, and what the user does."""
        left = self.left
        if left.changes:
            for prefix, wanted in product(left.topics, (True, False)):
                after = self.spent("changes", self.fork(subscriber=True))
                after.wanted = after.wanted ^ {Change(prefix, wanted)}
                after.subscriber.change(after.filter())
                after.sent()
                yield after
        for at, request in enumerate(self.requests):
            yield from self.faults(at, replace(self, requests=_without(self.requests, at)))
            if left.copies:
                yield self.spent("copies", replace(self, requests=(*self.requests, request)))
        for at, confirm in enumerate(self.confirms):
            yield from self.faults(at, replace(self, confirms=_without(self.confirms, at)), confirm=True)
            if left.copies:
                yield self.spent("copies", replace(self, confirms=(*self.confirms, confirm)))
        if left.restarts:
            yield start(_less(left, "restarts"), self.wanted)

    def faults(self, at: int, without: "State", *, confirm: bool = False) -> Iterator["State"]:
        """Message `at` is lost, or overtakes those before it."""
        if self.left.losses:
            yield self.spent("losses", without)
        if at and self.left.overtakings:
            spent = self.spent("overtakings", self.fork())
            yield spent.confirmed(at) if confirm else spent.delivered(at)

    def spent(self, what: str, after: "State") -> "State":
        """`after`, with one less of `what` left."""
        after.left = _less(self.left, what)
        return after

    def delivered(self, at: int) -> "State":
        """A request arrives."""
        after = self.fork(publisher=True)
        confirm = after.publisher.receive(after.requests[at])
        after.requests = _without(after.requests, at)
        if confirm is not None:
            after.confirms = (*after.confirms, confirm)
        return after

    def confirmed(self, at: int) -> "State":
        """A confirmation arrives."""
        after = self.fork(subscriber=True)
        after.subscriber.confirm(after.confirms[at])
        after.confirms = _without(after.confirms, at)
        after.sent()
        return after

    def sent(self) -> None:
        """What the subscriber wants sent is on its way."""
        if self.left.hurries:
            self.subscriber.hurry()
        self.requests = (*self.requests, *self.subscriber.take())

    # ---- what must hold ----

    def check(self) -> None:
        """Raise `AssertionError` for a state that must not be."""
        subscriber, wanted = self.subscriber, self.filter()
        assert subscriber.wanted == wanted
        assert len(subscriber._under_way) <= self.left.window
        nodes = dict(subscriber.nodes())
        for topic in self.left.topics:
            if wanted.wants(topic) and not self.publisher.filter.wants(topic):
                above = [topic[:length] for length in range(len(topic) + 1)]
                helped = any(nodes.get(each, NO_NODE).number or each in subscriber._untried for each in above)
                assert helped, f"{topic!r} is wanted and not sent, and nothing is done about it"


def start(bounds: Bounds, wanted: frozenset[Change] = frozenset()) -> State:
    """A fresh connection."""
    known = {b"": True} if bounds.firehose else dict(_filter(wanted))
    subscriber = SubscriberTrie(_filter(wanted), known, window=bounds.window)
    state = State(wanted, subscriber, PublisherTrie(known), (), (), bounds)
    state.sent()
    return state


@dataclass
class Explored:
    """What was found: how many states, and how many of them are settled."""

    states: int = 0
    settled: int = 0
    steps: int = 0
    trapped: list[str] = field(default_factory=list)


def explore(bounds: Bounds) -> Explored:
    """Look at every state; raises `AssertionError` where one is wrong, and lists those from which no way leads on."""
    first = start(bounds)
    found: dict[Hashable, int] = {first.key(): 0}
    waiting = deque([(first, 0)])
    back: list[list[int]] = [[]]
    """State -> those from which it comes by itself."""
    settled: list[int] = []
    result = Explored()
    while waiting:
        state, at = waiting.popleft()
        state.check()
        if state.settled():
            settled.append(at)
        for fair, successors in ((True, state.fair()), (False, state.other())):
            for after in successors:
                result.steps += 1
                key = after.key()
                known = found.get(key)
                if known is None:
                    known = found[key] = len(found)
                    back.append([])
                    waiting.append((after, known))
                if fair:
                    back[known].append(at)
    reached = reach(settled, back)
    result.states, result.settled = len(found), len(settled)
    result.trapped = [str(key) for key, at in found.items() if at not in reached][:10]
    return result


def reach(settled: Iterable[int], back: Sequence[Iterable[int]]) -> set[int]:
    """The states from which a way leads to a settled one; `back`: of each state, those before it."""
    reached = set(settled)
    todo = list(reached)
    while todo:
        for at in back[todo.pop()]:
            if at not in reached:
                reached.add(at)
                todo.append(at)
    return reached


def _filter(wanted: frozenset[Change]) -> TopicFilter:
    return TopicFilter([each.prefix for each in wanted if each.wanted], [e.prefix for e in wanted if not e.wanted])


@cache
def _less(bounds: Bounds, what: str) -> Bounds:
    return replace(bounds, **{what: getattr(bounds, what) - 1})


def _without(messages: tuple[M, ...], at: int) -> tuple[M, ...]:
    return (*messages[:at], *messages[at + 1 :])


def _fork(end: Any) -> Any:
    """A copy whose collections are its own."""
    made = object.__new__(type(end))
    for name in vars(end) if hasattr(end, "__dict__") else type(end).__slots__:
        value = getattr(end, name)
        kind = type(value)
        if kind is dict or kind is set or kind is list:
            value = value.copy()
        elif kind is tuple:
            value = tuple([part.copy() if type(part) is dict else part for part in value])
        setattr(made, name, value)
    return made

"""A reader who follows a segment through relays, while all of them come, go, lag, and change their ways.

In every state: what the application was given is what the log says, each epoch whole and once; what a relay says of the
log is true, as far as it can know; no relay tells of an origin that it has lost; and no two feed each other. And from
every state, with no further fault, no further change of mind and nothing more published, a way leads to where all that
was published has been taken in: there is no trap.

A state is the publisher, the relays, the reader's end and the reader, and the messages between them. What each does
depends on nothing but itself and on which names are free, so each step of it is taken once.

Sources: rules E14-E17, E24, F6-F8, F10, F13-F17.
"""

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from tests.exploration import readers, relayed
from tests.exploration.channels import FILTERS, Goal, Parts, goal_of, less
from tests.exploration.connections import SETTINGS, FixedLog
from tests.exploration.ends import Judge
from tests.exploration.readers import Reader, filter_of
from tests.exploration.relayed import (
    SEGMENT,
    Answered,
    Asked,
    Draws,
    Leaves,
    Lives,
    Pushed,
    Relay,
    Sent,
    Subscribes,
    Told,
    load_origin,
    start_end,
    start_origin,
    start_relay,
)
from tests.simulation.stories import Topics

from epochal.protocol import messages as m

ORIGIN, READER = "o", "s"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may happen."""

    log: str = "a0 1 b1 2 ."
    """The steps of the publisher, as `FixedLog` reads them."""
    before: int = 0
    """How many events are pushed, and taken in, before anything else happens."""
    ways: tuple[str, ...] = ("a:o", "s:a")
    """Who may follow whom: each relay, and last the reader `s`; `o` is the origin. Whom nobody lets in is not there."""
    late: int = 0
    """Whether the reader comes later, at any point, instead of being there from the start."""
    wanted: str = "ab"
    """The topics that are wanted at first."""
    changes: int = 0
    drops: int = 0
    """How often a pushed message is dropped."""
    restarts: int = 0
    """How often the origin ends, and another incarnation begins."""
    deaths: int = 0
    """How often a relay dies, and another one begins."""
    moves: int = 0
    """How often somebody leaves whom it follows, and follows another one, or the same again."""
    lapses: int = 0
    """How often a relay has been asked for some topics too long ago, and forgets that they were wanted."""
    silences: int = 0
    """How often somebody hears nothing for too long of whom it follows."""
    queue: int = 1
    """How many pushed messages may wait at a client of the origin before the next event comes."""
    history: bool = True
    hello_entries: int = m.MAX_FILTER_ENTRIES
    """The most prefixes that a message names; with 0, every filter is told before a join."""
    pulls: bool = False
    """Whether the reader follows no pushes, and only asks, again and again (Q7)."""
    parts: bool = False
    """Whether answers come in parts, for one event of the log each, and the next one when it is asked for."""
    lingers: bool = True
    """Whether relays go on asking for topics that nobody wants any more."""
    memory: int = 2**20
    """Bytes of events that a relay keeps."""

    @property
    def credit(self) -> int:
        """How many parts of an answer are asked for ahead."""
        return 1 if self.parts else SETTINGS.credit


class Budget(NamedTuple):
    """What may still happen."""

    late: int
    changes: int
    drops: int
    restarts: int
    deaths: int
    moves: int
    lapses: int
    silences: int


class Link(NamedTuple):
    """A connection of a client, and the messages on their way on its four queues, oldest first."""

    server: int | None = None
    """Whom it follows; None while it is not connected."""
    subscriptions: tuple[bytes, ...] = ()
    requests: tuple[m.Message, ...] = ()
    pushes: tuple[tuple[bytes, m.Message], ...] = ()
    answers: tuple[tuple[m.Message, ...], ...] = ()

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way."""
        return not (self.subscriptions or self.requests or self.pushes or self.answers)


class ForwardedRequest(NamedTuple):
    """A connection on which a relay passes on one request."""

    client: int
    number: int
    server: int
    requests: tuple[m.Message, ...] = ()
    answers: tuple[tuple[m.Message, ...], ...] = ()


class State(NamedTuple):
    """By their numbers: the origin, the relays and the reader's end; their connections; the reader; what may happen."""

    nodes: tuple[int, ...]
    links: tuple[int, ...]
    """Of all but the origin."""
    forwarded_requests: tuple[ForwardedRequest, ...]
    reader: int
    left: Budget


_NAME = re.compile(rb"(?:nonce|tok)([a-z])(\d+)")
_DRAWS: tuple[int, Any] = (-1, None)
"""In the place of what came of a step that draws names."""


class Nodes(Parts[Any]):
    """The values of one node; its steps depend on which names are free as well."""

    def __init__(self, load: Callable[[bytes], Any], *, doubts: bool = False) -> None:
        super().__init__(load, doubts=doubts)
        self._names: dict[int, frozenset[tuple[str, int]]] = {}

    def happens(
        self, number: int, act: Hashable, do: Callable[[Any], None], free: Callable[[], tuple[int, ...]]
    ) -> tuple[int, tuple[Sent, ...]]:
        """What comes of an act, and what is sent."""
        known = self._taken.get((number, act))
        if known is not None and known is not _DRAWS:
            return known
        names = free()
        if known is not None and (drawn := self._taken.get((number, (act, names)))) is not None:
            return drawn
        after = self._load(self._dumped[number])
        has_drawn, sent = _acted(after, do, names)
        taken = self.number(after), sent
        key: Hashable = act
        if has_drawn:
            self._taken[number, act], key = _DRAWS, (act, names)
        self._taken[number, key] = taken
        if self._doubts:
            self._acts.setdefault(number, []).append((key, lambda it: _acted(it, do, names)[1]))
        return taken

    def names(self, number: int) -> frozenset[tuple[str, int]]:
        """The names that a value knows."""
        known = self._names.get(number)
        if known is None:
            known = self._names[number] = names_in(self._dumped[number])
        return known


def _acted(node: Any, do: Callable[[Any], None], names: tuple[int, ...]) -> tuple[bool, tuple[Sent, ...]]:
    """Do it; returns whether one of the `names` was taken, and what is sent."""
    draws: Draws = node.draws
    draws.free = names
    do(node)
    sent = node.take()
    has_drawn, draws.drawn, draws.free = draws.drawn > 0, 0, ()
    return has_drawn, sent


def names_in(raw: bytes) -> frozenset[tuple[str, int]]:
    """The owner and the number of each subscription id and token that is named."""
    return frozenset((owner.decode(), int(number)) for owner, number in _NAME.findall(raw))


class Search:
    """The states of one configuration."""

    def __init__(self, bounds: Bounds, *, doubts: bool = False) -> None:
        self.bounds = bounds
        self.log = FixedLog(SEGMENT, bounds.log, keeps=bounds.history)
        self.logs = {SEGMENT: self.log}
        self.judge = Judge(self.logs)
        self.lives = Lives(self.log)
        clients, ways = zip(*(each.split(":") for each in bounds.ways), strict=True)
        self.names = (ORIGIN, *clients)
        self.ways = tuple(tuple(map(self.names.index, each)) for each in ways)
        """By client, without the origin."""
        self.end = len(self.names) - 1
        load: list[Callable[[bytes], Any]] = [partial(load_origin, lives=self.lives), *(relayed.load for _ in clients)]
        self.nodes = tuple(Nodes(each, doubts=doubts) for each in load)
        self.readers = Parts[Reader](readers.load, doubts=doubts)
        self._links: dict[Link, int] = {}
        self._link_of: list[Link] = []
        self._named: dict[Hashable, frozenset[tuple[str, int]]] = {}
        self._goals: dict[int, Goal] = {}
        self._checked: set[tuple[int, int]] = set()

    # ---- how it begins ----

    def start(self) -> State:
        """Everybody is connected, and has what was published before."""
        bounds = self.bounds
        made: list[Any] = [start_origin(self.lives, 0, (), Draws(ORIGIN, (0,)))]
        made += [
            start_relay(Draws(name), lingers=bounds.lingers, memory=bounds.memory, credit=bounds.credit)
            for name in self.names[1 : self.end]
        ]
        made.append(start_end(Draws(READER), pushes=not bounds.pulls, credit=bounds.credit))
        for each in made:
            each.draws.drawn, each.draws.free = 0, ()
        reader = readers.start(self.logs, Topics(each.encode() for each in bounds.wanted))
        state = State(
            tuple(nodes.number(each) for nodes, each in zip(self.nodes, made, strict=True)),
            tuple(self._number(Link()) for _ in self.names[1:]),
            (),
            self.readers.number(reader),
            Budget(**{name: getattr(bounds, name) for name in Budget._fields}),
        )
        state = self._settled_after(state)
        for _ in range(bounds.before):
            state = self._settled_after(self.happens(state, 0, "publish"))
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

    # ---- what can happen ----

    def fair(self, state: State) -> Iterator[State]:
        """What happens by itself."""
        if self.reader(state).over:
            return
        for client in range(1, len(self.names)):
            link = self.link(state, client)
            if link.server is None:
                if client == self.end and state.left.late:
                    continue
                yield from (self.connects(state, client, server) for server in self.ways[client - 1])
            else:
                yield from self._arrivals(state, client, link, link.server)
        for forwarded in state.forwarded_requests:
            yield from self._passes(state, forwarded)
        for server in range(self.end):
            followed = [link for link in map(self._link_of.__getitem__, state.links) if link.server == server]
            if all(link.quiet for link in followed) and (followed or server):
                yield self.happens(state, server, "beat")

    def _arrivals(self, state: State, client: int, link: Link, server: int) -> Iterator[State]:
        peer = self.names[client].encode()
        if link.subscriptions:
            notice, *others = link.subscriptions
            after = self._linked(state, client, link._replace(subscriptions=tuple(others)))
            yield self.happens(after, server, "heard", peer, notice)
        if link.requests:
            request, *requests = link.requests
            after = self._linked(state, client, link._replace(requests=tuple(requests)))
            yield self.happens(after, server, "asked", peer, request)
        if link.pushes:
            pushed, *pushes = link.pushes
            after = self._linked(state, client, link._replace(pushes=tuple(pushes)))
            yield self.happens(after, client, "pushed", *pushed)
        if link.answers:
            answer, *answers = link.answers
            after = self._linked(state, client, link._replace(answers=tuple(answers)))
            yield self.happens(after, client, "answered", answer)
        if link.quiet:
            yield self.happens(state, client, "fires", False)

    def _passes(self, state: State, forwarded: ForwardedRequest) -> Iterator[State]:
        others = tuple(each for each in state.forwarded_requests if each is not forwarded)
        if forwarded.requests:
            request, *requests = forwarded.requests
            after = state._replace(forwarded_requests=(*others, forwarded._replace(requests=tuple(requests))))
            yield self.happens(after, forwarded.server, "asked", self._peer(forwarded), request)
        if forwarded.answers:
            answer, *answers = forwarded.answers
            after = state._replace(forwarded_requests=(*others, forwarded._replace(answers=tuple(answers))))
            yield self.happens(after, forwarded.client, "passed_back", forwarded.number, answer)

    def other(self, state: State) -> Iterator[State]:
        """Events, faults, and what the user does."""
        if self.reader(state).over:
            return
        if self._position(state) < len(self.log.events) and all(
            link.server != 0 or len(link.pushes) < self.bounds.queue
            for link in map(self._link_of.__getitem__, state.links)
        ):
            yield self.happens(state, 0, "publish")
        if (left := less(state.left, "late")) is not None:
            yield from (self.connects(state._replace(left=left), self.end, server) for server in self.ways[-1])
        for client in range(1, len(self.names)):
            link = self.link(state, client)
            if link.pushes and (left := less(state.left, "drops")) is not None:
                yield self._linked(state._replace(left=left), client, link._replace(pushes=link.pushes[1:]))
            if link.server is not None and (left := less(state.left, "moves")) is not None:
                yield self.happens(state._replace(left=left), client, "lost")
            if link.server is not None and (left := less(state.left, "silences")) is not None:
                yield self.happens(state._replace(left=left), client, "fires", True)
        if (left := less(state.left, "restarts")) is not None:
            yield self.ends(state._replace(left=left), 0, "restart")
        if (left := less(state.left, "deaths")) is not None:
            yield from (self.ends(state._replace(left=left), relay, "dies") for relay in range(1, self.end))
        if (left := less(state.left, "lapses")) is not None:
            yield from (self.happens(state._replace(left=left), relay, "lapses") for relay in range(1, self.end))
        if (left := less(state.left, "changes")) is not None:
            for topics in FILTERS:
                if topics != self.reader(state).topics:
                    yield self.changes(state._replace(left=left), topics)

    # ---- what comes of it ----

    def happens(self, state: State, node: int, act: str, *given: Any) -> State:
        """One thing happens to a node, and what it sends is on its way."""
        number, sent = self.nodes[node].happens(
            state.nodes[node], (act, *given), lambda it: getattr(it, act)(*given), partial(self._free, state, node)
        )
        state = state._replace(nodes=(*state.nodes[:node], number, *state.nodes[node + 1 :]))
        for each in sent:
            state = self._send(state, node, each)
        return state

    def _send(self, state: State, node: int, sent: Sent) -> State:
        match sent:
            case Pushed(peer, prefix, message):
                client = self.names.index(peer.decode())
                link = self.link(state, client)
                if link.server == node:
                    state = self._linked(state, client, link._replace(pushes=(*link.pushes, (prefix, message))))
            case Answered(peer, messages):
                state = self._answer(state, node, peer.decode(), messages)
            case Asked(message, 0):
                link = self.link(state, node)
                state = self._linked(state, node, link._replace(requests=(*link.requests, message)))
            case Asked(message, number):
                state = self._pass(state, node, number, message)
            case Subscribes(notice):
                link = self.link(state, node)
                state = self._linked(state, node, link._replace(subscriptions=(*link.subscriptions, notice)))
            case Leaves(0):
                server = self.link(state, node).server
                assert server is not None
                state = self.happens(self._linked(state, node, Link()), server, "left", self.names[node].encode())
            case Leaves(number):
                for forwarded in state.forwarded_requests:
                    if (forwarded.client, forwarded.number) == (node, number):
                        others = tuple(each for each in state.forwarded_requests if each is not forwarded)
                        state = state._replace(forwarded_requests=others)
                        state = self.happens(state, forwarded.server, "left", self._peer(forwarded))
            case Told(reports, by_relay):
                reader, _ = self.readers.step(
                    state.reader,
                    sent,
                    lambda it: it.take(SEGMENT, reports, self.judge, reads=True, relayed=by_relay),
                )
                state = state._replace(reader=reader)
        return state

    def _answer(self, state: State, node: int, peer: str, messages: tuple[m.Message, ...]) -> State:
        name, _, number = peer.partition(":")
        client = self.names.index(name)
        if not number:
            link = self.link(state, client)
            if link.server != node:
                return state
            return self._linked(state, client, link._replace(answers=(*link.answers, messages)))
        return state._replace(
            forwarded_requests=tuple(
                each._replace(answers=(*each.answers, messages))
                if (each.client, each.number, each.server) == (client, int(number), node)
                else each
                for each in state.forwarded_requests
            )
        )

    def _pass(self, state: State, node: int, number: int, message: m.Message) -> State:
        found = [each for each in state.forwarded_requests if (each.client, each.number) == (node, number)]
        if not found:
            server = self.link(state, node).server
            if server is None:
                return self.happens(state, node, "cut", number)
            found = [ForwardedRequest(node, number, server)]
        others = tuple(each for each in state.forwarded_requests if each is not found[0])
        return state._replace(forwarded_requests=(*others, found[0]._replace(requests=(*found[0].requests, message))))

    def _peer(self, forwarded: ForwardedRequest) -> bytes:
        return b"%s:%d" % (self.names[forwarded.client].encode(), forwarded.number)

    def connects(self, state: State, client: int, server: int) -> State:
        """A client connects to a server."""
        state = self._linked(state, client, Link(server))
        if client != self.end:
            return self.happens(state, client, "connect")
        reader = self.reader(state)
        begin = self.nodes[client].look(state.nodes[client]).begin
        if begin is None:
            begin = reader.machine.position(SEGMENT)
        return self.happens(state, client, "connect", begin, filter_of(reader.topics))

    def changes(self, state: State, topics: Topics) -> State:
        """The user wants other topics."""
        reader, widens = self.readers.step(state.reader, topics, lambda it: it.change(topics))
        return self.happens(state._replace(reader=reader), self.end, "want", filter_of(topics), widens)

    def ends(self, state: State, node: int, act: str) -> State:
        """A process ends, and another one is there; all connections to it and from it are lost."""
        peers = [client for client in range(1, len(self.names)) if self.link(state, client).server == node]
        cut = [each for each in state.forwarded_requests if each.server == node]
        own = [each for each in state.forwarded_requests if each.client == node]
        upstream = self.link(state, node).server if node else None
        state = self.happens(state, node, act)
        if upstream is not None:
            state = self.happens(self._linked(state, node, Link()), upstream, "left", self.names[node].encode())
        for forwarded in own:
            state = state._replace(
                forwarded_requests=tuple(each for each in state.forwarded_requests if each is not forwarded)
            )
            state = self.happens(state, forwarded.server, "left", self._peer(forwarded))
        for forwarded in cut:
            state = self.happens(state, forwarded.client, "cut", forwarded.number)
        for client in peers:
            if self.link(state, client).server == node:
                state = self.happens(state, client, "lost")
        return state

    # ---- names ----

    def _free(self, state: State, node: int) -> tuple[int, ...]:
        """The least numbers of which nobody has a name that is this node's."""
        owner = self.names[node]
        taken = {number for of, number in self._used(state) if of == owner}
        free: list[int] = []
        number = 0
        while len(free) < 4:
            if number not in taken:
                free.append(number)
            number += 1
        return tuple(free)

    def _used(self, state: State) -> Iterator[tuple[str, int]]:
        for nodes, number in zip(self.nodes, state.nodes, strict=True):
            yield from nodes.names(number)
        for link in state.links:
            yield from self._names_of(link, self._link_of[link])
        for forwarded in state.forwarded_requests:
            yield from self._names_of(forwarded, forwarded)

    def _names_of(self, key: Hashable, value: object) -> frozenset[tuple[str, int]]:
        known = self._named.get(key)
        if known is None:
            known = self._named[key] = names_in(repr(value).encode())
        return known

    # ---- parts ----

    def _number(self, link: Link) -> int:
        known = self._links.get(link)
        if known is None:
            known = self._links[link] = len(self._link_of)
            self._link_of.append(link)
        return known

    def link(self, state: State, client: int) -> Link:
        """The connection of a client."""
        return self._link_of[state.links[client - 1]]

    def _linked(self, state: State, client: int, link: Link) -> State:
        links = state.links
        return state._replace(links=(*links[: client - 1], self._number(link), *links[client:]))

    def relay(self, state: State, node: int) -> Relay:
        """A relay, for looking only."""
        relay = self.nodes[node].look(state.nodes[node])
        assert isinstance(relay, Relay)
        return relay

    def reader(self, state: State) -> Reader:
        """The reader, for looking only."""
        return self.readers.look(state.reader)

    def _position(self, state: State) -> int:
        return int(self.nodes[0].look(state.nodes[0]).position)

    @property
    def parts(self) -> tuple[int, ...]:
        """How many values the nodes and the reader have had."""
        return *map(len, self.nodes), len(self.readers)

    # ---- what must hold ----

    def check(self, state: State) -> None:
        """Raise `AssertionError` for a state that must not be."""
        position = self._position(state)
        if (state.reader, position) not in self._checked:
            self.reader(state).check({SEGMENT: self.log.standings[position]})
            self._checked.add((state.reader, position))
        for relay in range(1, self.end):
            self._follows_no_follower(state, relay)

    def _follows_no_follower(self, state: State, relay: int) -> None:
        """F16: no relay feeds itself, once all have heard of each other's ways."""
        way, link = [relay], self.link(state, relay)
        while link.server and link.quiet and self.relay(state, way[-1]).machine.alive:
            assert link.server != relay, f"F16: {[self.names[each] for each in way]} feed each other"
            if link.server in way:
                return  # that is said of those who do
            way.append(link.server)
            link = self.link(state, link.server)

    def settled(self, state: State) -> bool:
        """Whether all that was published has been taken in and yielded, and nothing else is being done."""
        if state.left.late or not self.ways[-1]:
            relays = range(1, self.end)
            return all(self.link(state, each).quiet and self.relay(state, each).machine.alive for each in relays)
        known = self._goals.get(state.reader)
        if known is None:
            known = self._goals[state.reader] = goal_of(self.reader(state), (SEGMENT,))
        if known.over or not known.ready:
            return bool(known.over)
        follower = self.nodes[self.end].look(state.nodes[self.end]).following.follower
        if follower is None or not follower.live or follower._subscription.change is not None:
            return False
        position = self._position(state)
        return bool(known.seqs == (position - 1,) and known.frontier == self.log.standings[position].lower)

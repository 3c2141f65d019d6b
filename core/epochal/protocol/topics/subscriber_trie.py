"""A subscriber's end: it leads a publisher to the user's filter, step by step, and never mutes what is wanted.

A publisher that sends everything is led like this. Each batch that arrives may cause one step: a wanted prefix is
subscribed to when its first batch comes, an unwanted topic is rejected. Once the publisher has every entry of the
user's, what else it has is reset, the longest prefix first and "" last. So many prefixes never arrive at once, and if
the steps fail, too much is sent and never too little.

Where no batch would come, because the publisher sends nothing that could cause one, a step is taken at once; and all
are, as far as there is room, where nothing is to be sent before the publisher has the filter (`hurry`).

Sources: *Generalized subscription upstreaming* on the nanomsg mailing list; rules N1-N16, N20, F2-F5.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.topics.requests import WINDOW, Confirm, Request, Step


class Node(NamedTuple):
    """One prefix, as the subscriber knows it.

    The flags of the mail: POSITIVE and CANONICAL are `user`; SYNCHRONIZED is `known == user`; PENDING is `number`.
    """

    user: bool | None = None
    """Whether the user wants it or rejects it; None for an entry that is not the user's."""
    known: bool | None = None
    """What the publisher has confirmed: it sends it, or it does not; None for no entry."""
    number: int = 0
    """The request for this prefix that is under way; 0 for none (F4)."""
    step: Step = Step.RESET
    """What that request does."""

    @property
    def synced(self) -> bool:
        """Whether the publisher has confirmed what the user wants, and nothing else is under way."""
        return not self.number and self.known == self.user


NO_NODE = Node()


class SubscriberTrie:
    """One connection's way to the user's filter. `take()` returns what is to be sent after each call.

    `known`: what the publisher has at first, `{b"": True}` for everything, or the entries that the hello named.
    `window`: requests under way at once.

    >>> trie = SubscriberTrie(TopicFilter([b"delay/"]), {b"": True})
    >>> trie.batch(b"gate/JFK"), trie.take()
    (None, [Request(number=1, oldest=1, step=<Step.REJECT: 2>, prefix=b'g')])
    >>> trie.confirm(Confirm(1, Step.REJECT, b"g"))
    >>> trie.batch(b"delay/EWR"), trie.take()
    (None, [Request(number=2, oldest=2, step=<Step.SUBSCRIBE: 1>, prefix=b'delay/')])
    >>> trie.converged
    False

    A batch costs O(length of its topic) until the two ends agree, and nothing afterwards; where nothing is left but
    rejections that wait for others, it costs O(those).
    """

    def __init__(self, wanted: TopicFilter, known: Mapping[bytes, bool], *, window: int = WINDOW) -> None:
        self._wanted = TopicFilter([])
        self._window = window
        self._nodes: dict[bytes, Node] = {prefix: Node(known=sign) for prefix, sign in known.items()}
        self._others = dict.fromkeys(known)
        """Prefixes whose entries are not the user's."""
        self._deepest: list[tuple[int, bytes]] = []
        """They, by depth, as a heap; some are not any more."""
        self._unsynced: tuple[dict[bytes, None], dict[bytes, None]] = ({}, {})
        """The user's entries that are not synced: those that are rejected, those that are wanted."""
        self._under_way: dict[int, bytes] = {}
        """Number -> prefix, the oldest first."""
        self._untried: dict[bytes, None] = {}
        """What must be sent without a batch, and waits for room (N14)."""
        self._last = 0
        self._out: list[int] = []
        """Numbers to be sent."""
        self.change(wanted)

    # ---- what the user wants ----

    @property
    def wanted(self) -> TopicFilter:
        """The user's filter."""
        return self._wanted

    @property
    def converged(self) -> bool:
        """Whether the publisher has the user's filter, and nothing else."""
        return not (self._under_way or self._others or self._unsynced[False] or self._unsynced[True])

    @property
    def waits(self) -> bool:
        """Whether a confirmation is awaited."""
        return bool(self._under_way)

    @property
    def publisher(self) -> TopicFilter:
        """What the publisher has, as far as it has confirmed it. Costs O(all entries)."""
        return TopicFilter.of({prefix: node.known for prefix, node in self._nodes.items() if node.known is not None})

    @property
    def sent_for_sure(self) -> TopicFilter:
        """What the publisher sends, whichever of the requests under way it has carried out. Costs O(all entries).

        >>> trie = SubscriberTrie(TopicFilter([b"a"]), {b"": True})
        >>> trie.batch(b"b")
        >>> trie.sent_for_sure
        TopicFilter(+b'' -b'b')
        """
        signs = {}
        for prefix, node in self._nodes.items():
            may_be = {node.known, node.step.leaves} if node.number else {node.known}
            if False in may_be:
                signs[prefix] = False
            elif None not in may_be:
                signs[prefix] = True
            # Else it may be as above it, which for one that is wanted can only be less.
        return TopicFilter.of(signs)

    def change(self, wanted: TopicFilter) -> None:
        """The user wants something else from now on (F3)."""
        before, self._wanted = self._wanted, wanted
        for prefix, _ in before:
            if prefix not in wanted:
                self._put(prefix, self._nodes[prefix]._replace(user=None))
        for prefix, sign in wanted:
            node = self._nodes.get(prefix, NO_NODE)
            if node.user != sign:
                self._put(prefix, node._replace(user=sign))
        self._deepest = sorted(_by_depth(each) for each in self._others if not self._nodes[each].number)
        self._try(self._unsynced[True])
        self._try(self._others)

    # ---- messages ----

    def batch(self, topic: bytes) -> None:
        """A batch of `topic` has arrived, wanted or not: take the step that is due, at most one (F2)."""
        if not self.converged and self._has_room():
            step = self._due(topic)
            if step is not None:
                self._ask(*step)

    def hurry(self) -> None:
        """Take the steps that are due, as many as there is room for, though no batch has come.

        >>> trie = SubscriberTrie(TopicFilter([b"a", b"b"]), {b"": True})
        >>> trie.hurry(), [(step.name, prefix) for _, _, step, prefix in trie.take()]
        (None, [('SUBSCRIBE', b'a'), ('SUBSCRIBE', b'b')])
        """
        while not self.converged and self._has_room() and (step := self._due(b"")) is not None:
            self._ask(*step)

    def confirm(self, confirm: Confirm) -> None:
        """The publisher has carried a request out. One that answers an earlier request changes nothing (F4)."""
        prefix = self._under_way.pop(confirm.number, None)
        if prefix is None:
            return
        node = self._nodes[prefix]
        self._put(prefix, node._replace(known=node.step.leaves, number=0))
        self._try([prefix])
        while self._untried and self._has_room():
            self._try([next(iter(self._untried))])

    def again(self) -> None:
        """No confirmation has come for long: what is under way is sent again (N8)."""
        self._out = list(self._under_way)

    def take(self) -> list[Request]:
        """What is to be sent since the last call, in order."""
        out, self._out = self._out, []
        oldest = next(iter(self._under_way), 0)
        requests = [(number, self._under_way.get(number)) for number in out]
        return [
            Request(number, oldest, self._nodes[prefix].step, prefix)
            for number, prefix in requests
            if prefix is not None
        ]

    # ---- the next step ----

    def _due(self, topic: bytes) -> tuple[bytes, Step] | None:
        """The four cases of F2, the first that applies."""
        other_above = False
        for length in range(len(topic) + 1):
            prefix = topic[:length]
            node = self._nodes.get(prefix)
            if node is None:
                continue
            other_above = other_above or length > 0
            if node.user is not None and self._may_sync(prefix, node):
                return prefix, _step_to(node.user)
        rejected, subscribed = self._unsynced
        if (rejected or subscribed) and not other_above and not self._wanted.wants(topic):
            unwanted = self._wanted.shortest_unwanted(topic)
            if unwanted is not None and not self._is_reset_above(unwanted):
                return unwanted, Step.REJECT
        for unsynced in (subscribed, rejected):
            for prefix in unsynced:
                node = self._nodes[prefix]
                if self._may_sync(prefix, node):
                    return prefix, _step_to(node.user)
        return None if rejected or subscribed else self._due_reset()

    def _may_sync(self, prefix: bytes, node: Node) -> bool:
        """Whether an entry of the user's may be sent: a REJECT waits until all that is wanted below it is synced."""
        if node.number or node.known == node.user:
            return False
        if node.user:
            return True
        waits = any(_is_below(each, prefix) for each in self._unsynced[True])
        return not (waits or self._is_reset_above(prefix))

    def _is_reset_above(self, prefix: bytes) -> bool:
        """Whether nothing may be sent there any more soon: no batch would then cause the reset of a REJECT."""
        return any(
            _is_below(prefix, each) and self._nodes[each].step is Step.RESET for each in self._under_way.values()
        )

    def _due_reset(self) -> tuple[bytes, Step] | None:
        """The deepest entry that is not the user's; "" comes last (F2).

        What is above it is left until it is gone: where nothing is sent, no batch would ever cause its reset.
        """
        while self._deepest:
            _, prefix = self._deepest[0]
            node = self._nodes.get(prefix, NO_NODE)
            if prefix in self._others and not node.number:
                under_way = self._under_way.values()
                return None if any(_is_below(each, prefix) for each in under_way) else (prefix, Step.RESET)
            heappop(self._deepest)  # it is put there again when it is known
        return None

    # ---- what no batch would cause ----

    def _try(self, prefixes: Iterable[bytes]) -> None:
        """Send at once what no batch would cause, as far as there is room (N14)."""
        for prefix in list(prefixes):
            step = self._urgent(prefix)
            if step is None:
                self._untried.pop(prefix, None)
            elif self._has_room():
                self._untried.pop(prefix, None)
                self._ask(prefix, step)
            else:
                self._untried[prefix] = None

    def _urgent(self, prefix: bytes) -> Step | None:
        """What must be done about a prefix without a batch: it is wanted, and the publisher may not send it."""
        node = self._nodes.get(prefix, NO_NODE)
        if node.number:
            return None  # looked at again when that is confirmed
        if node.user is None:
            return Step.RESET if node.known is False and self._wanted.wants(prefix) else None
        if node.user and node.known is not True and self._may_be_muted(prefix):
            return Step.SUBSCRIBE
        return None

    def _may_be_muted(self, prefix: bytes) -> bool:
        """Whether "" is not there for sure, or something on the way to `prefix` is rejected, or may be by now."""
        root = self._nodes.get(b"", NO_NODE)
        if root.known is not True or root.number:
            return True
        above = (self._nodes.get(prefix[:length], NO_NODE) for length in range(1, len(prefix) + 1))
        return any(node.known is False or (node.number and node.step is Step.REJECT) for node in above)

    # ---- the nodes ----

    def _has_room(self) -> bool:
        if len(self._under_way) >= self._window:
            return False
        return self._last + 1 < next(iter(self._under_way), self._last + 1) + self._window

    def _ask(self, prefix: bytes, step: Step) -> None:
        self._last += 1
        self._under_way[self._last] = prefix
        self._put(prefix, self._nodes.get(prefix, NO_NODE)._replace(number=self._last, step=step))
        self._out.append(self._last)

    def _put(self, prefix: bytes, node: Node) -> None:
        """The prefix is this from now on."""
        for unsynced in self._unsynced:
            unsynced.pop(prefix, None)
        self._others.pop(prefix, None)
        if node.user is None and node.known is None and not node.number:
            self._nodes.pop(prefix, None)
            return
        self._nodes[prefix] = node
        if node.user is None:
            self._others[prefix] = None
            if not node.number:
                heappush(self._deepest, _by_depth(prefix))
        elif not node.synced:
            self._unsynced[node.user][prefix] = None

    def nodes(self) -> Iterator[tuple[bytes, Node]]:
        """Every prefix that is known, in order."""
        return iter(sorted(self._nodes.items()))


def _by_depth(prefix: bytes) -> tuple[int, bytes]:
    """The deepest first in order."""
    return -len(prefix), prefix


def _step_to(sign: bool | None) -> Step:
    return Step.SUBSCRIBE if sign else Step.REJECT


def _is_below(prefix: bytes, above: bytes) -> bool:
    """Whether `prefix` begins with `above`, and is longer."""
    return len(prefix) > len(above) and prefix.startswith(above)

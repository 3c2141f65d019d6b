"""The views of a segment: the topics that each connection has requested, step by step.

A view decides which channel a join gets. The subscription keeps the channel after the view has expired.

Sources: rules N7, N8, F4, F6; docs/hostile-input.md.
"""

from dataclasses import dataclass

from epochal.errors import LimitExceeded
from epochal.protocol import messages as m
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter
from epochal.protocol.topics.publisher_trie import PublisherTrie
from epochal.protocol.topics.requests import Request, Step

MAX_BYTES = 64 * 2**20
"""Most bytes of all views of a process, by the estimate below."""
VIEW_OVERHEAD, ENTRY_OVERHEAD = 1000, 200
"""About how many bytes a view takes, and a prefix in it besides its own length."""


@dataclass(slots=True)
class _View:
    number: int
    heard: float
    trie: PublisherTrie

    @property
    def size(self) -> int:
        return VIEW_OVERHEAD + len(self.trie.bits) * ENTRY_OVERHEAD + self.trie.size


class ViewMemory:
    """How many bytes the views of all segments of a process take together."""

    def __init__(self) -> None:
        self.most = MAX_BYTES
        self.used = 0


class Views:
    """One view for each peer on `requests`. It begins with all topics and ends `ttl` seconds after its last request."""

    def __init__(self, ttl: float, memory: ViewMemory) -> None:
        self._ttl = ttl
        self._views: dict[bytes, _View] = {}
        self._memory = memory

    def __len__(self) -> int:
        return len(self._views)

    def filter(self, peer: bytes, number: int) -> TopicFilter:
        """The filter for a join of this peer; everything if view `number` has been replaced or has expired."""
        view = self._views.get(peer)
        return view.trie.filter if view is not None and view.number == number else EVERYTHING

    def receive(self, peer: bytes, step: m.Filter, now: float) -> m.Confirm | None:
        """Carry out one step; None for a step of an earlier view.

        Raises `LimitExceeded` when this view or all together would grow too large, and `RemoteProtocolError`; then
        nothing changes.
        """
        view = self._views.get(peer)
        if view is not None and step.view < view.number:
            return None
        if view is None or step.view > view.number:
            view = _View(step.view, now, PublisherTrie({b"": True}))
        before = self._views[peer].size if peer in self._views else 0
        more = view.size + ENTRY_OVERHEAD + len(step.prefix) - before
        memory = self._memory
        if memory.used + more > memory.most:
            raise LimitExceeded(
                f"the topics that all subscribers of this process have named take {memory.most} bytes: name fewer, or"
                " filter at the receiver"
            )
        confirm = view.trie.receive(Request(step.number, step.oldest, Step(step.step), step.prefix))
        view.heard = now
        self._views[peer] = view
        memory.used += view.size - before
        return None if confirm is None else m.Confirm(step.view, *confirm)

    def forget(self, now: float) -> None:
        """Drop the views whose peers have sent no request for `ttl` seconds."""
        for peer in [peer for peer, view in self._views.items() if now - view.heard > self._ttl]:
            self._memory.used -= self._views.pop(peer).size

"""A publisher's end: one bit for each prefix of one connection. Sources: rules N7, N8, F1, F4."""

from collections.abc import Mapping

from epochal.errors import LimitExceeded, RemoteProtocolError
from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.topics.requests import WINDOW, Confirm, Request

MAX_ENTRIES, MAX_BYTES = 4096, 256 * 1024
"""What one connection may ask a publisher to keep: prefixes, and their bytes."""


class PublisherTrie:
    """What one subscriber's connection is sent, changed by `Request`s that may be lost, repeated and reordered.

    >>> from epochal.protocol.topics.requests import Step
    >>> trie = PublisherTrie({b"": True})
    >>> trie.receive(Request(1, 1, Step.REJECT, b"gate/"))
    Confirm(number=1, step=<Step.REJECT: 2>, prefix=b'gate/')
    >>> trie.filter
    TopicFilter(+b'' -b'gate/')
    """

    __slots__ = ("_applied", "_bits", "_bytes", "_filter", "_oldest")

    def __init__(self, bits: Mapping[bytes, bool]) -> None:
        self._bits = dict(bits)
        self._bytes = sum(map(len, bits))
        self._filter: TopicFilter | None = None
        self._oldest = 1
        """A lower number is of the past: a late copy of it could undo a later step."""
        self._applied: frozenset[int] = frozenset()
        """Numbers from `_oldest` on that were carried out; at most `WINDOW`."""

    @property
    def bits(self) -> Mapping[bytes, bool]:
        """Prefix -> whether it is sent. For looking only."""
        return self._bits

    @property
    def size(self) -> int:
        """Bytes of all prefixes."""
        return self._bytes

    @property
    def filter(self) -> TopicFilter:
        """What the connection is sent."""
        if self._filter is None:
            self._filter = TopicFilter.of(self._bits)
        return self._filter

    def receive(self, request: Request) -> Confirm | None:
        """Carry out one request, if it is not of the past; None for one that is.

        Raises `LimitExceeded` for more than a connection may have, and `RemoteProtocolError` for a number that no
        subscriber has under way; then nothing has changed.
        """
        number = request.number
        if not request.oldest <= number < request.oldest + WINDOW:
            raise RemoteProtocolError(
                f"a filter request has the number {number}, and the oldest under way is {request.oldest}: it must be"
                f" one of the {WINDOW} numbers from that on"
            )
        if number < self._oldest:
            return None
        if number not in self._applied:
            self._apply(request)
        if request.oldest > self._oldest:
            self._oldest = request.oldest
        self._applied = frozenset(each for each in (*self._applied, number) if each >= self._oldest)
        return Confirm(number, request.step, request.prefix)

    def _apply(self, request: Request) -> None:
        leaves, prefix = request.step.leaves, request.prefix
        if leaves is None:
            if self._bits.pop(prefix, None) is not None:
                self._bytes -= len(prefix)
        else:
            if prefix not in self._bits:
                self._check(prefix)
                self._bytes += len(prefix)
            self._bits[prefix] = leaves
        self._filter = None

    def _check(self, prefix: bytes) -> None:
        if len(self._bits) >= MAX_ENTRIES:
            raise LimitExceeded(
                f"this connection has {MAX_ENTRIES} prefixes of topics, and may have no more: use fewer, shorter ones"
            )
        if self._bytes + len(prefix) > MAX_BYTES:
            raise LimitExceeded(
                f"this connection's prefixes of topics would be more than {MAX_BYTES} bytes: use fewer, shorter ones"
            )

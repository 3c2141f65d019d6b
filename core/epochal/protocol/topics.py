"""Topics: which batches a subscriber wants, by prefix.

Separate from the subscriber's `JoinFilter`, which is about times: a topic never decides whether an epoch is whole.
The receiver applies it; publishers that filter are planned.

Source: generalized subscription upstreaming (nanomsg mailing list): prefixes, the longest one wins, receive-side
filtering is always on.
"""

from collections.abc import Iterable

MAX_REMEMBERED = 4096


class TopicChoice:
    """Wants a topic if the longest prefix of it among `wanted` and `rejected` is a wanted one.

    With nothing wanted, all is wanted but the rejected.

    >>> choice = TopicChoice([b"delay/"], [b"delay/EWR"])
    >>> [choice.wants(topic) for topic in (b"delay/JFK", b"delay/EWR", b"gate/JFK")]
    [True, False, False]

    """

    __slots__ = ("_known", "_prefixes")

    def __init__(self, wanted: Iterable[bytes] | None = None, rejected: Iterable[bytes] = ()) -> None:
        positive = [b""] if wanted is None else list(wanted)
        self._prefixes = dict.fromkeys(rejected, False) | dict.fromkeys(positive, True)
        self._known: dict[bytes, bool] = {}

    def wants(self, topic: bytes) -> bool:
        """Whether batches of `topic` are delivered."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self._known[topic] = self._decide(topic)
        return known

    def _decide(self, topic: bytes) -> bool:
        for length in range(len(topic), -1, -1):
            verdict = self._prefixes.get(topic[:length])
            if verdict is not None:
                return verdict
        return False

"""The prefixes of topics that a program wants, with how often it has asked for each.

What programs give is checked here, before anything is sent. Sources: rules N3, N20, F1.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from epochal.errors import UsageError
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter
from epochal.protocol.wire import MAX_TOPIC


class WantedPrefixes:
    """Prefixes that are wanted, None for all topics, and prefixes that are not.

    >>> wanted = WantedPrefixes([b"delay/"], [])
    >>> wanted.add(b"delay/"), wanted.drop(b"delay/"), wanted.drop(b"delay/"), wanted.filter
    (False, False, True, TopicFilter())

    What takes prefixes raises `UsageError` for what is none.
    """

    def __init__(self, topics: Iterable[bytes] | None, reject: Iterable[bytes]) -> None:
        self._wanted = Counter([b""] if topics is None else _prefixes(topics))
        self._rejected = _prefixes(reject)

    @property
    def filter(self) -> TopicFilter | None:
        """The wanted topics; None for all."""
        topics = TopicFilter(self._wanted, self._rejected)
        return None if topics == EVERYTHING else topics

    def add(self, prefix: bytes) -> bool:
        """Ask for a prefix once more; returns whether it is the first time."""
        _prefixes([prefix])
        self._wanted[prefix] += 1
        return self._wanted[prefix] == 1

    def drop(self, prefix: bytes) -> bool:
        """Ask for a prefix once less; returns whether it is no longer wanted."""
        _prefixes([prefix])
        if prefix not in self._wanted:
            raise UsageError(f"the prefix {prefix!r:.200} is not wanted, so it cannot be dropped")
        self._wanted[prefix] -= 1
        if self._wanted[prefix]:
            return False
        del self._wanted[prefix]
        return True


def _prefixes(given: object) -> list[bytes]:
    prefixes: list[Any] = list(given) if isinstance(given, Iterable) else [given]  # of bytes ints, of text letters
    if not all(isinstance(prefix, bytes) for prefix in prefixes):
        raise UsageError(f'topics and reject are lists of prefixes as bytes, such as [b"delay/"], not {given!r:.200}')
    longest = max(map(len, prefixes), default=0)
    if longest > MAX_TOPIC:
        raise UsageError(f"a prefix of {longest} bytes in topics or reject; a topic has at most {MAX_TOPIC}")
    return prefixes

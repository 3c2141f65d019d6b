"""Lists in pages: sorted keys, and the key after which the next page starts.

Every list is read in this way. A page starts after a key, not at an index. So an item that exists all the time is
listed exactly once, whatever is added or deleted between two pages (S32).
"""

import base64
import binascii
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MOST, USUAL = 1000, 500
"""Items of a page: the maximum, and the default."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One page of a list: at most `limit` items after the key `after`, of one namespace or of all."""

    limit: int = USUAL
    after: str = ""
    namespace: str | None = None

    def wants(self, qualified: str) -> bool:
        """Whether a stream's `namespace/name` is in the requested namespace."""
        return self.namespace is None or qualified.startswith(f"{self.namespace}/")


class SortedKeys:
    """A sorted set of strings.

    >>> keys = SortedKeys()
    >>> for key in "cab": keys.add(key)
    >>> list(keys), list(keys.after("a"))
    (['a', 'b', 'c'], ['b', 'c'])
    """

    def __init__(self) -> None:
        self._keys: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        at = bisect_left(self._keys, key) if isinstance(key, str) else len(self._keys)
        return at < len(self._keys) and self._keys[at] == key

    def add(self, key: str) -> None:
        """Add a key, unless it is there."""
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            insort(self._keys, key)

    def discard(self, key: str) -> None:
        """Take a key out, if it is there."""
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._keys[at] == key:
            del self._keys[at]

    def after(self, key: str) -> Iterator[str]:
        """The keys greater than `key`, which need not be in the set."""
        keys = self._keys
        return (keys[at] for at in range(bisect_right(keys, key), len(keys)))


def page(
    keys: SortedKeys, asked: PageRequest, wanted: Callable[[str], bool] = lambda _: True
) -> tuple[list[str], str | None]:
    """The `wanted` keys of a page, and the `after` of the next page; None on the last page."""
    found: list[str] = []
    for key in keys.after(asked.after):
        if not wanted(key):
            continue
        if len(found) == asked.limit:
            return found, cursor(found[-1])
        found.append(key)
    return found, None


def cursor(key: str) -> str:
    """A key as the `after` of a request."""
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def key_of(after: str) -> str:
    """The key in an `after`; raises `ValueError` for a text that no page returned.

    >>> key_of(cursor("demo/flights"))
    'demo/flights'
    """
    try:
        return base64.b64decode(after + "=" * (-len(after) % 4), b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None

"""Lists in pages: sorted keys, and the key after which the next page starts.

Every list is read in this way. A page starts after a key, not at an index. So an item that exists all the time is
listed exactly once, whatever is added or deleted between two pages (S32).
"""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass

from sortedcontainers import SortedSet

from epochal.catalog_api.operations import USUAL

PAGE_BYTES = 2**20
"""A page ends with the item with which it has so many bytes, whatever its limit."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One page of a list: at most `limit` items after the key `after`, of one namespace or of all."""

    limit: int = USUAL
    after: str = ""
    namespace: str | None = None

    def wants(self, qualified: str) -> bool:
        """Whether a stream's `namespace/name` is in the requested namespace."""
        return self.namespace is None or qualified.startswith(f"{self.namespace}/")


def after(keys: SortedSet[str], key: str) -> Iterator[str]:
    """The `keys` greater than `key`, which need not be one of them.

    >>> list(after(SortedSet("cab"), "a"))
    ['b', 'c']
    """
    return keys.irange(key, inclusive=(False, True))


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

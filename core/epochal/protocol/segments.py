"""Key ranges: how a stream's key space is divided into segments, and where a key falls.

Writers, the catalog and the planner must all place keys alike, and know no logs.

Sources: docs/concepts.md (Keys and segments); PDP-33 (segments are key ranges).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

from epochal.errors import LocalProtocolError

KEY_SPACE = 2**64
"""Keys are points in [0, KEY_SPACE)."""


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """The points lo <= p < hi."""

    lo: int
    hi: int

    def __contains__(self, point: int) -> bool:
        """Whether the range holds `point`."""
        return self.lo <= point < self.hi


def key_ranges(count: int) -> list[KeyRange]:
    """Divide the key space evenly into `count` ranges, in order; together they cover it exactly once.

    >>> [len(key_ranges(n)) for n in (1, 3)], key_ranges(3)[-1].hi == KEY_SPACE
    ([1, 3], True)
    """
    if count < 1:
        raise LocalProtocolError(f"a stream has at least one segment, not {count}")
    bounds = [KEY_SPACE * index // count for index in range(count + 1)]
    return [KeyRange(lo, hi) for lo, hi in pairwise(bounds)]


def key_point(key: bytes) -> int:
    """The point of a key: BLAKE2b with 8 bytes of digest, read big endian."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


class Placement:
    """Which segment takes a record: by key, or round robin by batch where there is none."""

    __slots__ = ("_by_key", "_los", "_next", "_segments")

    def __init__(self, ranges: Sequence[tuple[str, KeyRange]]) -> None:
        ordered = sorted(ranges, key=lambda item: item[1])
        covered = 0
        for _, span in ordered:
            if span.lo != covered:
                raise LocalProtocolError(f"the segments leave a hole or overlap in the key space at {covered}")
            covered = span.hi
        if covered != KEY_SPACE:
            raise LocalProtocolError(f"the segments leave a hole in the key space at {covered}")
        self._segments = [segment for segment, _ in ordered]
        self._los = [span.lo for _, span in ordered]
        self._by_key: dict[bytes, str] = {}
        self._next = 0

    def segment(self, key: bytes | None) -> str:
        """The segment id for `key`; for None the next one in turn."""
        if key is None:
            self._next = (self._next + 1) % len(self._segments)
            return self._segments[self._next]
        known = self._by_key.get(key)
        if known is None:
            if len(self._by_key) >= 4096:  # a bounded cache: most streams have few keys, some have endless ones
                self._by_key.clear()
            known = self._by_key[key] = self._segments[bisect_right(self._los, key_point(key)) - 1]
        return known

"""The memory that all subscriptions of a relay's readers have together, and what each can have of it.

Separate from the feeds because readers who catch up have subscriptions of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from epochal.errors import EpochTooLarge


class Holder(Protocol):
    """What holds bytes of epochs."""

    @property
    def held_bytes(self) -> int:
        """How many now."""
        ...


class SubscriptionMemory:
    """At most `most` bytes for `count` holders.

    A quarter is shared out, the same to each, and what a holder needs beyond its share comes out of the rest: so who
    reads little always can, however much others hold. Each may exceed what it can have by what came last.
    """

    def __init__(self, most: int, count: int, setting: str) -> None:
        self.share = most // 4 // count
        self._common = most - self.share * count
        self._most = most
        self._setting = setting
        self._holders: dict[Holder, None] = {}

    @contextmanager
    def used_by(self, holder: Holder) -> Iterator[None]:
        """What `holder` holds counts meanwhile."""
        self._holders[holder] = None
        try:
            yield
        finally:
            del self._holders[holder]

    @property
    def bytes(self) -> int:
        """What all hold."""
        return sum(holder.held_bytes for holder in self._holders)

    def check(self, holder: Holder) -> None:
        """Raise `EpochTooLarge` if it holds more than its share, and there is not so much left."""
        held = holder.held_bytes
        if held <= self.share:
            return
        if sum(max(0, each.held_bytes - self.share) for each in self._holders) > self._common:
            raise EpochTooLarge(
                f"epochs of this filter that are not complete or not taken yet hold {held} bytes, and those of all "
                f"filters more than the relay has for them ({self._most}, {self._setting})"
            )

"""The memory that all subscriptions of a relay's readers share, and how much each of them can have.

Each feed has a subscription, and so has each reader that catches up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from epochal.errors import EpochTooLarge


class Holder(Protocol):
    """A subscription, as far as its memory goes."""

    @property
    def held_bytes(self) -> int:
        """Bytes of epochs that it holds now."""
        ...


class SubscriptionMemory:
    """At most `most` bytes for `count` holders.

    A quarter is divided equally, and a holder that needs more than its share takes it from the common rest. So a holder
    that needs little always gets it, however much others hold. Each may exceed its limit by the last batch.
    """

    def __init__(self, most: int, count: int, setting: str) -> None:
        self.share = most // 4 // count
        self._common = most - self.share * count
        self._most = most
        self._setting = setting
        self._holders: dict[Holder, None] = {}

    @contextmanager
    def used_by(self, holder: Holder) -> Iterator[None]:
        """Count `holder` while the context is entered."""
        self._holders[holder] = None
        try:
            yield
        finally:
            del self._holders[holder]

    @property
    def bytes(self) -> int:
        """Bytes that all holders hold."""
        return sum(holder.held_bytes for holder in self._holders)

    def check(self, holder: Holder) -> None:
        """Raise `EpochTooLarge` if it holds more than its share and the common rest is used up."""
        held = holder.held_bytes
        if held <= self.share:
            return
        if sum(max(0, each.held_bytes - self.share) for each in self._holders) > self._common:
            raise EpochTooLarge(
                f"epochs of this filter that are not complete or not taken yet hold {held} bytes, and those of all "
                f"filters more than the relay has for them ({self._most}, {self._setting})"
            )

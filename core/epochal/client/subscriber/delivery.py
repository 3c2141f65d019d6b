"""Hand each item to exactly one caller, also when a call is interrupted or cancelled (E16).

This rests on the order of a few steps. An item counts as returned once `Hand.state` is GIVEN, and that store is the
last step before `return`. CPython handles signals, and exceptions from other threads, only where a call ends, a
function begins or a loop jumps back. None of these lies between the store and the return, nor between the return and
the variable of a `for` loop. (`x = next(items)` is a call: an interrupt can come before the assignment.) If a call ends
before the store, the next call gets the item.

In the loop's own thread this holds for cancellations only. An exception from a signal handler there can end
`Hands.take` between two steps: then the item comes again only to a reader that resumes from the cursor.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
Raw = TypeVar("Raw")

UNDER_WAY = 0
GIVEN = 1
GIVEN_UP = 2
OVER = 3


class Hand(Generic[T]):
    """The place for the item of one call. The caller sets `state`; only OVER is set by the filler."""

    item: T
    state = UNDER_WAY
    """UNDER_WAY: not returned yet. GIVEN: returned. GIVEN_UP: the call ended before it returned.

    OVER: there are no more items.
    """


class Hands(Generic[Raw]):
    """Items that were taken from their source, until it is known that the caller has them.

    Calls `passed(item)` once for each item that was returned.
    """

    def __init__(self, passed: Callable[[Raw], None]) -> None:
        self._passed = passed
        self._last: tuple[Hand[Any], Raw] | None = None
        """The last item taken; it has nearly always been returned when the next one is requested."""
        self._out: list[tuple[Hand[Any], Raw]] = []
        """Items taken earlier that were not known to be returned at that time."""

    def settle(self) -> None:
        """Pass the items that were returned since the last time."""
        if self._last is not None:
            self._out.append(self._last)
            self._last = None
        out = self._out
        for place in reversed(range(len(out))):
            hand, raw = out[place]
            if hand.state == GIVEN:
                del out[place]
                self._passed(raw)

    def take(self, hand: Hand[Any], source: Callable[[], Raw | None]) -> Raw | None:
        """The next item for `hand`: one whose call was given up, else the next of `source`; None if there is none."""
        last = self._last
        if last is not None and last[0].state == GIVEN and not self._out:
            self._last = None
            self._passed(last[1])
        elif last is not None or self._out:
            self.settle()
            for place, (other, raw) in enumerate(self._out):
                if other.state == GIVEN_UP:
                    self._out[place] = (hand, raw)
                    return raw
        new = source()
        if new is not None:
            self._last = (hand, new)
        return new


class Reading(Generic[T]):
    """An asynchronous iterator that can be used again after a cancelled or timed-out call, and by several tasks.

    `take(hand)` puts the next item into the hand, or sets its state to OVER when there are no more items; returns False
    if it did neither. `wait()` waits until something has changed, or `wake()` was called.
    """

    def __init__(
        self,
        take: Callable[[Hand[T]], bool],
        wait: Callable[[], Coroutine[Any, Any, None]],
        wake: Callable[[], None],
    ) -> None:
        self._take = take
        self._wait = wait
        self.wake = wake

    def __aiter__(self) -> Self:
        return self

    async def fill(self, hand: Hand[T]) -> None:
        """Wait for the next item and put it into the hand, or set the hand's state to OVER."""
        while not self._take(hand):
            await self._wait()

    async def __anext__(self) -> T:
        """The next one."""
        hand: Hand[T] = Hand()
        try:  # the loop of `fill`, repeated because a call of it costs time
            while not self._take(hand):
                await self._wait()
        except BaseException:
            hand.state = GIVEN_UP
            raise
        if hand.state == OVER:
            raise StopAsyncIteration
        hand.state = GIVEN  # no call from here on: see above
        return hand.item

"""Handing items to callers, so that an interrupt or a cancellation at any moment loses none (E16).

Apart from what is read because one order of steps makes it safe, for tasks and for threads: an item counts as given
when `Hand.state` is GIVEN, and storing that is the last thing done before it is returned. CPython looks for signals and
for exceptions of other threads where calls end, where functions begin and where loops go back, and there is none of
these between that store and the return, nor between the return and a `for` loop's variable. Whatever ends a call before
the store makes the item available to the next call.
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
    """What one call is about to return. The caller's side writes `state`; the side that fills it reads it later."""

    __slots__ = ("item", "state")

    def __init__(self) -> None:
        self.item: T
        self.state = UNDER_WAY
        """UNDER_WAY; GIVEN to the caller; GIVEN_UP, as the call was ended before that; OVER, as nothing follows."""


class Hands(Generic[Raw]):
    """Items between their source and the callers. `passed(item)` is called for each once a caller has it."""

    def __init__(self, passed: Callable[[Raw], None]) -> None:
        self._passed = passed
        self._out: list[tuple[Hand[Any], Raw]] = []

    def settle(self) -> None:
        """Pass what was given since the last call."""
        out = self._out
        for place in reversed(range(len(out))):
            hand, raw = out[place]
            if hand.state == GIVEN:
                del out[place]
                self._passed(raw)

    def take(self, hand: Hand[Any], source: Callable[[], Raw | None]) -> Raw | None:
        """The next item for `hand`: one that was given up, else one of `source`; None when there is none."""
        out = self._out
        if out:
            self.settle()
            for place, (other, raw) in enumerate(out):
                if other.state == GIVEN_UP:
                    out[place] = (hand, raw)
                    return raw
        new = source()
        if new is not None:
            out.append((hand, new))
        return new


class Reading(Generic[T]):
    """An asynchronous iterator that goes on after a call was cancelled or timed out; any number of tasks may use it.

    `take(hand)` puts the next item into the hand, or sets its state to OVER, and returns whether it did one of these;
    `wait()` waits until asking it again can help.
    """

    def __init__(self, take: Callable[[Hand[T]], bool], wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._take, self._wait = take, wait

    def __aiter__(self) -> Self:
        return self

    async def fill(self, hand: Hand[T]) -> None:
        """Take the next one, once there is one."""
        while not self._take(hand):
            await self._wait()

    async def __anext__(self) -> T:
        """The next one."""
        hand: Hand[T] = Hand()
        try:
            while not self._take(hand):
                await self._wait()
        except BaseException:
            hand.state = GIVEN_UP
            raise
        if hand.state == OVER:
            raise StopAsyncIteration
        hand.state = GIVEN  # no call from here on: see above
        return hand.item

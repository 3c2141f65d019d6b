"""Who has an item: one that was given up goes to the next call, and each is passed once, after it was returned."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.patience import PATIENCE

from epochal.client.blocking.client import Items
from epochal.client.blocking.loop_thread import LoopThread
from epochal.client.subscriber.delivery import GIVEN, GIVEN_UP, Hand, Hands, Reading

pytestmark = pytest.mark.rule("E16")


class Source:
    """The numbers from 0, handed out; `passed` are those that were passed."""

    def __init__(self, end: int = 100) -> None:
        self.passed: list[int] = []
        self.hands = Hands[int](self.passed.append)
        self._numbers: Iterator[int] = iter(range(end))

    def take(self) -> tuple[Hand[int], int | None]:
        """A hand and what it is given."""
        hand = Hand[int]()
        return hand, self.give(hand)

    def give(self, hand: Hand[int]) -> int | None:
        return self.hands.take(hand, lambda: next(self._numbers, None))


def test_an_item_that_was_given_up_is_given_again_before_a_new_one() -> None:
    source = Source()
    first, item = source.take()
    assert item == 0
    first.state = GIVEN_UP
    second, item = source.take()
    assert item == 0
    third, item = source.take()
    assert item == 1, "the one under way is not given twice"
    second.state = third.state = GIVEN_UP
    assert [source.take()[1] for _ in range(3)] == [0, 1, 2]
    source.hands.settle()
    assert source.passed == []


def test_what_was_given_is_passed_once() -> None:
    source = Source()
    first, _ = source.take()
    source.hands.settle()
    assert source.passed == []
    first.state = GIVEN
    for _ in range(2):
        source.hands.settle()
    assert source.passed == [0]
    second, _ = source.take()
    second.state = GIVEN_UP
    third, _ = source.take()
    third.state = GIVEN
    assert source.take()[1] == 2
    assert source.passed == [0, 1]


def test_what_was_given_up_at_the_end_comes_before_the_end() -> None:
    source = Source(1)
    hand, _ = source.take()
    assert source.take()[1] is None
    hand.state = GIVEN_UP
    assert source.take()[1] == 0


class Interrupted(Exception):
    """Stands for what a signal's handler raises."""


def test_a_thread_that_waits_is_given_what_another_gave_up() -> None:
    source, changed, waits = Source(1), asyncio.Event(), asyncio.Event()
    loop, got = LoopThread("test"), list[int]()

    def take(hand: Hand[int]) -> bool:
        item = source.give(hand)
        if item is not None:
            hand.item = item
        return item is not None

    async def wait() -> None:
        changed.clear()
        waits.set()
        await changed.wait()

    reading = Reading(take, wait, changed.set)
    other = threading.Thread(target=lambda: got.append(next(Items(loop, reading.fill, 20, reading.wake))), daemon=True)

    async def interrupted(hand: Hand[int]) -> None:
        await reading.fill(hand)
        other.start()
        await waits.wait()
        raise Interrupted

    with pytest.raises(Interrupted):
        next(Items(loop, interrupted, 20, reading.wake))
    other.join(PATIENCE)
    loop.stop()
    assert got == [0]

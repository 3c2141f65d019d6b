"""What all subscriptions of a relay's readers hold together: bounded, with a share for each."""

from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import EpochTooLarge
from epochal_publisher.relay.epochs.memory import SubscriptionMemory

MOST, COUNT = 400, 5


@dataclass(eq=False)
class Holder:
    held_bytes: int = 0


def grows(memory: SubscriptionMemory, holder: Holder, size: int) -> bool:
    """Whether it may hold so much more; if not, it holds what it had."""
    holder.held_bytes += size
    try:
        memory.check(holder)
    except EpochTooLarge:
        holder.held_bytes -= size
        return False
    return True


@pytest.mark.rule("S24")
@given(st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(-200, 200)), max_size=60))
def test_however_they_grow_the_sum_is_bounded_and_each_has_its_share(steps: list[tuple[int, int]]) -> None:
    memory = SubscriptionMemory(MOST, COUNT, "SETTING")
    holders = [Holder() for _ in range(COUNT)]
    with ExitStack() as stack:
        for holder in holders:
            stack.enter_context(memory.used_by(holder))
        for number, size in steps:
            holder = holders[number]
            grown = grows(memory, holder, max(size, -holder.held_bytes))
            assert grown or holder.held_bytes + size > memory.share
            assert memory.bytes == sum(each.held_bytes for each in holders) <= MOST


def test_one_alone_has_all_but_the_shares_of_others_and_what_has_left_is_free() -> None:
    memory, large, other = SubscriptionMemory(MOST, COUNT, "SETTING"), Holder(), Holder()
    assert memory.share == 20
    with memory.used_by(other):
        with memory.used_by(large):
            assert grows(memory, large, 320)
            assert not grows(memory, large, 1)
            assert grows(memory, other, 20)
            other.held_bytes += 1
            with pytest.raises(EpochTooLarge, match=r"21 bytes.*\(400, SETTING\)"):
                memory.check(other)
        memory.check(other)

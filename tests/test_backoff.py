"""Pauses between attempts that fail."""

import random

import pytest

from epochal.backoff import Backoff


@pytest.mark.parametrize("most", [5.0, 0.5, 0.01])
@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_pauses_grow_to_the_longest_and_start_again_after_a_reset(most: float, jitter: float) -> None:
    backoff = Backoff(0.05, most, jitter=jitter)
    for number in range(20):
        longest = min(0.05 * 2**number, most)
        assert longest * (1 - jitter) <= backoff.delay() <= longest
    backoff.reset()
    assert backoff.delay() <= 0.05


async def test_a_pause_lasts_no_longer_than_it_may() -> None:
    backoff = Backoff(0.001, 0.001)
    await backoff.pause()
    assert 0.0005 <= backoff.delay() <= 0.001


def test_a_program_that_seeded_its_own_chance_keeps_it() -> None:
    before = random.getstate()
    Backoff(1.0, 2.0).delay()
    assert random.getstate() == before

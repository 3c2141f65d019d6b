"""The queue: each name once, none by two workers, and another try later for what failed."""

import asyncio

import pytest
from tests.patience import PATIENCE

from epochal_operator.cache import Place, RelayPlace
from epochal_operator.controller import WorkQueue

A, B = ("n", "a"), ("n", "b")


@pytest.fixture
async def queue() -> WorkQueue:
    return WorkQueue(first=0.02, last=0.05)


async def got(queue: WorkQueue) -> Place | RelayPlace:
    async with asyncio.timeout(PATIENCE):
        return await queue.get()


async def test_a_name_is_queued_once(queue: WorkQueue) -> None:
    for place in (A, B, A):
        queue.add(place)
    assert len(queue) == 2
    assert [await got(queue), await got(queue)] == [A, B]


async def test_what_comes_while_it_is_looked_at_is_looked_at_again_afterwards(queue: WorkQueue) -> None:
    queue.add(A)
    await got(queue)
    queue.add(A)
    queue.add(A)
    assert len(queue) == 0, "no second worker gets it meanwhile"
    queue.done(A)
    assert await got(queue) == A
    queue.done(A)
    assert len(queue) == 0


async def test_what_fails_is_tried_again_later(queue: WorkQueue) -> None:
    queue.add(A)
    for _ in range(4):
        await got(queue)
        queue.done(A, failed=True)
        assert len(queue) == 0
    assert await got(queue) == A


async def test_the_sooner_of_two_times_wins(queue: WorkQueue) -> None:
    queue.add(A, after=100)
    queue.add(A, after=0.01)
    queue.add(A, after=50)
    assert await got(queue) == A


async def test_a_worker_waits_for_work(queue: WorkQueue) -> None:
    waiting = asyncio.create_task(got(queue))
    await asyncio.sleep(0)
    queue.add(B)
    assert await waiting == B
    assert B in queue.running

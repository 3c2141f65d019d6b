"""The waiting room: everybody is woken, and nobody leaves anything behind."""

import asyncio

import pytest

from epochal.service.errors import Overloaded, ShuttingDown
from epochal_catalog.api.lookup_waiters import WaitingRoom


async def enter(room: WaitingRoom, name: str, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(room.wait(name)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.rule("S27")
async def test_all_waiters_of_a_stream_are_woken_and_only_they() -> None:
    room = WaitingRoom(10)
    first, other = await enter(room, "a", 3), await enter(room, "b", 1)
    room.wake("a")
    room.wake("a")
    await asyncio.gather(*first)
    assert not other[0].done()
    assert (len(room), set(room._waiters)) == (1, {"b"})
    room.wake("b")
    await other[0]


@pytest.mark.rule("S27")
async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    room = WaitingRoom(10)
    tasks = await enter(room, "a", 3)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert (len(room), len(room._waiters["a"])) == (2, 2)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert (len(room), room._waiters) == (0, {})
    room.wake("a")


async def test_a_full_room_refuses_and_takes_again() -> None:
    room = WaitingRoom(1)
    [task] = await enter(room, "a", 1)
    with pytest.raises(Overloaded):
        await room.wait("b")
    room.wake("a")
    await task
    [task] = await enter(room, "b", 1)
    room.wake("b")
    await task


async def test_a_closed_room_sends_everybody_home() -> None:
    room = WaitingRoom(10)
    [task] = await enter(room, "a", 1)
    room.close()
    with pytest.raises(ShuttingDown):
        await task
    with pytest.raises(ShuttingDown):
        await room.wait("a")
    assert len(room) == 0

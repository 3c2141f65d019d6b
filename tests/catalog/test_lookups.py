"""Answers that are kept as bytes, and lookups that wait."""

import asyncio
import json
from itertools import count

import pytest

from epochal.service.errors import Overloaded, ShuttingDown
from epochal_catalog.runtime.lookups import AGE, LookupCache, LookupWaiters


@pytest.fixture
def made() -> "count[int]":
    return count()


def test_an_answer_is_made_once_while_nothing_changes(made: "count[int]") -> None:
    remembered = LookupCache()
    answers = {remembered.answer("a", 1, 10.0 + later, lambda: next(made)) for later in (0, AGE / 2, AGE * 0.9)}
    assert answers == {b"0"}


def test_a_changed_state_is_shown_at_once(made: "count[int]") -> None:
    remembered = LookupCache()
    assert [json.loads(remembered.answer("a", version, 10.0, lambda: next(made))) for version in (1, 2, 2)] == [0, 1, 1]


def test_time_that_passes_is_shown(made: "count[int]") -> None:
    remembered = LookupCache()
    assert [remembered.answer("a", 1, now, lambda: next(made)) for now in (0.0, AGE)] == [b"0", b"1"]


def test_each_key_has_its_own_answer(made: "count[int]") -> None:
    remembered = LookupCache()
    assert [remembered.answer(key, 1, 10.0, lambda: next(made)) for key in "aba"] == [b"0", b"1", b"0"]


async def enter(room: LookupWaiters, name: str, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(room.wait(name)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.rule("S27")
async def test_all_waiters_of_a_stream_are_woken_and_only_they() -> None:
    room = LookupWaiters(10)
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
    room = LookupWaiters(10)
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
    room = LookupWaiters(1)
    [task] = await enter(room, "a", 1)
    with pytest.raises(Overloaded):
        await room.wait("b")
    room.wake("a")
    await task
    [task] = await enter(room, "b", 1)
    room.wake("b")
    await task


async def test_a_closed_room_sends_everybody_home() -> None:
    room = LookupWaiters(10)
    [task] = await enter(room, "a", 1)
    room.close()
    with pytest.raises(ShuttingDown):
        await task
    with pytest.raises(ShuttingDown):
        await room.wait("a")
    assert len(room) == 0

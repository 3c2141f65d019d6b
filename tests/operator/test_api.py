"""An API server in trouble: one request at a time, with pauses (fault 39)."""

import asyncio
from typing import Any

import pytest

from epochal_operator import api
from epochal_operator.api import Throttle


@pytest.fixture(autouse=True)
def short(monkeypatch: Any) -> None:
    monkeypatch.setattr(api, "FIRST", 0.05)
    monkeypatch.setattr(api, "LAST", 0.2)


async def test_without_trouble_no_one_waits() -> None:
    quiet = Throttle()
    async with quiet.turn(), quiet.turn():
        assert not quiet.is_on


async def test_in_trouble_one_asks_at_a_time() -> None:
    busy, inside = Throttle(), []
    busy.failed(0.0)

    async def ask(number: int) -> None:
        async with busy.turn():
            inside.append(number)
            assert len(inside) == 1
            await asyncio.sleep(0)
            inside.remove(number)

    await asyncio.gather(*(ask(number) for number in range(5)))


async def test_what_the_server_asks_for_is_waited() -> None:
    loop = asyncio.get_running_loop()
    busy, began = Throttle(loop.time), loop.time()
    busy.failed(0.3)
    async with busy.turn():
        assert loop.time() - began >= 0.29


async def test_pauses_grow_once_for_requests_that_fail_together_and_end_with_the_first_answer() -> None:
    now = 0.0
    busy = Throttle(lambda: now)
    for _ in range(8):
        busy.failed(0.0)
    assert busy._pause == pytest.approx(0.05)
    for expected in (0.1, 0.2, 0.2):
        now += 1.0
        busy.failed(0.0)
        assert busy._pause == pytest.approx(expected)
    busy.answered()
    assert not busy.is_on

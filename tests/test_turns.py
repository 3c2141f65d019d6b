"""Turns: a few at once, in order, and nobody who takes long holds up the others."""

import asyncio

from tests.virtual_time import run

from epochal.turns import Turns


def test_so_many_begin_at_once_and_the_next_one_when_one_gives_its_turn_back() -> None:
    async def main() -> list[tuple[float, int]]:
        turns, begun, loop = Turns(2, 60.0), list[tuple[float, int]](), asyncio.get_running_loop()

        async def work(number: int) -> None:
            with await turns.take():
                begun.append((loop.time(), number))
                await asyncio.sleep(1 + number)

        await asyncio.gather(*(work(number) for number in range(4)))
        return begun

    assert run(main()) == [(0, 0), (0, 1), (1, 2), (2, 3)]


def test_who_takes_longer_than_a_turn_goes_on_and_holds_up_no_one() -> None:
    async def main() -> tuple[list[float], bool]:
        turns, loop = Turns(1, 10.0), asyncio.get_running_loop()
        slow, begun = await turns.take(), list[float]()
        for _ in range(3):
            turn = await turns.take()
            begun.append(loop.time())
        slow.give_back()  # too late, and a turn that is given back twice is no second turn
        turn.give_back()
        turn.give_back()
        await turns.take()
        blocked = asyncio.ensure_future(turns.take())
        await asyncio.sleep(5)
        done = blocked.done()
        blocked.cancel()
        return begun, done

    assert run(main()) == ([10, 20, 30], False)


def test_who_is_cancelled_while_waiting_takes_no_turn() -> None:
    async def main() -> float:
        turns = Turns(1, 60.0)
        first = await turns.take()
        waiting = asyncio.ensure_future(turns.take())
        await asyncio.sleep(1)
        waiting.cancel()
        first.give_back()
        await turns.take()
        return asyncio.get_running_loop().time()

    assert run(main()) == 1

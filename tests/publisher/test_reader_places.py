"""The places of readers over HTTP: all for one address, or an equal share for each."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.service.errors import Overloaded
from epochal_publisher.http.reader_places import GaveWay, ReaderPlaces

MOST = 6


class Readers:
    """Tasks that keep their places until they are told to leave, by address."""

    def __init__(self) -> None:
        self.places = ReaderPlaces(MOST, "MAX_READERS")
        self.standing: list[tuple[str, asyncio.Task[None], asyncio.Event]] = []

    async def _read(self, address: str, leaves: asyncio.Event) -> None:
        async with self.places.take(address):
            await leaves.wait()

    async def come(self, address: str) -> bool:
        """Whether a new reader got a place."""
        leaves = asyncio.Event()
        task = asyncio.create_task(self._read(address, leaves))
        await asyncio.sleep(0)
        if task.done():
            with pytest.raises(Overloaded):
                task.result()
            return False
        self.standing.append((address, task, leaves))
        return True

    async def gone(self) -> list[str]:
        """The addresses of those that have given way since the last call."""
        for _ in range(5):  # the loop's own steps from a deadline to the end of a task
            await asyncio.sleep(0)
        ended = [item for item in self.standing if item[1].done()]
        self.standing = [item for item in self.standing if not item[1].done()]
        for _, task, _ in ended:
            with pytest.raises(GaveWay):
                task.result()
        return [address for address, _, _ in ended]

    async def leave(self, index: int) -> None:
        _, task, leaves = self.standing.pop(index)
        leaves.set()
        await task

    def count(self, address: str) -> int:
        return sum(other == address for other, _, _ in self.standing)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=60))
def test_who_has_fewer_gets_of_who_has_most(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        readers = Readers()
        for address, leaver in steps:
            if leaver < len(readers.standing) and leaver % 3 == 0:
                await readers.leave(leaver)
            before = {each: readers.count(each) for each in "abcd"}
            full = sum(before.values()) == MOST
            came = await readers.come(address)
            gone = await readers.gone()
            assert len(readers.places) == len(readers.standing) <= MOST
            if not full:
                assert came
                assert gone == []
            elif came:
                (loser,) = gone
                assert before[loser] == max(before.values()) >= before[address] + 2
            else:
                assert gone == []
                assert before[address] >= max(before.values()) - 1
        for address in "abcd":  # each that asks often enough has its share
            while await readers.come(address):
                await readers.gone()
        assert max(map(readers.count, "abcd")) - min(map(readers.count, "abcd")) <= 1
        while readers.standing:
            await readers.leave(0)
        assert len(readers.places) == 0

    asyncio.run(run())

"""One clock for many streams: each ticks, and one that fails ends alone."""

import asyncio

import pytest
from tests.virtual_time import run

from epochal.service.process import ABOUT
from epochal_publisher.ticker import BETWEEN_TURNS, Ticker


class Stream:
    def __init__(self, fails_at: int = 10**9) -> None:
        self.ticks = 0
        self._fails_at = fails_at

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks == self._fails_at:
            raise ZeroDivisionError


def test_a_tick_that_fails_ends_its_stream_and_no_other() -> None:
    async def main() -> tuple[int, int, int]:
        ticker, good, bad, late = Ticker(0.1), Stream(), Stream(3), Stream()
        ticking = asyncio.create_task(ticker.run())
        keeping = asyncio.create_task(ticker.keep_time(good))
        with pytest.raises(ZeroDivisionError):
            await ticker.keep_time(bad)
        another = asyncio.create_task(ticker.keep_time(late))
        await asyncio.sleep(0.55)
        keeping.cancel()
        await asyncio.sleep(1)
        for task in (ticking, another):
            task.cancel()
        return good.ticks, bad.ticks, late.ticks

    good, bad, late = run(main())
    assert bad == 3
    assert good == 8, "it ticks on, until its stream is kept no longer"
    assert late == 15


def test_what_a_tick_logs_names_its_stream() -> None:
    class Named(Stream):
        said = ""

        def tick(self) -> None:
            super().tick()
            self.said = ABOUT.get()

    async def main() -> list[str]:
        ticker, streams = Ticker(0.1), [Named(), Named()]
        tasks = [asyncio.create_task(ticker.run())]
        for number, stream in enumerate(streams):
            ABOUT.set(f"demo/s{number}")  # a task has the context of where it was made
            tasks.append(asyncio.create_task(ticker.keep_time(stream)))
        await asyncio.sleep(0.15)
        for task in tasks:
            task.cancel()
        return [stream.said for stream in streams]

    assert run(main()) == ["demo/s0", "demo/s1"]


def test_other_tasks_get_a_turn_between_the_ticks_of_many() -> None:
    async def main() -> int:
        ticker, streams = Ticker(0.1), [Stream() for _ in range(10 * BETWEEN_TURNS)]
        tasks = [asyncio.create_task(ticker.keep_time(each)) for each in streams]
        first = asyncio.create_task(ticker.keep_time(Stream(1)))  # it fails, and so tells when ticks have begun
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(ticker.run()))
        ticker._streams = {stream: ticker._streams[stream] for stream in reversed(ticker._streams)}
        await asyncio.wait([first])
        turns = 0
        while not streams[0].ticks:
            await asyncio.sleep(0)
            turns += 1
        for task in tasks:
            task.cancel()
        return turns

    assert run(main()) >= 7

"""Cancellation at each step of the loop: sockets, tasks and leases of what was under way are gone, and all goes on."""

import asyncio
import contextlib
import gc
import itertools
import random
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import pytest
from tests.patience import PATIENCE

import epochal

LONG_TIMEOUT = {"writerTimeout": "10m"}
"""What a publisher's time-out would clean up is not cleaned up here."""

SAMPLE = random.Random(5)
"""Which steps the short version takes."""

INTERRUPTED = """
import faulthandler, random, signal, sys, threading, epochal

class Interrupt(Exception):
    pass

def interrupt(*_):
    raise Interrupt

def calls(client, stream, time):
    with client.writer(stream, "w") as writer, client.subscribe(stream, subscriber="swept") as sub:
        sub.ready.wait(20)
        writer.append(time, ["x"])
        writer.append_nowait(time, ["y"])
        writer.flush()
        writer.advance(time + 1)
        next(sub.events(20))

signal.signal(signal.SIGALRM, interrupt)
delays, interrupted = random.Random(5), 0
for number in range(1, int(sys.argv[2]) + 1):
    faulthandler.dump_traceback_later(25, exit=True)
    with epochal.connect_blocking() as client:
        try:
            signal.setitimer(signal.ITIMER_REAL, delays.uniform(0.0005, 0.03))
            calls(client, sys.argv[1], 10 * number)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            interrupted += 1
        calls(client, sys.argv[1], 10 * number + 2)
print(interrupted > 0, threading.active_count())
"""

Call = Callable[[epochal.Writer, epochal.Subscription, int], Awaitable[object]]


class Steps(selectors.DefaultSelector):
    """Counts the loop's steps, and calls `then` at a given one."""

    def __init__(self) -> None:
        super().__init__()
        self._left = -1
        self._then: Callable[[], object] = lambda: None

    def after(self, steps: int, then: Callable[[], object]) -> None:
        self._left, self._then = steps, then

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        if self._left == 0:
            self._then()
        self._left -= 1
        return ready


class Trial:
    """A loop of its own, in a thread of its own, in which one thing is cancelled at one step."""

    def __init__(self, url: str) -> None:
        self.url, self.steps = url, Steps()
        self.unhandled: list[object] = []

    def run(self, work: Callable[["Trial", epochal.Client], Awaitable[bool]]) -> bool:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self.steps)) as runner:
            return runner.run(self._run(work))

    async def _run(self, work: Callable[["Trial", epochal.Client], Awaitable[bool]]) -> bool:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.unhandled.append(context))
        client = epochal.connect(self.url)
        try:
            cancelled = await work(self, client)
            assert [task.get_name() for task in self.others()] == [], "tasks are gone when the call returns"
            assert not open_sockets(client), "sockets are closed when the call returns"
        finally:
            await client.close()
        gc.collect()
        await asyncio.sleep(0)
        assert self.unhandled == []
        return cancelled

    async def cancelled(self, work: Awaitable[object], step: int) -> bool:
        """Run it as a task that is cancelled at `step`; whether it was not over by then."""
        task = asyncio.ensure_future(work)
        self.steps.after(step, task.cancel)
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.done(), "cancelled, it ends"
        self.steps.after(-1, lambda: None)
        if not task.cancelled():
            task.result()
        return task.cancelled()

    def others(self) -> list[asyncio.Task[object]]:
        # Calls in the background belong to the client: the catalog's answers may still be on their way.
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def open_sockets(client: epochal.Client) -> list[object]:
    return [socket for socket in list(client._context._sockets) if not socket.closed]


@contextlib.asynccontextmanager
async def watched(services, **spec: object) -> AsyncIterator[tuple[str, Callable[[int], Awaitable[None]]]]:
    """A stream, and a check that nobody but the holder holds a time of it, or is listed as its reader."""
    stream = await services.stream(segments=2, progress=LONG_TIMEOUT, **spec)
    async with epochal.connect(services.url) as client, client.writer(stream) as holder:  # noqa: SIM117 - reads better
        async with client.subscribe(stream, subscriber="watching") as sub:
            await sub.ready.wait()

            async def nothing_is_left(time: int) -> None:
                await holder.advance(time)
                async with asyncio.timeout(PATIENCE):
                    while sub.frontier() != (time,):
                        assert not sub.ready.is_set() or sub._error is None
                        await asyncio.sleep(0.002)
                readers = await client.catalog.subscriptions(*stream.split("/"))
                assert {reader.subscriber for reader in readers} <= {"watching"}

            async def read() -> None:
                async for _ in sub.epochs():
                    pass

            reading = asyncio.create_task(read())
            try:
                yield stream, nothing_is_left
            finally:
                reading.cancel()
                await asyncio.wait([reading])


async def everything(client: epochal.Client, stream: str, time: int, *, linger: float) -> None:
    """Each call once."""
    async with client.writer(stream, "w", linger=linger) as writer, client.subscribe(stream, subscriber="swept") as sub:
        await writer.append(time, ["before"])
        await sub.ready.wait()
        await writer.hold(time + 2)
        await writer.release(min(writer.held))
        await writer.append(time + 2, ["a"], key=b"a")
        writer.append_nowait(time + 2, ["c"])
        await writer.drain()
        await writer.flush()
        await writer.abort(time + 3)
        await anext(sub.events())
        await writer.advance(time + 4)
        await writer.close()


async def sweep(services, steps: Iterable[int], *, linger: float) -> int:
    """Cancel at each of the steps; returns after the first at which all was over before, thrice."""
    async with watched(services) as (stream, nothing_is_left):
        numbers, over = itertools.count(10, 10), 0
        for step in steps:
            time = next(numbers)

            async def work(trial: Trial, client: epochal.Client, time: int = time, step: int = step) -> bool:
                return await trial.cancelled(everything(client, stream, time, linger=linger), step)

            over = 0 if await asyncio.to_thread(Trial(services.url).run, work) else over + 1
            await nothing_is_left(time + 5)
            if over == 3:
                break
    return step


@pytest.mark.rule("E4", "S30")
async def test_all_calls_cancelled_at_some_steps(services) -> None:
    await sweep(services, [1, *SAMPLE.sample(range(2, 60), 10)], linger=0.0)


@pytest.mark.long
@pytest.mark.rule("E4", "S30")
@pytest.mark.parametrize("linger", [0.0, 0.005])
async def test_all_calls_cancelled_at_each_step(services, linger: float) -> None:
    assert await sweep(services, itertools.count(), linger=linger) > 30


# ---- one call is cancelled, and the program goes on ----


CALLS: dict[str, Call] = {
    "append": lambda writer, sub, time: writer.append(time, ["x"]),
    "flush": lambda writer, sub, time: writer.flush(),
    "drain": lambda writer, sub, time: writer.drain(),
    "hold": lambda writer, sub, time: writer.hold(time + 1),
    "advance": lambda writer, sub, time: writer.advance(time),
    "abort": lambda writer, sub, time: writer.abort(time + 9),
    "close": lambda writer, sub, time: writer.close(),
    "ready": lambda writer, sub, time: sub.ready.wait(),
    "events": lambda writer, sub, time: anext(sub.events()),
}
LEAVING = ("close",)


async def one_cancelled(services, call: str, steps: Iterable[int], *, linger: float) -> None:
    """Nothing is lost by it: what is appended before and after is there, whole, and the block ends as always."""
    async with watched(services) as (stream, nothing_is_left):
        for number, step in enumerate(steps):
            time = 10 * (number + 1)

            async def work(trial: Trial, client: epochal.Client, time: int = time, step: int = step) -> bool:
                seen: list[object] = []
                async with client.subscribe(stream, subscriber="swept") as sub:
                    async with client.writer(stream, "w", linger=linger) as writer:
                        if call != "ready":
                            await sub.ready.wait()
                        writer.append_nowait(time, ["before"])
                        cancelled = await trial.cancelled(CALLS[call](writer, sub, time), step)
                        if call not in LEAVING:
                            await writer.append(time + 1, ["after"])
                            await writer.flush()
                    wanted = {"before"} if call in LEAVING else {"before", "after"}
                    async with asyncio.timeout(PATIENCE):
                        await sub.ready.wait()
                        while call not in ("ready", "events") and not wanted <= {*seen}:
                            event = await anext(sub.events())
                            assert not isinstance(event, epochal.EpochAborted) or event.time == time + 9
                            if isinstance(event, epochal.Data):
                                seen += event.records()
                assert len([record for record in seen if record != "x"]) == len({*seen} - {"x"}), "nothing comes twice"
                return cancelled

            cancelled = await asyncio.to_thread(Trial(services.url).run, work)
            await nothing_is_left(time + 5)
            if not cancelled:
                return


@pytest.mark.rule("E1")
@pytest.mark.parametrize("call", ["append", "advance", "close"])
async def test_one_call_cancelled_at_its_first_steps(services, call: str) -> None:
    await one_cancelled(services, call, range(3), linger=0.0)


@pytest.mark.long
@pytest.mark.rule("E1")
@pytest.mark.parametrize(
    ("call", "linger"), [*((call, 0.0) for call in CALLS), ("append", 0.005), ("flush", 0.005), ("close", 0.005)]
)
async def test_one_call_cancelled_at_each_step(services, call: str, linger: float) -> None:
    await one_cancelled(services, call, range(100), linger=linger)


# ---- without a loop: an exception out of a signal handler ----


async def interrupted(services, times: int) -> None:
    async with watched(services) as (stream, nothing_is_left):
        child = await services.run(INTERRUPTED, stream, str(times))
        out, _ = await child.communicate()
        assert (child.returncode, out) == (0, b"True 1\n")
        await nothing_is_left(10 * times + 20)


@pytest.mark.rule("E4")
async def test_waiting_calls_that_are_interrupted_leave_a_client_that_works(services) -> None:
    await interrupted(services, 8)


@pytest.mark.long
@pytest.mark.rule("E4")
async def test_waiting_calls_interrupted_often(services) -> None:
    await interrupted(services, 100)

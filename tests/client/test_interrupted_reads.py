"""Reads that are interrupted, cancelled or timed out: each epoch is handed out once, and the cursor passes no other."""

import asyncio
import random

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.transport.shutdown import ended

AT_EACH_STEP = """
import dis, sys, epochal

STEPS = ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")  # after these CPython looks for signals

class Steps:
    def __init__(self, left):
        self.left, self.before = left, {}

    def __call__(self, frame, event, argument):
        frame.f_trace_opcodes = True
        if event == "opcode":
            if self.before.get(frame) in STEPS:
                self.left -= 1
                if not self.left:
                    raise KeyboardInterrupt
            self.before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        return self

def read(items, step):
    sys.settrace(Steps(step))
    try:
        for item in items:
            return item
    finally:
        sys.settrace(None)

got, step, whole = [], 0, 0
with epochal.connect_blocking() as client, client.subscribe(sys.argv[1], since="start") as sub:
    sub.ready.wait(PATIENCE)
    items = getattr(sub, sys.argv[2])(timeout=PATIENCE)
    while whole < 3:
        step += 1
        try:
            item = read(items, step)
            whole += 1
            if isinstance(item, epochal.Epoch | epochal.Data):
                got.append(item.time)
        except KeyboardInterrupt:
            whole = 0
        (reached,) = sub.cursor().frontier
        due = got[-1] + 1 if got else 0
        # what came before the first read of events is passed with the last of it
        assert reached <= due if sys.argv[2] == "events" else reached == due, (reached, got)
    while len(got) < int(sys.argv[3]) or sub.cursor().frontier != (int(sys.argv[3]),):
        item = next(items)
        if isinstance(item, epochal.Epoch | epochal.Data):
            got.append(item.time)
print(step, got == list(range(int(sys.argv[3]))))
""".replace("PATIENCE", str(PATIENCE))

AT_RANDOM = """
import faulthandler, random, signal, sys, epochal

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
chosen, got, interrupted, over = random.Random(5), [], 0, False
faulthandler.dump_traceback_later(200, exit=True)
with epochal.connect_blocking() as client:
    cursor = "start"
    while not over:
        with client.subscribe(sys.argv[1], since=cursor) as sub:
            sub.ready.wait(20)
            if cursor == "start":
                print("reading", flush=True)
            items = sub.epochs()
            for _ in range(40):
                try:
                    signal.setitimer(signal.ITIMER_REAL, chosen.uniform(0.0001, 0.004))
                    for epoch in items:
                        got.append(epoch.time)  # set anew: Python may drop an interrupt, in a destructor for instance
                        signal.setitimer(signal.ITIMER_REAL, chosen.uniform(0.0001, 0.004))
                    over = True
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    break
                except KeyboardInterrupt:
                    while signal.getitimer(signal.ITIMER_REAL)[0]:  # it came while the next one was set
                        try:
                            signal.setitimer(signal.ITIMER_REAL, 0)
                        except KeyboardInterrupt:
                            pass
                    interrupted += 1
                    if interrupted == int(sys.argv[2]):
                        print("enough", flush=True)
                cursor = sub.cursor()
                assert cursor.frontier in ((), (got[-1] + 1 if got else 0,)), (cursor, got)
print(len(got), got == list(range(len(got))))
"""


async def published(services, epochs: int) -> str:
    """A stream of so many epochs at the times from 0, complete up to there and no further."""
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        for time in range(epochs):
            writer.append_nowait(time, [time])
            writer.advance_nowait(time + 1)
        await writer.flush()
    return stream


@pytest.mark.rule("E16")
@pytest.mark.parametrize("read_by", ["epochs", "events"])
async def test_an_interrupt_at_any_step_of_a_read_loses_nothing(services, read_by: str) -> None:
    stream = await published(services, 30)
    child = await services.run(AT_EACH_STEP, stream, read_by, "30")
    out, _ = await child.communicate()
    steps, whole = out.split()
    assert (child.returncode, whole) == (0, b"True")
    assert int(steps) > 20


async def interrupted_at_random(services, times: int) -> None:
    """Publish epochs until their reader was interrupted so often."""
    stream, time = await services.stream(), 0
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        child = await services.run(AT_RANDOM, stream, str(times))
        assert await child.stdout.readline() == b"reading\n"
        enough = asyncio.create_task(child.stdout.readline())
        while not enough.done():
            await writer.append(time, [time])
            time += 1
            await writer.advance(time)
        assert enough.result() == b"enough\n"
        await writer.finish()
        out, _ = await child.communicate()
    assert (child.returncode, out) == (0, b"%d True\n" % time)


@pytest.mark.rule("E16")
async def test_reads_that_are_interrupted_at_random_give_each_epoch_once_over_all_lives(services) -> None:
    await interrupted_at_random(services, 100)


@pytest.mark.long
@pytest.mark.rule("E16")
async def test_reads_that_are_interrupted_often(services) -> None:
    await interrupted_at_random(services, 3000)


@pytest.mark.rule("E16")
@pytest.mark.parametrize("by", ["timeout", "wait_for", "cancel"])
async def test_reads_that_are_cancelled_anywhere_give_each_epoch_once(services, by: str) -> None:
    stream, epochs, chosen = await services.stream(), 200, random.Random(5)
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream) as sub,
    ):
        await sub.ready.wait()

        async def publish() -> None:
            for time in range(epochs):
                await writer.append(time, [time])
                await writer.advance(time + 1)
            await writer.finish()

        async def read() -> object:
            patience = chosen.uniform(0, 0.002)
            if by == "timeout":
                async with asyncio.timeout(patience):
                    return await anext(items)
            if by == "wait_for":
                return await asyncio.wait_for(anext(items), patience)
            task = asyncio.ensure_future(anext(items))
            for _ in range(chosen.randrange(8)):
                await asyncio.sleep(0)
            task.cancel()
            return await task

        publishing = asyncio.create_task(publish())
        items, got, cancelled = sub.epochs(), list[int](), 0
        async with asyncio.timeout(PATIENCE) as guard:
            while True:
                try:
                    epoch = await read()
                except (TimeoutError, asyncio.CancelledError):
                    if guard.expired():
                        raise
                    if publishing.done():
                        publishing.result()  # raises why it failed
                    cancelled += 1
                except StopAsyncIteration:
                    break
                else:
                    assert isinstance(epoch, epochal.Epoch)
                    got.append(epoch.time)
                assert sub.cursor().frontier in ((), (got[-1] + 1 if got else 0,))
            await publishing
    assert got == list(range(epochs))
    assert cancelled > 20


class Codec:
    """Times as they are, unless it fails."""

    def __init__(self) -> None:
        self.fails = False

    def encode(self, time: int) -> int:
        return time

    def decode(self, time: object) -> object:
        if self.fails:
            raise ValueError("not now")
        return time


@pytest.mark.rule("E16")
@pytest.mark.parametrize("read_by", ["epochs", "events"])
async def test_an_item_that_could_not_be_decoded_is_not_passed(services, read_by: str) -> None:
    stream, codec = await published(services, 2), Codec()
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream, since="start", time_codec=codec) as sub,  # type: ignore[arg-type]  # times are ints here
    ):
        await sub.ready.wait()
        items = getattr(sub, read_by)()
        codec.fails = True
        for _ in range(2):
            with pytest.raises(ValueError, match="not now"):
                await anext(items)
            assert sub.cursor().frontier == (0,)
        codec.fails = False
        times: list[object] = []
        while len(times) < 2:
            item = await anext(items)
            if isinstance(item, epochal.Epoch | epochal.Data):
                times.append(item.time)
        assert times == [0, 1]


@pytest.mark.rule("E16")
async def test_what_one_task_gave_up_another_is_given(services) -> None:
    stream, codec, chosen = await published(services, 40), Codec(), random.Random(5)
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream, since="start", time_codec=codec) as sub,  # type: ignore[arg-type]  # times are ints here
    ):
        await sub.ready.wait()
        items, got, given_up = sub.epochs(), list[int](), list[str]()

        async def read(name: str) -> None:
            while len(got) < 40:
                codec.fails = chosen.random() < 0.3
                try:
                    epoch = await anext(items)
                except ValueError:
                    given_up.append(name)
                else:
                    assert isinstance(epoch, epochal.Epoch)
                    got.append(epoch.time)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(read(name)) for name in "abcd"]
        await asyncio.wait(tasks, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        await ended(tasks)
        assert got == list(range(40))
        assert set(given_up) == set("abcd")
        assert sub.cursor().frontier == (40,)

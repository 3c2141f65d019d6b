"""Named faults of a publisher whose log is on disk: killed at a known point, its disk set back, its disk damaged.

Apart from the rounds, where the point is a matter of chance. Linux only, like the scene.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.scene import Scene
from tests.patience import PATIENCE

import epochal
from epochal.errors import AppendsLost, CorruptLog, EpochAbortedError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")

DIES_BEHIND_THE_SYNC = """
import os, signal, sys
from pathlib import Path
from epochal.logfiles import SegmentLog
from epochal_publisher.__main__ import main

sync, armed = SegmentLog.sync, Path(sys.argv.pop(1))

def dies(self):
    sync(self)
    if armed.exists():
        armed.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

SegmentLog.sync = dies
sys.exit(main())
"""
"""A publisher that dies between the log and the sockets, once the file that it is told of exists."""


WRITES_TWICE = """
import asyncio, sys
import epochal

async def main():
    async with epochal.connect(sys.argv[1]) as client, client.writer("test/chaos", "program") as writer:
        for record in ("a", "b"):
            await writer.append(0, [record])
            print(record, flush=True)
            await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""
"""A program that appends two records to epoch 0, the second one when it is told to, and then waits."""


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def stored(directory: Path, durability: str = "batch", **history: object) -> Scene:
    """One segment with its log on disk."""
    return Scene(directory, segments=1, history={"storage": {"size": "1Gi"}, "durability": durability, **history})


def files(directory: Path) -> list[Path]:
    """The log files of the segment."""
    return [path for path in directory.rglob("*.log") if path.parent.name == "0"]


async def take(epochs: AsyncIterator[Any], count: int) -> list[tuple[int, list[Any] | None]]:
    """The next `count` epochs; None for the records of one that was aborted."""
    found: list[tuple[int, list[Any] | None]] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            epoch = await anext(epochs)
            found.append((epoch.time, list(epoch.records()) if isinstance(epoch, epochal.Epoch) else None))
    return found


async def pushed(events: AsyncIterator[Any], records: list[object]) -> None:
    """Wait until these records have come."""
    heard: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        while heard != records:
            event = await anext(events)
            heard += list(event.records()) if isinstance(event, epochal.Data) else []


async def twice(call: Callable[[], Awaitable[object]]) -> None:
    """A writer is told of a loss by the call that hears of it, or by the next one."""
    await call()
    await call()


@pytest.mark.long
@pytest.mark.rule("E6", "E9", "E10", "S35")
async def test_an_epoch_that_lost_its_publisher_in_the_middle_completes_once(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """Fault 1: the frontier stays where it is, the next incarnation goes on behind the last event."""
    scene = stored(tmp_path)
    await scene.start(stack)
    async with scene.reader() as sub, scene.reader() as watching:
        epochs, writer = sub.epochs(), scene.writer
        first = await writer.append(0, ["a"])
        await pushed(watching.events(), ["a"])
        await scene.publisher.kill()
        late = asyncio.create_task(writer.append(0, ["b"]))
        assert sub.frontier() == (0,)
        await scene.publisher.start()
        second = await asyncio.wait_for(late, PATIENCE)
        assert second.incarnation > first.incarnation
        assert second.seq == first.seq + 1
        assert sub.frontier() == (0,)
        await writer.advance(1)
        assert await take(epochs, 1) == [(0, ["a", "b"])]
        await writer.append(1, ["c"])
        await writer.advance(2)
        assert await take(epochs, 1) == [(1, ["c"])], "0 is not told again"


@pytest.mark.long
@pytest.mark.rule("E6", "E9", "E10")
async def test_what_was_logged_and_never_sent_is_there_once(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Fault 3: the writer heard nothing and sends again, the subscribers heard nothing and pull."""
    scene, armed = stored(tmp_path), tmp_path / "armed"
    scene.publisher.program = [sys.executable, "-c", DIES_BEHIND_THE_SYNC, str(armed)]
    await scene.start(stack)
    async with scene.reader() as sub:
        await scene.writer.append(0, ["a"])
        armed.touch()
        late = asyncio.create_task(scene.writer.append(0, ["b"]))
        async with asyncio.timeout(PATIENCE):
            await scene.publisher.child.ended()
        assert not late.done()
        await scene.publisher.child.stop(0)
        (log,) = files(tmp_path)
        assert b"\x91\xa1b" in log.read_bytes(), "the log has it"
        await scene.publisher.start()
        assert (await asyncio.wait_for(late, PATIENCE)).seq == 1, "its answer is that of the first time"
        await scene.writer.advance(1)
        assert await take(sub.epochs(), 1) == [(0, ["a", "b"])]
        async with scene.client.subscribe("test/chaos", since="start") as pulling:
            assert await take(pulling.epochs(), 1) == [(0, ["a", "b"])]


@pytest.mark.rule("E10", "E17")
async def test_what_was_sent_and_then_lost_by_the_disk_is_led_back(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Fault 4, policy `interval`: a file that is cut stands for a machine that lost what it had not synced."""
    scene = stored(tmp_path, "interval")
    scene.publisher.settings["sync_interval"] = 60
    await scene.start(stack)
    async with scene.reader() as sub, scene.reader() as watching:
        events, epochs, writer = watching.events(), sub.epochs(), scene.writer
        await writer.append(0, ["a"])
        (log,) = files(tmp_path)
        secured = log.stat().st_size
        lost = await writer.append(0, ["b"])
        await pushed(events, ["a", "b"])
        await scene.publisher.kill()
        os.truncate(log, secured)
        await scene.publisher.start()
        async with asyncio.timeout(PATIENCE):
            while not isinstance(rewound := await anext(events), epochal.Rewound):
                pass
        assert rewound == epochal.Rewound("0", rewound.incarnation, lost.seq - 1)
        assert rewound.incarnation > lost.incarnation
        with pytest.raises(AppendsLost, match=r"epochs \[0\] are aborted"):
            await asyncio.wait_for(twice(lambda: writer.advance(1)), PATIENCE)
        await writer.advance(1)
        again = await writer.append(1, ["d"])
        assert again.incarnation == rewound.incarnation, "its numbers are not those of another event"
        await writer.advance(2)
        assert await take(epochs, 2) == [(0, None), (1, ["d"])]
        async with scene.client.subscribe("test/chaos", since="start") as late:
            assert await take(late.epochs(), 2) == [(0, None), (1, ["d"])]


@pytest.mark.rule("E10", "E11")
async def test_what_a_machine_took_with_its_writer_completes_for_no_reader(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """Policy `interval`: the program is started again under its id and knows of nothing; only the log can."""
    scene = stored(tmp_path, "interval")
    scene.publisher.settings["sync_interval"] = 60
    await scene.start(stack)
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITES_TWICE, scene.catalog.url,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            assert await program.stdout.readline() == b"a\n"
        (log,) = files(tmp_path)
        secured = log.stat().st_size
        program.stdin.write(b"\n")
        async with asyncio.timeout(PATIENCE):
            assert await program.stdout.readline() == b"b\n", "acknowledged"
    finally:
        program.kill()
        await program.wait()
    async with scene.reader() as sub:
        await scene.publisher.kill()
        os.truncate(log, secured)
        boot = log.with_name("boot")
        assert json.loads(boot.read_text())["relaxed"]
        boot.write_text(json.dumps({"boot": "that of before", "relaxed": True}))
        await scene.publisher.start()
        async with asyncio.timeout(PATIENCE), scene.client.writer("test/chaos", "program", wait=PATIENCE) as again:
            with pytest.raises(EpochAbortedError):
                await again.append(0, ["c"])
            await again.advance(1)
            await again.append(1, ["d"])
            await again.advance(2)
            await scene.writer.advance(2)
        assert await take(sub.epochs(), 1) == [(1, ["d"])], "it had joined in the middle of 0"
        async with scene.client.subscribe("test/chaos", since="start") as late:
            assert await take(late.epochs(), 2) == [(0, None), (1, ["d"])]


@pytest.mark.rule("Q2", "Q3")
async def test_a_flipped_bit_in_an_old_file_is_reported_and_all_else_is_served(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """Fault 29, while the publisher serves: never a shorter answer that looks whole."""
    scene = stored(tmp_path, retention={"bytes": "64Mi"})
    scene.publisher.settings |= {"log_file_bytes": 65536, "log_memory": 2**20}
    await scene.start(stack)
    wrote, damaged, further = 60, 20, 30  # a file has 8 of these; behind damage nothing can be opened in the same one
    cursors = []
    async with scene.reader() as sub:
        epochs = sub.epochs()
        for time in range(wrote):
            await scene.writer.append(time, [time, bytes([time]) * 8000])
            await scene.writer.advance(time + 1)
            assert [epoch for epoch, _ in await take(epochs, 1)] == [time]
            cursors.append(sub.cursor())
    await scene.publisher.kill()  # memory is empty afterwards: all comes from the disk
    await scene.publisher.start()
    pid = scene.publisher.pid
    (path,) = (path for path in files(tmp_path) if bytes([damaged]) * 8000 in path.read_bytes())
    content = bytearray(path.read_bytes())
    content[content.index(bytes([damaged]) * 8000) + 4000] ^= 1
    path.write_bytes(content)
    found: list[int] = []
    with pytest.raises(CorruptLog, match="are damaged") as told:  # noqa: PT012 - what comes before it is wanted
        async with scene.client.subscribe("test/chaos", since="start") as sub, asyncio.timeout(PATIENCE):
            async for epoch in sub.epochs():
                found.append(epoch.time)  # noqa: PERF401 - as they come
    assert found == list(range(damaged)), "all before it, and then the error"
    assert (told.value.code, told.value.retryable) == ("corrupt_log", False)
    assert path.name in str(told.value)
    async with scene.client.subscribe("test/chaos", since=cursors[further]) as sub:
        assert [time for time, _ in await take(sub.epochs(), wrote - further - 1)] == [*range(further + 1, wrote)]
    async with scene.reader() as sub:
        await scene.writer.append(wrote, ["new"])
        await scene.writer.advance(wrote + 1)
        assert await take(sub.epochs(), 1) == [(wrote, ["new"])]
    assert scene.publisher.pid == pid, "the process lives"
    assert path.read_bytes() == content, "nothing was cut off or mended"

"""Streams with storage: what was acknowledged outlives every process, and every epoch completes once."""

import asyncio
import os
import signal

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import HistoryTruncated, StreamGone

STORED = {"history": {"storage": {"size": "1Gi"}}}


def expected(epochs: range, records: int) -> list[tuple[int, list[int]]]:
    return [(time, [time * 1000 + n for n in range(records)]) for time in epochs]


async def read(sub: epochal.Subscription, count: int) -> list[tuple[int, list[int] | None]]:
    """The next `count` epochs; None for the records of one that was aborted."""
    seen: list[tuple[int, list[int] | None]] = []
    async with asyncio.timeout(PATIENCE):
        async for epoch in sub.epochs():
            seen.append((epoch.time, sorted(epoch.records()) if isinstance(epoch, epochal.Epoch) else None))
            if len(seen) == count:
                break
    return seen


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.rule("E10", "E6")
@pytest.mark.parametrize("durability", ["batch", "interval"])
async def test_nothing_is_lost_or_doubled_when_every_publisher_is_killed_within_epochs(services, durability) -> None:
    """Faults 1 and 3. A process that is killed loses nothing that the kernel has, so `interval` is as good here."""
    history = {"storage": {"size": "1Gi"}, "durability": durability}
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, history=history, dedicated=True)
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream) as sub,
        client.writer(stream, writer_id="w") as writer,
    ):
        await sub.ready.wait()
        reading = asyncio.create_task(read(sub, 12))
        for time in range(12):
            for number in range(40):
                writer.append_nowait(time, [time * 1000 + number], key=b"%d" % number)
                if time in (3, 7) and number == 20:
                    await asyncio.sleep(0.01)
                    kill(services.publishers(stream))
            await writer.advance(time + 1)
        assert await reading == expected(range(12), 40)
    async with epochal.connect(services.url) as client, client.subscribe(stream, since="start") as late:
        assert await read(late, 12) == expected(range(12), 40)


@pytest.mark.rule("E16", "E10")
async def test_a_cursor_continues_after_a_publisher_was_killed(services) -> None:
    stream = await services.stream(**STORED, dedicated=True)
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="w") as writer:
        for time in range(6):
            await writer.append(time, [time * 1000])
        await writer.advance(6)
        async with client.subscribe(stream, since="start") as sub:
            assert await read(sub, 3) == expected(range(3), 1)
            cursor = sub.cursor()
        kill(services.publishers(stream))
        async with client.subscribe(stream, since=cursor) as sub:
            assert await read(sub, 3) == expected(range(3, 6), 1)


@pytest.mark.rule("E3", "E10")
async def test_a_writer_that_died_with_its_publisher_is_given_up_and_its_epoch_aborted(services) -> None:
    """Its sessions and what it holds are in the log: the next incarnation waits for it, and no longer than that."""
    stream = await services.stream(progress={"writerTimeout": "4s"}, **STORED, dedicated=True)
    script = (
        "import asyncio, sys, epochal\n"
        "async def main():\n"
        "    async with epochal.connect() as client, client.writer(sys.argv[1], writer_id='dies') as writer:\n"
        "        await writer.advance(4)\n"
        "        await writer.append(4, ['half'])\n"
        "        print('there', flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    child = await services.run(script, stream)
    assert await child.stdout.readline() == b"there\n"
    child.kill()
    kill(services.publishers(stream))
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream, since="start") as sub,
        client.writer(stream, writer_id="lives") as writer,
    ):
        (time,) = writer.held
        await writer.append(time + 1, [1])
        await writer.advance(time + 2)
        assert await read(sub, 2) == [(4, None), (time + 1, [1])]


@pytest.mark.rule("E7", "S20")
async def test_a_complete_stream_stays_readable_after_its_publishers_were_killed(services) -> None:
    stream = await services.stream(segments=2, **STORED, dedicated=True)
    async with epochal.connect(services.url) as client:
        async with client.writer(stream, writer_id="w") as writer:
            await writer.append(0, [0])
            await writer.finish()
        kill(services.publishers(stream))
        async with client.subscribe(stream, since="start") as sub:
            assert [epoch.time async for epoch in sub.epochs()] == [0]


@pytest.mark.rule("E13", "Q2")
async def test_history_is_served_from_disk_from_long_before_memory_and_cut_by_its_bound(services) -> None:
    """Events of 60 kB, 20 MB in all, in a stream that keeps 4 MB: files of half a MB, of which the oldest go."""
    stream = await services.stream(
        encoding="bytes", history={"storage": {"size": "1Gi"}, "retention": {"bytes": "4Mi"}}, dedicated=True
    )
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="w") as writer:
        async with client.subscribe(stream, since="start") as sub:
            await sub.ready.wait()
            early = sub.cursor()
        for time in range(340):
            await writer.append(time, [time.to_bytes(4, "big") * 15_000])
            await writer.advance(time + 1)
        kill(services.publishers(stream))  # memory is empty afterwards: all comes from the disk
        async with client.subscribe(stream, since="start") as sub:
            seen = []
            async with asyncio.timeout(PATIENCE):
                async for epoch in sub.epochs():
                    assert isinstance(epoch, epochal.Epoch)
                    assert list(epoch.records()) == [epoch.time.to_bytes(4, "big") * 15_000]
                    seen.append(epoch.time)
                    if epoch.time == 339:
                        break
        assert seen == list(range(seen[0], 340)), "no hole"
        assert 20 <= len(seen) <= 80, "as much as the bound allows, give or take a file"
        with pytest.raises(HistoryTruncated):
            async with client.subscribe(stream, since=early) as sub:
                await read(sub, 1)


async def test_a_writer_hears_at_once_that_its_stream_was_deleted(services) -> None:
    stream = await services.stream(**STORED)
    async with epochal.connect(services.url) as client:
        with pytest.raises(StreamGone):  # noqa: PT012 - leaving the block tells it as well
            async with client.writer(stream, writer_id="w") as writer, asyncio.timeout(PATIENCE):
                await services.delete(stream)
                while True:
                    await writer.append(writer.held[0], [1])

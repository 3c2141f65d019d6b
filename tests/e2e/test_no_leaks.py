"""Five hundred joins and leaves leave descriptors, threads, processes and memory as they were, on both sides."""

import asyncio
import gc
import os
from pathlib import Path
from typing import NamedTuple

import pytest

import epochal

WARM_UP, JOINS = 150, 500
KEPT = 8
"""Connections to the catalog that are kept for a while and come and go; as many as are at work at once."""


class Use(NamedTuple):
    """What a process holds."""

    descriptors: int
    threads: int
    kilobytes: int

    @classmethod
    def of(cls, pid: int) -> "Use":
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(files, int(status["Threads"]), int(status["VmRSS"].split()[0]))


async def settled(pid: int, before: Use | None = None) -> Use:
    """What it holds once connections that were closed are gone there too."""
    gc.collect()
    use = Use.of(pid)
    for _ in range(100):
        if before is not None and use[:2] == before[:2]:
            break
        await asyncio.sleep(0.05)
        newer = Use.of(pid)
        if before is None and newer[:2] == use[:2]:
            break
        use = newer
    return use


async def join(client: epochal.Client, stream: str, *, number: int) -> None:
    async with client.subscribe(stream, since="start" if number % 3 == 0 else None) as sub:
        if number % 5:  # some leave before they were answered
            await sub.ready.wait()
        if number % 3 == 0:
            epoch = await anext(sub.epochs())
            assert epoch.time == 0


@pytest.mark.long
async def test_joins_and_leaves(services) -> None:
    stream = await services.stream(segments=2, dedicated=True)
    (publisher,) = services.publishers(stream)
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="holder") as writer:
        await writer.append(0, ["x"], key=b"a")
        await writer.advance(1)
        limit = asyncio.Semaphore(8)

        async def one(number: int) -> None:
            async with limit:
                await join(client, stream, number=number)
                if number % 10 == 0:
                    async with client.writer(stream, writer_id=f"w{number % 30}") as other:
                        await other.append(1, ["y"])

        async def many(count: int) -> None:
            await asyncio.gather(*(one(number) for number in range(count)))

        await many(WARM_UP)
        tasks = len(asyncio.all_tasks())
        here, there = await settled(os.getpid()), await settled(publisher)
        await many(JOINS)
        here_after, there_after = await settled(os.getpid(), here), await settled(publisher, there)
        assert len(asyncio.all_tasks()) == tasks
        assert here_after.descriptors <= here.descriptors + KEPT
        assert here_after.threads == here.threads
        assert there_after[:2] == there[:2]
        assert here_after.kilobytes < here.kilobytes * 1.1
        assert there_after.kilobytes < there.kilobytes * 1.1
        assert services.publishers(stream) == [publisher]

"""A publisher process that dies: subscribers are told and never go back, writers resume, nothing half is delivered."""

import asyncio
import os
import signal
from contextlib import suppress

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.client.subscriber.values import Event
from epochal.errors import AppendsLost, CapabilityError, EpochAbortedError, WriterLost


@pytest.mark.rule("E11", "E17", "E10")
async def test_one_of_two_publishers_is_killed(services) -> None:
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, dedicated=True)
    killed, _ = services.publishers(stream)
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream) as sub,
        client.subscribe(stream) as watching,
        client.writer(stream, writer_id="w") as writer,
    ):
        await asyncio.gather(sub.ready.wait(), watching.ready.wait())
        keys = {writer.segment(bytes([n])): bytes([n]) for n in range(64)}
        events: list[Event] = []
        collecting = asyncio.create_task(_collect(watching, events))
        await writer.append(3, ["whole"], key=keys["0"])
        await writer.advance(4)
        await asyncio.sleep(1.2)  # frontiers are reported to the catalog every second
        await writer.append(4, ["lost"], key=keys["0"])
        await writer.append(4, ["dropped with it"], key=keys["1"])
        os.kill(killed, signal.SIGKILL)
        while not (sub._machine._segments["0"].down and watching._machine._segments["0"].down):  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(AppendsLost, match="restarted"):  # noqa: PT012 - which of them meets it is a matter of time
                # Nothing is appended meanwhile: what is under way when a subscriber comes back is not for it (E15).
                while True:
                    await writer.flush()
                    await asyncio.sleep(0.01)
            with pytest.raises(EpochAbortedError):
                await writer.append(4, ["again"], key=keys["0"])
            while sub._machine._segments["0"].down or watching._machine._segments["0"].down:  # noqa: ASYNC110 - they come back one by one
                await asyncio.sleep(0.02)
            await writer.append(5, ["a"], key=keys["0"])
            await writer.append(5, ["b"], key=keys["1"])
            await writer.finish()
            seen = [epoch async for epoch in sub.epochs()]
            await collecting
    assert [(e.time, type(e)) for e in seen][:3] == [
        (3, epochal.Epoch), (4, epochal.EpochAborted), (5, epochal.Epoch),
    ]  # fmt: skip
    assert isinstance(seen[2], epochal.Epoch)
    assert sorted(seen[2].records()) == ["a", "b"]
    kinds = [type(event) for event in events]
    assert {epochal.SegmentDown, epochal.SegmentUp, epochal.Rewound, epochal.Gap} <= set(kinds)
    assert epochal.EpochAborted(4) in events
    frontiers = [event.frontier for event in events if isinstance(event, epochal.FrontierChanged)]
    assert frontiers == sorted(frontiers, key=lambda frontier: frontier[0] if frontier else 1 << 63), "never back"
    gap = next(event for event in events if isinstance(event, epochal.Gap))
    rewound = next(event for event in events if isinstance(event, epochal.Rewound))
    assert (gap.segment, gap.incarnation) == ("0", rewound.incarnation)


async def _collect(sub: epochal.Subscription, into: list[Event]) -> None:
    async for event in sub.events():
        into.append(event)  # noqa: PERF401 - others look at it meanwhile


@pytest.mark.rule("E11", "E17")
async def test_every_publisher_is_killed_while_many_read_and_write(services) -> None:
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 2}, dedicated=True)
    published: dict[int, set[str]] = {}

    async def write(client: epochal.Client, name: str) -> None:
        async with client.writer(stream, writer_id=name) as writer:
            while not over.is_set():
                (time,) = writer.held
                try:
                    for part in range(4):
                        await writer.append(time, [f"{name}/{time}/{part}"], key=bytes([part]))
                        await asyncio.sleep(0.005)
                    await writer.advance(time + 1)
                except (AppendsLost, EpochAbortedError, WriterLost):
                    while not writer.held[0] > time:  # the epoch is aborted: on to the next
                        with suppress(AppendsLost, WriterLost, CapabilityError):
                            await writer.advance(time + 1)
                else:
                    published.setdefault(time, set()).add(name)
            await writer.finish()

    async def read(client: epochal.Client, seen: list[epochal.Epoch | epochal.EpochAborted]) -> None:
        async with client.subscribe(stream) as sub:
            async for epoch in sub.epochs():
                seen.append(epoch)  # noqa: PERF401 - others look at it meanwhile

    def whole_after(time: int) -> bool:
        return all(any(isinstance(epoch, epochal.Epoch) and epoch.time > time for epoch in seen) for seen in readers)

    over = asyncio.Event()
    readers: list[list[epochal.Epoch | epochal.EpochAborted]] = [[] for _ in range(10)]
    async with epochal.connect(services.url) as client, asyncio.TaskGroup() as tasks, asyncio.timeout(PATIENCE):
        for seen in readers:
            tasks.create_task(read(client, seen))
        for name in ("a", "b"):
            tasks.create_task(write(client, name))
        while set((await client.catalog.get(*stream.split("/"))).writers) != {"a", "b"}:  # noqa: ASYNC110 - it is polled, not pushed
            await asyncio.sleep(0.1)
        for _ in range(2):
            (before,) = services.publishers(stream)
            os.kill(before, signal.SIGKILL)
            reached = max(published, default=0)
            while not whole_after(reached + 5):  # noqa: ASYNC110 - what several tasks have seen
                await asyncio.sleep(0.05)
        over.set()
    for seen in readers:
        times = [epoch.time for epoch in seen]
        assert times == sorted(set(times)), "each once, never back"
        for epoch in seen:
            if isinstance(epoch, epochal.Epoch):
                names = {record.split("/")[0] for record in epoch.records()}
                assert sorted(epoch.records()) == sorted(f"{n}/{epoch.time}/{p}" for n in names for p in range(4))


@pytest.mark.rule("E8", "E12", "S19")
async def test_a_publisher_that_stood_still_goes_on(services) -> None:
    stream = await services.stream(segments=2, progress={"writerTimeout": "3s"}, dedicated=True)
    (publisher,) = services.publishers(stream)
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with client.writer(stream, writer_id="w") as writer:
            await writer.append(0, ["before"])
            os.kill(publisher, signal.SIGSTOP)
            await asyncio.sleep(4)  # longer than a writer's time-out: its silence was not heard
            os.kill(publisher, signal.SIGCONT)
            async with asyncio.timeout(PATIENCE):
                await writer.append(0, ["after"])
                await writer.finish()
                (epoch,) = [epoch async for epoch in sub.epochs()]
        assert sorted(epoch.records()) == ["after", "before"]  # type: ignore[union-attr]

"""A writer process that dies in an epoch: it is never complete, unless the same writer comes back in time."""

import asyncio

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import WriterFenced

DIES = """
import asyncio, sys, epochal
async def main():
    async with epochal.connect() as client, client.writer(sys.argv[1], writer_id="w") as w:
        await w.append(0, ["whole"], key=b"a")
        await w.advance(1)
        for part in range(4):
            await w.append(1, [f"part {part}"], key=bytes([part]))
        w.append_nowait(1, ["perhaps"], key=b"b")
        print("half of it is out", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
PARTS = [f"part {part}" for part in range(4)]


@pytest.mark.rule("E3")
async def test_its_epoch_is_aborted_after_the_time_out(services) -> None:
    stream = await services.stream(segments=3, progress={"writerTimeout": "2s"})
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream) as sub,
        client.subscribe(stream) as other,
    ):
        await asyncio.gather(sub.ready.wait(), other.ready.wait())
        async with client.writer(stream, writer_id="holder") as holder:
            child = await services.run(DIES, stream)
            await child.stdout.readline()
            child.kill()
            await holder.advance(5)
            epochs = sub.epochs()
            async with asyncio.timeout(PATIENCE):
                assert (await anext(epochs)).time == 0
                assert await anext(epochs) == epochal.EpochAborted(1)
            async with client.subscribe(stream, since="start") as late:
                epochs = late.epochs()
                assert (await anext(epochs)).time == 0
                assert await anext(epochs) == epochal.EpochAborted(1)
                assert not late.saw_whole(1)
            async with client.writer(stream, writer_id="w") as again:
                assert again.pending_epochs == ()
                assert again.held == (5,)
            await holder.finish()
        events = [event async for event in other.events()]
        assert epochal.EpochAborted(1) in events
        assert events[-1] == epochal.FrontierChanged(())


@pytest.mark.rule("E3", "E7")
async def test_the_last_writer_keeps_the_stream_from_completing(services) -> None:
    stream = await services.stream(segments=2, progress={"writerTimeout": "2s"})
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        child = await services.run(DIES, stream)
        await child.stdout.readline()
        child.kill()
        epochs = sub.epochs()
        async with asyncio.timeout(PATIENCE):
            assert (await anext(epochs)).time == 0
            assert await _told(sub) == [epochal.EpochAborted(1)]
        async with client.writer(stream, writer_id="x") as writer:
            assert writer.held == (1,), "its capability was kept, and taken over"
            await writer.append(2, ["next"])
            await writer.finish()
        assert [epoch.time async for epoch in epochs] == [1, 2]


@pytest.mark.rule("E3")
@pytest.mark.parametrize("storage", [None, "1Gi"])
async def test_what_another_completed_before_it_closed_does_not_wait_for_the_dead(
    services, storage: str | None
) -> None:
    history = {} if storage is None else {"history": {"storage": {"size": storage}}}
    stream = await services.stream(segments=2, progress={"writerTimeout": "2s"}, **history)
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        child = await services.run(DIES, stream)
        await child.stdout.readline()
        child.kill()
        async with client.writer(stream, writer_id="ahead") as writer:
            await writer.append(11, ["whole"])
            await writer.advance(12)
        epochs = sub.epochs()
        async with asyncio.timeout(PATIENCE):
            assert (await anext(epochs)).time == 0
            assert await anext(epochs) == epochal.EpochAborted(1)
            assert (await anext(epochs)).time == 11


async def _told(sub: epochal.Subscription) -> list[epochal.EpochAborted]:
    """The aborts that the subscription knows of but does not yield yet, as their times can still arrive."""
    while not sub._machine._aborts.active:  # noqa: ASYNC110 - epochs() tells of it at its turn
        await asyncio.sleep(0.02)
    return [epochal.EpochAborted(time) for time in sub._machine._aborts.active]


@pytest.mark.rule("E6")
async def test_the_same_writer_returns_in_time_and_finishes_it(services) -> None:
    stream = await services.stream(segments=3)
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with client.writer(stream, writer_id="holder") as holder:
            child = await services.run(DIES, stream)
            await child.stdout.readline()
            child.kill()
            await child.wait()
            await holder.finish()
        async with client.writer(stream, writer_id="w") as again:
            assert again.pending_epochs == (1,)
            await again.append(1, ["the rest"])
            await again.finish()
        epochs = [(epoch.time, set(epoch.records())) async for epoch in sub.epochs()]  # type: ignore[union-attr]
    assert epochs[0] == (0, {"whole"})
    assert epochs[1] in ((1, {*PARTS, "the rest"}), (1, {*PARTS, "the rest", "perhaps"}))


@pytest.mark.rule("E6", "E4")
async def test_the_same_writer_returns_and_aborts_it_instead(services) -> None:
    stream = await services.stream(segments=3)
    async with epochal.connect(services.url) as client, client.subscribe(stream, since="start") as sub:
        child = await services.run(DIES, stream)
        await child.stdout.readline()
        async with client.writer(stream, writer_id="w") as again:
            for time in again.pending_epochs:
                await again.abort(time)
            await again.append(2, ["next"])
            await again.finish()
        assert [epoch.time async for epoch in sub.epochs()] == [0, 1, 2]
        child.kill()


@pytest.mark.rule("E6")
async def test_a_writer_that_went_away_without_a_word(services) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with client.writer(stream, writer_id="w") as writer:
            await writer.append(0, ["first"], key=b"a")
            writer.detach()
        async with client.writer(stream, writer_id="w") as again:
            assert again.pending_epochs == (0,)
            await again.append(0, ["second"], key=b"b")
            await again.finish()
            with pytest.raises((WriterFenced, epochal.errors.WriterClosed)):
                await writer.append(0, ["late"])
        assert [sorted(e.records()) async for e in sub.epochs()] == [["first", "second"]]  # type: ignore[union-attr]

"""Subscriptions against real publishers: what is delivered, what is left out, and how reading resumes."""

import asyncio
import os
import signal
from typing import Any

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import (
    CursorError,
    EpochTooLarge,
    HistoryTruncated,
    SchemaMismatch,
    StreamGone,
    StreamNotFound,
    UsageError,
)
from epochal.protocol.topics.filter import TopicFilter

RESUME = """
import asyncio, sys, epochal
async def main():
    cursor = epochal.Cursor.from_json(sys.argv[2])
    async with epochal.connect() as client, client.subscribe(sys.argv[1], since=cursor) as sub:
        async for epoch in sub.epochs():
            aborted = isinstance(epoch, epochal.EpochAborted)
            print(epoch.time, "aborted" if aborted else sorted(epoch.records()))
asyncio.run(main())
"""


@pytest.mark.rule("S28")
async def test_another_shape_or_encoding_is_refused_before_connecting(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        wrongs: list[dict[str, Any]] = [{"time_shape": "(int, int)"}, {"encoding": "json"}]
        for wrong in wrongs:
            with pytest.raises(SchemaMismatch) as caught:
                await client.subscribe(stream, **wrong).__aenter__()
            assert caught.value.problems
        async with client.subscribe(stream, time_shape="int", encoding="msgpack") as sub:
            await sub.ready.wait()


async def test_before_it_is_opened_a_subscription_says_what_to_do(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        sub, opens = (
            client.subscribe(stream),
            pytest.raises(UsageError, match="open the subscription first: async with"),
        )
        for ask in (sub.frontier, sub.cursor, lambda: sub.saw_whole(0)):
            with opens:
                ask()
        for read in (sub.epochs, sub.events):
            with opens:
                await anext(read())
        async with sub:
            await sub.ready.wait()
            cursor = sub.cursor()
        assert client.subscribe(stream, since=cursor).cursor() == cursor


async def test_wrong_use_is_reported(services) -> None:
    stream, other = await services.stream(), await services.stream()
    async with epochal.connect(services.url) as client:
        with pytest.raises(UsageError, match="since"):
            client.subscribe(stream, since=5)  # type: ignore[arg-type]  # on purpose
        for wrong in ("delay/", b"delay/", ["delay/"], [b"delay/", "gate/"]):
            for name in ("topics", "reject"):
                with pytest.raises(UsageError, match=r'such as \[b"delay/"\], not'):
                    client.subscribe(stream, **{name: wrong})  # type: ignore[arg-type]  # on purpose
        for name, none in (("topics", 7), ("reject", None)):
            with pytest.raises(UsageError, match=rf'such as \[b"delay/"\], not {none}'):
                client.subscribe(stream, **{name: none})  # type: ignore[arg-type]  # on purpose
        for way in (None, 3, b"relay"):
            with pytest.raises(UsageError, match="via= is auto, direct, relay or relay:NAME, or a Via, not"):
                client.subscribe(stream, via=way)  # type: ignore[arg-type]  # on purpose
        rejecting = client.subscribe(stream, reject=iter([b"gate/"]))
        assert rejecting._prefixes.filter == TopicFilter(None, [b"gate/"])
        async with client.subscribe(stream, partial=True) as sub:
            with pytest.raises(UsageError, match="events"):
                await anext(sub.epochs())
        async with client.subscribe(other) as sub:
            with pytest.raises(UsageError, match="ready"):
                sub.cursor()
            await sub.ready.wait()
            cursor = sub.cursor()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(sub.epochs())
            with pytest.raises(UsageError, match="another one"):
                await anext(sub.events())
            reading = asyncio.ensure_future(anext(sub.epochs()))
            await asyncio.sleep(0)
        with pytest.raises(UsageError, match="left"):
            await reading
        with pytest.raises(CursorError, match="another stream"):
            await client.subscribe(stream, since=cursor).__aenter__()


@pytest.mark.rule("E16")
async def test_a_saved_cursor_is_resumed_in_another_process(services) -> None:
    stream = await services.stream(shape="(int, int)", segments=2)
    async with epochal.connect(services.url) as client:
        async with client.writer(stream) as writer, client.subscribe(stream, since="start") as sub:
            times = [(a, b) for a in range(4) for b in range(4)]
            for time in times:
                for key in (b"a", b"b", b"c"):
                    writer.append_nowait(time, [[*time, key.decode()]], key=key)
            await writer.abort((2, 2))
            await writer.advance((1, 0))
            await writer.advance((2, 0))
            epochs = sub.epochs()
            first = [await anext(epochs) for _ in range(5)]
            cursor = sub.cursor().to_json()
            await writer.finish()
        child = await services.run(RESUME, stream, cursor)
        out, _ = await child.communicate()
    assert child.returncode == 0
    lines = dict(line.split(") ") for line in out.decode().splitlines())
    rest = {tuple(map(int, time.removeprefix("(").split(", "))): records for time, records in lines.items()}
    assert len(first) + len(rest) == len(times)
    assert {epoch.time for epoch in first} | set(rest) == set(times)
    assert rest.pop((2, 2)) == "aborted", "it had not been told of before"
    assert rest == {time: str([[*time, key] for key in "abc"]) for time in rest}


async def test_a_cursor_of_what_is_no_longer_kept(services) -> None:
    stream = await services.stream(history={"retention": {"bytes": "1Mi"}})
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        async with client.subscribe(stream) as sub:
            await sub.ready.wait()
            cursor = sub.cursor()
        for time in range(8):
            await writer.append(time, [b"x" * 300_000])
            await writer.advance(time + 1)
        async with client.subscribe(stream, since=cursor) as sub:
            with pytest.raises(HistoryTruncated):
                await anext(sub.epochs())
        async with client.subscribe(stream, since="start") as sub:
            epoch = await anext(sub.epochs())
            assert isinstance(epoch, epochal.Epoch)
            assert epoch.time > 0
            assert sub.saw_whole(epoch.time)
            assert not sub.saw_whole(0)


async def test_topics_are_chosen_by_prefix(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        for topic in (b"delay/JFK", b"delay/EWR", b"gate/JFK", b""):
            await writer.append(0, [topic.decode()], topic=topic)
        await writer.append(1, ["not wanted"], topic=b"gate/1")
        await writer.finish()
        chosen: list[tuple[dict[str, Any], list[str]]] = [
            ({"topics": [b"delay/"], "reject": [b"delay/EWR"]}, ["delay/JFK"]),
            ({"topics": [b"gate/JFK"]}, ["gate/JFK"]),
            ({"reject": [b"delay/", b"gate/"]}, [""]),
            ({"topics": [b"delay/EWR"], "reject": [b"delay/"]}, ["delay/EWR"]),
        ]
        for choice, expected in chosen:
            async with client.subscribe(stream, since="start", **choice) as sub:
                epochs = [epoch async for epoch in sub.epochs()]
                assert [list(epoch.records()) for epoch in epochs if isinstance(epoch, epochal.Epoch)] == [expected]
                assert sub.saw_whole(1), "an epoch without wanted data was seen all the same"


@pytest.mark.rule("S16", "S15", "E15")
async def test_events_as_they_come_and_partial_epochs(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        await writer.append(0, ["before"])
        async with client.subscribe(stream) as whole, client.subscribe(stream, partial=True) as partial:
            await asyncio.gather(whole.ready.wait(), partial.ready.wait())
            await writer.append(0, ["after"])
            await writer.append(1, ["next"])
            await writer.advance(1)
            await writer.abort(1)
            await writer.append(2, ["last"])
            await writer.finish()
            seen = []
            for sub in (whole, partial):
                events = [event async for event in sub.events()]
                seen.append([e.records()[0] if isinstance(e, epochal.Data) else e for e in events])
    frontier, aborted = epochal.FrontierChanged, epochal.EpochAborted(1)
    told = [event for event in seen[0] if event != frontier((0,))]
    assert told == ["next", frontier((1,)), aborted, "last", frontier(())]
    told = [event for event in seen[1] if event != frontier((0,))]
    assert told == ["after", "next", frontier((1,)), aborted, "last", frontier(())]


@pytest.mark.rule("E18")
async def test_an_epoch_larger_than_the_buffer(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:  # noqa: SIM117 - reads better
        async with client.subscribe(stream, max_buffer_bytes=100_000) as sub:
            await sub.ready.wait()
            await writer.append(0, ["small"])
            await writer.advance(1)
            for _ in range(3):
                await writer.append(1, [b"x" * 50_000])
            epochs = sub.epochs()
            assert (await anext(epochs)).time == 0
            with pytest.raises(EpochTooLarge, match="max_buffer_bytes"):
                await anext(epochs)
            with pytest.raises(EpochTooLarge):
                await anext(sub.epochs())
            assert sub.cursor().frontier == (1,)


@pytest.mark.rule("E18")
async def test_a_slow_application_stops_its_socket_and_heals(services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.client.subscriber.subscriber.MAX_WAITING_BYTES", 1 << 20)
    stream = await services.stream(segments=2, push={"bufferBytes": "1Mi"})
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:  # noqa: SIM117 - reads better
        async with client.subscribe(stream) as sub:
            await sub.ready.wait()
            epochs = sub.epochs()
            for time in range(1200):
                writer.append_nowait(time, [time, b"x" * 50_000], key=bytes([time % 7]))
                writer.advance_nowait(time + 1)
                if time % 50 == 0:
                    await writer.flush()
            await writer.finish()
            assert sub._machine.waiting_bytes < 25 << 20, "what is not read is not taken in either"
            seen = [epoch async for epoch in epochs]
    assert [epoch.time for epoch in seen] == list(range(1200))
    assert all(isinstance(epoch, epochal.Epoch) and next(epoch.records()) == epoch.time for epoch in seen)


@pytest.mark.rule("E18")
async def test_who_begins_to_read_late_in_a_large_epoch_is_given_it(services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then its records wait as events; once only epochs are read, that they did must hold up nothing."""
    monkeypatch.setattr("epochal.client.subscriber.subscriber.MAX_WAITING_BYTES", 1 << 20)
    stream = await services.stream()
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream) as sub,
    ):
        await sub.ready.wait()
        for number in range(40):
            await writer.append(0, [[number, b"x" * 50_000]])
        async with asyncio.timeout(PATIENCE):
            while not sub._paused:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
        await writer.finish()
        async with asyncio.timeout(PATIENCE):
            (epoch,) = [epoch async for epoch in sub.epochs()]
    assert isinstance(epoch, epochal.Epoch)
    assert [number for number, _ in epoch.records()] == list(range(40))


@pytest.mark.rule("F8", "E18")
async def test_topics_change_while_so_much_waits_that_nothing_is_read(
    services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the change comes after what was not read yet, and who waits for it reads nothing meanwhile."""
    monkeypatch.setattr("epochal.client.subscriber.subscriber.MAX_WAITING_BYTES", 100_000)
    stream = await services.stream()
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream, topics=[b"a"]) as sub,
        asyncio.timeout(PATIENCE),
    ):
        await sub.ready.wait()
        for time in range(20):
            await writer.append(time, [b"x" * 20_000], topic=b"a")
            await writer.advance(time + 1)
        while not sub._paused:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)
        epochs = sub.epochs()
        assert (await anext(epochs)).time == 0
        async with asyncio.timeout(PATIENCE):
            await sub.change(topics=[b"a", b"b"])
        await writer.append(20, ["b"], topic=b"b")
        await writer.finish()
        assert [epoch.time async for epoch in epochs] == list(range(1, 21))


@pytest.mark.rule("S19")
async def test_a_silent_publisher_is_noticed_and_holds_the_frontier(services) -> None:
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, dedicated=True)
    stopped, _ = services.publishers(stream)
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream) as sub,
    ):
        await sub.ready.wait()
        events = sub.events()
        for _ in range(2):  # each outage is reported, not only the first
            (held,) = sub.frontier()
            await writer.append(held, ["x"])
            os.kill(stopped, signal.SIGSTOP)
            try:
                async with asyncio.timeout(PATIENCE):
                    while not isinstance(event := await anext(events), epochal.SegmentDown):
                        pass
                assert (event.segment, event.reason) == ("0", "segment 0: the publisher was silent for 3 s")
                assert sub.frontier() == (held,)
            finally:
                os.kill(stopped, signal.SIGCONT)
            async with asyncio.timeout(PATIENCE):
                while not isinstance(event := await anext(events), epochal.SegmentUp):
                    assert isinstance(event, epochal.FrontierChanged | epochal.Data)
            await writer.advance(held + 1)
            while sub.frontier() != (held + 1,):
                await anext(events)


@pytest.mark.rule("S26")
async def test_a_stream_that_is_gone(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        await services.delete(stream)
        with pytest.raises(StreamGone, match="deleted"):
            async with asyncio.timeout(PATIENCE):
                await anext(sub.epochs())
        with pytest.raises(StreamNotFound):
            await client.subscribe(stream, wait=0).__aenter__()


async def test_joining_and_leaving_leaves_nothing_behind(services) -> None:
    stream = await services.stream(segments=2, dedicated=True)
    (publisher,) = services.publishers(stream)
    async with epochal.connect(services.url) as client:
        before = len(asyncio.all_tasks())
        for _ in range(3):
            async with client.subscribe(stream) as sub:
                await sub.ready.wait()
                reading = asyncio.ensure_future(anext(sub.epochs()))
                await asyncio.sleep(0)
                reading.cancel()
            assert len(asyncio.all_tasks()) <= before + 1
        os.kill(publisher, signal.SIGSTOP)  # also where nobody answers the join
        try:
            async with client.subscribe(stream) as sub:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await sub.ready.wait()
        finally:
            os.kill(publisher, signal.SIGCONT)
        await asyncio.wait([reading])
        assert len(asyncio.all_tasks()) == before

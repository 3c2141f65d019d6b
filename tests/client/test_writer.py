"""Writers against real publishers: what is refused, what a move waits for, what leaving says."""

import asyncio
import contextlib
import os
import signal
from typing import Any

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import (
    BufferFull,
    CapabilityError,
    EpochAbortedError,
    EpochTooLarge,
    NoPublisher,
    PayloadTooLarge,
    RecordTypeError,
    RepeatDiffers,
    StreamComplete,
    StreamGone,
    StreamNotFound,
    TimeShapeError,
    Unavailable,
    UsageError,
    WriterClosed,
    WriterFenced,
    WriterLost,
)
from epochal.protocol.messages import Alive
from epochal.protocol.time_codec import TimeCodec


async def delivered(client: epochal.Client, stream: str) -> dict[object, list[object]]:
    """Every epoch of a complete stream, with its records sorted; aborted ones as None."""
    found: dict[object, list[object]] = {}
    async with asyncio.timeout(PATIENCE), client.subscribe(stream, since="start") as sub:
        async for epoch in sub.epochs():
            assert epoch.time not in found
            found[epoch.time] = sorted(epoch.records()) if isinstance(epoch, epochal.Epoch) else ["aborted"]
    return found


@pytest.mark.rule("S35")
async def test_what_cannot_be_appended_is_refused_and_harms_nothing(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        async with client.writer(stream, writer_id="w") as writer:
            with pytest.raises(TimeShapeError):
                await writer.append((1, 2), ["x"])
            with pytest.raises(TimeShapeError):
                await writer.append(-1, ["x"])
            with pytest.raises(RecordTypeError):
                await writer.append(5, [object()])
            wrongs: list[Any] = [[], "abc", b"abc", {"a": 1}, iter([1])]
            for records in wrongs:
                with pytest.raises(RecordTypeError, match="list"):
                    await writer.append(5, records)
            with pytest.raises(PayloadTooLarge, match="at most"):
                await writer.append(5, [b"x" * (17 << 20)])
            with pytest.raises(UsageError, match="key is bytes"):
                await writer.append(5, [1], key="JFK")  # type: ignore[arg-type]  # on purpose
            for long in (b"k" * 1025, b"\xff" * 5000):
                with pytest.raises(UsageError, match=r"a key is at most 1,024 bytes, and one of \d,\d+ begins with b'"):
                    await writer.append(5, [1], key=long)
                with pytest.raises(UsageError, match="a key is at most 1,024 bytes"):
                    writer.append_nowait(5, [1], key=long)
            for topic in ("t", b"t" * 1025):
                with pytest.raises(UsageError, match="topic"):
                    await writer.append(5, [1], topic=topic)  # type: ignore[arg-type]  # on purpose
            with pytest.raises(TimeShapeError):
                await writer.advance("6")
            await writer.advance(5)
            with pytest.raises(CapabilityError, match=r"holds \[5\]"):
                await writer.append(4, ["late"])
            with pytest.raises(CapabilityError, match="move forward"):
                await writer.hold(4)
            await writer.advance(4)
            assert writer.held == (5,), "what is done already moves nothing"
            await writer.append(5, ["whole"])
            await writer.abort(6)
            with pytest.raises(EpochAbortedError):
                await writer.append(6, ["never"])
            await writer.finish()
            for late in (writer.append(7, ["late"]), writer.advance(8)):
                with pytest.raises(WriterClosed, match="open a new one"):
                    await late
            with pytest.raises(WriterClosed):
                writer.append_nowait(7, ["late"])
        assert await delivered(client, stream) == {5: ["whole"], 6: ["aborted"]}
        with pytest.raises(StreamComplete):
            await client.writer(stream).__aenter__()


@pytest.mark.parametrize(
    ("encoding", "wrong", "right"),
    [("bytes", "text", b"bytes"), ("json", b"bytes", {"a": [1, None]}), ("msgpack", {1, 2}, {"a": b"\0"})],
)
async def test_a_record_of_the_wrong_type(services, encoding: str, wrong: object, right: object) -> None:
    stream = await services.stream(encoding=encoding)
    async with epochal.connect(services.url) as client, client.writer(stream, linger=0.01) as writer:
        with pytest.raises(RecordTypeError):
            await writer.append(0, [wrong])
        writer.append_nowait(0, [wrong])
        with pytest.raises(RecordTypeError):
            await writer.advance(1)
        await writer.append(0, [right])
        await writer.advance(1)
        await writer.finish()
        async with client.subscribe(stream, since="start") as sub:
            (epoch,) = [epoch async for epoch in sub.epochs()]
            assert isinstance(epoch, epochal.Epoch)
            assert list(epoch.records()) == [right]


@pytest.mark.rule("E6")
async def test_a_writer_reports_its_session_and_what_each_segment_has_acknowledged(services) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as client:
        async with client.writer(stream, writer_id="w") as writer:
            first = writer.session_number
            assert list(writer.append_numbers.values()) == [-1, -1]
            for _ in range(3):
                await writer.append(0, [1], key=b"k")
            assert sorted(writer.append_numbers.values()) == [-1, 2]
            writer.detach()
        async with client.writer(stream, writer_id="w") as again:
            assert sorted(again.append_numbers.values()) == [-1, 2]
            assert again.session_number > first


async def test_a_stream_that_does_not_exist(services) -> None:
    async with epochal.connect(services.url) as client:
        for opening in (client.writer("test/none", wait=0), client.subscribe("test/none", wait=0)):
            with pytest.raises(StreamNotFound, match="get streams"):
                async with asyncio.timeout(PATIENCE):
                    await opening.__aenter__()
        begun = asyncio.get_running_loop().time()
        with pytest.raises(StreamNotFound, match="get streams"):
            await client.writer("test/none", wait=1.0).__aenter__()  # load: it is to end
        assert asyncio.get_running_loop().time() - begun > 0.9


async def test_a_writer_that_is_not_open_says_how_to_open_it(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        writer = client.writer(stream)
        for call in (writer.append(0, ["x"]), writer.advance(1), writer.flush(), writer.close()):
            with pytest.raises(UsageError, match="async with"):
                await call
        with pytest.raises(UsageError, match="async with"):
            writer.append_nowait(0, ["x"])
        with pytest.raises(UsageError, match="async with"):
            _ = writer.held
        assert writer.wrong_addresses == 0


@pytest.mark.rule("S27")
async def test_a_writer_waits_for_a_stream_that_is_declared_later(services) -> None:
    async with epochal.connect(services.url) as client:
        opening = asyncio.create_task(client.writer("test/later", wait=PATIENCE).__aenter__())
        await asyncio.sleep(0)
        await services.declare("later", {"time": {"shape": "int"}, "payload": {"encoding": "json"}})
        with contextlib.suppress(NoPublisher):
            await client.writer("test/later", wait=0).__aenter__()
        writer = await opening
        await writer.__aexit__(None, None, None)


@pytest.mark.rule("E49", "E1")
async def test_work_that_is_done_again_in_another_order_is_refused_and_doubles_nothing(services) -> None:
    """A task that failed runs again; with its rows in another order, it must not hear that they were published."""
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(stream, "query") as query:
        async with client.task_writer(stream, "task", under="query", group=3) as task:
            first = await task.append(0, ["a"])
            await task.append(0, ["b"])
        async with client.task_writer(stream, "task", under="query", group=3) as again:
            assert (await again.append(0, ["a"])).seq == first.seq
            with pytest.raises(RepeatDiffers, match="append 12884901889 of writer 'task'") as refused:
                await again.append(0, ["c"])
            assert (refused.value.writer, refused.value.segment) == ("task", "0")
            assert refused.value.number == (3 << 32) + 1
            await again.append(0, ["d"])
            again.append_nowait(0, ["e"])
            await again.flush()
        async with client.task_writer(stream, "task", under="query", group=3) as again:
            again.append_nowait(0, ["x"])
            with pytest.raises(RepeatDiffers):
                await again.flush()
        await query.finish()
        async with client.subscribe(stream, since="start") as sub:
            (epoch,) = [epoch async for epoch in sub.epochs()]
            assert isinstance(epoch, epochal.Epoch)
            assert list(epoch.records()) == ["a", "b", "d", "e"]


@pytest.mark.rule("E6")
async def test_the_newest_session_of_a_writer_wins(services) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="w") as older:
        await older.append(3, ["older"])
        async with client.writer(stream, writer_id="w") as newer:
            assert newer.pending_epochs == (3,)
            with pytest.raises(WriterFenced):
                await older.append(3, ["fenced"])
            with pytest.raises(WriterFenced):
                await older.flush()
            with pytest.raises(WriterFenced):
                older.append_nowait(3, ["fenced"])
            await newer.append(3, ["newer"])
            await newer.finish()
        assert await delivered(client, stream) == {3: ["newer", "older"]}


@pytest.mark.rule("E6")
async def test_a_fenced_writer_that_was_not_notified_raises_when_it_is_left(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        older = await client.writer(stream, writer_id="w").__aenter__()
        async with client.writer(stream, writer_id="w") as newer:
            await newer.append(0, [1])
        with pytest.raises(WriterFenced):
            await older.__aexit__(None, None, None)


@pytest.mark.rule("E4")
async def test_leaving_by_an_exception_aborts(services) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="holder") as holder:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
            async with client.writer(stream, writer_id="w", linger=5) as writer:
                await asyncio.gather(*(writer.append(t, [t], key=b"k") for t in (0, 1)), writer.advance(1))
                writer.append_nowait(2, ["never sent"])
                raise ZeroDivisionError
        async with client.writer(stream, writer_id="w2") as writer:
            await writer.append(2, [2])
        await holder.finish()
        assert await delivered(client, stream) == {0: [0], 1: ["aborted"], 2: [2]}


@pytest.mark.rule("E1")
async def test_a_move_waits_for_appends_at_every_segment(services) -> None:
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, dedicated=True)
    stopped, _ = services.publishers(stream)
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream) as sub,
    ):
        keys = {writer.segment(bytes([n])): bytes([n]) for n in range(64)}
        await sub.ready.wait()
        os.kill(stopped, signal.SIGSTOP)
        try:
            unacknowledged = asyncio.create_task(writer.append(0, ["slow"], key=keys["0"]))
            await writer.append(0, ["fast"], key=keys["1"])
            moved = asyncio.create_task(writer.advance(1))
            await writer.append(1, ["held still, so it need not wait"], key=keys["1"])
            await asyncio.sleep(0.3)
            async with client.subscribe(stream, settings=None) as late:
                while "1" not in {name for name, s in late._machine._segments.items() if s.began}:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert list(late._machine._segments["1"].lower.frontier) == [0], "the move has reached nobody"
            assert not moved.done()
            assert not unacknowledged.done()
        finally:
            os.kill(stopped, signal.SIGCONT)
        await moved
        assert unacknowledged.done()
        epoch = await anext(sub.epochs())
        assert isinstance(epoch, epochal.Epoch)
        assert sorted(epoch.records()) == ["fast", "slow"]


@pytest.mark.rule("E1")
@pytest.mark.parametrize("linger", [0.0, 5.0])
async def test_no_move_is_sent_after_an_append_that_failed(services, linger: float) -> None:
    stream = await services.stream(history={"retention": {"bytes": "1Mi"}})
    async with epochal.connect(services.url) as client, client.writer(stream, linger=linger) as writer:
        writer.append_nowait(0, [b"x" * (2 << 20)])
        writer.advance_nowait(1)
        with pytest.raises(epochal.errors.EpochTooLarge):
            await writer.flush()
        assert writer.held == (0,)
        awaited = asyncio.create_task(writer.append(0, [b"x" * (2 << 20)]))
        await asyncio.sleep(0)
        with pytest.raises(epochal.errors.EpochTooLarge):
            await writer.advance(1)
        with pytest.raises(epochal.errors.EpochTooLarge):
            await awaited
        assert writer.held == (0,)
        await writer.advance(1)  # told twice that it failed, the application may go on


@pytest.mark.rule("S35")
async def test_hold_and_release_in_product_order(services) -> None:
    stream = await services.stream(shape="(int, int)", segments=2)
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        async with client.writer(stream) as writer:
            await sub.ready.wait()
            await writer.hold((0, 3))
            await writer.hold((2, 0))
            await writer.release((0, 0))
            assert set(writer.held) == {(0, 3), (2, 0)}
            with pytest.raises(CapabilityError):
                await writer.append((1, 2), [1])
            with pytest.raises(CapabilityError, match="does not hold"):
                await writer.release((7, 7))
            await writer.append((1, 3), ["a"])
            await writer.append((2, 1), ["b"])
            await writer.release((0, 3))
            epoch = await anext(sub.epochs())
            assert epoch.time == (1, 3)
            with pytest.raises(CapabilityError, match="last capability"):
                await writer.release((2, 0))
            await writer.finish()
        assert [epoch.time async for epoch in sub.epochs()] == [(2, 1)]


@pytest.mark.rule("S34")
async def test_times_of_the_users_own(services) -> None:
    stream = await services.stream(shape="(int, int)")
    codec: TimeCodec[str] = TimeCodec(
        encode=lambda text: tuple(map(int, text.split(":"))),
        decode=lambda time: ":".join(map(str, time)),  # type: ignore[arg-type]
    )
    async with epochal.connect(services.url) as client, client.subscribe(stream, time_codec=codec) as sub:
        await sub.ready.wait()
        async with client.writer(stream, time_codec=codec) as writer:
            assert writer.held == ("0:0",)
            await writer.append("7:30", [1])
            assert writer.pending_epochs == ("7:30",)
            await writer.advance("8:0")
            assert writer.held == ("8:0",)
            epoch = await anext(sub.epochs())
            assert epoch.time == "7:30"
            assert sub.frontier() == ("8:0",)
            assert sub.saw_whole("7:31")
            assert not sub.saw_whole("8:0")


async def test_batches_by_linger_and_size(services) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with client.writer(stream, linger=0.05, max_batch=8) as writer:
            for n in range(20):
                writer.append_nowait(0, [n], key=b"k")
            position = await writer.append(0, [20], key=b"k")
            assert position.seq == 2, "20 records are two full batches and a part"
            writer.append_nowait(0, ["other"], key=b"k", topic=b"t")
            await writer.advance(1)
            epoch = await anext(sub.epochs())
            assert isinstance(epoch, epochal.Epoch)
            assert [batch.count for batch in epoch.batches] == [8, 8, 5, 1]
            assert list(epoch.records()) == [*range(21), "other"]
        async with client.writer(stream, linger=0.01) as writer:
            for _ in range(20):
                writer.append_nowait(1, [b"x" * (1 << 20)])
            await writer.advance(2)
            epoch = await anext(sub.epochs())
            assert isinstance(epoch, epochal.Epoch)
            assert (epoch.count, len(epoch.batches)) == (20, 2), "too large for one append, so it is halved"


@pytest.mark.rule("E1")
@pytest.mark.parametrize("sizes", [(15, 2), (2, 15)], ids=["its first", "its last"])
async def test_a_divided_batch_fails_with_any_part_of_it(services, sizes: tuple[int, int]) -> None:
    stream = await services.stream(history={"retention": {"bytes": "4Mi"}})
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with client.writer(stream, linger=0.001) as writer:
            with pytest.raises(EpochTooLarge):
                await writer.append(0, [b"x" * (size << 20) for size in sizes])
            await writer.advance(1)  # its caller was told
            assert not writer.session._parts
        epoch = await anext(sub.epochs())
        assert isinstance(epoch, epochal.Epoch)
        assert [len(record) for record in epoch.records()] == [2 << 20], "the other part is there"


async def test_a_divided_batch_is_acknowledged_with_its_last_part(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(stream, linger=0.001) as writer:
        appending = [asyncio.create_task(writer.append(0, [b"x" * (9 << 20)])) for _ in range(2)]
        positions = await asyncio.gather(*appending)
        assert positions[0] == positions[1]
        assert (await writer.append(0, [b"x"])).seq == positions[0].seq + 1
        assert not writer.session._parts


async def test_appends_faster_than_they_are_taken(services) -> None:
    stream = await services.stream(dedicated=True)
    (publisher,) = services.publishers(stream)
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        os.kill(publisher, signal.SIGSTOP)
        try:
            with pytest.raises(BufferFull, match="await"):  # noqa: PT012 - which of them meets it is a matter of time
                for _ in range(40):
                    writer.append_nowait(0, [b"x" * (4 << 20)])
            waiting = asyncio.create_task(writer.append(0, [1]))
            await asyncio.sleep(0.1)
            assert not waiting.done()
        finally:
            os.kill(publisher, signal.SIGCONT)
        await writer.flush()
        await waiting


@pytest.mark.rule("E5")
async def test_nothing_completes_before_enough_writers_have_opened(services) -> None:
    stream = await services.stream(segments=2, progress={"minWriters": 2})
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with client.writer(stream, writer_id="a") as first:
            await first.append(0, [1])
            await first.advance(5)
            async with client.writer(stream, writer_id="a2") as again:
                assert again.held == (0,), "the writer that is missed can still begin at the bottom"
                await again.advance(5)
                async with asyncio.timeout(PATIENCE):
                    epoch = await anext(sub.epochs())
                assert epoch.time == 0
        async with client.writer(stream, writer_id="b") as third:
            assert third.held == (5,), "a parked capability is taken over where it was"


@pytest.mark.rule("E5")
async def test_a_writer_opens_at_what_all_segments_can_give(services) -> None:
    stream = await services.stream(segments=3)
    async with epochal.connect(services.url) as client:
        async with client.writer(stream) as writer:
            await writer.append(1, ["one segment only"], key=b"JFK")
            await writer.advance(4)
        async with client.writer(stream) as writer:
            assert writer.held == (4,)
            await writer.finish()
        assert await delivered(client, stream) == {1: ["one segment only"]}


@pytest.mark.rule("E7")
async def test_a_stream_is_complete_when_every_writer_has_finished(services) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as client:
        async with client.writer(stream, writer_id="a") as a, client.writer(stream, writer_id="b") as b:
            await a.append(0, ["a"], key=b"1")
            await a.finish()
            await b.append(1, ["b"], key=b"2")
            async with client.writer(stream, writer_id="c") as c:
                await b.finish()
                await c.append(2, ["an open before completion cancels it"])
                await c.finish()
        assert await delivered(client, stream) == {0: ["a"], 1: ["b"], 2: ["an open before completion cancels it"]}
        info = await client.catalog.get(*stream.split("/"))
        assert info.phase == "Complete"
        with pytest.raises(StreamComplete):
            await client.writer(stream, writer_id="d").__aenter__()


@pytest.mark.rule("E6")
async def test_a_group_that_runs_again_is_published_once(services) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="query") as query:

        async def task(group: int) -> None:
            async with client.task_writer(stream, writer_id="query/0", under="query", group=group) as writer:
                with pytest.raises(CapabilityError, match="holds nothing"):
                    await writer.advance(9)
                for n in range(3):
                    writer.append_nowait(group, [(group, n)], key=bytes([n]))
                await writer.flush()

        await task(1)
        await task(1)
        await query.advance(2)
        await task(2)
        await task(2)
        await query.finish()
        assert await delivered(client, stream) == {g: [[g, n] for n in range(3)] for g in (1, 2)}


@pytest.mark.rule("E3")
@pytest.mark.parametrize("pipelined", [False, True])
async def test_a_writer_lost_at_one_segment_opens_again_by_itself(services, pipelined: bool) -> None:
    stream = await services.stream(segments=2, progress={"writerTimeout": "2s"})
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="holder") as holder:
        async with client.writer(stream, writer_id="w") as writer:
            keys = {writer.segment(bytes([n])): bytes([n]) for n in range(64)}
            await writer.append(1, ["lost"], key=keys["0"])
            await writer.append(1, ["lost"], key=keys["1"])
            link, send = writer.session._links["0"], writer.session._links["0"].send
            link.send = lambda message: None if isinstance(message, Alive) else send(message)  # type: ignore[method-assign]
            async with asyncio.timeout(PATIENCE):
                while writer.session._reopening is None:  # noqa: ASYNC110 - no event announces it
                    await asyncio.sleep(0.02)
            with pytest.raises(WriterLost):
                await (writer.flush() if pipelined else writer.append(1, ["again"]))
            await writer.flush()
            await writer.append(2, ["kept"], key=keys["0"])
        await holder.finish()
        assert await delivered(client, stream) == {1: ["aborted"], 2: ["kept"]}


@pytest.mark.rule("E3")
async def test_a_writer_lost_everywhere_opens_again(services) -> None:
    stream = await services.stream(segments=3, progress={"writerTimeout": "1s"})
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="w") as writer:
        for lost in range(2):
            await writer.append(lost, ["lost"], key=b"a")
            held, session = writer.held, writer.session.machine.session
            for link in writer.session._links.values():
                link.send = lambda message: None  # type: ignore[method-assign]  # nothing is sent any more
            async with asyncio.timeout(PATIENCE):
                while writer.session.machine.session == session:  # noqa: ASYNC110 - no event announces it
                    await asyncio.sleep(0.02)
            assert writer.held == held != (), "of the new session nothing is known yet"
            for link in writer.session._links.values():
                del link.send
                link.lose(epochal.errors.Unavailable("what was not sent is gone"))
            with pytest.raises(WriterLost):
                await writer.append(lost, ["again"])
        await writer.append(2, ["kept"])
        await writer.finish()
        assert (await delivered(client, stream))[2] == ["kept"]


@pytest.mark.clock
async def test_a_writer_comes_back_often_enough_not_to_be_given_up(services) -> None:
    """However long a publisher was away: behind a growing pause of five seconds it would wait for nobody (E3)."""
    stream, tries, twelfth = await services.stream(progress={"writerTimeout": "600ms"}), list[str](), asyncio.Event()

    async def reach(address: str) -> str:
        tries.append(address)
        if len(tries) == 12:
            twelfth.set()
        raise Unavailable("there is no way at present")

    async with epochal.connect(services.url, reach=reach) as client:
        opening = asyncio.create_task(client.writer(stream, wait=PATIENCE).__aenter__())
        began = asyncio.get_running_loop().time()
        await twelfth.wait()
        took = asyncio.get_running_loop().time() - began
        assert took < 10, "with pauses that grow to five seconds it takes 13 at least"
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening


async def test_a_cancelled_append_leaves_nothing_behind(services) -> None:
    stream = await services.stream(dedicated=True)
    (publisher,) = services.publishers(stream)
    before = len(asyncio.all_tasks())
    async with epochal.connect(services.url) as client:
        os.kill(publisher, signal.SIGSTOP)
        try:
            opening = asyncio.create_task(client.writer(stream).__aenter__())
            await asyncio.sleep(0.2)
            opening.cancel()
            await asyncio.wait([opening], timeout=PATIENCE)
            assert opening.cancelled()
            assert len(asyncio.all_tasks()) == before
        finally:
            os.kill(publisher, signal.SIGCONT)
        async with client.writer(stream) as writer:
            os.kill(publisher, signal.SIGSTOP)
            try:
                for cancelled in (writer.append(0, [1]), writer.advance(1), writer.flush()):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.1):
                            await cancelled
            finally:
                os.kill(publisher, signal.SIGCONT)
            await writer.flush()
            assert not writer.session._futures
        assert len(asyncio.all_tasks()) == before


@pytest.mark.rule("E4")
async def test_a_writer_that_is_cancelled_aborts(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="holder") as holder:
        appended = asyncio.Event()

        async def publish() -> None:
            async with client.writer(stream, writer_id="w") as writer:
                await writer.append(0, [1])
                appended.set()
                await asyncio.Event().wait()

        publishing = asyncio.create_task(publish())
        await appended.wait()
        publishing.cancel()
        await asyncio.wait([publishing])
        await holder.finish()
        assert await delivered(client, stream) == {0: ["aborted"]}


@pytest.mark.rule("S26")
async def test_a_stream_deleted_while_it_is_written(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        writer = await client.writer(stream).__aenter__()
        await writer.append(0, [1])
        await services.delete(stream)
        await services.declare(
            stream.removeprefix("test/"), {"time": {"shape": "int"}, "payload": {"encoding": "json"}}
        )
        with pytest.raises(StreamGone, match="deleted"):  # noqa: PT012 - which of them meets it is a matter of time
            async with asyncio.timeout(PATIENCE):
                while True:
                    await writer.append(0, [1])
        await writer.__aexit__(None, None, None)  # it was told
        with pytest.raises(StreamGone, match="deleted"):  # noqa: PT012 - which of them meets it is a matter of time
            async with asyncio.timeout(PATIENCE):
                async for _ in sub.epochs():
                    pass


async def test_the_catalog_forgets_a_writer_without_an_id_when_it_has_closed(services) -> None:
    stream = await services.stream()
    namespace, name = stream.split("/")
    async with epochal.connect(services.url) as client:
        async with client.writer(stream, "named") as writer:
            await writer.append(0, ["x"])
        async with client.writer(stream) as writer:
            await writer.append(0, ["x"])
            assert len(await client.catalog.writers(namespace, name)) == 2
        assert [each.writer for each in await client.catalog.writers(namespace, name)] == ["named"]

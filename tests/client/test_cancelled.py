"""Calls that are cancelled: nothing is left half-open, and what nobody was told is told to the next who asks."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.frontiers import reaches
from tests.patience import PATIENCE

import epochal
from epochal.client.writer.segment_writer import SegmentWriter
from epochal.client.writer.session import Session
from epochal.errors import BackgroundTaskEnded, EpochTooLarge, UsageError, WriterLost

LONG_TIMEOUT = {"writerTimeout": "10m"}
"""Nothing that these tests see is the work of a publisher's time-out."""

TOO_LARGE = [b"x" * (2 << 20)]
"""More than a history of 1 MiB takes."""


@pytest.mark.rule("E4")
@pytest.mark.parametrize("by", ["cancellation", "time-out"])
async def test_an_open_that_is_given_up_holds_nothing_back(services, by: str) -> None:
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, progress=LONG_TIMEOUT, dedicated=True)
    _, stopped = services.publishers(stream)
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as holder,
        client.subscribe(stream) as sub,
    ):
        await sub.ready.wait()
        os.kill(stopped, signal.SIGSTOP)
        try:
            writer = client.writer(stream)
            if by == "time-out":
                # It is to end, mostly with segment 0 open, and just as the handshake with segment 1 is given up.
                writer.session._options = replace(writer.session._options, open_timeout=2.0)
            opening = asyncio.create_task(writer.__aenter__())
            session = writer.session
            async with asyncio.timeout(PATIENCE):
                while not opening.done() and not (session._machine and session.machine.is_open_at("0")):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            if by == "cancellation":
                opening.cancel()
            with pytest.raises((asyncio.CancelledError, epochal.errors.TimedOut)):
                await opening
        finally:
            os.kill(stopped, signal.SIGCONT)
        await holder.advance(5)
        await reaches(sub, 5)


@pytest.mark.rule("E6")
async def test_an_open_that_is_given_up_keeps_what_an_earlier_session_left(services) -> None:
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, progress=LONG_TIMEOUT, dedicated=True)
    _, stopped = services.publishers(stream)
    async with epochal.connect(services.url) as client, client.writer(stream) as holder:
        async with client.writer(stream, "w") as earlier:
            await earlier.append(3, ["kept"])
            earlier.detach()
        os.kill(stopped, signal.SIGSTOP)
        try:
            writer = client.writer(stream, "w")
            opening = asyncio.create_task(writer.__aenter__())
            async with asyncio.timeout(PATIENCE):
                while writer.session._machine is None or not writer.session.machine.is_open_at("0"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            opening.cancel()
            await asyncio.wait([opening])
        finally:
            os.kill(stopped, signal.SIGCONT)
        await holder.finish()
        async with client.writer(stream, "w") as later:
            assert later.pending_epochs == (3,)
            await later.finish()
        async with client.subscribe(stream, since="start") as sub:
            (epoch,) = [epoch async for epoch in sub.epochs()]
            assert isinstance(epoch, epochal.Epoch)
            assert list(epoch.records()) == ["kept"]


@pytest.mark.rule("E4")
@pytest.mark.parametrize("how", ["close", "finish"])
async def test_leaving_that_was_cancelled_goes_on_at_the_end_of_the_block(services, how: str) -> None:
    stream = await services.stream(dedicated=True)
    (publisher,) = services.publishers(stream)
    async with epochal.connect(services.url) as client, client.subscribe(stream, since="start") as sub:
        async with client.writer(stream) as writer:
            await writer.append(0, ["whole"])
            os.kill(publisher, signal.SIGSTOP)
            try:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await getattr(writer, how)()
            finally:
                os.kill(publisher, signal.SIGCONT)
            if how == "finish":
                await writer.finish()
        if how == "close":
            async with client.writer(stream) as writer:
                await writer.finish()
        (epoch,) = [epoch async for epoch in sub.epochs()]
        assert isinstance(epoch, epochal.Epoch)
        assert list(epoch.records()) == ["whole"]


@pytest.mark.rule("E1")
@pytest.mark.parametrize(
    ("linger", "told_by"),
    [(0.0, "advance"), (0.0, "close"), (0.01, "flush"), (0.01, "the end of the block"), (60.0, "advance")],
)
async def test_the_failure_of_a_cancelled_append_is_reported(services, linger: float, told_by: str) -> None:
    stream = await services.stream(history={"retention": {"bytes": "1Mi"}}, dedicated=True)
    (publisher,) = services.publishers(stream)
    told = pytest.raises(EpochTooLarge)
    async with epochal.connect(services.url) as client:
        with told if told_by == "the end of the block" else contextlib.nullcontext():
            async with client.writer(stream, linger=linger) as writer:
                os.kill(publisher, signal.SIGSTOP)
                try:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.1):
                            await writer.append(0, TOO_LARGE)
                finally:
                    os.kill(publisher, signal.SIGCONT)
                if told_by == "flush":
                    with told:
                        await writer.flush()
                elif told_by == "advance":
                    with told:
                        await writer.advance(1)
                    assert writer.held == (0,)
                elif told_by == "close":
                    with told:
                        await writer.close()


async def test_a_subscription_that_failed_before_it_was_ready_says_so(services) -> None:
    stream = await services.stream(dedicated=True)
    (publisher,) = services.publishers(stream)
    async with epochal.connect(services.url) as client:
        os.kill(publisher, signal.SIGSTOP)
        try:
            async with client.subscribe(stream) as sub:
                with pytest.raises(UsageError, match="ready"):
                    sub.frontier()
        finally:
            os.kill(publisher, signal.SIGCONT)
        await sub.ready.wait()
        with pytest.raises(UsageError, match="left"):
            sub.frontier()
        with pytest.raises(UsageError, match="left"):
            sub.cursor()
        async with client.subscribe(stream) as sub:
            await sub.ready.wait()
        assert sub.frontier() == (0,), "where it stood when it was left"


# ---- tasks of the client that something else cancels ----


def cancel_all(but: "asyncio.Task[Any] | None") -> None:
    """What test frameworks do between two tests, and programs that tidy up."""
    for task in asyncio.all_tasks() - {but}:
        task.cancel()


async def _flush(writer: epochal.Writer) -> None:
    writer.append_nowait(writer.held[0], ["x"])
    await writer.flush()


CALLS: tuple[Callable[[epochal.Writer], Awaitable[Any]], ...] = (
    lambda writer: writer.append(writer.held[0], ["x"]),
    _flush,
    lambda writer: writer.hold(writer.held[0] + 1),
    lambda writer: writer.abort(writer.held[0]),
    lambda writer: writer.advance(writer.held[0] + 1),
    lambda writer: writer.close(),
    lambda writer: writer.finish(),
)


async def write(writer: epochal.Writer, *calls: Callable[[epochal.Writer], Awaitable[Any]], waits: bool) -> None:
    """Open the writer, have all tasks cancelled, and make the calls, to publishers that do not answer if `waits`."""
    async with writer:
        await writer.append(writer.held[0] + 1, ["before"])
        if waits:
            for link in writer.session._links.values():
                assert link._socket is not None
                link._socket.pause()
            asyncio.get_running_loop().call_later(0.01, cancel_all, asyncio.current_task())
        else:
            cancel_all(asyncio.current_task())
        for call in calls:
            await call(writer)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_writer_whose_tasks_are_cancelled_says_so_at_once(services, waits: bool) -> None:
    """Before the call, and while it waits for a publisher that does not answer."""
    stream = await services.stream(segments=2)
    async with asyncio.timeout(PATIENCE), epochal.connect(services.url) as client:
        for linger in (0.01, 0.0):
            for call in CALLS if not linger else CALLS[:2]:
                with pytest.raises(BackgroundTaskEnded, match=r"writer '.*' of .* was cancelled"):
                    await write(client.writer(stream, linger=linger), call, waits=waits)


async def test_a_block_whose_tasks_were_cancelled_and_that_calls_nothing_more_ends_with_that(services) -> None:
    stream = await services.stream()
    async with asyncio.timeout(PATIENCE), epochal.connect(services.url) as client:
        with pytest.raises(BackgroundTaskEnded):
            await write(client.writer(stream), waits=False)


async def test_a_writer_whose_tasks_are_cancelled_while_it_opens_again_says_so(
    services, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, asked = await services.stream(), asyncio.Event()
    async with asyncio.timeout(PATIENCE), epochal.connect(services.url) as client:

        async def never(_: Session) -> Any:
            asked.set()
            await asyncio.Event().wait()

        async def opens_again(writer: epochal.Writer) -> None:
            async with writer:
                monkeypatch.setattr(Session, "_take_number", never)
                writer.session.fail(WriterLost("a publisher has given it up"))
                await asked.wait()
                asyncio.get_running_loop().call_soon(cancel_all, asyncio.current_task())
                await writer.append(1, ["x"])

        with pytest.raises(BackgroundTaskEnded):
            await opens_again(client.writer(stream))


async def test_a_background_task_that_fails_is_named_by_what_waits_for_it(
    services, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await services.stream()
    async with asyncio.timeout(PATIENCE), epochal.connect(services.url) as client:

        def fails(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        async def meets_it(writer: epochal.Writer) -> None:
            async with writer:
                monkeypatch.setattr(SegmentWriter, "check", fails)
                for link in writer.session._links.values():
                    assert link._socket is not None
                    link._socket.pause()
                await writer.append(1, ["x"])

        with pytest.raises(BackgroundTaskEnded, match=r"failed: ZeroDivisionError\('a bug'\)") as caught:
            await meets_it(client.writer(stream))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def until_it_raises(call: Callable[[epochal.Subscription], Awaitable[Any]], sub: epochal.Subscription) -> None:
    """What was there before is read first."""
    while True:
        await call(sub)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_subscription_whose_tasks_are_cancelled_gives_what_it_has_and_says_so(services, waits: bool) -> None:
    stream = await services.stream(segments=2, push={"initialFilter": "none"})
    calls: tuple[Callable[[epochal.Subscription], Awaitable[Any]], ...] = (
        lambda sub: anext(sub.epochs()),
        lambda sub: anext(sub.events()),
        lambda sub: sub.change(topics=[b"b"]),
    )
    async with asyncio.timeout(PATIENCE), epochal.connect(services.url) as client:
        for call in calls:
            async with client.subscribe(stream, topics=[b"a"]) as sub:
                await sub.ready.wait()
                if waits:
                    for link in sub._links:
                        link.pause()  # nothing comes any more
                    asyncio.get_running_loop().call_later(0.01, cancel_all, asyncio.current_task())
                else:
                    cancel_all(asyncio.current_task())
                for _ in range(2):
                    with pytest.raises(BackgroundTaskEnded, match=r"the subscription to .* was cancelled"):
                        await until_it_raises(call, sub)


async def test_a_call_to_the_catalog_goes_on_where_its_connections_tasks_are_cancelled(services) -> None:
    url = services.url.replace("127.0.0.1", "localhost")  # a name is looked up in a task of its own
    async with asyncio.timeout(PATIENCE), epochal.connect(url) as client:
        for _ in range(3):
            for delay in range(20):
                loop = asyncio.get_running_loop()
                loop.call_later(delay / 5_000, cancel_all, asyncio.current_task())
            assert await client.catalog.revision() > 0
            await client.catalog.close()


async def test_a_blocking_client_whose_tasks_are_cancelled_says_so_and_opens_again(services) -> None:
    stream = await services.stream()

    class Codec:
        cancels = False

        def encode(self, time: int) -> int:
            if self.cancels:
                self.cancels = False
                cancel_all(None)
            return time

        def decode(self, time: Any) -> int:
            return int(time)

    def work() -> epochal.Position:
        codec = Codec()
        with epochal.connect_blocking(services.url) as client:
            writer = client.writer(stream, time_codec=codec)  # type: ignore[arg-type]  # without its other half
            writer.__enter__()
            writer.append(0, ["x"])
            codec.cancels = True
            with pytest.raises(BackgroundTaskEnded, match="this call was cancelled"):
                writer.append(1, ["y"])
            for call in (lambda: writer.append(1, ["y"]), lambda: writer.advance(2)):
                with pytest.raises(BackgroundTaskEnded, match="writer"):
                    call()
            writer.__exit__(None, None, None)
            with client.writer(stream) as writer:
                return writer.append(7, ["z"])

    assert (await asyncio.to_thread(work)).seq > 0

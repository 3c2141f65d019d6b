"""Calls that are cancelled: nothing is left half-open, and what nobody was told is told to the next who asks."""

import asyncio
import contextlib
import os
import signal
from dataclasses import replace

import pytest
from tests.frontiers import reaches
from tests.patience import PATIENCE

import epochal
from epochal.errors import EpochTooLarge, UsageError

LONG_TIMEOUT = {"writerTimeout": "10m"}
"""Nothing that these tests see is the work of a publisher's time-out."""

TOO_LARGE = [b"x" * (2 << 20)]
"""More than a history of 1 MiB takes."""


@pytest.mark.rule("E4")
@pytest.mark.parametrize("by", ["cancellation", "time-out"])
async def test_an_open_that_is_given_up_holds_nothing_back(services, by: str) -> None:
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, progress=LONG_TIMEOUT)
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
                # By then segment 0 is open, on a busy machine too.
                writer.session._options = replace(writer.session._options, open_timeout=2.0)
            opening = asyncio.create_task(writer.__aenter__())
            async with asyncio.timeout(PATIENCE):
                while writer.session._machine is None or not writer.session.machine.is_open_at("0"):  # noqa: ASYNC110
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
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, progress=LONG_TIMEOUT)
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
    stream = await services.stream()
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
async def test_the_failure_of_an_append_that_was_cancelled_is_told(services, linger: float, told_by: str) -> None:
    stream = await services.stream(history={"retention": {"bytes": "1Mi"}})
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
    stream = await services.stream()
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

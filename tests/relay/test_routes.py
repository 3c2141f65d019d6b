"""Subscriptions that find a real relay in the catalog, and go elsewhere when it stops or its publisher does."""

import asyncio
import itertools
import os
import signal

import pytest
from tests.patience import PATIENCE
from tests.relay.conftest import Relays

import epochal

WRITER = "w"
"""The name of every writer: a publisher that starts again does not wait for one that will not come back."""


async def listed(client: epochal.Client, stream: str, count: int) -> None:
    """Wait until so many relays are ready."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await client.catalog.relays(*stream.split("/"))
            if sum(relay.state == "ready" for relay in found) == count:
                return
            await asyncio.sleep(0.05)


async def reads(client: epochal.Client, stream: str, sub: epochal.Subscription, times: range) -> None:
    """Publish epochs, and read each once, in order."""
    async with client.writer(stream, writer_id=WRITER) as writer, asyncio.timeout(PATIENCE):
        for time in times:
            await writer.append(time, [time])
            await writer.advance(time + 1)
        for time in times:
            epoch = await anext(sub.epochs())
            assert isinstance(epoch, epochal.Epoch)
            assert epoch.time == time


async def comes_back(client: epochal.Client, stream: str, reading: "asyncio.Task[object]") -> None:
    """Publish an epoch after the other until a reader, which joins at some moment, is given one."""
    async with client.writer(stream, writer_id=WRITER) as writer, asyncio.timeout(PATIENCE):
        for time in itertools.count(10):
            await writer.append(time, [time])
            await writer.advance(time + 1)
            await asyncio.wait([reading], timeout=0.05)
            if reading.done():
                break
    assert isinstance(await reading, epochal.Epoch)


@pytest.mark.rule("F13")
@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_who_loses_its_relay_goes_on_elsewhere(services, relays: Relays, how: str) -> None:
    stream = await services.stream(segments=2)
    relay = await relays.start(stream, "eu")
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream, via="relay:eu") as sub,
        client.subscribe(stream) as auto,
    ):
        for reader in (sub, auto):
            await reader.ready.wait()
            assert set(reader.via.values()) == {"relay:eu"}
        await reads(client, stream, sub, range(20))
        assert [(await anext(auto.epochs())).time for _ in range(20)] == list(range(20))
        other = await relays.start(stream, "eu")
        await listed(client, stream, 2)
        await (relay.stop() if how == "stopped" else relay.kill())
        await reads(client, stream, sub, range(20, 40))
        assert [(await anext(auto.epochs())).time for _ in range(20)] == list(range(20, 40))
        assert set(sub.via.values()) == set(auto.via.values()) == {"relay:eu"}
        await other.kill()
        await reads(client, stream, auto, range(40, 60))
        assert set(auto.via.values()) == {"direct"}


@pytest.mark.rule("F13")
async def test_a_publisher_that_starts_again_keeps_readers_at_their_relay(services, relays: Relays) -> None:
    stream = await services.stream(dedicated=True)
    await relays.start(stream, "eu")
    async with epochal.connect(services.url) as client, client.subscribe(stream, via="relay:eu") as sub:
        await sub.ready.wait()
        await reads(client, stream, sub, range(5))
        (publisher,) = services.publishers(stream)
        os.kill(publisher, signal.SIGKILL)
        await comes_back(client, stream, asyncio.create_task(anext(sub.epochs())))
        assert sub.via == {"0": "relay:eu"}

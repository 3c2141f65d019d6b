"""Readers of a relay are given what the publisher's readers are."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest
from tests.relay.conftest import Relay, Relays

import epochal
from epochal.catalog_api.answers import RelayInfo
from epochal.client.catalog.catalog import CatalogClient

T = TypeVar("T")
KEYS = (b"1", b"2", b"3")


async def publish(writer: epochal.Writer, times: range) -> None:
    """Of each time, both topics under each key."""
    for time in times:
        for topic in (b"a", b"b"):
            for key in KEYS:
                await writer.append(time, [time], topic=topic, key=key)
        await writer.advance(time + 1)


async def reasons(sub: epochal.Subscription) -> AsyncIterator[str]:
    """Why connections were lost."""
    async for event in sub.events():
        if isinstance(event, epochal.SegmentDown):
            yield event.reason


def lead_to(sub: epochal.Subscription, relay: Relay) -> None:
    """Have a subscription that is not opened yet find the relay where it looks for publishers."""

    async def addresses(segment: str, *sockets: str) -> list[str]:
        return [relay.addresses[socket] for socket in sockets]

    sub.directory.addresses = addresses  # type: ignore[method-assign]


@pytest.mark.rule("E24", "N18")
async def test_epochs_come_whole_and_only_of_the_topics_that_are_wanted(services, relays: Relays) -> None:
    stream = await services.stream(segments=2, push={"initialFilter": "none"})
    relay = await relays.start(stream)
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="w") as writer:
        some, every = client.subscribe(stream, topics=[b"a"]), client.subscribe(stream)
        for sub in (some, every):
            lead_to(sub, relay)
        async with some, every, asyncio.timeout(60):
            await asyncio.gather(some.ready.wait(), every.ready.wait())
            await publish(writer, range(50))
            await writer.finish()
            for sub, topics in ((some, 1), (every, 2)):
                epochs = [epoch async for epoch in sub.epochs()]
                assert [epoch.time for epoch in epochs] == list(range(50))
                assert {len(epoch.batches) for epoch in epochs if isinstance(epoch, epochal.Epoch)} == {3 * topics}


async def listed(services, stream: str) -> tuple[RelayInfo, ...]:
    async with CatalogClient(services.url) as catalog:
        return await catalog.relays(*stream.split("/"))


async def eventually(look: Callable[[], Awaitable[T]]) -> T:
    """The first answer that is not empty."""
    async with asyncio.timeout(60):
        while not (found := await look()):
            await asyncio.sleep(0.05)  # noqa: ASYNC110 - nothing tells when another process has got so far
        return found


@pytest.mark.rule("F13")
async def test_a_relay_that_is_stopped_leaves_the_catalog_and_tells_its_readers(services, relays: Relays) -> None:
    stream = await services.stream()
    relay = await relays.start(stream)

    async def is_ready() -> bool:
        return [each.state for each in await listed(services, stream)] == ["ready"]

    await eventually(is_ready)
    async with epochal.connect(services.url) as client:
        sub = client.subscribe(stream)
        lead_to(sub, relay)
        async with sub, asyncio.timeout(60):
            await sub.ready.wait()
            await relay.stop()
            assert "the relay stops" in await asyncio.wait_for(anext(reasons(sub)), 30)
    assert not await listed(services, stream)


@pytest.mark.rule("E48")
async def test_a_relay_ends_when_its_stream_is_deleted(services, relays: Relays) -> None:
    stream = await services.stream()
    relay = await relays.start(stream)
    await services.delete(stream)
    async with asyncio.timeout(60):
        assert await relay.child.ended() == 0
    assert "was deleted" in relay.log.read_text()

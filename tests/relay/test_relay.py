"""Readers of a relay are given what the publisher's readers are."""

import asyncio

import pytest
from tests.relay.conftest import Relay, Relays

import epochal

KEYS = (b"1", b"2", b"3")


async def publish(writer: epochal.Writer, times: range) -> None:
    """Of each time, both topics under each key."""
    for time in times:
        for topic in (b"a", b"b"):
            for key in KEYS:
                await writer.append(time, [time], topic=topic, key=key)
        await writer.advance(time + 1)


def lead_to(sub: epochal.Subscription, relay: Relay) -> None:
    """Have a subscription that is not opened yet find the relay where it looks for publishers."""

    async def address(segment: str, socket: str) -> str:
        return relay.addresses[socket]

    sub.directory.address = address  # type: ignore[method-assign]


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

"""Subscriptions as the catalog knows them: one by one, with their reports, withdrawn with their reader."""

import asyncio
import gc
import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.catalog_api.answers import StreamInfo, SubscriptionInfo
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.subscriber.lease import Announcement
from epochal.errors import CatalogUnavailable, UsageError

Known = tuple[SubscriptionInfo, ...]


async def known(
    catalog: CatalogClient, stream: str, until: Callable[[Known], bool], seconds: float = PATIENCE
) -> Known:
    """The subscriptions of a stream, asked for until they are as wanted."""
    async with asyncio.timeout(seconds):
        while not until(found := await catalog.subscriptions(*stream.split("/"))):  # noqa: ASYNC110 - asked, as people do
            await asyncio.sleep(0.05)
    return found


@pytest.mark.rule("S31")
async def test_two_subscriptions_of_one_program_are_two(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        async with client.subscribe(stream), client.subscribe(stream, subscriber="second"):
            first, second = sorted(
                await known(client.catalog, stream, lambda found: len(found) == 2),
                key=lambda one: one.subscriber == "second",
            )
            assert first.id != second.id
            assert first.subscriber.endswith(f"/{os.getpid()}")
            assert second.subscriber == "second"
        assert await client.catalog.subscriptions(*stream.split("/")) == ()


async def test_leaving_while_it_is_made_known_withdraws_it(services, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        entered, subscribed = asyncio.Event(), client._background.subscribed

        async def slowly(*arguments: Any) -> Any:
            lease = await subscribed(*arguments)
            entered.set()
            await asyncio.sleep(0.1)
            return lease

        monkeypatch.setattr(client._background, "subscribed", slowly)
        async with client.subscribe(stream):
            await entered.wait()
        assert await client.catalog.subscriptions(*stream.split("/")) == ()


async def test_a_leave_that_is_interrupted_leaves_no_word_behind() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    asked, cut = asyncio.Event(), asyncio.Event()

    class Catalog(CatalogClient):
        async def subscribed(self, *_: Any, **__: Any) -> Any:
            asked.set()
            await cut.wait()
            raise CatalogUnavailable("cut")

    stream = StreamInfo("demo", "x", "1", 1, "Ready", {})
    announcement = Announcement(Catalog("http://127.0.0.1:1"), stream, "reader", lambda: (None, {}))
    running = asyncio.create_task(announcement.run())
    await asked.wait()
    running.cancel()
    await asyncio.wait([running])
    cut.set()
    await asyncio.sleep(0.01)
    del running, announcement
    gc.collect()
    assert said == []


async def test_an_unusable_name_is_refused() -> None:
    async with epochal.connect("http://127.0.0.1:1") as client:
        for name in ("", "x" * 254, "clear\x1b[2J"):
            with pytest.raises(UsageError, match="subscriber= is 1 to 253 printable"):
                client.subscribe("test/any", subscriber=name)
            for make in (client.writer, client.capability_writer):
                with pytest.raises(UsageError, match="writer_id= is 1 to 253 printable"):
                    make("test/any", name)


@pytest.mark.rule("S30")
async def test_a_lapsed_subscription_is_entered_again_and_reports(services, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await services.stream()
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream, since="start") as sub,
    ):
        often(client, monkeypatch)
        (old,) = await known(client.catalog, stream, lambda found: len(found) == 1)
        await writer.append(1, ["x"])
        await writer.advance(3)
        await anext(sub.epochs())
        announcement = sub._announcement
        assert announcement is not None
        assert announcement._lease is not None
        # As the catalog does when a lease lapses.
        await client.catalog.unsubscribe(announcement._lease.id, announcement._lease.token)
        (new,) = await known(client.catalog, stream, lambda found: len(found) == 1 and bool(found[0].counters))
        assert new.id != old.id
        assert dict(new.counters) == {
            "gaps": 0,
            "healed": 0,
            "epochs": 1,
            "aborted": 0,
            "damaged": 0,
            "received_records": 1,
            "received_bytes": 3,
            "unwanted_bytes": 0,
            "firehose_bytes": 0,
            "relayed": 0,
            "waiting_bytes": 0,
            "waiting_epochs": 0,
            "waiting_seconds": 0.0,
            "wrong_addresses": 0,
        }
        assert new.lower == (3,)


@pytest.mark.rule("F2", "F10")
@pytest.mark.parametrize("initial", ["firehose", "none"])
async def test_a_subscription_reports_what_was_sent_to_it_for_nothing(services, monkeypatch, initial) -> None:
    stream = await services.stream(push={"initialFilter": initial}, payload={"encoding": "bytes"})
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream, topics=[b"a"]) as sub,
    ):
        often(client, monkeypatch)
        await sub.ready.wait()
        for topic in (b"a", b"b", b"c"):
            await writer.append(1, [b"12345"], topic=topic)
        await writer.advance(2)
        await anext(sub.epochs())
        count = 1 if initial == "none" else 3
        (found,) = await known(
            client.catalog,
            stream,
            lambda found: len(found) == 1 and found[0].counters.get("received_records", 0) >= count,
        )
    size, firehose = found.counters["received_bytes"], found.counters["firehose_bytes"]
    sent = [found.counters[name] for name in ("received_records", "unwanted_bytes")]
    if initial == "none":
        assert (sent, firehose) == ([1, 0], 0)
    else:
        assert sent == [3, size * 2 / 3]
        assert 0 < firehose <= size, "the publisher may know what is wanted before the last batch"


def often(client: epochal.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew without waiting for a third of the lease."""
    renew = client._background.renew_subscription

    async def renewed(*arguments: Any) -> float:
        await renew(*arguments)
        return 0.3

    monkeypatch.setattr(client._background, "renew_subscription", renewed)


async def test_reading_and_leaving_need_no_catalog(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, CatalogClient("http://127.0.0.1:1", patience=0.0) as away:
        client._background = away
        async with client.subscribe(stream, since="start") as sub:
            async with client.writer(stream) as writer:
                await writer.append(1, ["x"])
                await writer.finish()
            async with asyncio.timeout(PATIENCE):
                assert [epoch.time async for epoch in sub.epochs()] == [1]
        assert await client.catalog.subscriptions(*stream.split("/")) == ()


async def test_a_program_that_does_not_read_is_shown_to_be_behind(
    services, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        often(client, monkeypatch)
        async with client.subscribe(stream) as sub, client.writer(stream) as writer:
            await sub.ready.wait()
            for time in range(3):
                await writer.append(time, ["x"])
            await writer.advance(3)
            (behind,) = await known(
                client.catalog, stream, lambda found: bool(found) and found[0].counters.get("waiting_epochs") == 3
            )
            later = await known(
                client.catalog,
                stream,
                lambda found: (
                    bool(found) and found[0].counters["waiting_seconds"] > behind.counters["waiting_seconds"] + 0.2
                ),
            )
            assert later[0].counters["waiting_epochs"] == 3
            for _ in range(3):
                await anext(sub.epochs())
            (read,) = await known(
                client.catalog, stream, lambda found: bool(found) and found[0].counters.get("epochs") == 3
            )
            assert (read.counters["waiting_epochs"], read.counters["waiting_seconds"]) == (0, 0)

"""A relay over HTTP: health, metrics as they are described, and whole epochs of all segments."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from tests.conftest import Services
from tests.patience import PATIENCE
from tests.relay.conftest import Relays
from tests.relay.test_relay import NONE, publish

import epochal
from epochal.testing import LocalServices

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")


@pytest.mark.rule("F18")
async def test_whole_epochs_and_what_is_measured(services, relays: Relays) -> None:
    stream = await services.stream(segments=2, encoding="json", **NONE)
    relay = await relays.start(stream)
    url = relay.addresses["http"]
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream, via="relay") as sub,
        aiohttp.ClientSession() as web,
    ):
        await sub.ready.wait()
        async with client.writer(stream, writer_id="w") as writer:
            await publish(writer, range(5))
            await writer.finish()
        assert [epoch.time async for epoch in sub.epochs()] == list(range(5))
        async with web.get(f"{url}/readyz") as ready:
            assert ready.status == 200
        async with web.get(f"{url}/v1/epochs", params={"since": "start", "topic": "a", "wait": "20"}) as answer:
            assert answer.status == 200
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
        epochs = [line for line in lines if line["kind"] == "epoch"]
        assert [epoch["time"] for epoch in epochs] == list(range(5))
        assert {batch["topic"] for epoch in epochs for batch in epoch["batches"]} == {"a"}
        async with web.get(f"{url}/metrics") as answer:
            text = await answer.text()
    printed = {
        name + ("_total" if kind == "counter" else "")
        for name, kind in re.findall(r"^# TYPE (epochal_relay\S+?)(?:_total)? (\w+)$", text, re.MULTILINE)
    }
    described = set(re.findall(r"^\| `(epochal_relay_[a-z_]+)` \|", PAGE, re.MULTILINE))
    assert printed == described - {"epochal_relay_refusals_total"}, "of refusals there was none"
    assert re.search(r'^epochal_relay_subscribers\{.*segment="0".*\} [12]\.0$', text, re.MULTILINE)


@pytest.fixture
async def renewing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Services]:
    """Services of which relays report to the catalog once a second."""
    monkeypatch.setenv("EPOCHAL_CATALOG_RELAY_TTL", "3")
    background = LocalServices()
    await asyncio.to_thread(background.start)
    try:
        yield Services(background)
    finally:
        await asyncio.to_thread(background.stop)


async def loaded(client: epochal.Client, stream: str, subscribers: int) -> None:
    """Wait until the catalog knows of so many subscribers of the one relay."""
    async with asyncio.timeout(PATIENCE):
        while [relay.load for relay in await client.catalog.relays(*stream.split("/"))] != [subscribers]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_readers_over_http_are_among_the_subscribers_that_others_choose_by(
    renewing: Services, tmp_path: Path
) -> None:
    stream, relays = await renewing.stream(segments=2, encoding="json"), Relays(renewing.url, tmp_path)
    live = {"Accept": "text/event-stream"}
    async with AsyncExitStack() as stack, epochal.connect(renewing.url) as client, aiohttp.ClientSession() as web:
        stack.push_async_callback(relays.close)
        url = (await relays.start(stream)).addresses["http"] + "/v1/epochs"
        async with client.subscribe(stream, via="relay") as sub, AsyncExitStack() as readers:
            await sub.ready.wait()
            for topic in ("a", "a", "b"):
                got = await readers.enter_async_context(web.get(url, params={"topic": topic}, headers=live))
                assert got.status == 200
            await loaded(client, stream, 4)
        await loaded(client, stream, 0)


async def test_a_relay_that_is_full_says_so_to_readers_of_another_filter(services, relays: Relays) -> None:
    stream = await services.stream(segments=2, encoding="json")
    relay = await relays.start(stream, capacity=1)
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream, via="relay") as sub,
        aiohttp.ClientSession() as web,
    ):
        await sub.ready.wait()
        async with web.get(f"{relay.addresses['http']}/v1/epochs", params={"topic": "a"}) as answer:
            problem = await answer.json()
            assert (answer.status, problem["code"]) == (503, "overloaded")
            assert "EPOCHAL_RELAY_CAPACITY" in problem["detail"]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_whole_epochs_need_no_address_that_only_clients_can_use(services, relays: Relays, host: str) -> None:
    stream = await services.stream(encoding="json")
    relay = await relays.start(stream, host=host, advertise="relay.invalid")
    assert relay.addresses["events"].startswith("tcp://relay.invalid:")
    port = relay.addresses["http"].rpartition(":")[2]
    async with epochal.connect(services.url) as client, aiohttp.ClientSession() as web:
        async with client.writer(stream, writer_id="w") as writer:
            await publish(writer, range(1))
            await writer.finish()
        async with web.get(f"http://127.0.0.1:{port}/v1/epochs?since=start&wait=60") as answer:
            assert answer.status == 200
            assert [json.loads(line)["kind"] for line in (await answer.text()).splitlines()] == ["epoch", "complete"]

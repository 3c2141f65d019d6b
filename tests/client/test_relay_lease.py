"""A relay's entry in the catalog: made, renewed, made again when it is unknown, and taken off at the end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.catalog_api.answers import RelayInfo
from epochal.catalog_api.requests import RegisterRelay, RelayAddresses, RelayReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.relay_lease import RelayLease
from epochal.errors import CatalogUnavailable, EpochalError, StreamGone

ADDRESSES = RelayAddresses("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")


async def entry(catalog: CatalogClient, stream: str, until: Callable[[RelayInfo], bool]) -> RelayInfo:
    """The stream's relay, asked for until it is as wanted."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await catalog.relays(*stream.split("/"))
            if found and until(found[0]):
                return found[0]
            await asyncio.sleep(0.02)


def often(catalog: CatalogClient, monkeypatch: pytest.MonkeyPatch, ttl: float) -> None:
    """Let each entry last `ttl` seconds, as far as the lease knows."""
    for method in ("register_relay", "renew_relay"):
        call = getattr(catalog, method)

        async def called(*arguments: Any, call: Any = call) -> float:
            await call(*arguments)
            return ttl

        monkeypatch.setattr(catalog, method, called)


@asynccontextmanager
async def running(lease: RelayLease) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(lease.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def registration(catalog: CatalogClient, stream: str, key: str) -> RegisterRelay:
    info = await catalog.get(*stream.split("/"))
    return RegisterRelay(stream, info.uid, "eu", key, ADDRESSES, 10)


async def test_a_relay_is_renewed_in_time_and_at_once_when_asked(services, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, load = await services.stream(), 0
    async with CatalogClient(services.url) as catalog:
        lease = RelayLease(
            catalog, await registration(catalog, stream, stream), lambda: RelayReport("ready", load, 0.5, [], "a/")
        )
        async with running(lease):
            first = await entry(catalog, stream, lambda one: one.verified)
            assert (first.id, first.name, first.state, first.capacity) == (stream, "eu", "ready", 10)
            assert (first.load, first.lag, first.filter) == (0, 0.5, "a/")
            load = 3
            lease.ask_now()  # no test waits for a third of its TTL
            await entry(catalog, stream, lambda one: one.load == 3)
            often(catalog, monkeypatch, 0.06)
            lease.ask_now()
            load = 4
            await entry(catalog, stream, lambda one: one.load == 4)
            load = 5
            await entry(catalog, stream, lambda one: one.load == 5)
        await lease.withdraw()
        assert await catalog.relays(*stream.split("/")) == ()
        await lease.withdraw()  # it is no error that it is gone


async def test_a_relay_that_the_catalog_does_not_know_registers_again(services) -> None:
    stream = await services.stream()
    async with CatalogClient(services.url) as catalog:
        lease = RelayLease(catalog, await registration(catalog, stream, stream), RelayReport)
        async with running(lease):
            await entry(catalog, stream, lambda one: one.verified)
            await catalog.deregister_relay(stream)  # as when its entry lapses
            lease.ask_now()
            await entry(catalog, stream, lambda one: one.verified)


@pytest.mark.rule("S26")
async def test_a_stream_that_is_gone_ends_the_lease(services) -> None:
    stream = await services.stream()
    async with CatalogClient(services.url) as catalog:
        known = await registration(catalog, stream, stream)
        lease = RelayLease(catalog, known, RelayReport)
        async with running(lease) as task:
            await entry(catalog, stream, lambda one: one.verified)
            await services.delete(stream)
            lease.ask_now()
            with pytest.raises(StreamGone):
                await task


async def test_an_absent_catalog_is_tried_again_and_a_refusal_is_an_error(services) -> None:
    stream = await services.stream()
    tries: list[EpochalError] = []

    class Catalog(CatalogClient):
        async def register_relay(self, asked: RegisterRelay) -> float:
            if len(tries) < 3:
                tries.append(CatalogUnavailable("away"))
                raise tries[-1]
            return await super().register_relay(asked)

    async with Catalog(services.url) as catalog:
        known = await registration(catalog, stream, stream)
        async with running(RelayLease(catalog, known, RelayReport)):
            await entry(catalog, stream, lambda one: one.verified)
        assert len(tries) == 3
        with pytest.raises(EpochalError, match="not a RegisterRelay"):
            await RelayLease(catalog, RegisterRelay(stream, known.uid, "eu", "x", ADDRESSES, -1), RelayReport).run()

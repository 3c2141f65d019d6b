"""A relay that cannot open a connection for what it passes on."""

import asyncio
import errno
from contextlib import AsyncExitStack
from typing import Any

import pytest
import zmq
from tests.patience import PATIENCE
from tests.relay.test_relay import publish

import epochal
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import Directory
from epochal.client.catalog.routes import Routes
from epochal.client.subscriber.subscriber import Subscription
from epochal.transport.shutdown import ended
from epochal_publisher.relay import segment
from epochal_publisher.relay.own import OwnDirectory
from epochal_publisher.relay.process import RelayProcess
from epochal_publisher.relay.settings import RelaySettings


@pytest.mark.rule("F15")
async def test_where_no_connection_can_be_opened_it_refuses_and_the_reader_asks_again(
    services: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        await publish(writer, range(3))
        await writer.finish()
    tried = asyncio.Event()

    def none_left(*_: Any, **__: Any) -> None:
        tried.set()
        raise zmq.ZMQError(errno.EMFILE)

    settings = RelaySettings.read(catalog=services.url, stream=stream)
    relay = RelayProcess(settings)
    async with AsyncExitStack() as stack, CatalogClient(services.url) as catalog:
        stack.callback(relay.close)
        directory = Directory(catalog, stream, wait=PATIENCE)
        await directory.look_up()
        relay.listen(directory.declared.push.buffer_bytes)
        serving = asyncio.create_task(relay.serve(directory, Routes(directory, catalog.relays, settings.via)))
        stack.push_async_callback(ended, [serving])
        with monkeypatch.context() as patch:
            patch.setattr(segment, "Socket", none_left)
            own: Any = OwnDirectory(directory, relay.own_addresses)
            async with (
                asyncio.timeout(PATIENCE),
                Subscription(relay._context, own, None, since="start", via="direct") as sub,
            ):
                await tried.wait()
                patch.undo()
                assert [epoch.time async for epoch in sub.epochs() if isinstance(epoch, epochal.Epoch)] == [0, 1, 2]
        assert "cannot be passed on" in caplog.text

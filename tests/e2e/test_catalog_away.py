"""A catalog that is away: at the start it is waited for; later, streams go on, and nothing that it promised is lost."""

import asyncio
import os
import signal

import pytest
from tests.patience import PATIENCE
from tests.ports import free_port

import epochal
from epochal.errors import CatalogUnavailable
from epochal.local import LocalMode, LocalSettings

DOCUMENT = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": "later", "namespace": "test"},
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "json"}},
}


async def test_streams_go_on_without_it_and_it_comes_back(services) -> None:
    stream = await services.stream(segments=2)
    name = stream.removeprefix("test/")
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        epochs = sub.epochs()
        async with client.writer(stream, writer_id="w") as writer:
            session = await client.catalog.session("test", name, "other")
            killed = services.catalog_process
            os.kill(killed, signal.SIGKILL)
            for time in range(20):
                await writer.append(time, [time], key=bytes([time]))
                await writer.advance(time + 1)
                async with asyncio.timeout(PATIENCE):
                    assert (await anext(epochs)).time == time
            info = await client.catalog.lookup(*stream.split("/"), wait=PATIENCE)
            assert len(info.segments) == 2
            assert (await client.catalog.session("test", name, "other")).number > session.number
            async with client.subscribe(stream, since="start") as late:
                assert (await anext(late.epochs())).time == 0
            await writer.finish()
        assert [epoch async for epoch in epochs] == []
        assert services.catalog_process != killed
    other = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(other) as writer:
        await writer.append(0, [0])


async def test_a_catalog_that_is_down_at_the_start_is_waited_for(tmp_path) -> None:
    port = free_port()
    told: list[str] = []
    async with epochal.connect(f"http://127.0.0.1:{port}", patience=PATIENCE, on_unreachable=told.append) as client:
        opening = asyncio.create_task(client.writer("test/later").__aenter__())
        while not told:  # noqa: ASYNC110 - it is told by a call
            await asyncio.sleep(0.01)
        async with LocalMode(tmp_path, port=port, settings=LocalSettings(poll_interval=0.05)):
            await client.catalog.apply(DOCUMENT, "test", "later")
            async with asyncio.timeout(PATIENCE):
                writer = await opening
            await writer.append(0, ["it works"])
            await writer.close()
            await writer.__aexit__(None, None, None)
    assert "refused" in told[0]


async def test_a_catalog_that_stays_away(services) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with epochal.connect(url, patience=0.5) as client:  # load: it is to end
        for opening in (client.writer("test/s"), client.subscribe("test/s")):
            begun = asyncio.get_running_loop().time()
            with pytest.raises(CatalogUnavailable, match=rf"{url}.*epochal up.*EPOCHAL_CATALOG") as caught:
                await opening.__aenter__()
            assert caught.value.retryable
            assert asyncio.get_running_loop().time() - begun > 0.1

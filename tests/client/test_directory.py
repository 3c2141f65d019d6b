"""Where the publishers are: asked again after a failure, refused when the stream is another one."""

import asyncio
import os
import signal

import pytest
from tests.patience import PATIENCE

from epochal.client.catalog import catalog as catalog_module
from epochal.client.catalog import directory
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import Directory, worth_retrying
from epochal.client.options import Expected
from epochal.errors import CatalogUnavailable, NoPublisher, StreamGone, StreamNotFound, TimedOut, WriterFenced


async def test_addresses(services) -> None:
    stream = await services.stream(shape="(int, int)", encoding="json", segments=3, dedicated=True)
    async with CatalogClient(services.url) as catalog:
        directory = Directory(catalog, stream, wait=PATIENCE)
        with pytest.raises(StreamNotFound, match="looked up"):
            _ = directory.info
        info = await directory.look_up(Expected("(int, int)", "json"))
        assert (directory.qualified, directory.encoding, str(directory.shape)) == (stream, "json", "(int, int)")
        assert directory.segments == ["0", "1", "2"]
        assert {directory.placement().segment(bytes([n])) for n in range(64)} == {"0", "1", "2"}
        address = await directory.address("1", "ingest")
        assert address.startswith("tcp://127.0.0.1:")
        (killed,) = services.publishers(stream)
        os.kill(killed, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            while (moved := await directory.address("1", "ingest")) == address:
                directory.stale()
                await asyncio.sleep(0.05)
        assert moved != address
        assert directory.info.uid == info.uid
        with pytest.raises(NoPublisher, match="at present"):
            await directory.address("7", "ingest")


@pytest.mark.rule("S26")
async def test_another_stream_of_the_same_name_is_not_taken_for_it(services) -> None:
    stream = await services.stream()
    async with CatalogClient(services.url) as catalog:
        directory = Directory(catalog, stream, wait=PATIENCE)
        await directory.look_up()
        await services.delete(stream)
        directory.stale()
        with pytest.raises(StreamGone, match="was deleted"):
            await directory.address("0", "ingest")
        await services.declare(
            stream.removeprefix("test/"), {"time": {"shape": "int"}, "payload": {"encoding": "json"}}
        )
        with pytest.raises(StreamGone, match="created again"):
            await directory.address("0", "ingest")


async def test_a_look_up_that_lasts_says_what_it_waits_for(places, monkeypatch, caplog) -> None:
    monkeypatch.setattr(directory, "SAY_AFTER", 0.05)
    stream = places.stream()
    async with CatalogClient(places.url) as catalog:
        with pytest.raises(NoPublisher):
            await Directory(catalog, stream.name, wait=0.5).look_up()  # load: it is to end
        with pytest.raises(StreamNotFound):
            await Directory(catalog, "test/none", wait=0.5).look_up()  # load: it is to end
    assert [record.message for record in caplog.records] == [
        f"waiting up to 0.5 s for {stream.name}: no publisher serves segment 0",
        "waiting up to 0.5 s for test/none: there is no such stream",
    ]


async def test_no_more_than_so_many_wait_for_another_publisher(places, monkeypatch) -> None:
    """Each holds a connection to the catalog, and what cannot wait needs one too."""
    monkeypatch.setattr(catalog_module, "MAX_WAITING", 2)
    stream = places.stream()
    namespace, name = stream.name.split("/")
    async with CatalogClient(places.url) as catalog:
        waiting = [asyncio.create_task(catalog.another(namespace, name, "0", 0, 60)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await catalog.another(namespace, name, "0", 0, 60) is None
        places.start(stream)
        for each in waiting:
            found = await each
            assert found is not None
            assert found.segments[0].publisher is not None
        assert await catalog.another(namespace, name, "0", 0, 60) is not None, "their places are free again"


async def test_without_a_catalog_the_old_address_is_tried(services) -> None:
    stream = await services.stream()
    # load: the second is to end
    async with CatalogClient(services.url) as catalog, CatalogClient("http://127.0.0.1:1", patience=0.1) as nobody:
        directory = Directory(catalog, stream, wait=PATIENCE)
        await directory.look_up()
        address = await directory.address("0", "events")
        directory.catalog = nobody
        directory.stale()
        assert await directory.address("0", "events") == address


async def test_the_way_to_an_address_is_asked_for_each_time(services) -> None:
    stream, asked = await services.stream(), list[str]()

    async def reach(address: str) -> str:
        asked.append(address)
        return f"tcp://127.0.0.1:{len(asked)}"

    async with CatalogClient(services.url) as catalog:
        directory = Directory(catalog, stream, wait=PATIENCE, reach=reach)
        info = await directory.look_up()
        assert info.segments[0].publisher is not None
        assert await directory.address("0", "events") == "tcp://127.0.0.1:1"
        assert await directory.address("0", "events") == "tcp://127.0.0.1:2"
        assert asked == [info.segments[0].publisher.addresses["events"]] * 2


def test_what_is_worth_retrying() -> None:
    assert worth_retrying(TimedOut("x"))
    assert worth_retrying(CatalogUnavailable("x"))
    assert not worth_retrying(WriterFenced("x"))
    assert not worth_retrying(ValueError("x"))

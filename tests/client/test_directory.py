"""Where the publishers are: asked again after a failure, refused when the stream is another one."""

import asyncio
import os
import signal

import pytest

from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import Directory, worth_retrying
from epochal.client.options import Expected
from epochal.errors import CatalogUnavailable, NoPublisher, StreamGone, StreamNotFound, TimedOut, WriterFenced


async def test_addresses(realm) -> None:
    stream = await realm.stream(shape="(int, int)", encoding="json", segments=3)
    async with CatalogClient(realm.url) as catalog:
        directory = Directory(catalog, stream, wait=5)
        with pytest.raises(StreamNotFound, match="looked up"):
            _ = directory.info
        info = await directory.look_up(Expected("(int, int)", "json"))
        assert (directory.qualified, directory.encoding, str(directory.shape)) == (stream, "json", "(int, int)")
        assert directory.segments == ["0", "1", "2"]
        assert {directory.placement().segment(bytes([n])) for n in range(64)} == {"0", "1", "2"}
        address = await directory.address("1", "ingest")
        assert address.startswith("tcp://127.0.0.1:")
        (killed,) = realm.publishers(stream)
        os.kill(killed, signal.SIGKILL)
        async with asyncio.timeout(20):
            while (moved := await directory.address("1", "ingest")) == address:
                directory.stale()
                await asyncio.sleep(0.05)
        assert moved != address
        assert directory.info.uid == info.uid
        with pytest.raises(NoPublisher, match="at present"):
            await directory.address("7", "ingest")


@pytest.mark.rule("S26")
async def test_another_stream_of_the_same_name_is_not_taken_for_it(realm) -> None:
    stream = await realm.stream()
    async with CatalogClient(realm.url) as catalog:
        directory = Directory(catalog, stream, wait=5)
        await directory.look_up()
        await realm.delete(stream)
        directory.stale()
        with pytest.raises(StreamGone, match="was deleted"):
            await directory.address("0", "ingest")
        await realm.declare(stream.removeprefix("test/"), {"time": {"shape": "int"}, "payload": {"encoding": "json"}})
        with pytest.raises(StreamGone, match="created anew"):
            await directory.address("0", "ingest")


async def test_without_a_catalog_the_old_address_is_tried(realm) -> None:
    stream = await realm.stream()
    async with CatalogClient(realm.url) as catalog, CatalogClient("http://127.0.0.1:1", patience=0.1) as nobody:
        directory = Directory(catalog, stream, wait=5)
        await directory.look_up()
        address = await directory.address("0", "events")
        directory.catalog = nobody
        directory.stale()
        assert await directory.address("0", "events") == address


async def test_the_way_to_an_address_is_asked_for_each_time(realm) -> None:
    stream, asked = await realm.stream(), list[str]()

    async def reach(address: str) -> str:
        asked.append(address)
        return f"tcp://127.0.0.1:{len(asked)}"

    async with CatalogClient(realm.url) as catalog:
        directory = Directory(catalog, stream, wait=5, reach=reach)
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

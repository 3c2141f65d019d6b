"""A publisher at the address that is not the one looked for: of another stream, another life of it, or a stale one."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import Directory
from epochal.client.subscriber import segment_reader
from epochal.client.subscriber.subscriber import Subscription
from epochal.client.writer import segment_writer
from epochal.errors import StreamGone, Unavailable, WriterLost
from epochal.protocol.subscriber.follower import FollowerSettings


async def until(true: Callable[[], object]) -> None:
    """Wait for what nobody announces."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


async def counted(client: epochal.Client, stream: str, least: int) -> None:
    """Wait until the catalog shows that a reader met so many wrong addresses."""
    async with asyncio.timeout(PATIENCE):
        while True:
            readers = await client.catalog.subscriptions(*stream.split("/"))
            if any(reader.counters.get("wrong_addresses", 0) >= least for reader in readers):
                return
            await asyncio.sleep(0.05)


async def comes_back(client: epochal.Client, stream: str, reading: "asyncio.Task[Any]", time: int = 0) -> None:
    """Publish an epoch after the other until a reader, which joins at some moment, is given one."""
    async with client.writer(stream) as writer, asyncio.timeout(PATIENCE):
        while not reading.done():
            await writer.append(time, [b"x"])
            await writer.advance(time := time + 1)
            await asyncio.wait([reading], timeout=0.05)
    assert isinstance(await reading, epochal.Epoch)


# ---- another publisher ----


@pytest.fixture
def never(monkeypatch) -> None:
    """Nobody connects again by waiting alone."""
    for module in (segment_reader, segment_writer):
        for pause in ("RECONNECT_FIRST", "RECONNECT_LAST"):
            monkeypatch.setattr(module, pause, 1000.0)


async def test_a_reader_connects_again_when_there_is_another_publisher(places, never) -> None:
    stream = places.stream()
    old = places.start(stream)
    async with epochal.connect(places.url) as client, client.subscribe(stream.name) as sub:
        await sub.ready.wait()
        old.stop()
        places.start(stream)
        await comes_back(client, stream.name, asyncio.create_task(anext(sub.epochs())))


async def test_a_writer_connects_again_when_there_is_another_publisher(places, never) -> None:
    stream = places.stream()
    old = places.start(stream)
    async with epochal.connect(places.url) as client, client.writer(stream.name) as writer, asyncio.timeout(PATIENCE):
        old.stop()
        places.start(stream)
        await writer.append(0, [b"x"])


async def test_a_pause_ends_in_time_when_nothing_has_changed(places) -> None:
    stream = places.stream()
    places.start(stream)
    async with CatalogClient(places.url) as catalog, CatalogClient("http://127.0.0.1:1", patience=PATIENCE) as nobody:
        directory = Directory(catalog, stream.name, wait=PATIENCE)
        known = await directory.look_up()
        for answers in (catalog, nobody):
            directory.catalog = answers
            began = asyncio.get_running_loop().time()
            await directory.pause("0", 0.5)
            assert asyncio.get_running_loop().time() - began >= 0.5
        assert directory.info is known


# ---- another stream, or another life of it ----


@pytest.mark.rule("E48", "S19")
async def test_a_reader_that_meets_another_stream_looks_up_again(places) -> None:
    mine, other = places.stream(), places.stream()
    old = places.start(mine)
    async with epochal.connect(places.url) as client, client.subscribe(mine.name) as sub:
        await sub.ready.wait()
        old.stop()
        places.start(other, at=old)
        reading = asyncio.create_task(anext(sub.epochs()))
        await counted(client, mine.name, 3)
        assert not reading.done()
        places.start(mine)
        await comes_back(client, mine.name, reading)


def read_without_a_loop(url: str, stream: str, ready: Callable[[], object]) -> object:
    with epochal.connect_blocking(url) as client, client.subscribe(stream) as sub:
        sub.ready.wait(PATIENCE)
        ready()
        return next(sub.epochs(timeout=PATIENCE))


@pytest.mark.rule("E48")
async def test_a_reader_without_a_loop_that_meets_another_stream_looks_up_again(places) -> None:
    mine, other = places.stream(), places.stream()
    old, ready, loop = places.start(mine), asyncio.Event(), asyncio.get_running_loop()
    reading = asyncio.create_task(
        asyncio.to_thread(read_without_a_loop, places.url, mine.name, lambda: loop.call_soon_threadsafe(ready.set))
    )
    await asyncio.wait_for(ready.wait(), PATIENCE)
    old.stop()
    places.start(other, at=old)
    async with epochal.connect(places.url) as client:
        await counted(client, mine.name, 1)
        places.start(mine)
        await comes_back(client, mine.name, reading)


@pytest.mark.rule("E48")
async def test_a_writer_that_meets_another_stream_looks_up_again_and_loses_nothing(places) -> None:
    mine, other = places.stream(), places.stream()
    old, loop = places.start(mine), asyncio.get_running_loop()
    async with epochal.connect(places.url) as client, client.writer(mine.name) as w:
        await w.append(0, [b"acknowledged"])
        await w.advance(1)
        old.stop()
        begun = loop.time()
        places.start(other, at=old)
        for number in range(5):
            w.append_nowait(1, [b"%d" % number])
        await until(lambda: w.wrong_addresses >= 4)
        assert loop.time() - begun > 0.15, "with pauses that grow"
        places.start(mine)
        await w.advance(2)
        async with client.subscribe(mine.name, since="start") as sub:  # one that was there may join after these appends
            epoch = await asyncio.wait_for(anext(sub.epochs()), PATIENCE)
        assert isinstance(epoch, epochal.Epoch)
        assert (epoch.time, list(epoch.records())) == (1, [b"%d" % number for number in range(5)])


@pytest.mark.rule("E48")
async def test_a_writer_that_meets_a_socket_for_readers_looks_up_again(places) -> None:
    mine, other = places.stream(), places.stream()
    old = places.start(mine)
    async with epochal.connect(places.url) as client, client.writer(mine.name) as writer:
        old.stop()
        places._started.append(other.start(requests_port=old.addresses["ingest"].rpartition(":")[2]))
        await until(lambda: writer.wrong_addresses >= 2)
        places.start(mine)
        await asyncio.wait_for(writer.append(0, [b"x"]), PATIENCE)


@pytest.mark.rule("E48", "S26")
async def test_another_life_of_the_stream_ends_both_by_the_word_of_the_catalog(places) -> None:
    mine = places.stream()
    old = places.start(mine)
    async with epochal.connect(places.url) as client, client.subscribe(mine.name) as sub:
        await sub.ready.wait()
        writer = await client.writer(mine.name).__aenter__()
        old.stop()
        mine.delete()
        places.start(places.stream(mine.name.removeprefix("test/")), at=old)
        with pytest.raises(StreamGone, match="deleted"):
            await asyncio.wait_for(anext(sub.epochs()), PATIENCE)
        with pytest.raises(StreamGone, match="deleted"):
            await asyncio.wait_for(writer.append(0, [b"x"]), PATIENCE)
        await writer.__aexit__(None, None, None)


# ---- a stale publisher of the stream ----


class Ways:
    """Where addresses lead, and how often each was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.leads: dict[str, str] = {}

    async def reach(self, address: str) -> str:
        self.asked.append(address)
        return self.leads.get(address, address)

    def lead(self, new: Any, old: Any) -> None:
        """Who asks for one publisher comes to another."""
        self.leads = {new.addresses[name]: old.addresses[name] for name in ("events", "requests", "ingest")}

    async def tried(self, address: str, times: int) -> None:
        """Wait until an address was asked for so often from now on."""
        before = self.asked.count(address)
        await until(lambda: self.asked.count(address) >= before + times)


@contextlib.asynccontextmanager
async def superseded(places, monkeypatch) -> AsyncIterator[tuple[Any, Any, Callable[[], Any]]]:
    """A stream with a publisher that will not hear of its successor."""
    monkeypatch.setenv("EPOCHAL_PUBLISHER_RENEW_INTERVAL", "60")
    monkeypatch.setenv("EPOCHAL_PUBLISHER_STALL", "1000")
    stream = places.stream()
    yield stream, places.start(stream), lambda: places.start(stream)


def cut(sub: Subscription) -> None:
    (link,) = sub._links
    assert link._connection is not None
    link._connection._lose(Unavailable("cut"))


@pytest.mark.rule("E12")
async def test_a_reader_refuses_a_publisher_older_than_the_newest_that_welcomed_it(places, monkeypatch) -> None:
    ways, settings = Ways(), FollowerSettings(join_timeout=1.0)
    async with superseded(places, monkeypatch) as (stream, old, succeed):  # noqa: SIM117 - reads better
        async with epochal.connect(places.url, reach=ways.reach) as client:
            async with client.subscribe(stream.name, settings=settings) as sub:
                await sub.ready.wait()
                new = succeed()
                with socket.create_server(("127.0.0.1", 0)) as silent:
                    ways.leads[new.addresses["events"]] = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
                    cut(sub)
                    await ways.tried(new.addresses["events"], 2)  # it was welcomed there, and could not join
                    ways.lead(new, old)
                    await ways.tried(new.addresses["events"], 4)
                ways.leads.clear()
                events = sub.events()
                async with asyncio.timeout(PATIENCE):
                    while not isinstance(await anext(events), epochal.SegmentUp):
                        pass
                cursor = sub.cursor()
            assert cursor.positions["0"].incarnation == stream.segment()["incarnation"]
            ways.lead(new, old)
            async with client.subscribe(stream.name, since=cursor, settings=settings) as resumed:
                await ways.tried(new.addresses["events"], 3)
                assert not resumed.ready.is_set()
                ways.leads.clear()
                await asyncio.wait_for(resumed.ready.wait(), PATIENCE)
                await comes_back(client, stream.name, asyncio.create_task(anext(resumed.epochs())))


@pytest.mark.rule("E12")
@pytest.mark.parametrize("session", ["same", "next"])
async def test_a_writer_refuses_a_publisher_older_than_the_newest_it_wrote_to(places, monkeypatch, session) -> None:
    ways = Ways()
    async with superseded(places, monkeypatch) as (stream, old, succeed):  # noqa: SIM117 - reads better
        async with epochal.connect(places.url, reach=ways.reach) as client, client.writer(stream.name, "w") as writer:
            first = await writer.append(0, [b"x"])
            await writer.advance(1)
            new = succeed()
            writer.session._links["0"].lose(Unavailable("cut"))
            newest = (await writer.append(1, [b"x"])).incarnation
            assert newest > first.incarnation
            await writer.advance(2)
            ways.lead(new, old)
            writer.session._links["0"].lose(Unavailable("cut"))
            if session == "next":
                writer.session.fail(WriterLost("given up"))
            await ways.tried(new.addresses["ingest"], 3)
            ways.leads.clear()
            with pytest.raises(WriterLost) if session == "next" else contextlib.nullcontext():
                await writer.flush()
            assert (await writer.append(3, [b"x"])).incarnation == newest

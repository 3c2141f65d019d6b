"""Services of the version before beside the present ones, in each order of an upgrade: no epoch is lost or torn.

They are run from its files (`tests.version_before`) with the present environment.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.version_before import NoHistoryError, extract

import epochal
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import AppendsLost, EpochAbortedError

BIN = Path(sys.executable).parent
PARTS = ("core", "services/catalog", "services/publisher")
TOPICS = (b"a", b"b")
KEYS = tuple(bytes([number]) for number in range(8))


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The search path of the version before."""
    target = tmp_path_factory.mktemp("before")
    try:
        extract(PARTS, target)
    except NoHistoryError as error:
        pytest.skip(str(error))
    return os.pathsep.join(str(target / part) for part in PARTS)


class Services:
    """A catalog and one publisher of `test/s`, of either version, ended with the test."""

    def __init__(self, directory: Path, before: str) -> None:
        self._directory, self._before = directory, before
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self.url = ""

    async def start(self, name: str, program: str, *options: str, old: bool = False) -> str:
        """Start `epochal-PROGRAM OPTIONS`, and wait until it serves; returns what it says then."""
        environment = {**os.environ, "PYTHONPATH": self._before} if old else dict(os.environ)
        with (self._directory / f"{name}.log").open("a") as log:
            self._running[name] = process = await asyncio.create_subprocess_exec(
                str(BIN / f"epochal-{program}"), *options, "--exit-with-stdin",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment,
            )  # fmt: skip
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()
        assert line.startswith("ready "), self.log(name)
        return line

    async def catalog(self, *, old: bool = False) -> None:
        """A catalog, at the same address as the one before."""
        options = (
            "--port",
            self.url.rpartition(":")[2] or str(free_port()),
            "--data",
            str(self._directory / "catalog"),
        )
        self.url = (await self.start("catalog", "catalog", "serve", *options, old=old)).split()[1]

    async def publisher(self, name: str = "publisher", segment: str = "0", *, old: bool = False) -> None:
        """The publisher of a segment; it keeps its log where the stream has storage."""
        options = ("--catalog", self.url, "--stream", "test/s", "--segments", segment, "--publisher", name)
        data = str(self._directory / name)
        await self.start(name, "publisher", "serve", *options, "--data", data, old=old)

    async def relay(self) -> None:
        """A relay of the stream, which follows its publishers."""
        await self.start("relay", "publisher", "relay", "--catalog", self.url, "--stream", "test/s")

    async def end(self, name: str, number: int) -> None:
        """End a program by a signal."""
        process = self._running.pop(name)
        with suppress(ProcessLookupError):
            process.send_signal(number)
        await process.communicate()

    async def declare(self, **spec: Any) -> None:
        """Declare the stream."""
        document = {
            "apiVersion": "epochal.dev/v1alpha1",
            "kind": "Stream",
            "metadata": {"name": "s", "namespace": "test"},
            "spec": {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, **spec},
        }
        async with CatalogClient(self.url) as catalog:
            await catalog.apply(document, "test", "s")

    def log(self, name: str) -> str:
        """What a program has said."""
        return (self._directory / f"{name}.log").read_text()

    async def close(self) -> None:
        """End what still runs."""
        for name in list(self._running):
            await self.end(name, signal.SIGKILL)


@pytest.fixture
async def services(tmp_path: Path, before: str) -> AsyncIterator[Services]:
    services = Services(tmp_path, before)
    try:
        yield services
    finally:
        await services.close()


async def reported(services: Services, true: Callable[[Any], bool]) -> None:
    """Wait until the publisher has told the catalog something."""
    async with CatalogClient(services.url) as catalog, asyncio.timeout(PATIENCE):
        while not true((await catalog.get("test", "s")).segments[0]):  # noqa: ASYNC110 - it comes with a renewal
            await asyncio.sleep(0.05)


@pytest.mark.rule("E11")
@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGKILL])
async def test_a_publisher_of_the_version_before_is_replaced_without_a_torn_epoch(
    services: Services, ends: signal.Signals
) -> None:
    await services.catalog()
    await services.declare(progress={"minWriters": 2})
    await services.publisher(old=True)
    async with (
        epochal.connect(services.url) as client,
        client.subscribe("test/s") as live,
        client.writer("test/s", writer_id="w1") as one,
        client.writer("test/s", writer_id="w2") as other,
        asyncio.timeout(PATIENCE * 2),
    ):
        await live.ready.wait()
        for writer in (one, other):
            await writer.advance(5)
        await other.append(5, ["of the writer that left"])
        await other.advance(6)
        await reported(services, lambda segment: segment.lower == (5,))
        await services.end("publisher", ends)
        await services.publisher()
        late = client.subscribe("test/s", since="start")
        async with late, asyncio.timeout(PATIENCE):
            with pytest.raises((AppendsLost, EpochAbortedError)):
                await one.append(5, ["of the other"])
            await late.ready.wait()
            while not live._counters["gaps"]:  # noqa: ASYNC110 - it must have joined again, or 7 is in the gap
                await asyncio.sleep(0.05)
            for writer in (one, other):
                with suppress(AppendsLost, EpochAbortedError):  # raised once, by whatever is asked first
                    await writer.flush()
                await writer.advance(7)
                await writer.append(7, [writer.writer_id])
            for writer in (one, other):
                await writer.finish()
            seen = [epoch async for epoch in live.epochs()]
            read = [epoch async for epoch in late.epochs()]
    assert [epoch.time for epoch in read] == [7]
    assert [(epoch.time, type(epoch)) for epoch in seen] == [(5, epochal.EpochAborted), (7, epochal.Epoch)]
    assert not live.saw_whole(5)


@pytest.mark.rule("E11")
async def test_publishers_and_clients_may_be_upgraded_before_the_catalog(services: Services) -> None:
    await services.catalog(old=True)
    await services.declare()
    await services.publisher()
    async with (
        epochal.connect(services.url) as client,
        client.writer("test/s", writer_id="w") as writer,
        asyncio.timeout(PATIENCE),
    ):
        await writer.append(3, ["before"])
        await writer.advance(4)
        await services.end("catalog", signal.SIGTERM)
        await services.catalog()
        await writer.append(4, ["after"])
        async with client.subscribe("test/s", since="start") as sub:
            await writer.finish()
            epochs = [epoch async for epoch in sub.epochs()]
    assert [(epoch.time, list(epoch.records())) for epoch in epochs if isinstance(epoch, epochal.Epoch)] == [
        (3, ["before"]),
        (4, ["after"]),
    ]
    assert len(epochs) == 2


async def publish(writer: epochal.Writer, times: range) -> None:
    """Of each time, each topic with each key as its record, so that every segment has some of each."""
    for time in times:
        for topic in TOPICS:
            for key in KEYS:
                await writer.append(time, [key], topic=topic, key=key)
        await writer.advance(time + 1)


def parts(epoch: epochal.Epoch) -> Counter[tuple[bytes, bytes]]:
    """How many records there are of each topic and key."""
    return Counter((batch.topic, key) for batch in epoch.batches for key in batch.records())


@pytest.mark.rule("E10", "E24", "F13")
async def test_readers_of_a_relay_are_given_every_epoch_while_publishers_are_upgraded_one_by_one(
    services: Services,
) -> None:
    """The relay begins beside a catalog of the version before, too."""
    publishers = {"p0": "0", "p1": "1"}
    await services.catalog(old=True)
    await services.declare(
        segments=2,
        history={"storage": {"size": "512Mi"}},
        push={"initialFilter": "none"},
        progress={"writerTimeout": "10m"},  # no writer is lost, however slow the machine is
    )
    for name, segment in publishers.items():
        await services.publisher(name, segment, old=True)
    await services.relay()
    await services.end("catalog", signal.SIGTERM)
    await services.catalog()
    async with (
        epochal.connect(services.url) as client,
        client.subscribe("test/s", via="relay") as every,
        client.subscribe("test/s", topics=[b"a"], via="relay") as some,
        client.writer("test/s", writer_id="w") as writer,
        asyncio.timeout(PATIENCE * 2),
    ):
        await asyncio.gather(every.ready.wait(), some.ready.wait())
        assert {*every.via.values(), *some.via.values()} == {"relay:relay"}
        await publish(writer, range(10))
        for number, (name, segment) in enumerate(publishers.items(), 1):
            publishing = asyncio.create_task(publish(writer, range(10 * number, 10 * number + 10)))
            await services.end(name, signal.SIGTERM)
            await services.publisher(name, segment)
            await publishing
        await writer.finish()
        for sub, topics in ((every, TOPICS), (some, TOPICS[:1])):
            epochs = [epoch async for epoch in sub.epochs()]
            assert [epoch.time for epoch in epochs] == list(range(30))
            expected = Counter((topic, key) for topic in topics for key in KEYS)
            assert all(isinstance(epoch, epochal.Epoch) and parts(epoch) == expected for epoch in epochs)
        late = client.subscribe("test/s", topics=[b"b"], since="start", via="relay")
        async with late:
            assert [epoch.time async for epoch in late.epochs()] == list(range(30))
    assert "cannot go on" not in services.log("relay")

"""Local mode with the real services: what is declared runs, what dies comes back, nothing is left behind."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from epochal.catalog_api.answers import StreamInfo
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import ConfigError, Unavailable
from epochal.local import LocalMode, LocalSettings

QUICK = LocalSettings(poll_interval=0.05)
STORED: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}


def manifest(name: str = "flights", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, **spec},
    }


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before it was looked at, or while it was
        return False


async def until_ended(*pids: int) -> None:
    async with asyncio.timeout(15):
        while any(map(runs, pids)):  # noqa: ASYNC110 - the kernel tells us of a stranger's end in no other way
            await asyncio.sleep(0.02)


async def until_served(client: CatalogClient, incarnation: int = 1) -> StreamInfo:
    """The stream once all of its segments have a publisher of at least this incarnation that has reported."""
    async with asyncio.timeout(20):
        while True:
            stream = await client.lookup("demo", "flights", wait=20)
            if all(item.incarnation >= incarnation and item.lower is not None for item in stream.segments):
                return stream
            await asyncio.sleep(0.05)


async def test_publishers_come_and_go_with_streams() -> None:
    async with LocalMode(settings=QUICK) as local, CatalogClient(local.url) as client:
        await client.apply(manifest(segments=3, publishers={"segmentsPerPod": 2}), "demo", "flights")
        stream = await until_served(client)
        owners = [segment.publisher.id for segment in stream.segments if segment.publisher is not None]
        assert owners == ["demo.flights-0", "demo.flights-0", "demo.flights-1"]
        pids = local.processes
        assert pids.keys() == {"catalog", "demo.flights-0", "demo.flights-1"}
        await client.delete("demo", "flights")
        await until_ended(pids["demo.flights-0"], pids["demo.flights-1"])
        assert runs(pids["catalog"])
        await client.apply(manifest(), "demo", "flights")
        assert (await until_served(client)).uid != stream.uid
        data, pids = local.data, local.processes
    assert not any(map(runs, pids.values()))
    assert not data.exists(), "a directory of its own is removed"


async def test_a_publisher_that_dies_is_replaced() -> None:
    async with LocalMode(settings=QUICK) as local, CatalogClient(local.url) as client:
        await client.apply(manifest(), "demo", "flights")
        before = await until_served(client)
        killed = local.processes["demo.flights-0"]
        os.kill(killed, signal.SIGKILL)
        after = await until_served(client, before.segments[0].incarnation + 1)
        assert after.segments[0].publisher != before.segments[0].publisher
        assert local.processes["demo.flights-0"] != killed


async def test_a_catalog_that_dies_is_replaced_and_publishers_go_on(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, settings=QUICK) as local, CatalogClient(local.url) as client:
        await client.apply(manifest(), "demo", "flights")
        before = await until_served(client)
        pids = local.processes
        os.kill(pids["catalog"], signal.SIGKILL)
        await until_ended(pids["catalog"])
        after = await until_served(client)
        assert after.uid == before.uid
        assert after.segments[0].incarnation == before.segments[0].incarnation, "the same publisher serves on"
        assert local.processes["demo.flights-0"] == pids["demo.flights-0"]
        assert local.processes["catalog"] != pids["catalog"]


async def test_streams_are_there_again_the_next_time(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, settings=QUICK) as local, CatalogClient(local.url) as client:
        await client.apply(manifest(), "demo", "flights")
        first = await until_served(client)
    assert not (tmp_path / "lock").exists()
    async with LocalMode(tmp_path, settings=QUICK) as local, CatalogClient(local.url) as client:
        assert local.processes.keys() == {"catalog", "demo.flights-0"}, "ready means that they are up"
        second = await until_served(client, first.segments[0].incarnation + 1)
        assert second.uid == first.uid


async def test_a_directory_in_use_is_refused_at_once(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, settings=QUICK) as local:
        with pytest.raises(ConfigError, match=f"in use by another `epochal up` .process {os.getpid()}"):
            await LocalMode(tmp_path).__aenter__()
        assert runs(local.processes["catalog"])


async def test_a_port_in_use_is_refused_at_once(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match=r"in use.*--port"),
    ):
        await LocalMode(tmp_path, port=taken.getsockname()[1]).__aenter__()
    assert not (tmp_path / "lock").exists()


async def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        await LocalMode(tmp_path / "file" / "x").__aenter__()


async def test_a_catalog_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "catalog").touch()  # where its directory should be
    with pytest.raises(Unavailable, match=r"catalog\.log.*\n.*data directory") as raised:
        await LocalMode(tmp_path, settings=LocalSettings(start_timeout=600.0)).__aenter__()
    assert "the catalog does not start" in str(raised.value)
    assert not (tmp_path / "lock").exists()


async def test_the_logs_of_a_deleted_stream_are_removed_and_only_those(tmp_path: Path) -> None:
    async with LocalMode(data=tmp_path, settings=QUICK) as local, CatalogClient(local.url) as catalog:
        uids = {}
        for name in ("goes", "stays"):
            await catalog.apply(manifest(name, **STORED), "demo", name)
            uids[name] = (await catalog.lookup("demo", name, wait=30)).uid
        assert {path.name for path in (tmp_path / "streams").iterdir() if path.is_dir()} == set(uids.values())
        await catalog.delete("demo", "goes")
        async with asyncio.timeout(20):
            while (tmp_path / "streams" / uids["goes"]).exists():  # noqa: ASYNC110 - a directory announces nothing
                await asyncio.sleep(0.02)
    assert [path.name for path in (tmp_path / "streams").iterdir() if path.is_dir()] == [uids["stays"]]


async def until_here(client: CatalogClient, data: Path) -> Path:
    """A stream with storage; returns the directory of its logs."""
    await client.apply(manifest(**STORED), "demo", "flights")
    return data / "streams" / (await until_served(client)).uid


async def test_the_logs_of_a_stream_deleted_just_before_the_end_go_at_the_next_start(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, settings=QUICK) as local, CatalogClient(local.url) as client:
        logs = await until_here(client, tmp_path)
    blind = LocalSettings(poll_interval=3600.0)
    async with LocalMode(tmp_path, settings=blind) as local, CatalogClient(local.url) as client:
        await client.delete("demo", "flights")
    assert logs.exists()
    async with LocalMode(tmp_path, settings=QUICK), asyncio.timeout(20):
        while logs.exists():  # noqa: ASYNC110 - a directory announces nothing
            await asyncio.sleep(0.02)


async def test_a_catalog_that_lost_its_database_removes_nothing(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, settings=QUICK) as local, CatalogClient(local.url) as client:
        logs = await until_here(client, tmp_path)
        before = local.processes
        os.kill(before["catalog"], signal.SIGSTOP)  # so that nobody sees the file go
        for path in (tmp_path / "catalog").glob("catalog.sqlite*"):
            path.unlink()
        os.kill(before["catalog"], signal.SIGKILL)
        await until_ended(before["demo.flights-0"])
        assert (await client.listing()).streams == ()
        new = manifest("other", **STORED)
        await client.apply(new, "demo", "other")
        other = tmp_path / "streams" / (await client.lookup("demo", "other", wait=30)).uid
        await client.delete("demo", "other")
        async with asyncio.timeout(20):
            while other.exists():  # noqa: ASYNC110 - a directory announces nothing
                await asyncio.sleep(0.02)
        assert any(logs.rglob("*.log")), "what the new catalog never knew stays"

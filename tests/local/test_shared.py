"""Streams of local mode share publisher processes: all are served, each ends by itself, a killed process comes back."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.virtual_time import run

import epochal
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import AppendsLost, Superseded
from epochal.local import LocalMode, LocalSettings
from epochal.local.shared import SharedPublisher
from epochal.resources.plan import PlannedPublisher

ONE = LocalSettings(poll_interval=0.05, shared_processes=1)
STORED: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}


async def declare(client: CatalogClient, name: str, **spec: Any) -> str:
    spec = {"time": {"shape": "int"}, "payload": {"encoding": "json"}, **spec}
    metadata = {"name": name, "namespace": "demo"}
    document = {"apiVersion": "epochal.dev/v1alpha1", "kind": "Stream", "metadata": metadata, "spec": spec}
    await client.apply(document, "demo", name)
    return f"demo/{name}"


async def incarnation(client: CatalogClient, name: str) -> int:
    return (await client.lookup("demo", name, wait=PATIENCE)).segments[0].incarnation


async def publish(client: epochal.Client, stream: str, *times: int) -> None:
    async with client.writer(stream, writer_id="w") as writer:
        for time in times:
            await writer.append(time, [time])
            await writer.advance(time + 1)


async def test_many_streams_at_once_are_all_served_by_a_few_processes(tmp_path: Path) -> None:
    settings = replace(ONE, shared_processes=2)
    names, lines = [f"s{number}" for number in range(60)], list[str]()
    async with asyncio.timeout(PATIENCE), LocalMode(tmp_path, settings=settings) as local:
        async with CatalogClient(local.url) as client:
            await asyncio.gather(*(declare(client, name, **(STORED if name < "s3" else {})) for name in names))
            for name in names:
                await client.lookup("demo", name, wait=PATIENCE)
        async with epochal.connect(local.url) as clients:
            await asyncio.gather(*(publish(clients, f"demo/{name}", 1) for name in names[:20]))
        assert local.processes.keys() == {"catalog", "shared-0", "shared-1"}
    async with asyncio.timeout(PATIENCE), LocalMode(tmp_path, settings=settings, tell=lines.append) as local:
        assert local.served == (60, 60), "ready means that they are served, as long as ever more of them are"
        assert {line.partition(" of ")[2] for line in lines} <= {"60 streams are served"}


@pytest.mark.rule("E10", "E11")
async def test_a_killed_process_is_the_death_of_each_publisher_in_it(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        LocalMode(tmp_path, settings=ONE) as local,
        CatalogClient(local.url) as catalog,
        epochal.connect(local.url) as client,
        AsyncExitStack() as opened,
    ):
        stored = [await declare(catalog, f"stored{number}", **STORED) for number in range(3)]
        memory = [await declare(catalog, f"memory{number}") for number in range(3)]
        before = {name: await incarnation(catalog, name.partition("/")[2]) for name in stored + memory}
        subscriptions = [await opened.enter_async_context(client.subscribe(name)) for name in stored + memory]
        writers = [await opened.enter_async_context(client.writer(name, writer_id="w")) for name in stored + memory]
        for sub in subscriptions:
            await sub.ready.wait()
        for writer in writers:
            await writer.append(1, ["whole"])
            await writer.advance(2)
            await writer.append(2, ["open"])
        first = [await anext(sub.epochs()) for sub in subscriptions]
        whole = [(epoch.time, list(epoch.records())) for epoch in first if isinstance(epoch, epochal.Epoch)]
        assert whole == [(1, ["whole"])] * 6
        os.kill(local.processes["shared-0"], signal.SIGKILL)
        for writer in writers[:3]:
            await writer.append(2, ["after"])
            await writer.advance(3)
        for writer in writers[3:]:
            for time in (3, 4, 5):
                with suppress(AppendsLost):  # the open epoch was lost with the memory, and the writer is told
                    await writer.advance(time)
        for name in stored + memory:
            while await incarnation(catalog, name.partition("/")[2]) == before[name]:  # noqa: ASYNC110 - it is polled
                await asyncio.sleep(0.05)
        after = [await anext(sub.epochs()) for sub in subscriptions]
        assert [(epoch.time, type(epoch)) for epoch in after[:3]] == [(2, epochal.Epoch)] * 3
        assert [list(epoch.records()) for epoch in after[:3] if isinstance(epoch, epochal.Epoch)] == [
            ["open", "after"]
        ] * 3
        assert [(epoch.time, isinstance(epoch, epochal.Epoch)) for epoch in after[3:]] == [(2, False)] * 3


@pytest.mark.rule("E12")
async def test_a_stream_that_fails_takes_no_other_with_it_and_is_begun_again(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        LocalMode(tmp_path, settings=ONE) as local,
        CatalogClient(local.url) as catalog,
        epochal.connect(local.url) as client,
    ):
        good, bad = await declare(catalog, "good", **STORED), await declare(catalog, "bad", **STORED)
        first = {name: await incarnation(catalog, name) for name in ("good", "bad")}
        await publish(client, bad, 1)
        uid = (await catalog.get("demo", "bad")).uid
        # Another publisher takes the segment over, as a second local mode on the same catalog would.
        addresses = {"events": "tcp://127.0.0.1:9", "requests": "tcp://127.0.0.1:9", "ingest": "tcp://127.0.0.1:9"}
        granted = await catalog.register(
            "intruder", instance="x", stream=bad, uid=uid, segments=["0"], addresses=addresses
        )
        pid = local.processes["shared-0"]
        while await incarnation(catalog, "bad") <= granted.segments[0].incarnation:  # noqa: ASYNC110 - it is polled
            await asyncio.sleep(0.02)
        with pytest.raises(Superseded):
            await catalog.renew("intruder", granted.token, {})
        await publish(client, bad, 2)
        await publish(client, good, 1, 2)
        assert local.processes["shared-0"] == pid
        assert await incarnation(catalog, "good") == first["good"]
        assert local._publishers["demo.bad-0"][1].restarts == 1


async def test_a_log_that_cannot_be_used_is_one_streams_own_fault(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, settings=ONE) as local, CatalogClient(local.url) as catalog:
        for name in ("good", "bad"):
            await declare(catalog, name, **STORED)
            await incarnation(catalog, name)
        uid = (await catalog.get("demo", "bad")).uid
    for path in (tmp_path / "streams" / uid / "0").iterdir():
        path.unlink()
    (tmp_path / "streams" / uid / "0").rmdir()
    (tmp_path / "streams" / uid / "0").write_text("no directory")
    settings = replace(ONE, start_timeout=2.0)  # `bad` is never ready, and ready is said all the same
    async with (
        asyncio.timeout(PATIENCE),
        LocalMode(tmp_path, settings=settings) as local,
        epochal.connect(local.url) as client,
    ):
        assert local.served == (1, 2)
        await publish(client, "demo/good", 5)
        assert local._publishers["demo.bad-0"][1].restarts > 0
        (tmp_path / "streams" / uid / "0").unlink()
        await publish(client, "demo/bad", 5)


@pytest.mark.parametrize("socket_", ["EVENTS", "REQUESTS", "INGEST", "HTTP"])
async def test_a_port_that_is_taken_is_one_streams_own_fault_until_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, socket_: str
) -> None:
    port = free_port()
    monkeypatch.setenv(f"EPOCHAL_PUBLISHER_{socket_}_PORT", str(port))
    async with (
        asyncio.timeout(PATIENCE),
        LocalMode(tmp_path, settings=ONE) as local,
        CatalogClient(local.url) as catalog,
        epochal.connect(local.url) as client,
    ):
        first = await declare(catalog, "first")
        await incarnation(catalog, "first")
        second = await declare(catalog, "second")
        while "demo.second-0" not in local._publishers or not local._publishers["demo.second-0"][1].restarts:  # noqa: ASYNC110 - nothing tells of a restart
            await asyncio.sleep(0.02)
        await publish(client, first, 1)
        assert local.served == (1, 2)
        await catalog.delete("demo", "first")
        await publish(client, second, 1)


async def test_deleting_a_stream_ends_its_serving_alone_while_others_flow(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        LocalMode(tmp_path, settings=ONE) as local,
        CatalogClient(local.url) as catalog,
        epochal.connect(local.url) as client,
    ):
        stream = await declare(catalog, "stays")
        pid, before = local.processes.get("shared-0"), await incarnation(catalog, "stays")
        async with client.subscribe(stream) as sub, client.writer(stream, writer_id="w") as writer:
            await sub.ready.wait()
            for time in range(1, 20):
                name = f"goes{time}"
                await declare(catalog, name, **STORED)
                await incarnation(catalog, name)
                await writer.append(time, [time])
                await catalog.delete("demo", name)
                await writer.advance(time + 1)
                epoch = await anext(sub.epochs())
                assert isinstance(epoch, epochal.Epoch)
                assert (epoch.time, list(epoch.records())) == (time, [time])
            await writer.close()
        while len(local._publishers) > 1 or local._stopping:  # noqa: ASYNC110 - it looks by itself
            await asyncio.sleep(0.02)
        assert pid in (None, local.processes["shared-0"])
        assert await incarnation(catalog, "stays") == before


async def test_a_stream_moves_to_a_process_of_its_own_and_back(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        LocalMode(tmp_path, settings=ONE) as local,
        CatalogClient(local.url) as catalog,
        epochal.connect(local.url) as client,
    ):
        for time, dedicated in enumerate((False, True, False), 1):
            stream = await declare(catalog, "flights", publishers={"dedicated": dedicated}, **STORED)
            while ("demo.flights-0" in local.processes) != dedicated:  # noqa: ASYNC110 - it looks by itself
                await asyncio.sleep(0.02)
            await publish(client, stream, time)
        async with client.subscribe(stream, since="start") as sub:
            assert [(await anext(sub.epochs())).time for _ in range(3)] == [1, 2, 3]


@pytest.mark.rule("E12")
@pytest.mark.parametrize("spec", [{}, STORED], ids=["memory", "stored"])
async def test_a_stream_begins_elsewhere_only_once_it_cannot_live_where_it_was(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    """Its process hangs. With storage the lock of the log keeps two owners apart, without it only the process's end."""
    async with (
        asyncio.timeout(PATIENCE),
        LocalMode(tmp_path, settings=replace(ONE, stop_timeout=0.3)) as local,
        CatalogClient(local.url) as catalog,
        epochal.connect(local.url) as client,
    ):
        stream, other = await declare(catalog, "flights", **spec), await declare(catalog, "other")
        for name in ("flights", "other"):
            await incarnation(catalog, name)
        hangs = local.processes["shared-0"]
        os.kill(hangs, signal.SIGSTOP)
        try:
            await declare(catalog, "flights", publishers={"dedicated": True}, **spec)
            while "demo.flights-0" not in local.processes:  # noqa: ASYNC110 - it looks by itself
                await asyncio.sleep(0.02)
            assert (local.processes.get("shared-0") == hangs) == bool(spec)
        finally:
            with suppress(ProcessLookupError):
                os.kill(hangs, signal.SIGCONT)
        for name in (stream, other):
            await publish(client, name, 1)


@pytest.mark.rule("E12")
def test_a_publisher_that_waits_for_its_turn_to_stop_is_not_taken_for_one_that_hangs() -> None:
    class Process:
        killed = 0.0

        def __init__(self, until: float) -> None:
            self.until = until

        def serve(self, publisher: SharedPublisher) -> None:
            self.publisher = publisher

        release = serve

        def still_stops(self, seconds: float) -> bool:
            """One of its others stops every few seconds, `until` then."""
            return asyncio.get_running_loop().time() - seconds < self.until

        def kill(self) -> None:
            self.killed = asyncio.get_running_loop().time()
            self.publisher.gone()

    async def main() -> tuple[float, float]:
        process = Process(25.0)
        planned = PlannedPublisher("demo.x-0", "demo/x", "u", ("0",))
        publisher = SharedPublisher(process, planned, LocalSettings(stop_timeout=10.0))  # type: ignore[arg-type]  # as far as it is used
        publisher.start()
        await asyncio.sleep(0)
        await publisher.stop()
        return process.killed, asyncio.get_running_loop().time()

    assert run(main()) == (40.0, 40.0)
